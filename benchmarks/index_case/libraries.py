"""The libraries, each asked in its own way for the same thing."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Protocol

import numpy as np

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
