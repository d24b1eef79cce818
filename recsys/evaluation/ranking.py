"""Exact ranks and top lists over the full catalogue, in blocks that fit memory.

Where the C kernel can be had it ranks, on all cores (`rank_host`); a host's devices are
the same cores and memory, so it knows nothing of them. Elsewhere the candidates are
spread over all local devices (`rank_devices`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from recsys import native
from recsys.errors import RecsysError
from recsys.evaluation import rank_host
from recsys.evaluation.rank_numbers import check_products
from recsys.ragged import Ragged

Tell = Callable[[int, int], None]
"""Is told how many queries are done, and of how many."""


class Scorer(Protocol):
    """Scores every item row for queries."""

    def scores(self, block: slice) -> np.ndarray:
        """Returns the scores `[queries of the block, item rows]` float32.

        -inf stands for an item that can't be recommended: it comes behind all others.

        Args:
            block: Which queries.
        """


@dataclasses.dataclass(frozen=True)
class DotProducts:
    """Scores that are dot products of embeddings, with a bias: those are ranked fast.

    Attributes:
        query: Embedding of each query `[queries, dim]` float32.
        candidates: Embedding of each item row `[item rows, dim]` float32.
        bias: Added to the scores of an item row `[item rows]` float32, -inf: it can't be
            recommended; None: nothing is added.
    """

    query: np.ndarray
    candidates: np.ndarray
    bias: np.ndarray | None = None

    def scores(self, block: slice) -> np.ndarray:
        """Returns the scores `[queries of the block, item rows]` float32."""
        products = self.query[block] @ self.candidates.T
        return products if self.bias is None else products + self.bias


@dataclasses.dataclass(frozen=True)
class Ranking:
    """What is known of the ranked lists.

    Attributes:
        ranks: Rank of each positive `[positives]` int64, from 1: 1 + the number of ranked
            items that come before it.
        n_ranked: Items ranked for each query `[queries]` int64: the candidates but for
            those that are left out.
        top: Best item rows of each query `[queries, k]` int32, the best first; 0 where a
            query has fewer.
        top_scores: Their scores `[queries, k]` float32; -inf there.
    """

    ranks: np.ndarray
    n_ranked: np.ndarray
    top: np.ndarray
    top_scores: np.ndarray


def rank(
    scorer: Scorer,
    positives: Ragged,
    seen: Ragged,
    is_candidate: np.ndarray,
    k: int,
    tell: Tell | None = None,
) -> Ranking:
    """Ranks the positives of every query among all items that the user hasn't seen.

    Of items with one score the one with the smaller row comes first. A positive that is
    left out ranks behind every item, be it seen or none that the vocabulary knows.

    Every score is one float32 sum over the dimensions, wherever it is needed, so that
    ties are exact. The result is the same to the last bit for any number of threads and
    devices; between the kernel and JAX the last place of a score may differ.

    Args:
        scorer: Scores items for queries; `DotProducts` is fastest.
        positives: Held-out item rows of each query.
        seen: Item rows of each query that are left out of its list, positives too.
        is_candidate: Which item rows are items `[item rows]` bool; row 0 is none.
        k: Items of the top lists; cut to the number of candidates.
        tell: Is told now and then how many queries are done.

    Raises:
        RecsysError: A score is NaN, or could exceed float32 (R405); lists or arrays don't
            fit each other (R410).
    """
    is_candidate = np.asarray(is_candidate, bool)
    k = min(k, int(is_candidate.sum()))
    positives, seen = (_checked(x, len(is_candidate)) for x in (positives, seen))
    _check_sizes(scorer, positives, seen, is_candidate)
    told = tell or _silent
    if isinstance(scorer, DotProducts):
        query, candidates = (_floats(x) for x in (scorer.query, scorer.candidates))
        bias = None if scorer.bias is None else _floats(scorer.bias)
        check_products(query, candidates, bias, is_candidate)
        start = _start(bias, is_candidate)
        module = _module(native.available())
        found = module.rank_products(query, candidates, start, positives, seen, k, told)
    else:
        start = _start(None, is_candidate)
        # They come from this host, whatever the devices are.
        module = _module(native.status().available)
        found = module.rank_given(scorer.scores, start, positives, seen, k, told)
    return Ranking(found.ranks, found.n_ranked, found.top, found.top_scores)


def _module(is_native: bool) -> Any:
    if is_native:
        return rank_host
    from recsys.evaluation import rank_devices  # JAX, and all that it brings.

    return rank_devices


def _silent(done: int, total: int) -> None:
    """Tells nobody."""


def _start(bias: np.ndarray | None, is_candidate: np.ndarray) -> np.ndarray:
    """Returns what the sum of a score starts from `[item rows]`; NaN: it is no candidate."""
    return np.where(is_candidate, np.float32(0) if bias is None else bias, np.float32(np.nan))


def _floats(x: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(x, np.float32)


def _checked(lists: Ragged, n_rows: int) -> Ragged:
    rows = np.ascontiguousarray(lists.rows, np.int32)
    if len(rows) and not (rows.min() >= 0 and rows.max() < n_rows):
        received = (int(rows.min()), int(rows.max()))
        raise _misfit(f"Item rows must lie in 0 … {n_rows - 1}.", received)
    return Ragged(rows, np.ascontiguousarray(lists.offsets, np.int64))


def _check_sizes(scorer: Scorer, positives: Ragged, seen: Ragged, is_candidate: np.ndarray) -> None:
    if len(positives) != len(seen):
        received = (len(positives), len(seen))
        raise _misfit("Positives and seen items must be of the same queries.", received)
    if not isinstance(scorer, DotProducts):
        return
    n_rows, dim = scorer.candidates.shape
    if scorer.query.shape != (len(positives), dim):
        rule = f"Query embeddings must be [{len(positives)}, {dim}]."
        raise _misfit(rule, scorer.query.shape)
    if n_rows != len(is_candidate) or (scorer.bias is not None and len(scorer.bias) != n_rows):
        raise _misfit(f"Candidates must be {len(is_candidate)}, one an item row.", n_rows)


def _misfit(rule: str, received: object) -> RecsysError:
    cure = "Make embeddings, queries and candidates from one data folder."
    return RecsysError("R410", rule, cure, received)
