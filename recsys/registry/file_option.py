"""`recsys.File`: an option of a plugin that names a file.

The config holds the path and the sha256 of the content, so each cache key and fingerprint of a
config covers the file. A model folder keeps copies of the files of its model:

    <model>/files/<first digits of the sha256>/<name>
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import Any, TypeVar

import pydantic
from pydantic_core import core_schema

from recsys.errors import RecsysError
from recsys.strict import parts_in
from recsys.system.files import open_regular

FOLDER = "files"
BY_CONTENT = {"files": "content"}
"""Context of a dump that writes a file as its sha256: for fingerprints that ignore its path."""
IN_FOLDER = {"files": "folder"}
"""Context of a dump for `model.json`: paths of the copies, relative to the folder."""
_DIGITS = 16
ModelT = TypeVar("ModelT", bound=pydantic.BaseModel)


class File(os.PathLike[str]):
    """A file that a plugin reads: `vectors: recsys.File` in its `Config`.

    In a config it is a path relative to the config's folder, or in an override to the current
    one. `open`, `np.load` and `pathlib.Path` accept it as a path.

    Args:
        path: Absolute path of the file, or of its copy in a model folder.
        sha256: Digest of the content, in hex.
    """

    # Not a dataclass: pydantic would convert it to a dict for the constructors of layers.
    def __init__(self, path: str, sha256: str) -> None:
        self.path, self.sha256 = path, sha256

    def __eq__(self, other: object) -> bool:
        return isinstance(other, File) and vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash((self.path, self.sha256))

    def __repr__(self) -> str:
        return f"File({self.path!r})"

    @classmethod
    def of(cls, *path: str | Path) -> File:
        """Returns a file with its digest.

        Args:
            *path: Parts of its path, relative to the current folder.

        Raises:
            OSError: It is not a regular file, or can't be read.
        """
        parts = [Path(part).expanduser() for part in path]
        absolute = os.path.normpath(Path.cwd().joinpath(*parts))
        return cls(absolute, _sha256(absolute))

    def __fspath__(self) -> str:
        return self.path

    @property
    def copy_name(self) -> str:
        """Path of the copy within a model folder."""
        return f"{FOLDER}/{self.sha256[:_DIGITS]}/{Path(self.path).name}"

    @classmethod
    def __get_pydantic_core_schema__(
        cls, source: Any, handler: pydantic.GetCoreSchemaHandler
    ) -> core_schema.CoreSchema:
        """Returns the pydantic schema that validates and serializes the field."""
        return core_schema.with_info_plain_validator_function(
            _read,
            serialization=core_schema.plain_serializer_function_ser_schema(_write, info_arg=True),
        )

    @classmethod
    def __get_pydantic_json_schema__(
        cls, schema: core_schema.CoreSchema, handler: pydantic.GetJsonSchemaHandler
    ) -> dict[str, Any]:
        """Returns the JSON schema: a path."""
        return {"type": "string", "format": "path"}


def copy_files(folder: Path, *parts: Any) -> None:
    """Copies the files that parts of a config name into a model folder, and no others.

    Raises:
        OSError: A file can't be read or written.
        RecsysError: A file changed since the config was read (R317).
    """
    fresh = folder / f".{FOLDER}"
    shutil.rmtree(fresh, ignore_errors=True)
    for file in (part for part in parts_in(*parts) if isinstance(part, File)):
        copy = fresh / Path(file.copy_name).relative_to(FOLDER)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, copy)
        _check(file, _sha256(copy))
    # Last, because a file may be one of this folder.
    shutil.rmtree(folder / FOLDER, ignore_errors=True)
    if fresh.exists():
        fresh.rename(folder / FOLDER)


_UNUSED: dict[str, dict[str, Any]] = {
    "model": {
        "item_age": None,
        "user_gate": None,
        "sequence": {"layers": 2, "heads": 2, "dropout": 0.2, "width": None},
    },
    "train": {
        "hard_negatives": {"count": 0, "pool": 50, "skip": 5, "guard": 0.95, "after_epochs": 1}
    },
    "validation": {"popularity": None},
    "loss": {"decoupled": False},
    "pooling": {"fact_dropout": 0.1, "event_weight": False, "event_kind": False},
}
_UNUSED["config"] = _UNUSED["model"]
"""Removed keys that have no effect if they have this value, by the part that had them."""


def read_in_folder(kind: type[ModelT], fields: Any, folder: Path) -> ModelT:
    """Returns the part of a config that `fields` of a model folder's `model.json` describe."""
    return kind.model_validate_json(json.dumps(_used(fields)), context={"folder": folder})


def _used(fields: Any, part: str = "") -> Any:
    """Returns the fields of a folder without removed keys that have no effect."""
    if not isinstance(fields, dict):
        return fields
    unused = _UNUSED.get(part, {})
    return {k: _used(x, k) for k, x in fields.items() if k not in unused or x != unused[k]}


def _read(value: Any, info: pydantic.ValidationInfo) -> File:
    """Returns the file that a config names.

    Args:
        value: A path, or path and digest as `_write` returns them.
        info: Its context may have the `folder` that paths are relative to; `there`, the texts of
            the config; and `here`, the texts of overrides, which are relative to the current
            folder.
    """
    if isinstance(value, File):
        return value
    context = info.context or {}
    fields = value if isinstance(value, dict) else {"path": value}
    path, expected = fields.get("path"), fields.get("sha256")
    if not isinstance(path, str) or not fields.keys() <= {"path", "sha256"}:
        raise ValueError("must be the path of a file")
    folder, is_here = Path(context.get("folder", "")), path in context.get("here", ())
    if is_here and path in context["there"] and not Path(path).expanduser().is_absolute():
        raise ValueError(f"{path!r} is in the config and in an override: write absolute paths")
    try:
        file = File.of(Path() if is_here else folder, path)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ValueError(f"must be a file that can be read; {path!r}: {reason}") from None
    if expected is not None:
        _check(File(file.path, expected), file.sha256)
    return file


def _write(file: File, info: pydantic.SerializationInfo) -> Any:
    if info.mode == "python":  # Passed to the constructor of a layer or an optimizer.
        return file
    paths = (info.context or {}).get("files")
    if paths == "content":
        return file.sha256
    return {"path": file.copy_name if paths == "folder" else file.path, "sha256": file.sha256}


def _check(file: File, now: str) -> None:
    if now != file.sha256:
        raise RecsysError(
            "R317",
            f"The file {file.path!r} must keep the content that it had when the config was read.",
            "Restore it, or run again with the new content: it is then another model.",
            f"sha256 {now[:_DIGITS]}… instead of {file.sha256[:_DIGITS]}…",
        )


def _sha256(path: str | Path) -> str:
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
