"""Search for the best items of queries: exact, or by an approximate index.

`Ranker` scores all items exactly, or the candidates of an `AnnIndex`. The export builds the index
and measures its recall (`build_index`). It is FAISS's IVF with 8-bit scalar quantisation (Jégou,
Douze and Schmid, "Product quantization for nearest neighbor search", 2011, section 4);
docs/serving.md says why FAISS. It is stored as three small arrays; the quantised vectors are
recomputed from the item embeddings when it is loaded.
"""

from __future__ import annotations

import dataclasses
import json
import math
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from recsys import kernels
from recsys.errors import RecsysError
from recsys.index.config import IndexConfig
from recsys.kernels import rank_jobs
from recsys.ragged import RaggedRows, slices
from recsys.system.installation import install_extra

FOLDER = "index"
_JSON, _FORMAT = "index.json", 1
_SAMPLES_OF_A_LIST, _ROUNDS, _SEED = 64, 10, 0
_BLOCK = 65_536

Report = Callable[[int, int], None]
"""Called with the number of finished items and the total."""


# --- the approximate index


@dataclasses.dataclass(frozen=True)
class Lists:
    """The learned parameters of an index.

    Attributes:
        middles: Centroid of each list `[lists, dim]` float32.
        ranges: Minima of the dimensions, then their widths, for the 8-bit quantisation `[2 * dim]`
            float32.
        list_of: List of each item, in the order of the rows `[items]` int32.
    """

    middles: np.ndarray
    ranges: np.ndarray
    list_of: np.ndarray


def learn_lists(
    embeddings: np.ndarray, rows: np.ndarray, n_lists: int, report: Report | None = None
) -> Lists:
    """Clusters items into lists by k-means, deterministically.

    Args:
        embeddings: `[item rows, dim]` float32; may be a memory map.
        rows: Rows that are items `[n]`, ascending.
        n_lists: Number of lists, at most `n`.
        report: Called with the number of finished items and the total.

    Raises:
        RecsysError: FAISS is missing (R580).
    """
    faiss = _faiss()
    index = _empty(n_lists, embeddings.shape[1])
    index.cp.niter, index.cp.seed = _ROUNDS, _SEED
    index.cp.min_points_per_centroid = 1  # No warning of small catalogues.
    n = min(len(rows), _SAMPLES_OF_A_LIST * n_lists)
    drawn = np.random.default_rng(_SEED).choice(len(rows), n, replace=False)
    index.train(_floats(embeddings[rows[np.sort(drawn)]]))
    list_of = np.zeros(len(rows), np.int32)
    for block in slices(len(rows), _BLOCK):
        list_of[block] = index.quantizer.assign(_floats(embeddings[rows[block]]), 1)[:, 0]
        if report is not None:
            report(block.stop, len(rows))
    middles = index.quantizer.reconstruct_n(0, n_lists)
    return Lists(middles, faiss.vector_to_array(index.sq.trained), list_of)


class AnnIndex:
    """Finds items with large dot products. Thread-safe.

    Args:
        lists: Learned parameters of the index.
        embeddings: `[item rows, dim]` float32; may be a memory map.
        rows: Rows that are items `[n]`, ascending.

    Attributes:
        n_lists: Number of lists.

    Raises:
        RecsysError: FAISS is missing (R580).
    """

    def __init__(self, lists: Lists, embeddings: np.ndarray, rows: np.ndarray) -> None:
        faiss = _faiss()
        self.n_lists = len(lists.middles)
        self._index = _empty(self.n_lists, embeddings.shape[1])
        self._index.quantizer.add(_floats(lists.middles))
        faiss.copy_array_to_vector(_floats(lists.ranges), self._index.sq.trained)
        self._index.is_trained = True
        for block in slices(len(rows), _BLOCK):
            ids = rows[block].astype(np.int64)
            arrays = _floats(embeddings[ids]), ids, lists.list_of[block].astype(np.int64)
            self._index.add_core(len(ids), *map(faiss.swig_ptr, arrays))

    def search(self, queries: np.ndarray, n: int, effort: int) -> np.ndarray:
        """Returns rows `[queries, n]` int64 with large scores, unordered, padded with -1.

        Args:
            queries: Query embeddings `[queries, dim]` float32.
            n: Number of rows per query.
            effort: Number of lists to search.
        """
        faiss = _faiss()
        # Searches in one thread: concurrent requests use the other cores.
        faiss.omp_set_num_threads(1)
        parameters = faiss.SearchParametersIVF(nprobe=min(effort, self.n_lists))
        return np.asarray(self._index.search(_floats(queries), n, params=parameters)[1])


def _empty(n_lists: int, dim: int) -> Any:
    faiss = _faiss()
    return faiss.index_factory(dim, f"IVF{n_lists},SQ8", faiss.METRIC_INNER_PRODUCT)


def _floats(values: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(values, np.float32)


def _faiss() -> Any:
    try:
        import faiss
    except ImportError as error:
        cure = f"{install_extra('serve')} Or set export.index.kind to exact: recsys run."
        raise RecsysError("R580", "An approximate index needs FAISS.", cure, str(error)) from None
    return faiss


def write_index(bundle: Path, lists: Lists, fields: dict[str, Any]) -> None:
    """Writes the folder `index`.

    Args:
        bundle: The bundle.
        lists: Learned parameters of the index.
        fields: Other fields of `index.json`, including `effort`.
    """
    folder = bundle / FOLDER
    folder.mkdir()
    for field in dataclasses.fields(lists):
        np.save(folder / f"{field.name}.npy", getattr(lists, field.name))
    text = json.dumps({"format": _FORMAT, **fields}, indent=1, sort_keys=True, allow_nan=False)
    (folder / _JSON).write_text(text + "\n", encoding="utf-8")


def read_index(
    bundle: Path, embeddings: np.ndarray, is_item: np.ndarray
) -> tuple[AnnIndex, int] | None:
    """Returns the index of a bundle and its search effort; None if it has no index.

    Args:
        bundle: A bundle whose files match its manifest.
        embeddings: Its item embeddings `[item rows, dim]` float32.
        is_item: Whether each row is an item `[item rows]` bool.

    Raises:
        RecsysError: FAISS is missing (R580).
    """
    folder, rows = bundle / FOLDER, np.flatnonzero(is_item)
    if not folder.exists():
        return None
    names = [field.name for field in dataclasses.fields(Lists)]
    arrays = {name: np.load(folder / f"{name}.npy", allow_pickle=False) for name in names}
    effort = json.loads((folder / _JSON).read_text(encoding="utf-8"))["effort"]
    return AnnIndex(Lists(**arrays), embeddings, rows), effort


# --- ranking

_LARGE = 1e15
"""Bound of the magnitudes, also of rounded items: products stay far below float32's maximum."""
_OVER = 2
"""Number of candidates to fetch from an index, as a multiple of `k`: its scores are rounded."""
_MOST_FETCHED = 4096
_MOST_LISTS = 0.125
"""Highest share of its lists that an index may search to be faster than int8 scores of all items:
these take 2 ns per item, an index 20 ns per item in the searched lists."""
_FEW_SHARE = 0.125
"""Share of all items up to which gathering them is cheaper than scoring all."""

Best = tuple[np.ndarray, np.ndarray]
"""Rows `[queries, k]` int32, padded with 0, and their scores float32, padded with -inf. Ties go to
the lower row."""


class Ranker:
    """Ranks the items of a bundle; scores are exact float32 dot products.

    On processors with fast byte products, items are first ranked by int8 scores, and only the best
    of them exactly. The result is the same to the bit (`recsys.kernels.rank_jobs`).

    Args:
        embeddings: Item embeddings `[item rows, dim]` float32, contiguous; may be a memory map.
        is_item: Whether each row is an item `[item rows]` bool.
        index: Index of these items; None: exact search.
        effort: Number of lists that the index searches.

    Attributes:
        is_rounded: Whether items are first ranked by int8 scores.
        is_exact: Whether the search is exact, because there is no index, or it would take longer.
    """

    def __init__(
        self,
        embeddings: np.ndarray,
        is_item: np.ndarray,
        index: AnnIndex | None = None,
        effort: int = 1,
    ) -> None:
        self._embeddings, self._is_item = embeddings, is_item
        self._bias = np.where(is_item, np.float32(0), np.float32(np.nan))
        self._is_native = kernels.status().available
        self._rounded = _rounded(embeddings, is_item)
        self.is_rounded = self._rounded is not None
        self._index, self._effort = index, effort
        lists = _MOST_LISTS * index.n_lists if index is not None else 0
        self.is_exact = index is None or (self.is_rounded and effort > lists)

    def best(
        self, queries: np.ndarray, hidden: RaggedRows, k: int, allowed: np.ndarray | None = None
    ) -> Best:
        """Returns the best items of queries, ranked in the calling thread.

        There are always `k` rows if so many are allowed and not hidden: with `allowed`, and if the
        index finds too few, the search is exact.

        Args:
            queries: Query embeddings `[queries, dim]` float32.
            hidden: Rows to exclude for each query.
            k: Number of items per query.
            allowed: Item rows that may be returned `[item rows]` bool; None: all items.
        """
        if allowed is not None:
            few = np.flatnonzero(allowed & self._is_item)
            if len(few) > _FEW_SHARE * len(allowed):
                return self.exact(queries, hidden, k, allowed)
            return self._among([few] * len(queries), queries, hidden, k)
        if self.is_exact:
            return self.exact(queries, hidden, k)
        rows, scores = self.by_index(queries, hidden, k, self._effort)
        short = np.flatnonzero(rows[:, -1] == 0)
        if len(short):
            rows[short], scores[short] = self.exact(queries[short], hidden.select(short), k)
        return rows, scores

    def with_added(
        self,
        best: Callable[..., Best],
        queries: np.ndarray,
        hidden: RaggedRows,
        k: int,
        allowed: np.ndarray | None,
        added: Any,
    ) -> Best:
        """Returns the best items by dot products plus summands of some items.

        An item without a summand is among the best k only if it is among the best k by its dot
        product, as summands aren't negative. So the best are among these and those with summands.

        Args:
            best: `best` or `exact`.
            queries: See `best`.
            hidden: See `best`.
            k: See `best`.
            allowed: See `best`.
            added: Summands `[queries, item rows]` float32 in CSR, not negative.
        """
        may_come = self._is_item if allowed is None else self._is_item & allowed
        few = []
        for number, rows in enumerate(best(queries, hidden, k, allowed)[0]):
            others = added.indices[added.indptr[number] : added.indptr[number + 1]]
            few.append(np.union1d(rows[rows > 0], others[may_come[others]]))
        return self._among(few, queries, hidden, k, added)

    def by_index(self, queries: np.ndarray, hidden: RaggedRows, k: int, effort: int) -> Best:
        """Returns the best items as `best`, but only those that the index finds at an effort."""
        if self._index is None:
            raise ValueError("there is no index")
        most = int(np.diff(hidden.offsets).max(initial=0))
        n = min(_OVER * k + most, max(_OVER * k, _MOST_FETCHED), len(self._is_item))
        candidates = self._index.search(queries, n, effort)
        return self._among([rows[rows > 0] for rows in candidates], queries, hidden, k)

    def _among(
        self,
        candidates: list[np.ndarray],
        queries: np.ndarray,
        hidden: RaggedRows,
        k: int,
        added: Any = None,
    ) -> Best:
        """Returns the best of some rows for each query."""
        rows, scores = _nothing(len(queries), k)
        for number, (few, query) in enumerate(zip(candidates, queries, strict=True)):
            kept = few[~np.isin(few, hidden.part(slice(number, number + 1)).rows)]
            of_items = self._embeddings[kept] @ query
            if added is not None:
                of_items = of_items + added[[number]][:, kept].toarray()[0]
            best = best_of(kept, of_items, k)
            rows[number, : len(best[0])], scores[number, : len(best[0])] = best
        return rows, scores

    def exact(
        self,
        queries: np.ndarray,
        hidden: RaggedRows,
        k: int,
        allowed: np.ndarray | None = None,
        threads: int = 1,
    ) -> Best:
        """Returns the best items as `best`, by an exact search in `threads` threads."""
        if allowed is not None:
            allowed = allowed & self._is_item
        queries = np.ascontiguousarray(queries)
        # Scores must be finite in float32.
        is_ordinary = bool(np.abs(queries).max(initial=0) < _LARGE)
        rounded = self._rounded
        if rounded is None or not rounded.takes(k) or not is_ordinary:
            return self._by_floats(queries, hidden, k, allowed, threads)
        out = rank_jobs.TopResults.empty(len(queries), k)
        steps = rounded.masked(allowed)

        def job(block: slice) -> None:
            rounded.best(block, queries[block], hidden, steps, out)

        _run(job, len(queries), rank_jobs.QUERIES_OF_A_JOB, threads)
        rest = np.flatnonzero(out.is_given_up)
        if len(rest):
            best = self._by_floats(queries[rest], hidden.select(rest), k, allowed, threads)
            out.top[rest], out.top_scores[rest] = best
        return out.top, out.top_scores

    def _by_floats(
        self,
        queries: np.ndarray,
        hidden: RaggedRows,
        k: int,
        allowed: np.ndarray | None,
        threads: int,
    ) -> Best:
        bias = self._bias if allowed is None else np.where(allowed, self._bias, np.float32(np.nan))
        # Without int8 scores, BLAS on all cores is faster for one query. With them, the result must
        # not depend on which queries fall back to an exact search.
        if not self._is_native or (len(queries) == 1 and self._rounded is None):
            return self._by_numpy(queries, hidden, k, bias)
        # The kernel keeps as many candidates of a query as its list is long.
        width = min(k, len(bias))
        out = rank_jobs.RankResults.empty(0, len(queries), width)
        nothing = RaggedRows.empty(len(queries))

        def job(block: slice) -> None:
            table = self._embeddings
            rank_jobs.rank_queries(block, queries[block], table, bias, nothing, hidden, out)

        _run(job, len(queries), rank_jobs.QUERIES_STEP, threads)
        rows, scores = _nothing(len(queries), k)
        rows[:, :width], scores[:, :width] = out.top, out.top_scores
        return rows, scores

    def _by_numpy(self, queries: np.ndarray, hidden: RaggedRows, k: int, bias: np.ndarray) -> Best:
        rows, scores = _nothing(len(queries), k)
        for number, query in enumerate(queries):
            # One by one: BLAS reads a matrix for one vector faster than for a batch of one.
            row = self._embeddings @ query + bias
            row[hidden.part(slice(number, number + 1)).rows] = np.nan
            best = best_of(np.arange(len(row)), row, k)
            rows[number, : len(best[0])], scores[number, : len(best[0])] = best
        return rows, scores


def best_of(rows: np.ndarray, scores: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns at most `k` of `rows` with the highest finite scores, and the scores.

    Ties go to the lower row.
    """
    is_there = np.isfinite(scores)
    rows, scores = rows[is_there], scores[is_there]
    if len(rows) > k:
        kept = scores >= np.partition(scores, -k)[-k]
        rows, scores = rows[kept], scores[kept]
    order = np.lexsort((rows, -scores))[:k]
    return rows[order], scores[order]


def _nothing(n: int, k: int) -> Best:
    return np.zeros((n, k), np.int32), np.full((n, k), -np.inf, np.float32)


def _rounded(embeddings: np.ndarray, is_item: np.ndarray) -> rank_jobs.RoundedItems | None:
    if not rank_jobs.is_fast():
        return None
    try:
        return rank_jobs.RoundedItems(embeddings, is_item)
    except ValueError:  # Numbers or dimensions are out of the kernel's range.
        return None


def _run(job: Callable[[slice], None], n: int, size: int, threads: int) -> None:
    blocks = slices(n, size)
    if threads == 1 or len(blocks) == 1:
        for block in blocks:
            job(block)
        return
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(job, blocks))


# --- building an index

_FEWEST_QUERIES = 512
_WAY = 0.5
"""Distance of a synthetic query from its item, relative to the item's norm."""
_MARGIN_SHARE = 0.2
"""Safety margin as a share of the allowed loss of recall: future queries differ from these."""
_MOST_SHARE = 0.5
"""Highest share of lists to search; above half of the items, an exact search is faster."""
_LISTS_OF_A_ROOT = 4


def build_index(
    folder: Path,
    embeddings: np.ndarray,
    is_item: np.ndarray,
    queries: np.ndarray,
    k: int,
    config: IndexConfig,
    report: Report | None = None,
) -> dict[str, Any] | None:
    """Writes `index/` into a bundle, if the config requires an index for this number of items.

    The search effort is the lowest with sufficient recall, plus a margin, on every other query. The
    recall is measured on the other half. The same input gives the same files.

    Args:
        folder: The bundle.
        embeddings: Item embeddings `[item rows, dim]` float32; may be a memory map.
        is_item: Whether each row is an item `[item rows]` bool.
        queries: Query embeddings `[n, dim]` float32.
        k: Number of items per query.
        config: Config of the index.
        report: Called with the number of finished items and the total.

    Returns:
        Fields of the manifest: `kind`, `items`, `lists`, `effort`, `k`, `recall` on held-out
        `queries`, `min_recall`, `seconds`; None without an index.

    Raises:
        RecsysError: FAISS is missing (R580), or the recall is too low (R581).
    """
    rows, started = np.flatnonzero(is_item), time.perf_counter()
    least = {"auto": config.exact_up_to, "ann": 0}.get(config.kind, len(rows))
    if len(rows) <= least:
        return None
    default = max(1, round(_LISTS_OF_A_ROOT * math.sqrt(len(rows))))
    n_lists = min(config.lists or default, len(rows))
    lists = learn_lists(embeddings, rows, n_lists, report)
    ranker = Ranker(embeddings, is_item, AnnIndex(lists, embeddings, rows))
    judges = judging_queries(queries, embeddings, rows)
    nothing = RaggedRows.empty(len(judges))
    exact, _ = Ranker(embeddings, is_item).best(judges, nothing, k)

    def search(some: np.ndarray, effort: int) -> np.ndarray:
        return ranker.by_index(some, RaggedRows.empty(len(some)), k, effort)[0]

    effort, recall = choose_effort(search, judges, exact, n_lists, config.min_recall)
    fields = {
        "kind": "ivf-sq8",
        "items": len(rows),
        "lists": n_lists,
        "effort": effort,
        "k": k,
        "recall": round(recall, 5),
        "queries": len(judges) // 2,
        "min_recall": config.min_recall,
    }
    write_index(folder, lists, fields)
    return {**fields, "seconds": round(time.perf_counter() - started, 3)}


def judging_queries(queries: np.ndarray, embeddings: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Returns at least 512 queries `[n, dim]` float32.

    Args:
        queries: Query embeddings of the model `[m, dim]`. Zero vectors are dropped.
        embeddings: Item embeddings `[item rows, dim]`.
        rows: Rows that are items. If there are too few queries, synthetic ones near random items
            are added.
    """
    queries = np.asarray(queries, np.float32).reshape(-1, embeddings.shape[1])
    own = queries[np.abs(queries).max(axis=1, initial=0) > 0]
    rng = np.random.default_rng(_SEED)
    n_missing = max(0, _FEWEST_QUERIES - len(own))
    near = np.asarray(embeddings[rng.choice(rows, n_missing)], np.float32)
    ways = rng.standard_normal(near.shape, np.float32)
    ways /= np.maximum(np.linalg.norm(ways, axis=1, keepdims=True), 1e-12)
    lengths = np.linalg.norm(near, axis=1, keepdims=True)
    return np.concatenate([own, near + np.float32(_WAY) * lengths * ways])


def choose_effort(
    search: Callable[[np.ndarray, int], np.ndarray],
    queries: np.ndarray,
    exact: np.ndarray,
    n_lists: int,
    min_recall: float,
) -> tuple[int, float]:
    """Returns the number of lists to search, and the recall on held-out queries [0..1].

    Every other query is used to choose the effort, the rest to measure the recall.

    Args:
        search: Returns item rows `[n, k]` of queries at an effort, padded with 0.
        queries: Query embeddings `[n, dim]` float32, at least two.
        exact: Rows of the exact top k `[n, k]`, padded with 0.
        n_lists: Number of lists.
        min_recall: Share of `exact` that must be found [0..1].

    Raises:
        RecsysError: The recall is too low even at the highest effort (R581).
    """
    wanted = min_recall + _MARGIN_SHARE * (1 - min_recall)
    most = max(1, int(n_lists * _MOST_SHARE))
    # Each is about a fourth larger than the previous one.
    steps = np.unique(np.round(1.25 ** np.arange(64)).astype(int))
    effort = most
    for effort in [*steps[steps < most].tolist(), most]:
        if recall_of(search(queries[::2], effort), exact[::2]) >= wanted:
            break
    recall = recall_of(search(queries[1::2], effort), exact[1::2])
    if recall < min_recall:
        rule = f"The index must find {min_recall:.1%} of the exact best {exact.shape[1]} items."
        cure = (
            "Set export.index.kind to exact, export.index.lists lower, or"
            " export.index.min_recall lower; then run again: recsys run."
        )
        raise RecsysError("R581", rule, cure, f"{recall:.4f} at {effort} of {n_lists} lists")
    return effort, recall


def recall_of(rows: np.ndarray, exact: np.ndarray) -> float:
    """Returns the share of `exact` `[n, k]`, without padding 0, that is in `rows` `[n, k]`."""
    hits = sum(len(np.intersect1d(x, best[best > 0])) for x, best in zip(rows, exact, strict=True))
    return hits / max(1, int((exact > 0).sum()))
