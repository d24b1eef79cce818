"""Content cache: folders that are reused between runs, named by a hash of their inputs.

A folder is written under a hidden name, synced to disk and renamed when it is complete. It is
reused only if all its files match their checksums. Files are hard-linked into artifacts, so
that the runs of many days share disk space.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import re
import shutil
import time
import uuid
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from recsys.system.files import commit_folder, folders_in, remove
from recsys.system.manifest import (
    checksums,
    file_names,
    verify_folder,
    write_manifest,
)

UNUSED_FOR_S = 7 * 86_400
"""Default time after which an unused folder is removed [s]."""

_MANIFEST, _FACTS = "manifest.json", "facts.json"
_DAMAGED = ".damaged-"
_BEGUN = re.compile(r"\..+-[0-9a-f]{32}")
"""Folder names from `ContentCache.begin`."""


@dataclasses.dataclass(frozen=True)
class CachedFolder:
    """A complete cached folder.

    Attributes:
        path: The folder.
        facts: Metadata of its writer, plain JSON.
    """

    path: Path
    facts: dict[str, Any]


class ContentCache:
    """The cached folders under a root.

    Args:
        root: Folder of the cache, created if missing.
        is_temporary: Whether it is removed with the run, so that checksums and syncing aren't
            needed.
    """

    def __init__(self, root: Path, is_temporary: bool = False) -> None:
        self.root, self._is_temporary = root, is_temporary
        self.damaged: list[str] = []
        """Names of damaged folders, which were renamed."""
        root.mkdir(parents=True, exist_ok=True)

    def find(self, name: str) -> CachedFolder | None:
        """Returns a cached folder; None if it is missing or a checksum differs.

        A damaged folder is renamed to a hidden name.
        """
        path = self.root / name
        if self._is_temporary or not path.is_dir():
            return None
        try:
            verify_folder(path / _MANIFEST)
            facts = json.loads((path / _FACTS).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            path.rename(self.root / f"{_DAMAGED}{name}-{uuid.uuid4().hex[:8]}")
            self.damaged.append(name)
            return None
        os.utime(path)  # `sweep` reads the time of the last use.
        return CachedFolder(path, facts)

    def begin(self, name: str) -> Path:
        """Returns a new hidden folder to write `name` into."""
        path = self.root / f".{name}-{uuid.uuid4().hex}"
        path.mkdir()
        return path

    def commit(self, temporary: Path, name: str, facts: dict[str, Any]) -> CachedFolder:
        """Moves a folder of `begin` to its final name, atomically and synced to disk."""
        final = self.root / name
        if self._is_temporary:
            return CachedFolder(temporary.rename(final), facts)
        (temporary / _FACTS).write_text(json.dumps(facts), encoding="utf-8")
        write_manifest(temporary / _MANIFEST, {}, checksums(temporary, file_names(temporary)))
        shutil.rmtree(final, ignore_errors=True)
        commit_folder(temporary, final)
        return CachedFolder(final, facts)

    def remove_unfinished(self) -> None:
        """Removes partial folders of killed writers."""
        for path in folders_in(self.root):
            if _BEGUN.fullmatch(path.name):
                with suppress(OSError):
                    remove(path)


def sweep(
    root: Path, keep: Iterable[str], *, unused_for_s: float = UNUSED_FOR_S, dry_run: bool = False
) -> dict[str, int]:
    """Removes unused cached folders; artifacts that link to their files stay intact.

    Args:
        root: Root of the cache; it may be missing.
        keep: Names of folders in use, as `segments_in_use` returns them.
        unused_for_s: Minimum time without use for removal [s].
        dry_run: Whether to only report the folders to remove.

    Returns:
        The size [bytes] of each removed folder by name.
    """
    used, oldest = set(keep), time.time() - unused_for_s
    removed: dict[str, int] = {}
    for path in folders_in(root):
        if path.name in used or path.stat().st_mtime > oldest:
            continue
        removed[path.name] = sum(f.stat().st_size for f in path.rglob("*") if f.is_file())
        if not dry_run:
            remove(path)
    return removed


def link(source: Path, target: Path) -> None:
    """Links a cached file into an artifact; copies it if hard links aren't possible."""
    target.parent.mkdir(parents=True, exist_ok=True)
    target.unlink(missing_ok=True)  # Never write through a hard link of an earlier attempt.
    try:
        os.link(source, target)
    except FileNotFoundError:
        raise
    except OSError:
        # Another device, or a file system without hard links.
        shutil.copyfile(source, target)


def key_of(*parts: object) -> str:
    """Returns a hash of parts, which are plain JSON."""
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:40]
