"""An approximate index: items are clustered into lists, and a query searches the nearest ones.

FAISS's IVF with 8 bits a number (Jégou, Douze and Schmid, "Product quantization for
nearest neighbor search", 2011, section 4, each number rounded for itself). The caller
computes the exact scores of what it finds. docs/serving.md says why FAISS.

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
"""Called with the items that have their list, and all of them."""


@dataclasses.dataclass(frozen=True)
class Lists:
    """The learned parameters of an index.

    Attributes:
        middles: Of each list `[lists, dim]` float32.
        ranges: Least value and width of each dimension, one after the other, of which a
            number of 8 bits is a place `[2 * dim]` float32.
        list_of: List of each item, in the order of their rows `[items]` int32.
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
        rows: Those that are items `[n]`, ascending.
        n_lists: How many lists; at most `n`.
        report: Called with the items that are done, and all of them.

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
    """Finds items of large dot products. It is thread-safe.

    Args:
        lists: What was learnt of the items.
        embeddings: `[item rows, dim]` float32; may be a memory map.
        rows: Those that are items `[n]`, ascending.

    Attributes:
        n_lists: Lists that there are.

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
        """Returns rows `[queries, n]` int64 of large scores, in no order that counts; -1: none.

        Args:
            queries: `[queries, dim]` float32.
            n: Rows of each.
            effort: Lists that are looked through.
        """
        faiss = _faiss()
        # Of this thread alone: it is the requests that run side by side.
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
        lists: What was learnt of the items.
        fields: More of `index.json`, the `effort` among them.
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
    """Returns the index of a bundle and its effort; None where it has none.

    Args:
        bundle: The bundle, whose files were checked against its manifest.
        embeddings: Its item embeddings `[item rows, dim]` float32.
        is_item: Which rows are items `[item rows]` bool.

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
