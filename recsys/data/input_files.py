"""Checksums of vocabularies and features, in a data folder and in a model folder.

    inputs.json       size and CRC-32 of each file of `vocabulary/`, `catalogue/`, `user_features/`
    candidates.json   size and CRC-32 of a model folder's `candidates.npy`

The store has its own checksums (see `recsys.data.store`), and so have weights (see
`recsys.tasks.model_folder`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from recsys.errors import RecsysError
from recsys.system import manifest

PARTS = ("vocabulary", "catalogue", "user_features")
"""Folders of the vocabularies and features of users and items."""

CANDIDATES = "candidates.npy"
"""Item embeddings of a model folder `[item rows, dim]` float32."""

_MANIFEST, _OF_CANDIDATES = "inputs.json", "candidates.json"


def seal_inputs(folder: Path) -> None:
    """Writes the checksums of a folder whose vocabularies and features are complete.

    Raises:
        OSError: The disk is full.
    """
    parts = [part for part in PARTS if (folder / part).exists()]
    names = [f"{part}/{name}" for part in parts for name in manifest.file_names(folder / part)]
    manifest.write_manifest(folder / _MANIFEST, {}, manifest.checksums(folder, names, "crc32"))


def verify_inputs(folder: Path, share: int = 0, shares: int = 1) -> None:
    """Verifies the checksums of vocabularies and features, or of a share of the files.

    A folder without checksums, which an earlier version wrote, is not verified.

    Args:
        folder: The data folder, or the model folder.
        share: Index of the share of the files to verify.
        shares: Number of shares, of about the same size.
    """
    _verify(folder, _MANIFEST, share, shares)


def seal_candidates(folder: Path, described: dict[str, Any]) -> None:
    """Writes the checksum of a model folder's item embeddings.

    Args:
        folder: The model folder.
        described: Size and CRC-32 of the file.

    Raises:
        OSError: The disk is full.
    """
    manifest.write_manifest(folder / _OF_CANDIDATES, {}, {CANDIDATES: described})


def verify_candidates(folder: Path) -> None:
    """Verifies the checksum of a model folder's item embeddings.

    A folder without a checksum, which an earlier version wrote, is not verified.

    Raises:
        RecsysError: The file is damaged (R221).
    """
    _verify(folder, _OF_CANDIDATES)


def _verify(folder: Path, name: str, share: int = 0, shares: int = 1) -> None:
    if not (folder / name).exists():
        return
    try:
        files = manifest.read_manifest(folder / name)["files"]
        manifest.verify_files(folder, manifest.share_of(files, share, shares))
    except manifest.ManifestError as error:
        raise RecsysError(
            "R221",
            f"{str(folder / error.name)!r} must be as it was written.",
            f"Delete {str(folder)!r} and run again: the raw data are untouched.",
            error.reason,
        ) from None
