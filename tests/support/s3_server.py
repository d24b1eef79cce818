"""Object stores on loopback: moto's S3, Google's API before it, and a proxy with faults."""

from __future__ import annotations

import contextlib
import http.client
import http.server
import subprocess
import sys
import threading
import time
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from places import SUPPORT

SECRET = "planted-0d1cc6b1-secret"  # noqa: S105


@contextlib.contextmanager
def running(*words: str) -> Iterator[str]:
    """Yields the address of a server in Python, which it writes to stderr."""
    server = subprocess.Popen(
        [sys.executable, "-W", "ignore", *words],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        for line in server.stderr or ():
            if "Running on " in line:
                break
        threading.Thread(target=lambda: list(server.stderr or ()), daemon=True).start()
        yield line.split()[-1]
    finally:
        server.kill()
        server.communicate()


def _make_bucket(address: str, **headers: str) -> str:
    name = f"b{uuid.uuid4().hex[:12]}"
    made = urllib.request.Request(f"{address}/{name}", method="PUT", headers=headers)  # noqa: S310
    urllib.request.urlopen(made).close()  # noqa: S310
    return name


@pytest.fixture(scope="session")
def s3_address() -> Iterator[str]:
    """Address of a moto server."""
    with running("-c", "from moto.server import main; main()", "-p0") as address:
        yield address


@pytest.fixture
def s3(s3_address: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """URL of an empty bucket, with credentials in the environment."""
    environment = {
        "AWS_ENDPOINT_URL": s3_address,
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_REGION": "us-east-1",
    }
    for variable, value in environment.items():
        monkeypatch.setenv(variable, value)
    return f"s3://{_make_bucket(s3_address)}"


@pytest.fixture
def gs(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """URL of an empty bucket of `gcs_server`, with credentials in the environment."""
    with running(str(SUPPORT / "gcs_server.py")) as address:
        monkeypatch.setenv("GOOGLE_BASE_URL", address)
        monkeypatch.setenv("GOOGLE_BEARER_TOKEN", SECRET)
        yield f"gs://{_make_bucket(address, Authorization=f'Bearer {SECRET}')}"


Handler = http.server.BaseHTTPRequestHandler
Fault = Callable[[Handler, bytes], bytes | None]
"""Returns the body to send in place of the answer's; None: nothing more."""


@contextlib.contextmanager
def proxied(address: str, fault: Fault) -> Iterator[str]:
    """Yields the address of a proxy before a server."""

    class Proxy(Handler):
        protocol_version = "HTTP/1.1"

        def handle_any(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            server = http.client.HTTPConnection(address.removeprefix("http://"))
            server.request(self.command, self.path, body, dict(self.headers))
            answer = server.getresponse()
            content = answer.read()
            with contextlib.suppress(OSError):
                if (content := fault(self, content)) is None:
                    self.close_connection = True
                    return
                self.send_response(answer.status)
                for name, value in answer.getheaders():
                    if name.lower() not in ("connection", "date", "server"):
                        self.send_header(name, value)
                self.end_headers()
                self.wfile.write(content)
                self.close_connection = True

        do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = handle_any

        def log_message(self, *_: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Proxy)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def unavailable(handler: Handler, content: bytes) -> None:
    """Answers with 503."""
    handler.send_error(503)


def dropped(handler: Handler, content: bytes) -> None:
    """Closes the connection without an answer; the server has handled the request."""


def truncated(handler: Handler, content: bytes) -> bytes:
    """Sends half of a large body."""
    return content[: len(content) // 2] if len(content) > 1000 else content


def slow(handler: Handler, content: bytes) -> bytes:
    """Waits for a second."""
    time.sleep(1)
    return content
