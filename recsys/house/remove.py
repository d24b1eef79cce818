"""Removes what a plan says, so that a kill at any moment leaves nothing half there.

Each thing is renamed out of sight first; what is in the folder of such things is debris
that the next cleaning removes.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from recsys.house.files import GONE
from recsys.house.plan import Thing, is_below


def remove(
    root: Path, things: Iterable[Thing], tell: Callable[[Thing], None] | None = None
) -> tuple[list[Thing], list[tuple[Thing, str]]]:
    """Removes things below `root`.

    Args:
        root: Folder of everything that the runs write.
        things: What goes.
        tell: Is told of each thing that is gone.

    Returns:
        What was removed, and what could not be, with the reason.
    """
    gone, failed = [], []
    for thing in things:
        try:
            _remove(root, thing)
        except OSError as error:
            failed.append((thing, error.strerror or str(error)))
            continue
        gone.append(thing)
        if tell is not None:
            tell(thing)
    return gone, failed


def _remove(root: Path, thing: Thing) -> None:
    path = thing.path
    if not is_below(path, root) or path.is_symlink():
        raise OSError(errno.EPERM, "it lies outside of the root")
    with _not_in_use(thing):
        hidden = path if thing.kind == "rest" else _hide(root, path)
        if hidden.is_dir():
            shutil.rmtree(hidden)
        else:
            hidden.unlink(missing_ok=True)


def _hide(root: Path, path: Path) -> Path:
    """Renames a path into the folder of what is being removed, if that is on the same disk."""
    folder = root / GONE
    folder.mkdir(exist_ok=True)
    hidden = folder / path.resolve().relative_to(root.resolve()).as_posix().replace("/", "--")
    try:
        if hidden.is_dir():
            shutil.rmtree(hidden)
        os.rename(path, hidden)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        return path
    return hidden


@contextmanager
def _not_in_use(thing: Thing) -> Iterator[None]:
    """Refuses checkpoints that a training writes: it holds the lock in their folder."""
    lock = thing.path / "lock"
    if thing.kind != "checkpoints" or not lock.is_file():
        yield
        return
    with lock.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise OSError(errno.EBUSY, "a training is writing it") from None
        yield
