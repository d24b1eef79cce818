"""One run at a time on one root."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from recsys.errors import RecsysError

LOCK_NAME = "run.lock"


@contextmanager
def run_lock(root: Path) -> Iterator[None]:
    """Holds the lock of `root`; the kernel frees it when the process ends, however.

    Args:
        root: Folder of everything that a run writes; made where there is none.

    Raises:
        RecsysError: Another run holds the lock, or the folder can't be written.
    """
    descriptor = _open(root)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise _running_already(root) from None
        owner = {"pid": os.getpid(), "host": socket.gethostname(), "started": time.time()}
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps(owner).encode(), 0)
        yield
    finally:
        os.close(descriptor)


def _open(root: Path) -> int:
    try:
        root.mkdir(parents=True, exist_ok=True)
        for folder in (root, root / "artifacts", root / "serving"):
            if folder.exists() and not os.access(folder, os.W_OK | os.X_OK):
                raise PermissionError(13, "Permission denied", str(folder))
        # Not inheritable: a stage that outlives its parent would hold the lock.
        return os.open(root / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise RecsysError(
            "R602",
            f"The folder {str(root)!r} must be writable, for everything that a run writes.",
            "Mend its permissions, or choose another folder with --set root=DIR.",
            error.strerror or str(error),
        ) from None


def _running_already(root: Path) -> RecsysError:
    try:
        owner = json.loads((root / LOCK_NAME).read_text())
        age = time.time() - owner["started"]
        who = f"process {owner['pid']} on {owner['host']}, for {age:.0f} s"
    except (OSError, ValueError, KeyError):
        who = "another process, just started"
    return RecsysError(
        "R601",
        f"Only one run at a time may use {str(root)!r}.",
        "Wait for it, end it, or choose another folder with --set root=DIR.",
        who,
    )
