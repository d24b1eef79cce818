"""The bundle on disk: its manifest, its check, and how it is published.

A bundle is a folder whose `manifest.json` lists every other file with its size
and its sha256. A published bundle is a whole-number folder of the serving root:
written beside under a hidden name, synced to the disk, then renamed, so that a
reader sees the old version or the new one, and never half of one.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from recsys.commit import commit_folder
from recsys.errors import RecsysError

MANIFEST = "manifest.json"
_FORMAT = 1
_HIDDEN = ".publish-"
_LOCK = ".lock"


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
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise _no_manifest(path, str(error)) from None
    if not isinstance(manifest, dict) or not isinstance(manifest.get("files"), dict):
        raise _no_manifest(path, "no map of files")
    if manifest.get("format") != _FORMAT:
        raise _no_manifest(path, f"format {manifest.get('format')!r}")
    return manifest


def verify(bundle: Path) -> None:
    """Checks every file of `bundle` against its manifest.

    Raises:
        RecsysError: A file is missing, changed, or not in the manifest; named.
    """
    listed = read_manifest(bundle)["files"]
    found = _file_names(bundle)
    for name in sorted(listed.keys() | found):
        if name not in found:
            raise _damaged("R502", bundle, name, "it is missing")
        if name not in listed:
            raise _damaged("R503", bundle, name, "the manifest doesn't list it")
        is_now = _describe(bundle / name)
        if is_now != listed[name]:
            raise _damaged("R502", bundle, name, f"{is_now['size']} bytes, other content")


def publish(bundle: Path, serving_root: Path, keep: int) -> Path:
    """Copies `bundle` to the next version of `serving_root`, atomically.

    Sweeps what a killed call left behind. Publishes nothing where the newest
    version already holds the same content.

    Args:
        bundle: A bundle with a manifest.
        serving_root: Folder of the versions; made where there is none.
        keep: Newest versions that stay, the new one included; at least 1.

    Returns:
        The folder of the version that holds the content of `bundle`.

    Raises:
        RecsysError: The bundle is damaged, or the folder can't be written.
    """
    if keep < 1:
        raise RecsysError("R512", "At least one version must be kept.", "Set push.keep to 1.", keep)
    verify(bundle)
    try:
        serving_root.mkdir(parents=True, exist_ok=True)
        with _only_publisher(serving_root):
            _sweep(serving_root)
            path = _published_already(bundle, serving_root) or _add(bundle, serving_root)
            _prune(serving_root, keep)
    except OSError as error:
        raise RecsysError(
            "R511",
            f"The serving folder {str(serving_root)!r} must be a folder that can be written.",
            "Free some space, or correct its permissions, and run again;"
            " the version that was served is untouched.",
            str(error),
        ) from None
    return path


def versions(serving_root: Path) -> list[Path]:
    """Returns the folders of the published versions, the oldest first."""
    if not serving_root.is_dir():
        return []
    numbered = [
        path
        for path in serving_root.iterdir()
        if path.name.isascii() and path.name.isdecimal() and path.is_dir()
    ]
    return sorted(numbered, key=lambda path: int(path.name))


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


def _published_already(bundle: Path, serving_root: Path) -> Path | None:
    published = versions(serving_root)
    if not published or _digest(published[-1]) != _digest(bundle):
        return None
    try:
        verify(published[-1])
    except RecsysError:  # Damaged since: publish it anew.
        return None
    return published[-1]


def _add(bundle: Path, serving_root: Path) -> Path:
    published = versions(serving_root)
    number = int(published[-1].name) + 1 if published else 1
    temporary = serving_root / f"{_HIDDEN}{number}"
    final = serving_root / str(number)
    shutil.copytree(bundle, temporary)
    commit_folder(temporary, final)
    return final


def _prune(serving_root: Path, keep: int) -> None:
    for old in versions(serving_root)[:-keep]:
        hidden = serving_root / f"{_HIDDEN}old-{old.name}"
        os.rename(old, hidden)
        shutil.rmtree(hidden)


def _sweep(serving_root: Path) -> None:
    for path in serving_root.glob(f"{_HIDDEN}*"):
        shutil.rmtree(path)


@contextlib.contextmanager
def _only_publisher(serving_root: Path) -> Iterator[None]:
    """Waits for other publishers; the system frees the lock of a killed one."""
    with (serving_root / _LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _file_names(bundle: Path) -> set[str]:
    names = {p.relative_to(bundle).as_posix() for p in bundle.rglob("*") if not p.is_dir()}
    return names - {MANIFEST}


def _describe(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return {"sha256": digest, "size": path.stat().st_size}


def _digest(bundle: Path) -> str | None:
    path = bundle / MANIFEST
    return _describe(path)["sha256"] if path.is_file() else None


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
