"""`python -m benchmarks.index`: libraries that search a million items, compared.

For each library, on `--items` unit vectors, the least effort that finds `--recall` of
the exact best `--k`, each library in a process of its own on this machine:

- `recall`: what is found at that effort [share];
- `p50`: time of one query, in one thread [ms];
- `rate`: queries a second, all at once on two threads;
- `build`, `load`: time to make the index on all cores, and to read it [s];
- `bytes`: size of its files [MiB].

Who isn't installed is left out: `uv run --with faiss-cpu --with usearch`. ScaNN fails to
be imported beside TensorFlow 2.21, so it is measured where that isn't:
`uv run --no-project --with scann --with numpy python -m benchmarks.index contest`.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from benchmarks.measure import (
    last_line,
    log,
    module,
    options_of,
    peak_rss_mib,
    print_line,
    run,
    words_of,
)

BENCH = "index"
_MIB = 1 << 20


def main(words: Sequence[str] | None = None) -> None:
    """Runs from the command line."""
    parser = options_of("index", __doc__)
    add = parser.add_argument
    add("--items", type=int, default=1_000_000)
    add("--dim", type=int, default=64, help="width of the embeddings [floats]")
    add("--k", type=int, default=100, help="items of an answer")
    add("--queries", type=int, default=1000)
    add("--recall", type=float, default=0.95, help="to be reached [0..1]")
    add("--worlds", nargs="+", choices=KINDS, default=["clusters"])
    add("--libraries", nargs="+", choices=NAMES, default=list(NAMES))
    options = parser.parse_args(words)
    for kind in options.worlds:
        with tempfile.TemporaryDirectory() as name:
            write_world(Path(name), kind, options.items, options.queries, options.dim, options.k)
            for library in options.libraries:
                _measure(Path(name), kind, library, options)


def _measure(world: Path, kind: str, library: str, options: argparse.Namespace) -> None:
    command = module("benchmarks.index", "contest")
    command += words_of(world=world, library=library, recall=options.recall)
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        log(f"{library} is left out")
        return
    found = last_line(done.stdout)
    case = f"{library} {kind} items={options.items} dim={options.dim} k={options.k}"
    case += f" effort={found['effort']}"
    figures = {
        "recall": ([found["recall"]], "share"),
        "p50": ([statistics.median(found["times_ms"])], "ms"),
        "rate": (found["batch_per_s"], "queries/s"),
        "build": ([found["build_s"]], "s"),
        "load": ([found["load_s"]], "s"),
        "bytes": ([found["bytes"] / _MIB], "MiB"),
    }
    for name, (values, unit) in figures.items():
        print_line(BENCH, f"{name} {case}", values, unit, found["peak_rss_mib"])


# --- one library on one world, in its own process

_BATCH_REPEATS = 3


def contest(words: Sequence[str] | None = None) -> None:
    """Runs from the command line."""
    parser = options_of("index contest", contest.__doc__)
    parser.add_argument("--world", type=Path, required=True)
    parser.add_argument("--library", required=True)
    parser.add_argument("--recall", type=float, default=0.95)
    options = parser.parse_args(words)
    # As a server holds them: in memory.
    items, queries, best = (
        np.load(options.world / f"{name}.npy") for name in ("items", "queries", "best")
    )
    items, best = items[1:], best - 1
    searched = library(options.library, len(items))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        started = time.perf_counter()
        searched.build(items, folder)
        build_s = time.perf_counter() - started
        started = time.perf_counter()
        searched.load(items, folder)
        load_s = time.perf_counter() - started
        n_bytes = sum(path.stat().st_size for path in folder.iterdir())
    k = best.shape[1]
    for effort in searched.efforts:
        found = searched.search(queries, k, effort, 1)
        recall = recall_of(found, best)
        if recall >= options.recall:
            break
    times_ms = _times_ms(searched, queries, k, effort)
    rates = [_rate(searched, queries, k, effort) for _ in range(_BATCH_REPEATS)]
    said: dict[str, Any] = {
        "build_s": build_s,
        "load_s": load_s,
        "bytes": n_bytes,
        "effort": effort,
    }
    said |= {"recall": recall, "times_ms": times_ms, "batch_per_s": rates}
    print(json.dumps({**said, "peak_rss_mib": peak_rss_mib()}))


def recall_of(found: np.ndarray, best: np.ndarray) -> float:
    """Returns the share of the exact `best` `[n, k]` that was `found` `[n, k]`."""
    pairs = zip(found.tolist(), best.tolist(), strict=True)
    return float(np.mean([len(set(one) & set(other)) / len(other) for one, other in pairs]))


def _times_ms(searched: Library, queries: np.ndarray, k: int, effort: int) -> list[float]:
    times = []
    for number in range(len(queries)):
        started = time.perf_counter()
        searched.search(queries[number : number + 1], k, effort, 1)
        times.append((time.perf_counter() - started) * 1e3)
    return times


def _rate(searched: Library, queries: np.ndarray, k: int, effort: int) -> float:
    started = time.perf_counter()
    searched.search(queries, k, effort, 2)
    return len(queries) / (time.perf_counter() - started)


# --- The libraries, each asked in its own way for the same thing.


_SEED, _SAMPLES_OF_A_LIST, _ROUNDS = 0, 64, 10


class Library(Protocol):
    """Searches items for those of the largest dot product.

    Attributes:
        efforts: How hard it may search, the least first.
    """

    efforts: tuple[int, ...]

    def build(self, items: np.ndarray, folder: Path) -> None:
        """Builds an index of `items` `[n, dim]` on all cores, and writes it to a folder."""

    def load(self, items: np.ndarray, folder: Path) -> None:
        """Reads the index that was written, as a server does."""

    def search(self, queries: np.ndarray, k: int, effort: int, threads: int) -> np.ndarray:
        """Returns places `[queries, k]` in `items`, exact scores deciding where there are codes."""


class Faiss:
    """FAISS, built by one of its descriptions.

    Args:
        description: For `faiss.index_factory`.
        refine: Candidates that are scored exactly, as times `k`; 1 where scores are exact.
        efforts: Lists that are looked through, or candidates of the graph that are held.
    """

    def __init__(self, description: str, refine: int, efforts: tuple[int, ...]) -> None:
        self._description, self._refine, self.efforts = description, refine, efforts
        self._index: Any = None
        self._items = np.zeros((0, 0), np.float32)

    def build(self, items: np.ndarray, folder: Path) -> None:
        """See `Library`."""
        import faiss

        faiss.omp_set_num_threads(os.cpu_count() or 1)
        index = faiss.index_factory(items.shape[1], self._description, faiss.METRIC_INNER_PRODUCT)
        rng = np.random.default_rng(_SEED)
        n = min(len(items), _SAMPLES_OF_A_LIST * getattr(index, "nlist", len(items)))
        if hasattr(index, "cp"):
            index.cp.niter = _ROUNDS
        index.train(items[np.sort(rng.choice(len(items), n, replace=False))])
        index.add(items)
        faiss.write_index(index, str(folder / "index"))

    def load(self, items: np.ndarray, folder: Path) -> None:
        """See `Library`."""
        import faiss

        self._index, self._items = faiss.read_index(str(folder / "index")), items

    def search(self, queries: np.ndarray, k: int, effort: int, threads: int) -> np.ndarray:
        """See `Library`."""
        import faiss

        faiss.omp_set_num_threads(threads)
        is_graph = "HNSW" in self._description
        parameters = (
            faiss.SearchParametersHNSW(efSearch=effort)  # type: ignore[attr-defined]  # not in its stubs
            if is_graph
            else faiss.SearchParametersIVF(nprobe=effort)  # type: ignore[call-arg]
        )
        found = self._index.search(queries, k * self._refine, params=parameters)[1]
        if self._refine == 1:
            return np.asarray(found)
        return np.stack([self._best(*one, k) for one in zip(queries, found, strict=True)])

    def _best(self, query: np.ndarray, places: np.ndarray, k: int) -> np.ndarray:
        places = places[places >= 0]
        scores = self._items[places] @ query
        kept = np.argpartition(-scores, min(k, len(scores)) - 1)[:k]
        return np.pad(places[kept], (0, k - len(kept)), constant_values=-1)


class Usearch:
    """usearch, a graph.

    Args:
        dtype: In which vectors are kept.
        efforts: Candidates of the graph that are held.
    """

    def __init__(self, dtype: str, efforts: tuple[int, ...]) -> None:
        self._dtype, self.efforts = dtype, efforts
        self._index: Any = None

    def _empty(self, dim: int) -> Any:
        from usearch.index import Index

        return Index(ndim=dim, metric="ip", dtype=self._dtype, connectivity=16, expansion_add=64)

    def build(self, items: np.ndarray, folder: Path) -> None:
        """See `Library`."""
        index = self._empty(items.shape[1])
        index.add(np.arange(len(items)), items, threads=os.cpu_count() or 1)
        index.save(str(folder / "index"))

    def load(self, items: np.ndarray, folder: Path) -> None:
        """See `Library`."""
        self._index = self._empty(items.shape[1])
        self._index.load(str(folder / "index"))

    def search(self, queries: np.ndarray, k: int, effort: int, threads: int) -> np.ndarray:
        """See `Library`."""
        self._index.expansion_search = effort
        return np.asarray(self._index.search(queries, k, threads=threads).keys).reshape(-1, k)


class Scann:
    """ScaNN: a tree, codes of four bits, and exact scores of the best.

    Args:
        refine: Candidates that are scored exactly, as times `k`.
        efforts: Leaves that are looked through.
    """

    def __init__(self, refine: int, efforts: tuple[int, ...]) -> None:
        self._refine, self.efforts = refine, efforts
        self._index: Any = None

    def build(self, items: np.ndarray, folder: Path) -> None:
        """See `Library`."""
        from scann.scann_ops.py import scann_ops_pybind

        n_leaves = int(4 * np.sqrt(len(items)))
        n = min(len(items), _SAMPLES_OF_A_LIST * n_leaves)
        builder = scann_ops_pybind.builder(items, 100, "dot_product")
        builder.set_n_training_threads(os.cpu_count() or 1)
        tree = builder.tree(n_leaves, 50, training_sample_size=n)
        tree.score_ah(2, anisotropic_quantization_threshold=0.2).reorder(
            100 * self._refine
        ).build().serialize(str(folder))

    def load(self, items: np.ndarray, folder: Path) -> None:
        """See `Library`."""
        from scann.scann_ops.py import scann_ops_pybind

        self._index = scann_ops_pybind.load_searcher(str(folder))

    def search(self, queries: np.ndarray, k: int, effort: int, threads: int) -> np.ndarray:
        """See `Library`."""
        index: Any = self._index
        more = {"leaves_to_search": effort, "pre_reorder_num_neighbors": k * self._refine}
        if len(queries) == 1:
            return np.asarray(index.search(queries[0], final_num_neighbors=k, **more)[0])[None]
        ask = index.search_batched if threads == 1 else index.search_batched_parallel
        return np.asarray(ask(queries, final_num_neighbors=k, **more)[0])


def library(name: str, n_items: int) -> Library:
    """Returns a library by its name, with what suits so many items."""
    n_lists = int(4 * np.sqrt(n_items))
    lists = (2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 1024)
    held = (100, 140, 200, 280, 400, 560, 800, 1600)
    made: dict[str, Library] = {
        "faiss-flat": Faiss(f"IVF{n_lists},Flat", 1, lists),
        "faiss-sq8": Faiss(f"IVF{n_lists},SQ8", 2, lists),
        "faiss-pq4": Faiss(f"IVF{n_lists},PQ32x4fs", 16, lists),
        "faiss-hnsw": Faiss("HNSW16", 1, held),
        "usearch-f32": Usearch("f32", held),
        "usearch-i8": Usearch("i8", held),
        "scann": Scann(5, lists),
    }
    return made[name]


NAMES = (
    "faiss-pq4", "faiss-sq8", "faiss-flat", "scann", "usearch-f32", "usearch-i8", "faiss-hnsw",
)  # fmt: skip


# --- Unit vectors to be searched, of a kind as trained towers give them, and of the hardest.


_ITEMS_OF_A_CLUSTER = 50
_SPREAD, _QUERY_SPREAD = 0.8, 1.0
"""Length of an item's way from the middle of its cluster, whose length is 1; of a query's."""
_BLOCK = 65_536

KINDS = ("clusters", "uniform")


def write_world(folder: Path, kind: str, n_items: int, n_queries: int, dim: int, k: int) -> None:
    """Writes items, queries and their exact answers as arrays of NumPy.

    `items` `[n_items + 1, dim]`, of which row 0 is no item; `queries` `[n_queries, dim]`;
    and `best` `[n_queries, k]`, the exact best rows.

    Args:
        folder: Where to; there.
        kind: `clusters`: one for each 50 items, of sizes that fall as 1/√rank, in
            directions that matter the less the later they come, with queries near them.
            `uniform`: no direction is more likely than another, the hardest that there is.
        n_items: Items.
        n_queries: Queries.
        dim: Width [floats].
        k: Best items of each query.
    """
    from recsys.evaluation.ranking import rank
    from recsys.evaluation.scores import DotProducts
    from recsys.ragged import RaggedRows

    rng = np.random.default_rng(0)
    draw = _Clusters(rng, n_items, dim) if kind == "clusters" else _Uniform(rng, dim)
    items = np.zeros((n_items + 1, dim), np.float32)
    for start in range(1, n_items + 1, _BLOCK):
        stop = min(start + _BLOCK, n_items + 1)
        items[start:stop] = draw(stop - start, _SPREAD)
    queries = draw(n_queries, _QUERY_SPREAD)
    nothing = RaggedRows(np.zeros(0, np.int32), np.zeros(n_queries + 1, np.int64))
    is_item = np.arange(n_items + 1) > 0
    best = rank(DotProducts(queries, items), nothing, nothing, is_item, k).top
    for name, values in {"items": items, "queries": queries, "best": best}.items():
        np.save(folder / f"{name}.npy", values)


class _Uniform:
    def __init__(self, rng: np.random.Generator, dim: int) -> None:
        self._rng, self._dim = rng, dim

    def __call__(self, n: int, _spread: float) -> np.ndarray:
        return _unit(self._rng.standard_normal((n, self._dim), np.float32))


class _Clusters:
    def __init__(self, rng: np.random.Generator, n_items: int, dim: int) -> None:
        self._rng = rng
        n = max(n_items // _ITEMS_OF_A_CLUSTER, 1)
        # Standard deviation of each direction: the first matter most.
        self._scales = (1 / np.sqrt(1 + np.arange(dim) / 8)).astype(np.float32)
        self._middles = self._draw(n)
        sizes = 1 / np.sqrt(np.arange(1, n + 1))
        self._shares = sizes / sizes.sum()

    def _draw(self, n: int) -> np.ndarray:
        return _unit(self._rng.standard_normal((n, len(self._scales)), np.float32) * self._scales)

    def __call__(self, n: int, spread: float) -> np.ndarray:
        middles = self._middles[self._rng.choice(len(self._middles), n, p=self._shares)]
        return _unit(middles + np.float32(spread) * self._draw(n))


def _unit(vectors: np.ndarray) -> np.ndarray:
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


if __name__ == "__main__":
    run(main, contest=contest)
