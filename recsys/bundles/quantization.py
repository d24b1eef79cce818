"""Item embeddings as the SavedModel stores them: float32, float16 or int8.

float16 halves them, int8 takes a quarter. An int8 has a scale for each row, symmetric:
`number = int8 * scale`, `scale = largest of the row / 127` (Krishnamoorthi, "Quantizing
deep convolutional networks for efficient inference", 2018, section 2.2: symmetric,
per channel). Numbers are read back block by block, never all of them at once.
"""

from __future__ import annotations

import dataclasses
from typing import Literal

import numpy as np

from recsys.errors import RecsysError
from recsys.ragged import slices

Kind = Literal["float32", "float16", "int8"]

BLOCK_ROWS = 65_536
_QUERIES = 128
_LARGEST = 127
# Two items whose exact scores differ by less may change places: float32 sums in any order.
_ROUNDING = 1e-6


@dataclasses.dataclass(frozen=True)
class StoredEmbeddings:
    """Embeddings of one of the kinds.

    Attributes:
        values: `[rows, dim]` float32, float16 or int8.
        scale: What the int8 of a row are multiplied by `[rows]` float32; None: by 1.
    """

    values: np.ndarray
    scale: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.values)

    def floats(self, rows: slice) -> np.ndarray:
        """Returns the numbers of some rows `[n, dim]` float32, as the graph reads them."""
        values = np.asarray(self.values[rows], np.float32)
        return values if self.scale is None else values * self.scale[rows, None]


def stored(embeddings: np.ndarray, kind: Kind) -> StoredEmbeddings:
    """Returns `embeddings` `[rows, dim]` float32, memory-mapped or not, as `kind`.

    Raises:
        RecsysError: A number is too large for a float16 (R539).
    """
    if kind == "float32":
        return StoredEmbeddings(embeddings)
    values = np.empty(embeddings.shape, kind)
    scale = np.zeros(len(embeddings), np.float32) if kind == "int8" else None
    for rows in slices(len(embeddings), BLOCK_ROWS):
        block = np.asarray(embeddings[rows], np.float32)
        largest = np.abs(block).max(axis=1, initial=0)
        if scale is not None:
            scale[rows] = largest / np.float32(_LARGEST)
            block = np.rint(block / np.where(scale[rows] > 0, scale[rows], 1)[:, None])
            block = np.clip(block, -_LARGEST, _LARGEST)
        elif largest.max(initial=0) > np.finfo(np.float16).max:
            rule = f"Item embeddings of float16 must be at most {np.finfo(np.float16).max:g}."
            cure = "Set export.item_embeddings to int8 or float32, or model.similarity to cosine."
            raise RecsysError("R539", rule, cure, float(largest.max()))
        values[rows] = block
    return StoredEmbeddings(values, scale)


def check_parity(
    answers: np.ndarray,
    query: np.ndarray,
    embeddings: np.ndarray,
    is_item: np.ndarray,
    least: float,
) -> float:
    """Returns the recall of answers against those of exact float32, at their own k.

    An item counts that is as good as the last of the exact k, so that of equal ones any
    may be there.

    Args:
        answers: Item rows of each answer `[n, k]`, 0: none.
        query: Embedding of each query `[n, dim]` float32.
        embeddings: Exact embeddings of the item rows `[rows, dim]` float32.
        is_item: Which rows are items `[rows]` bool.
        least: The lowest recall that is allowed [0..1].

    Raises:
        RecsysError: It is lower (R538).
    """
    k = min(answers.shape[1], int(is_item.sum()))
    if not k or not len(answers):
        return 1.0
    hits = 0
    for part in slices(len(query), _QUERIES):
        last = _best_scores(query[part], embeddings, is_item, k)[:, -1:]
        rows = answers[part, :k]
        scores = np.einsum("nd,nkd->nk", query[part], np.asarray(embeddings[rows]))
        room = _ROUNDING * np.maximum(1, np.abs(last))
        hits += int(np.sum((rows > 0) & (scores >= last - room)))
    recall = hits / (k * len(query))
    if recall < least:
        rule = (
            f"With short item embeddings, {least:.2%} of the best {k} must be those of exact"
            " float32."
        )
        cure = (
            "Set export.item_embeddings to float16 or float32, or export.min_parity lower;"
            " then run again: recsys run."
        )
        raise RecsysError("R538", rule, cure, f"{recall:.4f}")
    return recall


def _best_scores(
    query: np.ndarray, embeddings: np.ndarray, is_item: np.ndarray, k: int
) -> np.ndarray:
    """Returns the exact `k` best scores of each query `[n, k]`, the best first."""
    best = np.full((len(query), 0), -np.inf, np.float32)
    for rows in slices(len(embeddings), BLOCK_ROWS):
        scores = query @ np.asarray(embeddings[rows]).T
        best = np.concatenate([best, scores[:, is_item[rows]]], axis=1)
        if best.shape[1] > k:
            best = -np.partition(-best, k - 1, axis=1)[:, :k]
    return -np.sort(-best, axis=1)
