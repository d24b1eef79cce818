"""The bundle on disk: its manifest, its check, and the versions that are published.

A bundle is a folder whose `manifest.json` lists every other file with its size
and its sha256. A published bundle is a whole-number folder of the serving root;
`recsys.publish` writes there. What is read here may be damaged or made in bad
faith: only plain files below the folder are opened, and none is waited for.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from recsys.errors import RecsysError
from recsys.plain_files import open_plain, read_plain

MANIFEST = "manifest.json"
_FORMAT = 1
_LONGEST_MANIFEST = 16 << 20
"""Bytes; of a hundred thousand files."""
_HIGHEST_VERSION = 2**63 - 1
"""TensorFlow Serving's versions are int64."""
_SHA256 = re.compile("[0-9a-f]{64}")


def write_manifest(bundle: Path, fields: Mapping[str, Any]) -> None:
    """Lists every file of `bundle` in its `manifest.json`, beside `fields`.

    Args:
        bundle: A folder that is complete but for its manifest.
        fields: Versions, config, metrics and code; JSON without NaN.

    Raises:
        RecsysError: `fields` are no strict JSON.
    """
    files = {name: _describe(bundle / name) for name in sorted(_file_names(bundle))}
    try:
        text = json.dumps(
            {**fields, "format": _FORMAT, "files": files}, indent=1, sort_keys=True, allow_nan=False
        )
    except (TypeError, ValueError) as error:
        raise RecsysError(
            "R504",
            "The fields of a manifest must be JSON without NaN and infinity.",
            "Report this as a bug, with the run's log.",
            str(error),
        ) from None
    (bundle / MANIFEST).write_text(text + "\n", encoding="utf-8")


def read_manifest(bundle: Path) -> dict[str, Any]:
    """Returns the manifest of `bundle`.

    Raises:
        RecsysError: There is none, or it is damaged.
    """
    path = bundle / MANIFEST
    try:
        text = read_plain(path, _LONGEST_MANIFEST).decode()
        manifest = json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant)
    except (OSError, ValueError, RecursionError) as error:
        raise _no_manifest(path, str(error)) from None
    if not isinstance(manifest, dict) or not isinstance(manifest.get("files"), dict):
        raise _no_manifest(path, "no map of files")
    if type(manifest.get("format")) is not int or manifest["format"] != _FORMAT:
        raise _no_manifest(path, f"format {manifest.get('format')!r}")
    for name, file in manifest["files"].items():
        if not _is_inside(name) or not _is_description(file):
            raise _no_manifest(path, f"the file {name!r}: {file!r}")
    return manifest


def excludes_seen(manifest: Mapping[str, Any]) -> bool:
    """Returns whether answers leave out what users have seen, unless a request says otherwise.

    It is `repeats` of the config that a bundle was exported with; earlier ones have none.
    """
    return manifest.get("repeats", "exclude") == "exclude"


def verify(bundle: Path) -> None:
    """Checks every file of `bundle` against its manifest.

    Raises:
        RecsysError: A file is missing, changed, not in the manifest, or no plain file; named.
    """
    listed = read_manifest(bundle)["files"]
    try:
        found = _file_names(bundle)
    except OSError as error:
        raise _damaged("R502", bundle, error.filename, str(error)) from None
    for name in sorted(listed.keys() | found):
        if name not in found:
            raise _damaged("R502", bundle, name, "it is missing")
        if name not in listed:
            raise _damaged("R503", bundle, name, "the manifest doesn't list it")
        _check_file(bundle, name, listed[name])


def manifest_digest(bundle: Path) -> str | None:
    """Returns the sha256 of the manifest, which stands for all content; None without one."""
    try:
        return hashlib.sha256(read_plain(bundle / MANIFEST, _LONGEST_MANIFEST)).hexdigest()
    except OSError:
        return None


def versions(serving_root: Path) -> list[Path]:
    """Returns the folders of the published versions, the oldest first."""
    if not serving_root.is_dir():
        return []
    numbered = [
        path
        for path in serving_root.iterdir()
        if is_version(path.name) and path.is_dir() and not path.is_symlink()
    ]
    return sorted(numbered, key=lambda path: int(path.name))


def is_version(name: str) -> bool:
    """Returns whether a folder of this name is a version, to TensorFlow Serving too."""
    return name.isascii() and name.isdecimal() and int(name) <= _HIGHEST_VERSION


def latest(serving_root: Path) -> Path:
    """Returns the newest published version.

    Raises:
        RecsysError: Nothing was published.
    """
    published = versions(serving_root)
    if not published:
        raise RecsysError(
            "R510",
            f"A bundle must have been pushed to {str(serving_root)!r}.",
            "Run the pipeline first: recsys run. Its report says why a model was not pushed.",
        )
    return published[-1]


def _file_names(bundle: Path) -> set[str]:
    """Returns the files below `bundle`, its manifest left out.

    Raises:
        RecsysError: There is something that is neither a plain file nor a folder.
        OSError: A folder can't be read.
    """
    names, folders = set(), [""]
    while folders:
        folder = folders.pop()
        with os.scandir(bundle / folder) as entries:
            for entry in entries:
                name = f"{folder}{entry.name}"
                if entry.is_dir(follow_symlinks=False):
                    folders.append(f"{name}/")
                elif entry.is_file(follow_symlinks=False):
                    names.add(name)
                else:
                    raise _not_plain(bundle, name, is_link=entry.is_symlink())
    return names - {MANIFEST}


def _check_file(bundle: Path, name: str, listed: Mapping[str, Any]) -> None:
    try:
        size = os.lstat(bundle / name).st_size
        # Before it is read: it may be endless.
        if size != listed["size"]:
            raise _damaged("R502", bundle, name, f"{size} bytes, not {listed['size']}")
        is_same = _describe(bundle / name) == listed
    except OSError as error:
        raise _damaged("R502", bundle, name, f"it can't be read: {error}") from None
    if not is_same:
        raise _damaged("R502", bundle, name, f"{size} bytes, other content")


def _describe(path: Path) -> dict[str, Any]:
    with open_plain(path) as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return {"sha256": digest, "size": os.fstat(file.fileno()).st_size}


def _is_inside(name: str) -> bool:
    """Returns whether `name` is a file below the bundle, in its one spelling."""
    parts = name.split("/")
    return "\0" not in name and name != MANIFEST and not {"", ".", ".."} & set(parts)


def _is_description(file: Any) -> bool:
    return (
        isinstance(file, dict)
        and file.keys() == {"sha256", "size"}
        and type(file["size"]) is int
        and isinstance(file["sha256"], str)
        and bool(_SHA256.fullmatch(file["sha256"]))
    )


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key stands there twice")
    return found


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


def _no_manifest(path: Path, received: str) -> RecsysError:
    return RecsysError(
        "R501",
        f"A bundle must have a whole manifest at {str(path)!r}.",
        "Name a folder that the export wrote, or run again: recsys run.",
        received,
    )


def _damaged(code: str, bundle: Path, name: str, received: str) -> RecsysError:
    return RecsysError(
        code,
        f"The file {name!r} of the bundle {str(bundle)!r} must be as the manifest says.",
        "The bundle is damaged: delete it and run again: recsys run.",
        received,
    )


def _not_plain(bundle: Path, name: str, *, is_link: bool) -> RecsysError:
    return RecsysError(
        "R514",
        f"The bundle {str(bundle)!r} must hold plain files and folders alone; {name!r} is neither.",
        "Put the file itself in its place, or run again: recsys run.",
        "a symbolic link" if is_link else "a pipe, a socket or a device",
    )
