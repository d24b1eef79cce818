"""Kills a publisher, with no chance to tidy up, before each of its calls into the system.

`kills.py SCENARIO FOLDER` forks a process for each of them, and prints a line of JSON
of what the next reader found: the call, the versions that are there and which of them
are damaged, and what doing it again came to.
"""

import io
import itertools
import json
import os
import shutil
import signal
import sys
from pathlib import Path

from recsys.bundles import bundle as bundles
from recsys.bundles.publishing import latest, publish, rollback, versions
from recsys.errors import RecsysError

_SYSTEM = {"posix", "fcntl", "_io"}
# A kill before one of them leaves what a kill before the next other call leaves.
_LEAVE_FILES = {"stat", "lstat", "fstat", "fspath", "listdir", "scandir", "listxattr", "read",
                "fileno", "dup", "cpu_count", "fsync"}  # fmt: skip


def make_bundle(folder, content):
    (folder / "variables").mkdir(parents=True)
    (folder / "saved_model.pb").write_text("graph")
    (folder / "variables" / "data").write_text(content)
    bundles.write_manifest(folder, {})
    return folder


class Scenario:
    """Folders to start from, and what is done and killed."""

    def __init__(self, name, folder):
        self.name, self.folder, self.start = name, folder, folder / "start"
        for n in range(1, 5):
            made = make_bundle(folder / f"b{n}", str(n))
            if n < 4:
                publish(made, self.start, keep=3)
        if name == "restore":
            rollback(self.start)
        if name == "publish-after-rollback":
            rollback(self.start, 1)

    def act(self, root):
        bundle = self.folder / "b4"
        if self.name == "rollback":
            return rollback(root, 1).served
        if self.name == "restore":
            return rollback(root, 3).served
        return publish(bundle, root, keep=1 if self.name == "publish-after-rollback" else 2)


def may_change_files(function):
    """Returns whether a call goes into the system and is none that leaves files as they are."""
    owner = getattr(function, "__self__", None)
    is_system = function.__module__ in _SYSTEM or isinstance(owner, io.IOBase)
    return is_system and function.__name__ not in _LEAVE_FILES


def kill_at(n, act):
    """Forks a process that dies before its n-th call; returns whether it did."""
    child = os.fork()
    if child == 0:
        left = n

        def hook(frame, event, function):
            nonlocal left
            if event == "c_call" and may_change_files(function):
                left -= 1
                if left == 0:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.setprofile(hook)
        act()
        sys.setprofile(None)
        os._exit(0)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


def is_whole(path):
    try:
        bundles.verify(path)
    except RecsysError:
        return False
    return True


def killed_roots(scenario, folder):
    """Yields the root after a kill before the first call, the second, …, and the n of each."""
    for n in itertools.count(1):
        root = shutil.copytree(scenario.start, folder / "killed")
        if not kill_at(n, lambda root=root: scenario.act(root)):
            return
        yield n, root
        shutil.rmtree(root)


def main(name, folder):
    scenario = Scenario(name, folder)
    for n, root in killed_roots(scenario, folder):
        found = {
            "call": n,
            "versions": [int(path.name) for path in versions(root)],
            "damaged": [path.name for path in versions(root) if not is_whole(path)],
        }
        scenario.act(root)
        found["after"] = [int(path.name) for path in versions(root)]
        found["content"] = (latest(root) / "variables" / "data").read_text()
        found["debris"] = [path.name for path in root.glob(".publish-*")]
        found["next"] = int(publish(make_bundle(root / "new", "new"), root, keep=9).name)
        sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
