"""Headless Chromium, driven by its own protocol over two pipes: nothing to install."""

import base64
import contextlib
import json
import os
import shutil
import subprocess
import tempfile
import time

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
_KEYS = {"ArrowDown": 40, "ArrowUp": 38, "Enter": 13, "Escape": 27, "Tab": 9}


class Browser:
    """One page."""

    def __init__(self):
        self._folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        to_browser, self._to = os.pipe()
        self._from, from_browser = os.pipe()
        command = [
            CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
            "--remote-debugging-pipe", "--no-first-run", f"--user-data-dir={self._folder.name}",
            "about:blank",
        ]  # fmt: skip
        # The protocol reads descriptor 3 and writes 4.
        self._process = subprocess.Popen(
            ["bash", "-c", f'exec "$@" 3<&{to_browser} 4>&{from_browser}', "bash", *command],
            pass_fds=(to_browser, from_browser),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_browser)
        os.close(from_browser)
        self._number, self._read, self.said = 0, b"", []
        self._session = None
        [page] = [one for one in self._targets() if one["type"] == "page"]
        attach = {"targetId": page["targetId"], "flatten": True}
        self._session = self.call("Target.attachToTarget", **attach)["sessionId"]
        for part in ("Page", "Runtime", "Log"):
            self.call(f"{part}.enable")

    def _targets(self):
        for _ in range(200):
            targets = self.call("Target.getTargets")["targetInfos"]
            if any(one["type"] == "page" for one in targets):
                return targets
            time.sleep(0.1)
        raise AssertionError("Chromium has no page.")

    def call(self, method, **parameters):
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return answer["result"]
            if answer.get("method") in ("Runtime.exceptionThrown", "Log.entryAdded"):
                self.said.append(json.dumps(answer["params"]))

    def _next(self):
        while b"\0" not in self._read:
            part = os.read(self._from, 65536)
            assert part, "Chromium ended."
            self._read += part
        message, _, self._read = self._read.partition(b"\0")
        return json.loads(message)

    def run(self, script):
        """Returns what an expression gives in the page."""
        answer = self.call(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def open(self, url):
        self.call("Page.navigate", url=url)
        self.wait_for("document.readyState === 'complete'")

    def wait_for(self, script, seconds=30):
        end = time.monotonic() + seconds
        # The elements that a script uses may not exist yet.
        while not self.run(f"(() => {{ try {{ return {script} }} catch {{ return false }} }})()"):
            assert time.monotonic() < end, (script, self.said, self.text("body"))
            time.sleep(0.05)

    def text(self, selector):
        return self.run(f"document.querySelector({json.dumps(selector)})?.innerText")

    def texts(self, selector):
        every = f"[...document.querySelectorAll({json.dumps(selector)})]"
        return self.run(f"{every}.filter(e => e.offsetParent).map(e => e.innerText)")

    def type(self, text):
        self.call("Input.insertText", text=text)

    def press(self, key):
        code = {"key": key, "code": key, "windowsVirtualKeyCode": _KEYS[key]}
        more = {"text": "\r"} if key == "Enter" else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", **code, **more)
        self.call("Input.dispatchKeyEvent", type="keyUp", **code)

    def focused(self):
        return self.run(
            "document.activeElement.id || document.activeElement.getAttribute('aria-label')"
        )

    def size(self, width, height, scheme="light"):
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=width < 600,
        )  # fmt: skip
        feature = {"name": "prefers-color-scheme", "value": scheme}
        self.call("Emulation.setEmulatedMedia", features=[feature])

    def picture(self, path):
        found = self.call("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(found["data"]))

    def close(self):
        with contextlib.suppress(OSError):
            os.close(self._to)
            os.close(self._from)
        self._process.terminate()
        self._process.wait(20)
        self._folder.cleanup()
