"""Exact ranks and top lists over the full catalogue, in blocks that fit memory.

Where the C kernel is available it ranks, on all cores (`ranking_host`); a host's devices
are the same cores and memory, so it ignores them. Elsewhere the candidates are spread over
all local devices (`ranking_devices`).

Ranks among a few random items (`rank_sampled`) are there to reproduce papers that report
such figures. They say little of the ranks among all items, and may order two models the
other way round (Krichene and Rendle, 2020), so nothing else here uses them.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from recsys import kernels
from recsys.errors import RecsysError
from recsys.evaluation import ranking_host
from recsys.evaluation.scores import DotProducts, Progress, Scorer, check_products
from recsys.ragged import RaggedRows


@dataclasses.dataclass(frozen=True)
class Ranking:
    """Ranks of the positives, and the top lists.

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
    positives: RaggedRows,
    seen: RaggedRows,
    is_candidate: np.ndarray,
    k: int,
    progress: Progress | None = None,
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
        progress: Is called now and then with the number of queries done.

    Raises:
        RecsysError: A score is NaN, or could exceed float32 (R405); lists or arrays don't
            fit each other (R410).
    """
    is_candidate = np.asarray(is_candidate, bool)
    k = min(k, int(is_candidate.sum()))
    positives, seen = (_checked(x, len(is_candidate)) for x in (positives, seen))
    _check_sizes(scorer, positives, seen, is_candidate)
    report = progress or _no_progress
    if isinstance(scorer, DotProducts):
        query, candidates = (_floats(x) for x in (scorer.query, scorer.candidates))
        bias = None if scorer.bias is None else _floats(scorer.bias)
        check_products(query, candidates, bias, is_candidate)
        start = _start(bias, is_candidate)
        module = _backend(kernels.available())
        results = module.rank_products(query, candidates, start, positives, seen, k, report)
    else:
        start = _start(None, is_candidate)
        # They come from this host, whatever the devices are.
        module = _backend(kernels.status().available)
        results = module.rank_scores(scorer.scores, start, positives, seen, k, report)
    return Ranking(results.ranks, results.n_ranked, results.top, results.top_scores)


def _backend(is_native: bool) -> Any:
    if is_native:
        return ranking_host
    from recsys.evaluation import ranking_devices  # JAX, and all that it brings.

    return ranking_devices


def _no_progress(done: int, total: int) -> None:
    """Reports nothing."""


def _start(bias: np.ndarray | None, is_candidate: np.ndarray) -> np.ndarray:
    """Returns what the sum of a score starts from `[item rows]`; NaN: it is no candidate."""
    return np.where(is_candidate, np.float32(0) if bias is None else bias, np.float32(np.nan))


def _floats(x: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(x, np.float32)


def _checked(lists: RaggedRows, n_rows: int) -> RaggedRows:
    rows = np.ascontiguousarray(lists.rows, np.int32)
    if len(rows) and not (rows.min() >= 0 and rows.max() < n_rows):
        received = (int(rows.min()), int(rows.max()))
        raise _misfit(f"Item rows must lie in 0 … {n_rows - 1}.", received)
    return RaggedRows(rows, np.ascontiguousarray(lists.offsets, np.int64))


def _check_sizes(
    scorer: Scorer, positives: RaggedRows, seen: RaggedRows, is_candidate: np.ndarray
) -> None:
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


_BLOCK_SCORES = 2**24


def rank_sampled(
    scorer: Scorer,
    positives: RaggedRows,
    masked: RaggedRows,
    is_candidate: np.ndarray,
    is_item: np.ndarray,
    n_negatives: int,
    seed: int,
) -> Ranking:
    """Ranks each query's positives among themselves and random negatives.

    Args:
        scorer: Gives the scores.
        positives: Held-out item rows of each query.
        masked: Item rows of each query that are left out; a positive among them ranks last.
        is_candidate: Which item rows can be recommended `[item rows]` bool.
        is_item: Which item rows are items at all `[item rows]` bool.
        n_negatives: Negatives of each query, drawn evenly without replacement from the
            items that are neither positives nor masked; all of them where there are fewer.
            Those that can't be recommended then drop out.
        seed: Seed of the draw; with it, the same negatives for whatever is measured.

    Returns:
        Ranks among the drawn; the lists are empty.

    Raises:
        RecsysError: A score is NaN (R405).
    """
    n_queries, n_rows = len(positives), len(is_candidate)
    rng = np.random.default_rng(seed)
    ranks = np.empty(len(positives.rows), np.int64)
    n_ranked = np.empty(n_queries, np.int64)
    size = max(1, _BLOCK_SCORES // n_rows)
    for start in range(0, n_queries, size):
        scores = scorer.scores(slice(start, min(start + size, n_queries)))
        for query, row in enumerate(scores, start):
            own = slice(positives.offsets[query], positives.offsets[query + 1])
            wanted = positives.rows[own]
            is_left = np.ones(n_rows, bool)
            is_left[masked.part(slice(query, query + 1)).rows] = False
            allowed = is_item & is_left
            allowed[wanted] = False
            is_left &= is_candidate
            others = np.flatnonzero(allowed)
            negatives = rng.choice(others, min(n_negatives, len(others)), replace=False)
            listed = np.concatenate([wanted, negatives])
            listed = listed[is_left[listed]]
            _check_sampled(row[listed], query)
            n_ranked[query] = len(listed)
            place = _places(row, listed)
            ranks[own] = np.where(is_left[wanted], place[wanted], len(listed) + 1)
    return Ranking(
        ranks, n_ranked, np.zeros((n_queries, 0), np.int32), np.zeros((n_queries, 0), np.float32)
    )


def _places(scores: np.ndarray, listed: np.ndarray) -> np.ndarray:
    """Returns the place `[item rows]` of each listed row, ties in the order of the rows."""
    place = np.zeros(len(scores), np.int64)
    place[listed[np.lexsort((listed, -scores[listed]))]] = np.arange(1, len(listed) + 1)
    return place


def _check_sampled(scores: np.ndarray, query: int) -> None:
    n_bad = int(np.isnan(scores).sum())
    if n_bad:
        raise RecsysError(
            "R405",
            "Every score must be a number, else ranks mean nothing.",
            "Train again with lower learning rates.",
            f"{n_bad} of {len(scores)} scores of query {query} are NaN",
        )
