"""`python -m benchmarks.index`: libraries that search a million items, compared.

For each library, on `--items` unit vectors, the least effort that finds `--recall` of
the exact best `--k`, each library in a process of its own on this machine:

- `recall`: what is found at that effort [share];
- `p50`: time of one query, in one thread [ms];
- `rate`: queries a second, all at once on two threads;
- `build`, `load`: time to make the index on all cores, and to read it [s];
- `bytes`: size of its files [MiB].

usearch and ScaNN run in environments that `uv` makes: ScaNN fails to be imported beside
TensorFlow 2.21. A library that can't be had is left out.
"""

from __future__ import annotations

import itertools
import json
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from typer import Option

from benchmarks.measure import call, log, peak_rss_mib, print_line, run, watch

_NAMES = ("faiss-pq4", "faiss-sq8", "faiss-flat", "scann", "usearch-i8")
Library = StrEnum("Library", {name: name for name in _NAMES})  # type: ignore[misc]
Search = Callable[[np.ndarray, int, int, int], np.ndarray]
"""Takes queries `[n, dim]`, the best to find, effort and threads; returns items `[n, k]`."""
_LIBRARIES = [*Library]
_LISTS = (2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 1024)
_HELD = (100, 140, 200, 280, 400, 560, 800, 1600)
"""Efforts: lists or leaves that are looked through, candidates of a graph that are held."""


def main(
    items: int = 1_000_000,
    dim: Annotated[int, Option(help="Width of the embeddings [floats].")] = 64,
    k: Annotated[int, Option(help="Items of an answer.")] = 100,
    queries: int = 1000,
    recall: Annotated[float, Option(help="To be reached [0..1].")] = 0.95,
    libraries: list[Library] = _LIBRARIES,
) -> None:
    """Measures every library."""
    with tempfile.TemporaryDirectory() as folder:
        write_world(Path(folder), items, queries, dim, k)
        for library in libraries:
            case = {"folder": folder, "library": library, "recall": recall}
            size = f"items={items} dim={dim} k={k}"
            try:
                _print(f"{library} clusters {size}", _measured(library, case))
            except (subprocess.CalledProcessError, FileNotFoundError):
                log(f"{library} is left out")


def _measured(library: str, case: dict[str, Any]) -> dict[str, Any]:
    package = library.partition("-")[0]
    if package == "faiss":
        return dict(call(contest, **case).result)
    command = [os.environ.get("UV", "uv"), "run", "--quiet", "--isolated", "--no-project"]
    for wanted in (package, "numpy", "typer"):
        command += ["--with", wanted]
    command += ["python", "-m", "benchmarks.measure", "benchmarks.index", "contest"]
    return dict(watch([*command, json.dumps(case)], memory=False).result)


def _print(case: str, figures: dict[str, Any]) -> None:
    units = {"recall": "share", "p50": "ms", "rate": "queries/s", "build": "s", "load": "s"}
    for name, unit in {**units, "bytes": "MiB"}.items():
        label = f"{name} {case} effort={figures['effort']}"
        print_line("index", label, figures[name], unit, figures["peak_rss_mib"])


# --- One library, in its own process.


_BATCH_REPEATS = 3


def contest(folder: str, library: str, recall: float) -> dict[str, Any]:
    """Returns the figures of a library at the least effort that reaches the recall."""
    # As a server holds them: in memory.
    items, queries, best = (
        np.load(Path(folder) / f"{name}.npy") for name in ("items", "queries", "best")
    )
    items, best = items[1:], best - 1
    k = best.shape[1]
    build, efforts = _library(library, len(items))
    with tempfile.TemporaryDirectory() as index:
        build_s, load = _timed(partial(build, items, Path(index)))
        load_s, search = _timed(load)
        n_bytes = sum(path.stat().st_size for path in Path(index).iterdir())
    for effort in efforts:
        reached = recall_of(search(queries, k, effort, 1), best)
        if reached >= recall:
            break
    one_s = [_timed(partial(search, query[None], k, effort, 1))[0] for query in queries]
    all_s = [_timed(partial(search, queries, k, effort, 2))[0] for _ in range(_BATCH_REPEATS)]
    return {
        "effort": effort,
        "recall": [reached],
        "p50": [statistics.median(one_s) * 1e3],
        "rate": [len(queries) / seconds for seconds in all_s],
        "build": [build_s],
        "load": [load_s],
        "bytes": [n_bytes / (1 << 20)],
        "peak_rss_mib": peak_rss_mib(),
    }


def _timed(function: Callable[[], Any]) -> tuple[float, Any]:
    """Returns the seconds of a call, and its result."""
    started = time.perf_counter()
    result = function()
    return time.perf_counter() - started, result


def recall_of(items: np.ndarray, best: np.ndarray) -> float:
    """Returns the share of the exact `best` `[n, k]` that is among `items` `[n, k]`."""
    hits = [np.isin(row, of_row).mean() for row, of_row in zip(best, items, strict=True)]
    return float(np.mean(hits))


# --- The libraries: each builds an index on all cores and writes it; that is loaded, searched.


_SEED, _SAMPLES_OF_A_LIST, _ROUNDS = 0, 64, 10
Build = Callable[[np.ndarray, Path], Callable[[], Search]]


def _library(name: str, n_items: int) -> tuple[Build, tuple[int, ...]]:
    """Returns a library by its name, with what suits so many items, and its efforts."""
    lists = f"IVF{int(4 * np.sqrt(n_items))}"
    libraries: dict[str, tuple[Build, tuple[int, ...]]] = {
        "faiss-flat": (_faiss(f"{lists},Flat", 1), _LISTS),
        "faiss-sq8": (_faiss(f"{lists},SQ8", 2), _LISTS),
        "faiss-pq4": (_faiss(f"{lists},PQ32x4fs", 16), _LISTS),
        "usearch-i8": (_usearch, _HELD),
        "scann": (_scann, _LISTS),
    }
    return libraries[name]


def _faiss(description: str, refine: int) -> Build:
    """Returns FAISS by a description of its factory; `refine · k` items are scored exactly."""
    import faiss

    def build(items: np.ndarray, folder: Path) -> Callable[[], Search]:
        faiss.omp_set_num_threads(os.cpu_count() or 1)
        index: Any = faiss.index_factory(items.shape[1], description, faiss.METRIC_INNER_PRODUCT)
        n = min(len(items), _SAMPLES_OF_A_LIST * index.nlist)
        index.cp.niter = _ROUNDS
        rng = np.random.default_rng(_SEED)
        index.train(items[np.sort(rng.choice(len(items), n, replace=False))])
        index.add(items)
        faiss.write_index(index, str(folder / "index"))
        return partial(load, items, folder)

    def load(items: np.ndarray, folder: Path) -> Search:
        index: Any = faiss.read_index(str(folder / "index"))
        parameters: Any = faiss.SearchParametersIVF

        def search(queries: np.ndarray, k: int, effort: int, threads: int) -> np.ndarray:
            faiss.omp_set_num_threads(threads)
            nearest = index.search(queries, k * refine, params=parameters(nprobe=effort))[1]
            if refine == 1:
                return np.asarray(nearest)
            return np.stack([best(*pair, k) for pair in zip(queries, nearest, strict=True)])

        def best(query: np.ndarray, places: np.ndarray, k: int) -> np.ndarray:
            places = places[places >= 0]
            scores = items[places] @ query
            kept = np.argpartition(-scores, min(k, len(scores)) - 1)[:k]
            return np.pad(places[kept], (0, k - len(kept)), constant_values=-1)

        return search

    return build


def _usearch(items: np.ndarray, folder: Path) -> Callable[[], Search]:
    """Builds usearch's graph, vectors kept in 8 bits."""
    from usearch.index import Index

    dim = items.shape[1]
    options = {"ndim": dim, "metric": "ip", "dtype": "i8", "connectivity": 16, "expansion_add": 64}
    built = Index(**options)
    built.add(np.arange(len(items)), items, threads=os.cpu_count() or 1)
    built.save(str(folder / "index"))

    def load() -> Search:
        index = Index(**options)
        index.load(str(folder / "index"))

        def search(queries: np.ndarray, k: int, effort: int, threads: int) -> np.ndarray:
            index.expansion_search = effort
            return np.asarray(index.search(queries, k, threads=threads).keys).reshape(-1, k)

        return search

    return load


def _scann(items: np.ndarray, folder: Path) -> Callable[[], Search]:
    """Builds ScaNN: a tree, codes of four bits, and exact scores of the best 5 · k."""
    from scann.scann_ops.py import scann_ops_pybind

    n_leaves = int(4 * np.sqrt(len(items)))
    n = min(len(items), _SAMPLES_OF_A_LIST * n_leaves)
    builder = scann_ops_pybind.builder(items, 100, "dot_product")
    builder.set_n_training_threads(os.cpu_count() or 1)
    tree = builder.tree(n_leaves, 50, training_sample_size=n)
    codes = tree.score_ah(2, anisotropic_quantization_threshold=0.2)
    codes.reorder(500).build().serialize(str(folder))

    def load() -> Search:
        index = scann_ops_pybind.load_searcher(str(folder))

        def search(queries: np.ndarray, k: int, effort: int, threads: int) -> np.ndarray:
            more = {"leaves_to_search": effort, "pre_reorder_num_neighbors": 5 * k}
            if len(queries) == 1:
                return np.asarray(index.search(queries[0], final_num_neighbors=k, **more)[0])[None]
            ask = index.search_batched if threads == 1 else index.search_batched_parallel
            return np.asarray(ask(queries, final_num_neighbors=k, **more)[0])

        return search

    return load


# --- Unit vectors to be searched, of a kind as trained towers give them.


_ITEMS_OF_A_CLUSTER = 50
_SPREAD, _QUERY_SPREAD = 0.8, 1.0
"""Length of an item's way from the middle of its cluster, whose length is 1; of a query's."""
_BLOCK = 65_536


def write_world(folder: Path, n_items: int, n_queries: int, dim: int, k: int) -> None:
    """Writes items, queries and their exact answers as arrays of NumPy.

    There is a cluster for each 50 items, of sizes that fall as 1/√rank, in directions that
    matter the less the later they come, with queries near them.

    `items` `[n_items + 1, dim]`, of which row 0 is no item; `queries` `[n_queries, dim]`;
    and `best` `[n_queries, k]`, the exact best rows.

    Args:
        folder: Where to; there.
        n_items: Items.
        n_queries: Queries.
        dim: Width [floats].
        k: Best items of each query.
    """
    from recsys.evaluation.ranking import rank
    from recsys.evaluation.scores import DotProducts
    from recsys.ragged import RaggedRows

    rng = np.random.default_rng(0)
    n_clusters = max(n_items // _ITEMS_OF_A_CLUSTER, 1)
    # Standard deviation of each direction: the first matter most.
    scales = (1 / np.sqrt(1 + np.arange(dim) / 8)).astype(np.float32)
    middles = _unit(rng.standard_normal((n_clusters, dim), np.float32) * scales)
    shares = 1 / np.sqrt(np.arange(1, n_clusters + 1))
    shares /= shares.sum()

    def draw(n: int, spread: float) -> np.ndarray:
        of_cluster = middles[rng.choice(n_clusters, n, p=shares)]
        ways = _unit(rng.standard_normal((n, dim), np.float32) * scales)
        return _unit(of_cluster + np.float32(spread) * ways)

    items = np.zeros((n_items + 1, dim), np.float32)
    for start, stop in itertools.pairwise([*range(1, n_items + 1, _BLOCK), n_items + 1]):
        items[start:stop] = draw(stop - start, _SPREAD)
    queries = draw(n_queries, _QUERY_SPREAD)
    nothing = RaggedRows(np.zeros(0, np.int32), np.zeros(n_queries + 1, np.int64))
    is_item = np.arange(n_items + 1) > 0
    best = rank(DotProducts(queries, items), nothing, nothing, is_item, k).top
    for name, values in {"items": items, "queries": queries, "best": best}.items():
        np.save(folder / f"{name}.npy", values)


def _unit(vectors: np.ndarray) -> np.ndarray:
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


if __name__ == "__main__":
    run(main)
