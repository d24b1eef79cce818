"""The files of checkpoints: whole or not there, and damage is seen.

A folder of checkpoints holds `120/`, the checkpoint of step 120, and so on. A
checkpoint is written as `120.writing`, sealed with a manifest of its files, and
renamed; one that goes is renamed to `120.old` first. So what has a plain number is
whole, however its writer ended, and the rest is debris. A checkpoint that was found
damaged is set aside as `120.damaged`, for whoever wants to know.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
import zlib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from recsys.commit import commit_folder, commit_text
from recsys.training.checkpoint_arrays import Form

FORMAT = "1"
MANIFEST = "checkpoint.json"
_DEBRIS = re.compile(r"\d+\.(writing.*|old)")
_BLOCK_BYTES = 2**22


class DamageError(Exception):
    """A checkpoint isn't as it was written; the text says what is wrong."""


@dataclasses.dataclass(frozen=True)
class Contents:
    """What a checkpoint holds beside the numbers of its arrays.

    Attributes:
        step: Steps that were done.
        identity: What the checkpoint belongs to: a fingerprint of each part.
        state: What the run needs to go on, JSON.
        forms: Shape, type and rows of each variable, by its path.
    """

    step: int
    identity: Mapping[str, str]
    state: Mapping[str, Any]
    forms: Mapping[str, Form]

    def to_json(self) -> dict[str, Any]:
        """Returns the contents as JSON; not JSON is a `TypeError`."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        copied: dict[str, Any] = json.loads(json.dumps(fields))
        return copied

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Contents:
        """Returns the contents that `to_json` described."""
        forms = {path: Form.from_json(form) for path, form in fields["forms"].items()}
        return cls(fields["step"], fields["identity"], fields["state"], forms)


def folder_of(root: Path, step: int) -> Path:
    """Returns the folder of the whole checkpoint of `step`."""
    return root / str(step)


def writing_folder(root: Path, step: int) -> Path:
    """Returns the folder in which the checkpoint of `step` is made."""
    return root / f"{step}.writing"


def steps_in(root: Path) -> list[int]:
    """Returns the steps of the checkpoints under `root`, newest first."""
    if not root.is_dir():
        return []
    names = [path.name for path in root.iterdir() if path.is_dir()]
    return sorted((int(name) for name in names if name.isdecimal()), reverse=True)


def seal(root: Path, contents: Mapping[str, Any]) -> None:
    """Makes the written files of a checkpoint a whole one.

    Args:
        root: Folder of the checkpoints.
        contents: What `Contents.to_json` returned.
    """
    writing = writing_folder(root, contents["step"])
    files = {name: _summary(writing / name) for name in _names(writing)}
    commit_text(_encoded({**contents, "files": files}), writing / MANIFEST)
    commit_folder(writing, folder_of(root, contents["step"]))


def contents_in(folder: Path) -> Contents:
    """Returns what a checkpoint says that it holds.

    Raises:
        DamageError: Its manifest isn't as it was written.
    """
    return Contents.from_json(_manifest(folder))


def check_files(folder: Path) -> None:
    """Reads every byte of a checkpoint.

    Raises:
        DamageError: A file is missing, or isn't as it was written.
    """
    files = _manifest(folder)["files"]
    with ThreadPoolExecutor() as readers:
        found = readers.map(lambda name: _readable_summary(folder, name), files)
        for name, now in zip(files, found, strict=True):
            if now != files[name]:
                raise DamageError(_difference(name, files[name], now))


def set_aside(root: Path, step: int) -> None:
    """Renames a damaged checkpoint, so that it is no checkpoint any more."""
    aside = root / f"{step}.damaged"
    shutil.rmtree(aside, ignore_errors=True)
    folder_of(root, step).rename(aside)


def prune(root: Path, newest: int, keep: int) -> None:
    """Deletes all but the last `keep` checkpoints up to step `newest`.

    Later ones go too: a run that saved `newest` now was set back before them.
    """
    steps = steps_in(root)
    kept = [step for step in steps if step <= newest][:keep]
    for step in set(steps) - set(kept):
        old = root / f"{step}.old"
        shutil.rmtree(old, ignore_errors=True)
        folder_of(root, step).rename(old)
        shutil.rmtree(old)


def sweep(root: Path) -> None:
    """Deletes what writers left that were stopped; what can't be deleted harms nobody."""
    if not root.is_dir():
        return
    for path in root.iterdir():
        if _DEBRIS.fullmatch(path.name):
            shutil.rmtree(path, ignore_errors=True)


def _names(folder: Path) -> list[str]:
    """Returns the files under `folder`, relative to it."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return sorted(path.relative_to(folder).as_posix() for path in files)


def _readable_summary(folder: Path, name: str) -> list[int]:
    try:
        return _summary(folder / name)
    except OSError as error:
        raise DamageError(f"{name} can't be read: {error.strerror}") from None


def _summary(path: Path) -> list[int]:
    """Returns size and CRC-32 of a file; no size is -1, for a file that isn't there.

    A CRC guards against accidents, not against forgers, and finds every burst of up to
    32 bits; zlib's reads 3 GB/s on a core, where SHA-256 reads 0.4 to 1.8.
    """
    if not path.is_file():
        return [-1, 0]
    crc = 0
    with path.open("rb") as file:
        while block := file.read(_BLOCK_BYTES):
            crc = zlib.crc32(block, crc)
        return [os.fstat(file.fileno()).st_size, crc]


def _difference(name: str, then: list[int], now: list[int]) -> str:
    if now[0] < 0:
        return f"{name} is missing"
    if now[0] != then[0]:
        return f"{name} has {now[0]:,} bytes, written were {then[0]:,}"
    return f"{name} has other bytes than were written"


def _encoded(manifest: Mapping[str, Any]) -> str:
    """Returns the text of a manifest, which holds its own checksum."""
    text = json.dumps(manifest, sort_keys=True)
    return f'{{"crc32": {zlib.crc32(text.encode())}, "manifest": {text}}}\n'


def _manifest(folder: Path) -> dict[str, Any]:
    try:
        text = (folder / MANIFEST).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise DamageError(f"{MANIFEST} is missing") from None
    except OSError as error:
        raise DamageError(f"{MANIFEST} can't be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise DamageError(f"{MANIFEST} has other bytes than were written") from None
    try:
        manifest: dict[str, Any] = json.loads(text)["manifest"]
        is_whole = text == _encoded(manifest)
    except (ValueError, TypeError, KeyError):
        is_whole = False
    if not is_whole:
        raise DamageError(f"{MANIFEST} has other bytes than were written")
    return manifest
