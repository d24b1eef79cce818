"""Free disk space, and the errors of full disks and of files that can't be read or written."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from recsys.errors import RecsysError

_FULL_BYTES = 1 << 20
"""Below this, a failure without a reason is taken as a full disk: SQLite rolls back, ML Metadata
then reports a missing transaction, and a process may be unable to report its error."""


def free_bytes(path: str | os.PathLike[str] | None) -> int | None:
    """Returns the free bytes on the disk of `path`; None if unknown.

    Args:
        path: A file or folder, which need not exist, or None.
    """
    if path is None:
        return None
    place = Path(path).absolute()
    for folder in (place, *place.parents):
        try:
            return shutil.disk_usage(folder).free
        except FileNotFoundError:
            continue
        except OSError:
            return None
    return None


def free_there(path: str | os.PathLike[str] | None) -> str:
    """Returns the free space on the disk of `path` as the end of a sentence; empty if unknown."""
    free = free_bytes(path)
    return "" if free is None else f"; {free:,} bytes are free there"


@contextmanager
def naming(path: str | os.PathLike[str]) -> Iterator[None]:
    """Adds a file name to the block's errors; the system doesn't name open files.

    Args:
        path: The file that is written.
    """
    try:
        yield
    except OSError as error:
        if error.errno is None or error.filename is not None:
            raise
        raise OSError(error.errno, error.strerror, os.fspath(path)) from None


def storage_error(error: OSError, place: str | os.PathLike[str] | None = None) -> RecsysError:
    """Returns the error of a file that couldn't be read or written.

    Args:
        error: The system's error.
        place: Folder of the work, for an error that names no file.
    """
    path = place if error.filename is None else os.fsdecode(error.filename)
    what = "its files" if path is None else repr(str(path))
    rule = f"The program must be able to read and write {what}{free_there(path)}."
    cure = (
        "Free disk space or change the permissions, and run again; the served model did not change."
    )
    return RecsysError("R603", rule, cure, error.strerror or str(error))


def full_disk_error(*places: str | os.PathLike[str]) -> RecsysError | None:
    """Returns the error of the first folder on a full disk, for failures without a reason."""
    for place in places:
        free = free_bytes(place)
        if free is not None and free < _FULL_BYTES:
            return storage_error(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(place)))
    return None
