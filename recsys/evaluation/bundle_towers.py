"""A bundle as it is measured: what serves it is asked, in raw ids."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from recsys.bundles.bundle import read_manifest, verify
from recsys.data.vocabulary import Vocabulary
from recsys.errors import RecsysError
from recsys.evaluation.bundle_process import BundleProcess
from recsys.evaluation.systems import SystemEmbeddings, check_numbers


def open_bundle(bundle: Path, name: str) -> SystemEmbeddings:
    """Reads a bundle whose files are as its manifest says.

    Args:
        bundle: What an export or a push wrote.
        name: What people call it.

    Raises:
        RecsysError: A file is missing or changed (R502, R503), lacks what measuring
            needs (R409), or the embeddings are no numbers (R402).
    """
    verify(bundle)
    try:
        history = int(read_manifest(bundle)["config"]["model"]["history"])
        items = Vocabulary.load(bundle / "vocabulary" / "items.parquet")
        # Copy on write: the rows are read where they lie.
        candidates = np.load(bundle / "item_embeddings.npy", mmap_mode="c", allow_pickle=False)
        if candidates.ndim != 2 or len(candidates) != items.n_rows:
            raise ValueError(f"{candidates.shape} embeddings of {items.n_rows} item rows")
    except (OSError, ValueError, EOFError, KeyError, TypeError) as error:
        raise RecsysError(
            "R409",
            f"A bundle that is measured must hold item_embeddings.npy, vocabulary/ and, in its"
            f" manifest, the model's config; {str(bundle)!r} doesn't.",
            "Export the model again: recsys export.",
            f"{type(error).__name__}: {error}",
        ) from None
    check_numbers(name, candidates)
    return SystemEmbeddings(items, candidates, history, BundleProcess(bundle).queries)
