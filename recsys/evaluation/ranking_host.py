"""Ranking by the C kernel, on all cores of the host."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np

from recsys.evaluation.scores import Progress, as_scores, check_scores
from recsys.kernels import ranking as kernel
from recsys.kernels.ranking import RankResults
from recsys.ragged import RaggedRows

# Queries of a job: with more of them a candidate is brought into the caches less often,
# with fewer the cores end at the same time.
_MOST_QUERIES = 42 * kernel.QUERIES_STEP
_FEWEST_QUERIES = 4 * kernel.QUERIES_STEP
_JOBS_A_CORE = 4
_GIVEN_SCORES = 2**25
"""Scores asked for at a time; 128 MiB."""


def rank_products(
    query: np.ndarray,
    candidates: np.ndarray,
    bias: np.ndarray,
    positives: RaggedRows,
    seen: RaggedRows,
    k: int,
    progress: Progress,
) -> RankResults:
    """Ranks by dot products; see `recsys.evaluation.ranking.rank`.

    Args:
        query: Query embeddings `[queries, dim]` float32, contiguous.
        candidates: Item embeddings `[item rows, dim]` float32, contiguous.
        bias: Added to the scores `[item rows]` float32; NaN: the row is no candidate.
        positives: Item rows of each query, int32 and int64.
        seen: Item rows of each query that are left out; a positive among them ranks last.
        k: Length of the top lists, at most the number of candidates.
        progress: Called after each job with the number of finished queries.
    """
    n_queries, done = len(positives), 0
    out = RankResults.empty(len(positives.rows), n_queries, k)

    def job(block: slice) -> int:
        kernel.rank_queries(block, query[block], candidates, bias, positives, seen, out)
        return block.stop - block.start

    with _threads() as pool:
        for queries in pool.map(job, _jobs(slice(0, n_queries))):
            done += queries
            progress(done, n_queries)
    return out


def rank_scores(
    scores: Callable[[slice], np.ndarray],
    bias: np.ndarray,
    positives: RaggedRows,
    seen: RaggedRows,
    k: int,
    progress: Progress,
) -> RankResults:
    """Ranks by scores that are given; see `recsys.evaluation.ranking.rank`.

    Args:
        scores: Returns the scores of a block of queries `[block, item rows]`; is asked for
            one block after the other, by one thread.
        bias: Added to the scores `[item rows]` float32; NaN: the row is no candidate.
        positives: Item rows of each query, int32 and int64.
        seen: Item rows of each query that are left out; a positive among them ranks last.
        k: Length of the top lists, at most the number of candidates.
        progress: Called after each block with the number of finished queries.

    Raises:
        RecsysError: A score is NaN (R405), or there are others than asked for (R410).
    """
    n_queries, n_rows = len(positives), len(bias)
    out = RankResults.empty(len(positives.rows), n_queries, k)
    with _threads() as pool:
        for block in _blocks(slice(0, n_queries), max(1, _GIVEN_SCORES // n_rows)):
            block_scores = as_scores(scores(block), block, n_rows)

            def job(
                part: slice, block_scores: np.ndarray = block_scores, first: int = block.start
            ) -> None:
                own = block_scores[part.start - first :]
                kernel.rank_queries(part, None, own, bias, positives, seen, out)

            list(pool.map(job, _jobs(block)))
            check_scores(out.not_a_number[block], block.start)
            progress(block.stop, n_queries)
    return out


@contextmanager
def _threads() -> Iterator[ThreadPoolExecutor]:
    """Yields a thread pool with a thread for each core; an error cancels waiting jobs."""
    pool = ThreadPoolExecutor(_cores())
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


def _cores() -> int:
    return len(os.sched_getaffinity(0))


def _jobs(block: slice) -> list[slice]:
    share = -(-(block.stop - block.start) // (_JOBS_A_CORE * _cores()))
    size = min(max(share, _FEWEST_QUERIES), _MOST_QUERIES)
    return _blocks(block, -(-size // kernel.QUERIES_STEP) * kernel.QUERIES_STEP)


def _blocks(block: slice, size: int) -> list[slice]:
    return [
        slice(start, min(start + size, block.stop))
        for start in range(block.start, block.stop, size)
    ]
