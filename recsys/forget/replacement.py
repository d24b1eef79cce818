"""Changes a folder as a whole: a copy takes its place, in two renames.

Files of the copy are hard links, so a large folder costs no space; a file that changes is
unlinked first. A kill between the renames leaves both folders under hidden names, which
`recover` settles.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from recsys.system.commit import commit_folder
from recsys.system.held_folder import HeldFolder

_NEW, _OLD = ".forget-new-", ".forget-old-"


@contextmanager
def linked_copy(folder: Path) -> Iterator[Path]:
    """Yields a copy of `folder` beside it, made of hard links, and removes it at the end."""
    copy = folder.with_name(f"{_NEW}{folder.name}")
    with HeldFolder(folder.parent) as parent:
        parent.remove(copy)
        try:
            shutil.copytree(folder, copy, symlinks=True, copy_function=_link)
            yield copy
        finally:
            parent.remove(copy)


@contextmanager
def replacing(folder: Path) -> Iterator[Path]:
    """Yields a copy of `folder` to change; at the end it takes the place of `folder`.

    Args:
        folder: The folder. Nothing in it changes before the end, and nothing if the block raises.
    """
    old = folder.with_name(f"{_OLD}{folder.name}")
    with linked_copy(folder) as copy, HeldFolder(folder.parent) as parent:
        yield copy
        parent.rename(folder, old)
        commit_folder(copy, folder)
        parent.remove(old)


def fresh(path: Path) -> Path:
    """Returns the path of a file of the copy, unlinked, so that it can be written anew."""
    path.unlink(missing_ok=True)
    return path


def recover(parent: Path) -> None:
    """Completes or undoes what a killed call of `replacing` left in a folder."""
    with HeldFolder(parent) as held:
        for old in sorted(parent.glob(f"{_OLD}*")):
            name = old.name.removeprefix(_OLD)
            new, folder = parent / f"{_NEW}{name}", parent / name
            if not folder.exists():
                held.rename(new if new.exists() else old, folder)
            held.remove(old)
        for new in sorted(parent.glob(f"{_NEW}*")):
            held.remove(new)


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # A file system without links.
        shutil.copy2(source, target)
