"""The bundle on disk: its manifest and its check.

A bundle is a folder whose `manifest.json` lists every other file with its size and its
sha256, see `recsys.system.manifest`. A published bundle is a whole-number folder of the
serving root, see `recsys.bundles.versions`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from recsys.errors import RecsysError
from recsys.system import manifest as manifests

MANIFEST = "manifest.json"
_FORMAT = 1


def write_manifest(bundle: Path, fields: Mapping[str, Any]) -> None:
    """Lists every file of `bundle` in its `manifest.json`, beside `fields`.

    Args:
        bundle: A folder that is complete but for its manifest.
        fields: Versions, config, metrics and code; JSON without NaN.

    Raises:
        RecsysError: `fields` are no strict JSON (R504).
    """
    files = manifests.checksums(bundle, manifests.file_names(bundle, without=MANIFEST))
    try:
        manifests.write_manifest(bundle / MANIFEST, {**fields, "format": _FORMAT}, files)
    except (TypeError, ValueError) as error:
        raise RecsysError(
            "R504",
            "The fields of a manifest must be JSON without NaN and infinity.",
            "Report this as a bug, with the run's log.",
            str(error),
        ) from None


def read_manifest(bundle: Path) -> dict[str, Any]:
    """Returns the manifest of `bundle`.

    Raises:
        RecsysError: There is none, or it is damaged (R501).
    """
    try:
        manifest = manifests.read_manifest(bundle / MANIFEST)
    except manifests.ManifestError as error:
        raise _no_manifest(bundle, error.reason) from None
    if type(manifest.get("format")) is not int or manifest["format"] != _FORMAT:
        raise _no_manifest(bundle, f"format {manifest.get('format')!r}")
    return manifest


def verify(bundle: Path) -> dict[str, Any]:
    """Checks every file of `bundle` against its manifest, and returns the manifest.

    Raises:
        RecsysError: A file is missing or changed (R502), not in the manifest (R503), or no
            plain file (R514); or there is no whole manifest (R501).
    """
    manifest = read_manifest(bundle)
    try:
        manifests.verify_folder(bundle / MANIFEST)
    except manifests.SpecialFileError as error:
        raise _special_file(bundle, error) from None
    except manifests.UnlistedFileError as error:
        raise _damaged("R503", bundle, error) from None
    except manifests.ManifestError as error:
        raise _damaged("R502", bundle, error) from None
    return manifest


def manifest_digest(bundle: Path) -> str | None:
    """Returns the sha256 of the manifest, which identifies all content; None without one."""
    return manifests.manifest_digest(bundle / MANIFEST)


def excludes_seen(manifest: Mapping[str, Any]) -> bool:
    """Returns whether answers leave out what users have seen, unless a request says otherwise.

    It is `repeats` of the config that a bundle was exported with; earlier ones have none.
    """
    return manifest.get("repeats", "exclude") == "exclude"


def _no_manifest(bundle: Path, received: str) -> RecsysError:
    return RecsysError(
        "R501",
        f"A bundle must have a whole manifest at {str(bundle / MANIFEST)!r}.",
        "Name a folder that the export wrote, or run again: recsys run.",
        received,
    )


def _damaged(code: str, bundle: Path, error: manifests.ManifestError) -> RecsysError:
    return RecsysError(
        code,
        f"The file {error.name!r} of the bundle {str(bundle)!r} must be as the manifest says.",
        "The bundle is damaged: delete it and run again: recsys run.",
        error.reason,
    )


def _special_file(bundle: Path, error: manifests.ManifestError) -> RecsysError:
    return RecsysError(
        "R514",
        f"The bundle {str(bundle)!r} must hold plain files and folders alone; {error.name!r} is"
        " neither.",
        "Put the file itself in its place, or run again: recsys run.",
        error.reason,
    )
