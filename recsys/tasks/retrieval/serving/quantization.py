"""Item embeddings as stored in the SavedModel: float32, float16 or int8.

float16 takes half of the memory, int8 a quarter. int8 is symmetric with a scale per row:
`number = int8 * scale`, `scale = largest magnitude of the row / 127` (Krishnamoorthi, "Quantizing
deep convolutional networks for efficient inference", 2018, section 2.2: symmetric, per channel).
Numbers are dequantized block by block, never all at once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Literal

import numpy as np

from recsys.errors import RecsysError
from recsys.ragged import slices

Kind = Literal["float32", "float16", "int8"]

BLOCK_ROWS = 65_536
_SCORED_ROWS = 2048
_LARGEST = 127
# Items whose exact scores differ by less may be in any order: float32 sums depend on the order.
_ROUNDING = 1e-6


@dataclasses.dataclass(frozen=True)
class StoredEmbeddings:
    """Embeddings in one of the dtypes.

    Attributes:
        values: `[rows, dim]` float32, float16 or int8.
        scale: Factor of each row `[rows]` float32; None: 1.
    """

    values: np.ndarray
    scale: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.values)

    def floats(self, rows: slice) -> np.ndarray:
        """Returns the dequantized numbers of some rows `[n, dim]` float32, as in the graph."""
        values = np.asarray(self.values[rows], np.float32)
        return values if self.scale is None else values * self.scale[rows, None]


def stored(embeddings: np.ndarray, kind: Kind) -> StoredEmbeddings:
    """Returns `embeddings` `[rows, dim]` float32, memory-mapped or not, as `kind`.

    Raises:
        RecsysError: A number is too large for float16 (R539).
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
    """Returns the recall of answers relative to exact float32, at their own k.

    An item counts as found if its score is at least that of the last of the exact k, so ties
    may be in any order.

    Args:
        answers: Item rows of each answer `[n, k]`, padded with 0.
        query: Embedding of each query `[n, dim]` float32.
        embeddings: Exact embeddings of the item rows `[rows, dim]` float32.
        is_item: Whether each row is an item `[rows]` bool.
        least: Lowest allowed recall [0..1].

    Raises:
        RecsysError: The recall is lower (R538).
    """
    k = min(answers.shape[1], int(is_item.sum()))
    if not k or not len(answers):
        return 1.0
    parts = slices(len(embeddings), _SCORED_ROWS)
    blocks = ((part, query @ np.asarray(embeddings[part]).T) for part in parts)
    best, scores = best_scores(answers[:, :k], blocks, is_item)
    room = _ROUNDING * np.maximum(1, np.abs(best[:, -1:]))
    is_hit = (answers[:, :k] > 0) & (scores >= best[:, -1:] - room)
    recall = int(is_hit.sum()) / is_hit.size
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


def best_scores(
    rows: np.ndarray, blocks: Iterable[tuple[slice, np.ndarray]], is_item: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the best scores `[n, k]`, the best first, and the scores of some item rows `[n, k]`.

    Args:
        rows: The item rows `[n, k]`.
        blocks: Slices of the item rows, and their scores `[n, part]`, which are overwritten;
            one at a time, to bound the memory.
        is_item: Whether each row is an item `[rows]` bool.
    """
    n, k = rows.shape
    best = np.full((n, k), -np.inf, np.float32)
    of_rows = np.zeros((n, k), np.float32)
    for part, scores in blocks:
        who, place = np.nonzero((rows >= part.start) & (rows < part.stop))
        of_rows[who, place] = scores[who, rows[who, place] - part.start]
        scores[:, ~is_item[part]] = -np.inf
        both = np.concatenate([best, scores], axis=1)
        best = np.partition(both, both.shape[1] - k, axis=1)[:, both.shape[1] - k :]
    return -np.sort(-best, axis=1), of_rows
