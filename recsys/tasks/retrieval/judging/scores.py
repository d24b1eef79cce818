"""Scorers of items for queries, and the checks for NaN.

Comparisons with NaN are false, so it would be ranked silently; therefore every score is checked.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np

from recsys.errors import RecsysError

if TYPE_CHECKING:
    from recsys.tasks.retrieval.judging.ranking_devices import ShardedCandidates

Candidates: TypeAlias = "np.ndarray | ShardedCandidates"
"""Embeddings `[item rows, dim]` float32: in memory, or split over the devices of a mesh."""

_LIMIT = 3e38
"""Slightly below the largest float32."""


class Scorer(Protocol):
    """Scores every item row for queries."""

    def scores(self, block: slice) -> np.ndarray:
        """Returns the scores `[queries of the block, item rows]` float32.

        -inf marks an item that can't be recommended: it ranks after all others.

        Args:
            block: Slice of the queries.
        """


@dataclasses.dataclass(frozen=True)
class DotProducts:
    """Dot products of embeddings, which are ranked fast.

    Attributes:
        query: Embedding of each query `[queries, dim]` float32.
        candidates: Embedding of each item row.
    """

    query: np.ndarray
    candidates: Candidates

    def __post_init__(self) -> None:
        """Converts candidates in memory to an array."""
        if not hasattr(type(self.candidates), "largest_of_rows"):
            object.__setattr__(self, "candidates", np.asarray(self.candidates))

    def scores(self, block: slice) -> np.ndarray:
        """Returns the scores `[queries of the block, item rows]` float32."""
        query, candidates = self.query[block], self.candidates
        if isinstance(candidates, np.ndarray):
            return np.asarray(query @ candidates.T)
        return candidates.scores(query)


@dataclasses.dataclass(frozen=True)
class PairedProducts:
    """Dot products, and summands for some of the items.

    Attributes:
        products: The dot products.
        added: Summands `[queries, item rows]` float32 in CSR, each item once; None: none.
    """

    products: DotProducts
    added: Any

    def scores(self, block: slice) -> np.ndarray:
        """Returns the scores `[queries of the block, item rows]` float32."""
        scores = np.array(self.products.scores(block))
        if self.added is None:
            return scores
        added = self.added[block]
        owner = np.repeat(np.arange(len(scores)), np.diff(added.indptr))
        scores[owner, added.indices] += added.data
        return scores


def check_products(query: np.ndarray, candidates: Candidates, is_candidate: np.ndarray) -> None:
    """Checks that no dot product, nor a partial sum, can overflow or be NaN.

    None exceeds `dim` times the product of the largest magnitudes.

    Args:
        query: Query embeddings `[queries, dim]` float32.
        candidates: Item embeddings `[item rows, dim]` float32.
        is_candidate: Item rows to check `[item rows]` bool.

    Raises:
        RecsysError: An embedding is not finite, or a product may overflow (R405).
    """
    dim = query.shape[1]
    if dim * _largest(query) * _largest(candidates) < _LIMIT:
        return
    of_query, of_item = largest_of_rows(query), largest_of_rows(candidates)
    of_item = np.where(is_candidate, of_item, 0)
    for name, largest in (("query", of_query), ("item row", of_item)):
        bad = np.flatnonzero(~np.isfinite(largest))
        if len(bad):
            what = f"{len(bad)} of {len(largest)} embeddings, {name} {bad[0]} first"
            raise _not_a_number(what)
    if dim * of_query.max(initial=0) * of_item.max(initial=0) >= _LIMIT:
        what = f"query {of_query.argmax()} · item row {of_item.argmax()} may exceed {_LIMIT}"
        raise _not_a_number(what)


def as_scores(scores: np.ndarray, block: slice, n_rows: int) -> np.ndarray:
    """Returns a scorer's result as float32 with contiguous rows.

    Args:
        scores: The scores of a block of queries `[block, item rows]`.
        block: The requested queries.
        n_rows: Item rows.

    Raises:
        RecsysError: Their shape is wrong (R410).
    """
    expected = (block.stop - block.start, n_rows)
    array = np.asarray(scores, np.float32)
    if array.shape != expected:
        rule = f"A scorer asked for {block} must return {expected}."
        cure = "Return a score for every query and item row."
        raise RecsysError("R410", rule, cure, array.shape)
    return array if array.strides[1] == array.itemsize else np.ascontiguousarray(array)


def check_scores(not_a_number: np.ndarray, first: int) -> None:
    """Checks that no score is NaN.

    Args:
        not_a_number: An item row whose score is NaN `[queries]`, or -1.
        first: Index of the first of these queries.
    """
    bad = np.flatnonzero(not_a_number >= 0)
    if len(bad):
        where = f"query {first + bad[0]}, item row {not_a_number[bad[0]]}"
        raise _not_a_number(f"NaN for {len(bad)} of {len(not_a_number)} queries; {where}")


def _largest(x: Candidates) -> float:
    """Returns the largest magnitude, or NaN if any number is NaN."""
    if isinstance(x, np.ndarray):
        return float(np.maximum(x.max(initial=0), -x.min(initial=0)))
    return float(x.largest_of_rows.max(initial=0))


def largest_of_rows(x: Candidates) -> np.ndarray:
    """Returns the largest magnitude of each row `[rows]` float64, or NaN if it contains one."""
    if isinstance(x, np.ndarray):
        return np.maximum(x.max(axis=1, initial=0), -x.min(axis=1, initial=0)).astype(np.float64)
    return x.largest_of_rows


def _not_a_number(received: str) -> RecsysError:
    rule = "Every score must be finite, otherwise ranks are undefined."
    cure = "Correct the scorer, or train again with lower learning rates."
    return RecsysError("R405", rule, cure, received)
