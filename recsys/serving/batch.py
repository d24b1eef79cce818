"""Recommends to many users at a time: as the signature `recommend` does, but faster.

The SavedModel is asked for query embeddings and for what each user has seen alone; the
ranking is exact over the whole catalogue in float32, by the C kernels where they can be
had. Who is answered by popularity is asked for by the SavedModel: those who have
seen nothing get one answer, so one question is enough for all of them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from recsys.bundles.bundle import check_k, read_contents
from recsys.bundles.item_table import allowed_items, features_of
from recsys.bundles.signatures import POPULARITY, filter_inputs
from recsys.data.id_index import IdIndex
from recsys.errors import RecsysError
from recsys.evaluation.ranking import rank
from recsys.evaluation.scores import DotProducts
from recsys.ragged import Ragged
from recsys.serving.ranker import ExactItems
from recsys.serving.saved_model import ask, load_saved_model

SCHEMA = pa.schema(
    [
        ("user_id", pa.string()),
        ("item_ids", pa.list_(pa.string())),
        ("scores", pa.list_(pa.float32())),
        ("known", pa.bool_()),
        ("source", pa.string()),
    ]
)
"""Of an answer: items the best first, fewer than asked for where the catalogue has no more;
whether the data hold the user; what the answer rests on, see `recsys.bundles.signatures`."""

ENCODED = SCHEMA.set(1, pa.field("item_ids", pa.list_(pa.dictionary(pa.int32(), pa.string()))))
"""`SCHEMA` as an answer holds it: each id once, and numbers of ids for the lists."""

_ASKED_BLOCK = 64
_LARGE = 1e15
"""Rounded items are no larger either; the product of two such is far from float32's end."""


class BatchRecommender:
    """Answers many users of a bundle at a time. Loading takes seconds.

    Args:
        bundle: Folder of a bundle, as `recsys.bundles.versions.latest` finds it.
        exclude_ids: Items that nobody gets.
        only: Names of tokens by feature; every item of an answer has one of them in each
            of these features.

    Raises:
        RecsysError: The bundle is damaged or lacks something (R543, R544, R547), or
            TensorFlow is missing or can't load it.
        UsageError: There is no such feature (R549).
    """

    def __init__(
        self,
        bundle: Path,
        exclude_ids: Sequence[str] = (),
        only: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        contents = read_contents(bundle)
        self.max_k, self._excludes_seen = contents.max_k, contents.excludes_seen
        ids = contents.catalogue["id"].cast(pa.large_string()).combine_chunks()
        self._only = {name: tuple(tokens) for name, tokens in (only or {}).items() if tokens}
        self._exclude_ids = tuple(exclude_ids)
        allowed = allowed_items(bundle, ids, self._exclude_ids, self._only)
        ids = pa.concat_arrays([pa.array([""], pa.large_string()), ids])
        self._item_ids = pc.if_else(pc.equal(ids, ""), pa.scalar(None, pa.large_string()), ids)
        is_item = self._item_ids.is_valid().to_numpy(zero_copy_only=False)
        self._is_candidate = is_item & np.concatenate([[False], allowed])
        self._inputs = _filter_inputs(bundle, self._exclude_ids, self._only)
        self._index = IdIndex(self._item_ids)
        self._embeddings = _embeddings(bundle, len(ids))
        self._exact = ExactItems(self._embeddings, self._is_candidate)
        self._model = load_saved_model(bundle)

    def recommend(self, user_ids: pa.Array, k: int) -> pa.RecordBatch:
        """Returns the best `k` items of each of `user_ids`, in the columns of `ENCODED`.

        What a user has seen is left out, unless the bundle's config includes repeats.
        May be called from several threads.

        Args:
            user_ids: Ids `[n]` string, without null; unknown ones may be among them.
            k: How many.

        Raises:
            UsageError: `k` is out of range (R541).
        """
        check_k(k, self.max_k)
        users = np.asarray(user_ids.to_pylist(), object)
        query = self._prepare(users)
        seen = Ragged(query["seen_rows"], query["seen_offsets"])
        rows = np.zeros((len(users), k), np.int32)
        scores = np.full((len(users), k), -np.inf, np.float32)
        is_popular = query["source"] == POPULARITY.encode()
        self._rank(np.flatnonzero(~is_popular), query["embedding"], seen, rows, scores)
        self._answer_by_popularity(np.flatnonzero(is_popular), users, seen, rows, scores)
        return self._as_batch(user_ids, rows, scores, query)

    def _prepare(self, users: np.ndarray) -> dict[str, np.ndarray]:
        return self._ask("prepare_query", users)

    def _rank(
        self, at: np.ndarray, query: np.ndarray, seen: Ragged, rows: np.ndarray, scores: np.ndarray
    ) -> None:
        """Fills in `rows` and `scores` of the users at places `at` by ranking."""
        if not len(at) or not self._is_candidate.any():
            return
        if len(at) < len(query):
            query, seen = query[at], seen.select(at)
        if self._exact.is_rounded and _is_ordinary(query):
            k, cores = rows.shape[1], len(os.sched_getaffinity(0))
            rows[at], scores[at] = self._exact.best(query, seen, k, threads=cores)
            return
        # Says what is wrong with numbers that are out of range.
        scorer = DotProducts(query, self._embeddings)
        found = rank(scorer, Ragged.empty(len(at)), seen, self._is_candidate, rows.shape[1])
        width = found.top.shape[1]  # Fewer where the catalogue is smaller.
        rows[at, :width], scores[at, :width] = found.top, found.top_scores

    def _answer_by_popularity(
        self,
        at: np.ndarray,
        users: np.ndarray,
        seen: Ragged,
        rows: np.ndarray,
        scores: np.ndarray,
    ) -> None:
        """Fills in `rows` and `scores` of the users at places `at` by asking the model."""
        has_seen = np.diff(seen.offsets)[at] > 0
        for start in range(0, int(has_seen.sum()), _ASKED_BLOCK):
            block = at[has_seen][start : start + _ASKED_BLOCK]
            rows[block], scores[block] = self._ask_recommend(users[block], rows.shape[1])
        others = at[~has_seen]
        if len(others):
            # One answer for them all.
            rows[others], scores[others] = self._ask_recommend(users[others[:1]], rows.shape[1])

    def _ask_recommend(self, users: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        is_filtered = bool(self._inputs)
        signature = "recommend_filtered" if is_filtered else "recommend"
        filters = {name: np.tile(texts, (len(users), 1)) for name, texts in self._inputs.items()}
        answer = self._ask(signature, users, **filters)
        rows = self._rows(answer["candidate_ids"][:, :k])
        scores = np.where(rows > 0, answer["scores"][:, :k], -np.inf)
        return rows, scores.astype(np.float32)

    def _ask(self, signature: str, users: np.ndarray, **more: np.ndarray) -> dict[str, np.ndarray]:
        return ask(
            self._model,
            signature,
            user_id=users,
            history=np.full((len(users), 1), "", object),
            exclude_seen=np.full(len(users), self._excludes_seen),
            **more,
        )

    def _rows(self, ids: np.ndarray) -> np.ndarray:
        """Returns the item rows of ids of any shape, text as bytes; 0 for no item."""
        texts = pa.array(ids.reshape(-1), pa.binary()).cast(pa.large_binary())
        places = self._index.find(texts.cast(pa.large_string()))
        return np.maximum(places, 0).astype(np.int32).reshape(ids.shape)

    def _as_batch(
        self,
        user_ids: pa.Array,
        rows: np.ndarray,
        scores: np.ndarray,
        query: Mapping[str, np.ndarray],
    ) -> pa.RecordBatch:
        is_there = rows > 0
        offsets = pa.array(np.concatenate([[0], np.cumsum(is_there.sum(axis=1))]), pa.int32())
        ids = self._encoded(rows[is_there])
        columns = [
            user_ids.cast(pa.string()),
            pa.ListArray.from_arrays(offsets, ids),
            pa.ListArray.from_arrays(offsets, pa.array(scores[is_there])),
            pa.array(query["known"]),
            pa.array(query["source"], pa.binary()).cast(pa.string()),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=ENCODED)

    def _encoded(self, rows: np.ndarray) -> pa.DictionaryArray:
        """Returns the ids of item rows `[n]`, each of them once, and its number for the rows."""
        number = np.zeros(len(self._item_ids), np.int32)
        number[rows] = 1
        used = np.flatnonzero(number)
        number[used] = np.arange(len(used), dtype=np.int32)
        ids = self._item_ids.take(pa.array(used)).cast(pa.string())
        return pa.DictionaryArray.from_arrays(pa.array(number[rows]), ids)


def _is_ordinary(query: np.ndarray) -> bool:
    """Returns whether no score can be too large, or NaN."""
    return bool(np.abs(query).max(initial=0) < _LARGE)


def _filter_inputs(
    bundle: Path, exclude_ids: Sequence[str], only: Mapping[str, Sequence[str]]
) -> dict[str, np.ndarray]:
    """Returns the inputs of `recommend_filtered` that filter `[1, any]`, for one user."""
    found = {"exclude_ids": exclude_ids} if exclude_ids else {}
    inputs = filter_inputs(features_of(bundle)) if only else {}
    found |= {name: only[feature] for name, feature in inputs.items() if feature in only}
    return {name: np.asarray([list(texts)], object) for name, texts in found.items()}


def _embeddings(bundle: Path, n_rows: int) -> np.ndarray:
    """Returns the item embeddings `[item rows, dim]` float32, read where they lie if they are."""
    found: Any = None
    try:
        found = np.load(bundle / "item_embeddings.npy", mmap_mode="r", allow_pickle=False)
        if found.ndim != 2 or len(found) != n_rows or found.dtype.kind != "f":
            raise ValueError(f"{found.dtype} {found.shape} for {n_rows} item rows")
    except (OSError, ValueError, EOFError) as error:
        raise RecsysError(
            "R547",
            "A bundle that answers a file of users must hold item_embeddings.npy, a float for"
            " each dimension of each item row.",
            "Export the model again: recsys export.",
            str(error),
        ) from None
    return np.ascontiguousarray(found, np.float32)
