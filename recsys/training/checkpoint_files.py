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
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from recsys.commit import commit_folder, commit_text
from recsys.training import sealed
from recsys.training.checkpoint_arrays import Form
from recsys.training.sealed import DamageError as DamageError

FORMAT = "1"
MANIFEST = "checkpoint.json"
_DEBRIS = re.compile(r"\d+\.(writing.*|old)")


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
    files = sealed.sums(writing, sealed.names_in(writing))
    commit_text(sealed.encoded({**contents, "files": files}), writing / MANIFEST)
    commit_folder(writing, folder_of(root, contents["step"]))


def contents_in(folder: Path) -> Contents:
    """Returns what a checkpoint says that it holds.

    Raises:
        DamageError: Its manifest isn't as it was written.
    """
    return Contents.from_json(sealed.read_manifest(folder / MANIFEST))


def check_files(folder: Path) -> None:
    """Reads every byte of a checkpoint.

    Raises:
        DamageError: A file is missing, or isn't as it was written.
    """
    sealed.check_files(folder, sealed.read_manifest(folder / MANIFEST)["files"])


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
