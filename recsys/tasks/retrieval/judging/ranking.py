"""Exact ranks and top-k lists over the full catalogue, in blocks that fit into memory.

If available, the C kernel ranks on all cores. A host's JAX devices share its cores and memory, so
it ignores them. Otherwise, or on other devices unless there is little to rank, the candidates
are spread over all local devices (`ranking_devices`), or stay on the devices of several processes.

Ranks among a few random items (`rank_sampled`) are for reproducing published figures. They say
little about the ranks among all items, and may reverse the order of two models (Krichene and
Rendle, 2020), so they are used for nothing else.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from recsys import kernels
from recsys.errors import RecsysError
from recsys.kernels import rank_jobs as kernel
from recsys.kernels.rank_jobs import RankResults
from recsys.ragged import RaggedRows, slices
from recsys.tasks.judging_side import Progress
from recsys.tasks.retrieval.judging.scores import (
    DotProducts,
    Scorer,
    as_scores,
    check_products,
    check_scores,
)

# Queries per job: with more, a candidate is loaded into the caches less often; with fewer, the
# cores finish at the same time.
_MOST_QUERIES = 42 * kernel.QUERIES_STEP
_FEWEST_QUERIES = 4 * kernel.QUERIES_STEP
_JOBS_A_CORE = 4
_FEW_PRODUCTS = 2**37
"""Number of products that a host computes faster than the program for a GPU is compiled."""
_GIVEN_SCORES = 2**25
"""Scores per call of a scorer; 128 MiB."""


def rank(
    scorer: Scorer,
    positives: RaggedRows,
    seen: RaggedRows,
    is_candidate: np.ndarray,
    k: int,
    progress: Progress | None = None,
) -> RankResults:
    """Ranks the positives of every query among all items that the user hasn't seen.

    Ties go to the lower row. A positive that is left out, because it is seen or unknown to
    the vocabulary, ranks after every item.

    Every score is one float32 sum over the dimensions, wherever it is computed, so that ties
    are exact. The result is the same to the last bit for any number of threads; between the
    kernel and JAX the last digit of a score may differ.

    Args:
        scorer: Scores items for queries; `DotProducts` is fastest.
        positives: Held-out item rows of each query.
        seen: Item rows to leave out of each query's list, maybe including positives.
        is_candidate: Whether each item row is an item `[item rows]` bool; row 0 is not.
        k: Length of the top lists, at most the number of candidates.
        progress: Called with the number of finished queries and the total.

    Raises:
        RecsysError: A score is NaN, or could exceed float32 (R405); the sizes of lists or
            arrays differ (R410).
    """
    is_candidate = np.asarray(is_candidate, bool)
    k = min(k, int(is_candidate.sum()))
    positives, seen = (_checked(x, len(is_candidate)) for x in (positives, seen))
    _check_sizes(scorer, positives, seen, is_candidate)
    if isinstance(scorer, DotProducts):
        candidates = scorer.candidates
        if isinstance(candidates, np.ndarray):
            candidates = _floats(candidates)
        scorer = DotProducts(_floats(scorer.query), candidates)
        check_products(scorer.query, scorer.candidates, is_candidate)
    # Initial values of the sums; NaN: not a candidate.
    start = np.where(is_candidate, np.float32(0), np.float32(np.nan))
    report = progress or (lambda done, total: None)
    if _is_for_host(scorer, len(positives)):
        return _rank_on_host(scorer, start, positives, seen, k, report)
    from recsys.tasks.retrieval.judging.ranking_devices import (
        rank_on_devices,  # JAX, and all that it brings.
    )

    return rank_on_devices(scorer, start, positives, seen, k, report)


def _is_for_host(scorer: Scorer, n_queries: int) -> bool:
    """Returns whether to rank with the C kernel instead of JAX's devices."""
    if not isinstance(scorer, DotProducts):  # Other scores are computed on this host.
        return kernels.status().available
    if not isinstance(scorer.candidates, np.ndarray):
        return False
    n_products = n_queries * scorer.candidates.size
    return kernels.available() or (n_products <= _FEW_PRODUCTS and kernels.status().available)


def _rank_on_host(
    scorer: Scorer,
    bias: np.ndarray,
    positives: RaggedRows,
    seen: RaggedRows,
    k: int,
    progress: Progress,
) -> RankResults:
    """Ranks with the C kernel, on all cores; see `rank`. NaN in `bias` means no candidate."""
    n_queries, n_rows, done = len(positives), len(bias), 0
    out = RankResults.empty(len(positives.rows), n_queries, k)
    is_product = isinstance(scorer, DotProducts)
    size = n_queries if is_product else _GIVEN_SCORES // n_rows
    with ThreadPoolExecutor(_cores()) as pool:
        for block in slices(n_queries, max(1, size)):
            scores = np.empty(0) if is_product else as_scores(scorer.scores(block), block, n_rows)

            def job(part: slice, scores: np.ndarray = scores, first: int = block.start) -> int:
                query, table = None, scores[part.start - first :]
                if isinstance(scorer, DotProducts):
                    query, table = scorer.query[part], np.asarray(scorer.candidates)
                kernel.rank_queries(part, query, table, bias, positives, seen, out)
                return part.stop - part.start

            for n_ranked in pool.map(job, _jobs(block)):
                done += n_ranked
                progress(done, n_queries)
            check_scores(out.not_a_number[block], block.start)
    return out


def _cores() -> int:
    return len(os.sched_getaffinity(0))


def _jobs(block: slice) -> list[slice]:
    share = -(-(block.stop - block.start) // (_JOBS_A_CORE * _cores()))
    size = min(max(share, _FEWEST_QUERIES), _MOST_QUERIES)
    size = -(-size // kernel.QUERIES_STEP) * kernel.QUERIES_STEP
    return slices(block.stop, size, block.start)


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
    if n_rows != len(is_candidate):
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
) -> RankResults:
    """Ranks each query's positives among themselves and random negatives.

    Args:
        scorer: Scores items for queries.
        positives: Held-out item rows of each query.
        masked: Item rows to leave out for each query; a positive among them ranks last.
        is_candidate: Item rows that can be recommended `[item rows]` bool.
        is_item: Whether each item row is an item `[item rows]` bool.
        n_negatives: Number of negatives per query, drawn uniformly without replacement from the
            items that are neither positives nor masked; all of them if there are fewer.
            Negatives that can't be recommended are then removed.
        seed: Seed of the draw; equal seeds give all systems the same negatives.

    Returns:
        Ranks among the drawn items, and empty lists.

    Raises:
        RecsysError: A score is NaN (R405).
    """
    n_queries, n_rows = len(positives), len(is_candidate)
    rng = np.random.default_rng(seed)
    out = RankResults.empty(len(positives.rows), n_queries, 0)
    size = max(1, _BLOCK_SCORES // n_rows)
    for block in slices(n_queries, size):
        for query, row in enumerate(scorer.scores(block), block.start):
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
            bad = listed[np.isnan(row[listed])]
            check_scores(np.array([bad.max(initial=-1)]), query)
            out.n_ranked[query] = len(listed)
            place = _places(row, listed)
            out.ranks[own] = np.where(is_left[wanted], place[wanted], len(listed) + 1)
    return out


def _places(scores: np.ndarray, listed: np.ndarray) -> np.ndarray:
    """Returns the rank of each listed row `[item rows]`; ties go to the lower row."""
    place = np.zeros(len(scores), np.int64)
    place[listed[np.lexsort((listed, -scores[listed]))]] = np.arange(1, len(listed) + 1)
    return place
