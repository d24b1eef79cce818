"""An approximate index: items are clustered into lists, and a query searches the nearest ones.

FAISS's IVF with 8-bit scalar quantisation (Jégou, Douze and Schmid, "Product quantization for
nearest neighbor search", 2011, section 4). The caller computes the exact scores of the candidates.
docs/serving.md says why FAISS.

It is stored as three small arrays. The rounded vectors are recomputed from the item embeddings
when the index is loaded.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from recsys.errors import RecsysError
from recsys.ragged import slices
from recsys.system.installation import install_extra

FOLDER = "index"
_JSON, _FORMAT = "index.json", 1
_SAMPLES_OF_A_LIST, _ROUNDS, _SEED = 64, 10, 0
_BLOCK = 65_536

Report = Callable[[int, int], None]
"""Called with the number of finished items and the total."""


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
