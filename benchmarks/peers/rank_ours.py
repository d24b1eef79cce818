"""`python -m benchmarks.peers.rank_ours`: exact top-k by the 8-bit C kernel beside FAISS.

FAISS is `IndexRefineFlat` over a scalar quantizer of 8 bits, with the fewest candidates that
give a recall of 1 (but for rounding of float32) over all queries. They take turns. `batch`
ranks all queries on `--threads` threads, `single` one query at a time on one thread. Needs the
extra `serve`.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable

import faiss
import numpy as np

from benchmarks.measure import in_turns, print_line, ratios, run
from benchmarks.peers.evaluate_case import draw
from recsys.index.search import Ranker
from recsys.ragged import RaggedRows

ITEMS = [100_000, 1_000_000]
_FACTORS = (1.1, 1.25, 1.5, 2.0, 3.0, 5.0, 8.0)
_SINGLES, _RECALL = 200, 1 - 1e-5


def main(
    items: list[int] = ITEMS, queries: int = 10_000, k: int = 100, threads: int = 2, runs: int = 5
) -> None:
    """Measures each catalogue."""
    for n in items:
        _measure(n, queries, k, threads, runs)


def _measure(n: int, queries: int, k: int, threads: int, runs: int) -> None:
    data = draw(queries, n, 64, positives=1, seen=1, seed=0)
    ranker = Ranker(data.candidates, np.arange(n + 1) > 0)
    quantizer = faiss.ScalarQuantizer.QT_8bit
    index = faiss.IndexScalarQuantizer(64, quantizer, faiss.METRIC_INNER_PRODUCT)
    refined = faiss.IndexRefineFlat(index)
    refined.train(data.candidates[1:])
    refined.add(data.candidates[1:])

    def ours(block: slice, threads: int) -> np.ndarray:
        query = data.query[block]
        return ranker.exact(query, RaggedRows.empty(len(query)), k, threads=threads)[0]

    def theirs(block: slice, threads: int) -> np.ndarray:
        faiss.omp_set_num_threads(threads)
        return np.asarray(refined.search(data.query[block], k)[1]) + 1

    best = np.sort(ours(slice(queries), threads))
    for factor in _FACTORS:
        refined.k_factor = factor
        lists = np.sort(theirs(slice(queries), threads))
        recall = np.mean([np.isin(*pair).mean() for pair in zip(best, lists, strict=True)])
        print_line("rank", f"recall of faiss k_factor={factor} items={n}", [recall], "")
        if recall >= _RECALL:
            break
    blocks = {"batch": [slice(queries)], "single": [slice(i, i + 1) for i in range(_SINGLES)]}
    for name, parts in blocks.items():
        cores = threads if name == "batch" else 1
        searches = {"ours": ours, "faiss": theirs}
        ways = {w: functools.partial(_seconds, s, parts, cores) for w, s in searches.items()}
        times = in_turns(ways, runs)
        for who, seconds in times.items():
            print_line("rank", f"{name} {who} items={n}", seconds, "s")
        over = ratios(times["faiss"], times["ours"])
        print_line("rank", f"{name} faiss / ours items={n}", over, "times")


def _seconds(
    search: Callable[[slice, int], np.ndarray], blocks: list[slice], threads: int
) -> float:
    started = time.perf_counter()
    for block in blocks:
        search(block, threads)
    return time.perf_counter() - started


if __name__ == "__main__":
    run(main)
