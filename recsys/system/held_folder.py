"""Removes and renames below a folder without following links inside it.

A path is resolved each time that it is used: between a check and a removal a folder
on the way can become a link to somewhere else. Here every folder on the way is opened by
the descriptor of the one above it, and none may be a link (`openat` with `O_NOFOLLOW`,
and `shutil.rmtree` with `dir_fd`, see its `avoids_symlink_attacks`).
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

_WRITER = ".lock"
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


class HeldFolder:
    """A folder held open by its descriptor, independent of later changes of its path.

    Links in that path are followed once, when it is opened.

    Args:
        path: The folder.

    Raises:
        OSError: There is no such folder.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor = os.open(path, _FOLDER)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        os.close(self._descriptor)

    @classmethod
    @contextmanager
    def for_writer(cls, path: Path, unfinished: str) -> Iterator[Self]:
        """Yields a folder, made if missing, to its only writer.

        Others wait, and what killed ones left is removed. The system frees the lock of a
        killed writer.

        Args:
            path: The folder.
            unfinished: Start of the names of what a writer is at; after a kill it is debris.

        Raises:
            OSError: The folder can't be made, locked or swept.
        """
        path.mkdir(parents=True, exist_ok=True)
        with cls(path) as held, held.locked(path, _WRITER):
            for left in path.glob(f"{unfinished}*"):
                held.remove(left)
            yield held

    @contextmanager
    def opened(self, path: Path) -> Iterator[int]:
        """Yields the descriptor of a folder below this one, or of this one itself.

        Raises:
            OSError: It lies elsewhere, there is none, or a link is on the way to it.
        """
        descriptor = os.dup(self._descriptor)
        try:
            for part in self.parts(path):
                above = descriptor
                descriptor = _open_in(above, part, path)
                os.close(above)
            yield descriptor
        finally:
            os.close(descriptor)

    @contextmanager
    def locked(self, folder: Path, name: str, flags: int = fcntl.LOCK_EX) -> Iterator[None]:
        """Holds the lock of a file in a folder below this one; a killed holder frees it.

        Raises:
            BlockingIOError: Another process holds it, with `LOCK_NB` among the flags.
            OSError: The file can't be opened, or is a link.
        """
        with self.opened(folder) as descriptor:
            mode = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            lock = os.open(name, mode, 0o666, dir_fd=descriptor)
        try:
            fcntl.flock(lock, flags)
            yield
        finally:
            os.close(lock)

    def is_link(self, path: Path) -> bool:
        """Returns whether a path below the folder is a link itself; False if nothing is there."""
        try:
            with self.opened(path.parent) as folder:
                return stat.S_ISLNK(_mode(path.name, folder))
        except FileNotFoundError:
            return False

    def remove(self, path: Path) -> None:
        """Removes a file, a link itself, or a folder with all that is in it; if it is there.

        Raises:
            OSError: It lies elsewhere, a link is on the way to it, or it can't be removed.
        """
        try:
            with self.opened(path.parent) as folder:
                if stat.S_ISDIR(_mode(path.name, folder)):
                    shutil.rmtree(path.name, dir_fd=folder)
                else:
                    os.unlink(path.name, dir_fd=folder)
        except FileNotFoundError:
            return

    def retire(self, path: Path, hidden: Path) -> None:
        """Renames a folder and removes it, so that it is never seen in part.

        Raises:
            OSError: As of `rename` and `remove`.
        """
        self.rename(path, hidden)
        self.remove(hidden)

    def rename(self, path: Path, to: Path) -> None:
        """Renames a file, a folder, or a link itself; both names lie below the folder.

        Raises:
            OSError: One lies elsewhere, a link is on the way to it, or it can't be renamed.
        """
        with self.opened(path.parent) as folder, self.opened(to.parent) as new:
            os.rename(path.name, to.name, src_dir_fd=folder, dst_dir_fd=new)

    def make(self, name: str) -> Path:
        """Makes a folder right below this one unless it is there, and returns its path.

        Raises:
            OSError: A link or a file has the name.
        """
        path = self.path / name
        try:
            os.mkdir(name, dir_fd=self._descriptor)
        except FileExistsError:
            with self.opened(path):
                pass
        return path

    def parts(self, path: Path) -> tuple[str, ...]:
        """Returns the names on the way from the folder to a path, however that is spelled.

        Raises:
            OSError: It lies elsewhere.
        """
        parts = self._spelled_below(path)
        if parts is None or ".." in parts:
            raise OSError(errno.EPERM, "it lies outside of the root", str(path))
        return parts

    def _spelled_below(self, path: Path) -> tuple[str, ...] | None:
        if path.is_relative_to(self.path):
            return path.relative_to(self.path).parts
        held = os.fstat(self._descriptor)
        for folder in (*reversed(path.parents), path):
            if os.path.lexists(folder) and os.path.samestat(folder.stat(), held):
                return path.relative_to(folder).parts
        return None


def link_on_the_way(root: Path, path: Path) -> Path | None:
    """Returns the first link on the way from a folder to a path below it, that included.

    What is found may have changed a moment later: `HeldFolder` looks again as it goes.
    """
    ways = [path, *path.parents]
    below = ways[: ways.index(root)] if root in ways else []
    return next((way for way in reversed(below) if way.is_symlink()), None)


def _open_in(folder: int, name: str, path: Path) -> int:
    try:
        return os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=folder)
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENOTDIR):
            raise
        is_link = stat.S_ISLNK(_mode(name, folder))
        why = "a link, and what it leads to is left alone" if is_link else "no folder"
        raise OSError(error.errno, f"{name!r} is {why}", str(path)) from None


def _mode(name: str, folder: int) -> int:
    return os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
