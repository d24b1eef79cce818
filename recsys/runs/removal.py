"""Removes the files of a plan, so that a kill at any moment leaves no partial folder.

Each thing is first renamed into a hidden folder; the next cleaning removes leftovers
there.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from recsys.system.held_folder import HeldFolder
from recsys.runs.cleaning_plan import GONE
from recsys.runs.cleaning_plan import Thing


def remove(
    root: Path, things: Iterable[Thing], tell: Callable[[Thing], None] | None = None
) -> tuple[list[Thing], list[tuple[Thing, str]]]:
    """Removes things below `root`, and nothing that a link below it leads to.

    Args:
        root: Folder of everything that the runs write; links that lead to it are followed.
        things: The things to remove.
        tell: Called with each removed thing.

    Returns:
        What was removed, and what could not be, with the reason.
    """
    gone, failed = [], []
    with HeldFolder(root) as held:
        for thing in things:
            try:
                _remove(held, thing)
            except OSError as error:
                failed.append((thing, error.strerror or str(error)))
                continue
            gone.append(thing)
            if tell is not None:
                tell(thing)
    return gone, failed


def _remove(root: HeldFolder, thing: Thing) -> None:
    if thing.kind == "rest":
        root.remove(thing.path)
        return
    if root.is_link(thing.path):
        raise OSError(errno.EPERM, "it is a link, and what it leads to is left alone")
    with _not_in_use(root, thing):
        root.remove(_hide(root, thing.path))


def _hide(root: HeldFolder, path: Path) -> Path:
    """Renames a path into the folder of what is being removed, if that is on the same disk."""
    hidden = root.make(GONE) / "--".join(root.parts(path))
    try:
        root.remove(hidden)
        root.rename(path, hidden)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        return path
    return hidden


@contextmanager
def _not_in_use(root: HeldFolder, thing: Thing) -> Iterator[None]:
    """Refuses checkpoints that a training writes: it holds the lock in their folder."""
    lock = _open_lock(root, thing.path) if thing.kind == "checkpoints" else None
    if lock is None:
        yield
        return
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise OSError(errno.EBUSY, "a training is writing it") from None
    finally:
        os.close(lock)


def _open_lock(root: HeldFolder, folder: Path) -> int | None:
    with root.opened(folder) as descriptor:
        try:
            return os.open("lock", os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=descriptor)
        except FileNotFoundError:
            return None
