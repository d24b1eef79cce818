"""Temporary folders that don't outlive their program, even where it is killed.

The system's folder for such things keeps what a killed program left. Here each folder
is held by a lock that the kernel frees with the process; who makes the next one removes
those that nobody holds.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

PREFIX = "recsys-run-"


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """Makes a temporary folder and removes it; first removes those of killed programs."""
    parent = Path(tempfile.gettempdir())
    sweep(parent)
    name = f"{PREFIX}{uuid.uuid4().hex[:12]}"
    # It has its name once it is held: nobody sees it before and takes it for a dead one's.
    hidden = parent / f".{name}"
    hidden.mkdir(mode=0o700)
    held = os.open(hidden, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    folder = parent / name
    try:
        with suppress(OSError):  # Without locks there it is kept, as others are.
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            hidden.rename(folder)
        yield folder if folder.exists() else hidden
    finally:
        os.close(held)
        for path in (folder, hidden):
            shutil.rmtree(path, ignore_errors=True)


@contextmanager
def temporary_files_in(folder: Path) -> Iterator[None]:
    """Has this process and those that it starts put their temporary files into `folder`."""
    before = os.environ.get("TMPDIR"), tempfile.tempdir
    os.environ["TMPDIR"] = tempfile.tempdir = str(folder)
    try:
        yield
    finally:
        tempfile.tempdir = before[1]
        if before[0] is None:
            os.environ.pop("TMPDIR", None)
        else:
            os.environ["TMPDIR"] = before[0]


def sweep(parent: Path) -> list[Path]:
    """Removes the temporary folders under `parent` that no living program holds.

    Returns:
        What was removed.
    """
    swept = []
    for path in parent.glob(f"{PREFIX}*"):
        with suppress(OSError):
            # Another user's are left alone, and a link is followed nowhere.
            held = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                if os.fstat(held).st_uid != os.getuid():
                    continue
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path, ignore_errors=True)
                swept.append(path)
            finally:
                os.close(held)
    return swept
