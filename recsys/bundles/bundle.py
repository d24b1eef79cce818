"""The bundle on disk: its manifest and its check.

A bundle is a folder whose `manifest.json` lists every other file with its size and its
sha256, see `recsys.system.manifest`. A published bundle is a whole-number folder of the
serving root, see `recsys.bundles.publishing`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from recsys.errors import RecsysError, UsageError
from recsys.models.summary import SUMMARY, read_summary
from recsys.strict import Repeats
from recsys.system import manifest as manifests
from recsys.system.files import read_json

MANIFEST = "manifest.json"
_FORMAT = 2
_ABSENT: dict[str, Any] = {
    "context": {},
    "history": {},
    "event_inputs": [],
    "direction_width": None,
}


def write_manifest(bundle: Path, fields: Mapping[str, Any]) -> None:
    """Lists every file of `bundle` in its `manifest.json`, beside `fields`.

    Args:
        bundle: A folder that is complete but for its manifest.
        fields: Further fields, such as versions, config and metrics; JSON without NaN.

    Raises:
        RecsysError: `fields` are no strict JSON (R504).
    """
    files = manifests.checksums(bundle, manifests.file_names(bundle, without=MANIFEST))
    try:
        manifests.write_manifest(bundle / MANIFEST, {**fields, "format": _FORMAT}, files)
    except (TypeError, ValueError) as error:
        rule = "The fields of a manifest must be JSON without NaN and infinity."
        cure = "Report this as a bug, with the run's log."
        raise RecsysError("R504", rule, cure, str(error)) from None


def read_manifest(bundle: Path) -> dict[str, Any]:
    """Returns the manifest of `bundle`.

    Raises:
        RecsysError: There is none, or it is damaged (R501).
    """
    try:
        manifest = manifests.read_manifest(bundle / MANIFEST)
        received = f"format {manifest.get('format')!r}"
        if manifest.get("format") == _FORMAT:
            return {**_ABSENT, **manifest}
    except manifests.ManifestError as error:
        received = error.reason
    rule = f"A bundle must have a complete manifest at {str(bundle / MANIFEST)!r}."
    cure = "Name a folder written by the export, or run again: recsys run."
    raise RecsysError("R501", rule, cure, received)


def verify(bundle: Path) -> dict[str, Any]:
    """Checks the files of `bundle` against its manifest, and returns the manifest.

    Raises:
        RecsysError: A file is missing or changed (R502) or not in the manifest (R503), or there
            is no whole manifest (R501).
    """
    manifest = read_manifest(bundle)
    try:
        manifests.verify_folder(bundle / MANIFEST, manifest)
    except manifests.ManifestError as error:
        code = "R503" if isinstance(error, manifests.UnlistedFileError) else "R502"
        rule = f"The file {error.name!r} of {str(bundle)!r} must match the manifest."
        cure = "The bundle is damaged: delete it and run again: recsys run."
        raise RecsysError(code, rule, cure, error.reason) from None
    return manifest


def answers_of(manifest: Mapping[str, Any]) -> str:
    """Returns the output of a bundle, `lists` or `scores`; an earlier version only had lists."""
    answers: str = manifest.get("answers", "lists")
    return answers


def check_answers(bundle: Path, answers: str, needed: str) -> None:
    """Raises the error of `wrong_answers` if a bundle's output isn't the needed one."""
    if answers != needed:
        raise wrong_answers(bundle, answers, needed)


def wrong_answers(bundle: Path, answers: str, needed: str) -> UsageError:
    """Returns the error for a bundle of scores where lists are needed, or the reverse."""
    cure = {
        "lists": "Use recsys rank, score or rank of recsys.load_bundle, or the model's signatures.",
        "scores": "Use recommend of recsys.load_bundle, or recsys recommend.",
    }[needed]
    return UsageError("R545", f"The bundle {str(bundle)!r} must answer {needed}.", cure, answers)


def manifest_digest(bundle: Path) -> str | None:
    """Returns the sha256 of the manifest, which identifies all content; None without one."""
    return manifests.manifest_digest(bundle / MANIFEST)


def repeats_of_folder(folder: Path) -> Repeats:
    """Returns the `repeats` that the model of a model folder or a bundle was trained with."""
    repeats = "exclude"
    if (folder / SUMMARY).is_file():
        repeats = read_summary(folder).get("stage", {}).get("repeats", repeats)
    elif (folder / MANIFEST).is_file():
        repeats = read_json(folder / MANIFEST).get("repeats", repeats)
    return "include" if repeats == "include" else "exclude"
