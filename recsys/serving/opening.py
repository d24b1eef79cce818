"""Opens a bundle of any kind, by its manifest."""

from __future__ import annotations

from pathlib import Path

from recsys.bundles.bundle import answers_of, read_manifest
from recsys.serving.label_scorer import LABELS, LabelScorer
from recsys.serving.pair import Pair
from recsys.serving.served_model import RANKER, Retriever, Scorer, ServedModel


def open_bundle(folder: Path) -> ServedModel:
    """Loads a bundle of any kind, which answers lists or scores.

    Raises:
        RecsysError: As `recsys.load_bundle`.
    """
    manifest = read_manifest(folder)
    if answers_of(manifest) == "lists":
        return (Pair if manifest.get(RANKER) else Retriever).open(folder)
    return LabelScorer.open(folder) if manifest.get(LABELS) else Scorer.open(folder)
