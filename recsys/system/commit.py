"""Atomic writes of files and folders, by one writer at a time."""

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
    """Waits for other writers of a folder, and removes unfinished files of killed writers.

    The system frees the lock of a killed writer.

    Args:
        folder: The folder, created if missing.
        unfinished: Prefix of the names of unfinished files and folders.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("a+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for left in folder.glob(f"{unfinished}*"):
            remove(left)
        yield


def commit_folder(temporary: Path, final: Path) -> None:
    """Syncs a complete folder to the disk and renames it to its final name."""
    for parent, _, names in os.walk(temporary, topdown=False):
        for name in names:
            sync_file(Path(parent) / name)
        sync_file(Path(parent))
    os.rename(temporary, final)
    sync_file(final.parent)


def commit_text(text: str, final: Path) -> None:
    """Writes a text file atomically and syncs it to the disk."""
    with replacing(final) as temporary, temporary.open("x", encoding="utf-8") as file:
        file.write(text)  # "x": never through a link.


@contextmanager
def replacing(final: Path) -> Iterator[Path]:
    """Yields the path of a file to write, which replaces `final` atomically at the end."""
    temporary = final.with_name(f".{final.name}.{os.getpid()}")
    try:
        temporary.unlink(missing_ok=True)
        with naming(final):
            yield temporary
        commit_file(temporary, final)
    except BaseException:
        with suppress(OSError):  # Free the space, since the disk may be full.
            temporary.unlink()
        raise


def commit_file(temporary: Path, final: Path) -> None:
    """Syncs a complete file to the disk and renames it to its final name in the same folder."""
    sync_file(temporary)
    os.replace(temporary, final)
    sync_file(final.parent)


def sync_file(path: Path) -> None:
    """Syncs the content of a file, or the names in a folder, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
