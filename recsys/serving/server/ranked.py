"""Recommendations ranked outside of the graph: by the index of a bundle, or by looking at all.

The SavedModel embeds a query and tells what its user has seen (`prepare_query`); the
items are ranked here, by exact float32 dot products, which is faster than in the graph.
What a bundle answers by popularity it is asked for itself. Inputs and outputs are those
of `recommend` and `recommend_filtered`, see `recsys.bundles.graph`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from recsys import kernels
from recsys.bundles.signatures import POPULARITY
from recsys.errors import RecsysError
from recsys.ragged import Ragged
from recsys.serving.ann_index import FOLDER, read_index
from recsys.serving.ranker import Ranker
from recsys.serving.server.catalogue_search import ItemFilters, Names
from recsys.serving.server.tensors import Arrays, Signature

Ask = Callable[[str, Arrays], Arrays]
"""Asks a signature of the SavedModel."""

RANKED = ("recommend", "recommend_filtered")
PREPARE = "prepare_query"
NO_SCORE = np.finfo(np.float32).min
_EXCLUDED = "exclude_ids"


class RankedAnswers:
    """Answers the signatures `RANKED` of a bundle.

    Args:
        ask: Asks its SavedModel.
        ranker: Of its items.
        names: Its users and items.
        filters: What its items can be filtered by.
        query_inputs: Names of the inputs of `prepare_query`.
        k: Items of an answer.
    """

    def __init__(
        self,
        ask: Ask,
        ranker: Ranker,
        names: Names,
        filters: ItemFilters,
        query_inputs: tuple[str, ...],
        k: int,
    ) -> None:
        self._ask, self._ranker, self._names = ask, ranker, names
        self._filters, self._query_inputs, self._k = filters, query_inputs, k
        self._ids = names.items.ids_of_rows

    @classmethod
    def open(
        cls,
        folder: Path,
        ask: Ask,
        signatures: Mapping[str, Signature],
        names: Names,
        filters: ItemFilters,
        k: int,
    ) -> RankedAnswers | None:
        """Returns the answers of a bundle; None where its graph answers as fast.

        Raises:
            RecsysError: The bundle has an index that can't be used (R580, R582, R583).
        """
        has_index = (folder / FOLDER).exists()
        if PREPARE not in signatures:
            if has_index:
                raise _no_query(folder, sorted(signatures))
            return None
        if not has_index and not kernels.status().available:
            return None
        is_item = names.items.has_id()
        embeddings = _embeddings(folder, names.embeddings, len(is_item))
        index = read_index(folder, embeddings, is_item)
        ranker = Ranker(embeddings, is_item, *(index or ()))
        inputs = tuple(signatures[PREPARE].inputs)
        answers = cls(ask, ranker, names, filters, inputs, k)
        # Reads the embeddings once, so that the first request doesn't wait for the disk.
        ranker.best(np.zeros((1, embeddings.shape[1]), np.float32), Ragged.empty(1), k)
        return answers

    def answer(self, signature: str, inputs: Arrays) -> Arrays:
        """Returns what `signature`, one of `RANKED`, gives."""
        query = self._ask(PREPARE, {name: inputs[name] for name in self._query_inputs})
        n = len(query["known"])
        rows = np.zeros((n, self._k), np.int32)
        scores = np.full((n, self._k), -np.inf, np.float32)
        hidden = Ragged(query["seen_rows"].astype(np.int32), query["seen_offsets"])
        if _EXCLUDED in inputs:
            hidden = self._with_excluded(hidden, inputs[_EXCLUDED])
        is_popular = query["source"] == POPULARITY.encode()
        for at, allowed in self._filters.groups(inputs, np.flatnonzero(~is_popular)):
            rows[at], scores[at] = self._ranker.best(
                query["embedding"][at], hidden.select(at), self._k, allowed
            )
        found = {
            "candidate_ids": self._as_ids(rows),
            "scores": np.where(rows > 0, scores, NO_SCORE),
            "known": query["known"],
            "source": query["source"],
        }
        if is_popular.any():
            own = self._ask(signature, {name: x[is_popular] for name, x in inputs.items()})
            for name, values in own.items():
                found[name][is_popular] = values
        return found

    def _with_excluded(self, hidden: Ragged, ids: np.ndarray) -> Ragged:
        """Returns the rows to hide of each query, with those of `ids` `[n, any]`."""
        is_id = ids != b""
        rows = np.asarray(self._names.item_rows([_text(id_) for id_ in ids[is_id]]), np.int32)
        owner = np.concatenate([hidden.owner(), np.nonzero(is_id)[0]])
        every = np.concatenate([hidden.rows, rows])
        order = np.argsort(owner, kind="stable")
        counts = np.bincount(owner, minlength=len(hidden))
        return Ragged(every[order], np.concatenate([[0], np.cumsum(counts)]))

    def _as_ids(self, rows: np.ndarray) -> np.ndarray:
        """Returns the ids of rows of any shape as bytes; empty for no item."""
        texts = self._ids.take(pa.array(rows.ravel())).cast(pa.large_binary()).to_pylist()
        out = np.empty(rows.size, object)
        out[:] = [text if row else b"" for text, row in zip(texts, rows.ravel(), strict=True)]
        return out.reshape(rows.shape)


def _embeddings(folder: Path, found: np.ndarray, n_rows: int) -> np.ndarray:
    if found.ndim != 2 or len(found) != n_rows or found.dtype != np.float32:
        raise RecsysError(
            "R583",
            f"The item embeddings of {str(folder)!r} must be float32, a line for each item row.",
            "Export the model again: recsys export.",
            f"{found.dtype} {found.shape} for {n_rows} item rows",
        )
    return np.ascontiguousarray(found)


def _no_query(folder: Path, received: Any) -> RecsysError:
    return RecsysError(
        "R583",
        f"A bundle with an index must have the signature {PREPARE!r}; {str(folder)!r} lacks it.",
        "Export the model again: recsys export.",
        received,
    )


def _text(id_: bytes) -> str:
    try:
        return id_.decode()
    except UnicodeDecodeError:  # No item has such an id.
        return ""
