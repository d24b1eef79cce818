"""Atomic writes: files and folders that exist whole or not at all, by one writer at a time."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from recsys.system.disk import naming
from recsys.system.files import remove


@contextmanager
def only_writer(folder: Path, unfinished: str) -> Iterator[None]:
    """Waits for other writers of a folder, and removes what killed ones left.

    The system frees the lock of a killed writer.

    Args:
        folder: The folder, made if missing.
        unfinished: Prefix of the names of unfinished files and folders.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("a+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for left in folder.glob(f"{unfinished}*"):
            remove(left)
        yield


def commit_folder(temporary: Path, final: Path) -> None:
    """Renames a complete folder to its name, after everything in it is on the disk."""
    for parent, _, names in os.walk(temporary, topdown=False):
        for name in names:
            sync_file(Path(parent) / name)
        sync_file(Path(parent))
    os.rename(temporary, final)
    sync_file(final.parent)


def commit_text(text: str, final: Path) -> None:
    """Writes a text file in one step, over an older one; it is on the disk on return."""
    with replacing(final) as temporary, temporary.open("x", encoding="utf-8") as file:
        file.write(text)  # "x": never through a link.


@contextmanager
def replacing(final: Path) -> Iterator[Path]:
    """Yields the path of a file to write; at the end it takes the place of `final`, as a whole."""
    temporary = final.with_name(f".{final.name}.{os.getpid()}")
    try:
        temporary.unlink(missing_ok=True)
        with naming(final):
            yield temporary
        commit_file(temporary, final)
    except BaseException:
        with suppress(OSError):  # A full disk gets its space back.
            temporary.unlink()
        raise


def commit_file(temporary: Path, final: Path) -> None:
    """Renames a complete file to its name beside it, over an older one, once it is on the disk."""
    sync_file(temporary)
    os.replace(temporary, final)
    sync_file(final.parent)


def sync_file(path: Path) -> None:
    """Returns when what this host wrote into a file, or the names in a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
