"""Recommends to many users at a time: as the signature `recommend` does, but faster.

The SavedModel is asked for query embeddings and histories alone; the ranking is that of
the evaluation, by the C kernel, exact over the whole catalogue. Strangers, whom a model
may answer in ways of its own, are asked for by `recommend`: those of one embedding get
one answer, so a few questions are enough for all of them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from recsys.data.id_index import IdIndex
from recsys.errors import RecsysError
from recsys.evaluation.ranking import DotProducts, rank
from recsys.ragged import Ragged
from recsys.serving.contents import check_k, read_contents
from recsys.serving.loading import load_saved_model
from recsys.serving.signatures import ask

SCHEMA = pa.schema(
    [
        ("user_id", pa.string()),
        ("item_ids", pa.list_(pa.string())),
        ("scores", pa.list_(pa.float32())),
        ("known", pa.bool_()),
    ]
)
"""Of an answer: items the best first, fewer than asked for where the catalogue has no more."""

# Histories come padded to the longest one of their block.
_HISTORY_BLOCK = 512
_STRANGERS_BLOCK = 64


class BatchRecommender:
    """Answers many users of a bundle at a time. Loading takes seconds.

    Args:
        bundle: Folder of a bundle, as `recsys.bundle.latest` finds it.

    Raises:
        RecsysError: The bundle is damaged or lacks something (R544, R547), or TensorFlow
            is missing or can't load it.
    """

    def __init__(self, bundle: Path) -> None:
        contents = read_contents(bundle)
        self.max_k = contents.max_k
        ids = contents.catalogue["id"].cast(pa.large_string()).combine_chunks()
        ids = pa.concat_arrays([pa.array([""], pa.large_string()), ids])
        self._item_ids = pc.if_else(pc.equal(ids, ""), pa.scalar(None, pa.large_string()), ids)
        self._is_item = self._item_ids.is_valid().to_numpy(zero_copy_only=False)
        self._index = IdIndex(self._item_ids)
        self._embeddings = _embeddings(bundle, len(ids))
        self._model = load_saved_model(bundle)

    def recommend(self, user_ids: pa.Array, k: int) -> pa.RecordBatch:
        """Returns the best `k` unseen items of each of `user_ids`, in the columns of `SCHEMA`.

        Args:
            user_ids: Ids `[n]` string, without null; unknown ones may be among them.
            k: How many.

        Raises:
            UsageError: `k` is out of range (R541).
        """
        check_k(k, self.max_k)
        users = np.asarray(user_ids.to_pylist(), object)
        known, seen = self._histories(users)
        rows = np.zeros((len(users), k), np.int32)
        scores = np.full((len(users), k), -np.inf, np.float32)
        if len(users):
            query = self._embed(users)
            self._answer_known(np.flatnonzero(known), query, seen, rows, scores)
            self._answer_strangers(np.flatnonzero(~known), users, query, rows, scores)
        return self._as_batch(user_ids, rows, scores, known)

    def _answer_known(
        self, at: np.ndarray, query: np.ndarray, seen: Ragged, rows: np.ndarray, scores: np.ndarray
    ) -> None:
        """Fills in `rows` and `scores` of the users at places `at` by ranking."""
        if not len(at):
            return
        nothing = Ragged(np.zeros(0, np.int32), np.zeros(len(at) + 1, np.int64))
        scorer = DotProducts(query[at], self._embeddings)
        found = rank(scorer, nothing, seen.select(at), self._is_item, rows.shape[1])
        width = found.top.shape[1]  # Fewer where the catalogue is smaller.
        rows[at, :width], scores[at, :width] = found.top, found.top_scores

    def _answer_strangers(
        self,
        at: np.ndarray,
        users: np.ndarray,
        query: np.ndarray,
        rows: np.ndarray,
        scores: np.ndarray,
    ) -> None:
        """Fills in `rows` and `scores` of the users at places `at` by asking the model."""
        _, first, group = np.unique(query[at], axis=0, return_index=True, return_inverse=True)
        group = group.reshape(-1)
        for start in range(0, len(first), _STRANGERS_BLOCK):
            block = first[start : start + _STRANGERS_BLOCK]
            found_rows, found_scores = self._ask_recommend(users[at[block]], rows.shape[1])
            mine = (group >= start) & (group < start + len(block))
            rows[at[mine]] = found_rows[group[mine] - start]
            scores[at[mine]] = found_scores[group[mine] - start]

    def _ask_recommend(self, users: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        answer = ask(
            self._model,
            "recommend",
            user_id=users,
            history=np.full((len(users), 1), "", object),
            exclude_seen=np.ones(len(users), bool),
        )
        rows = self._rows(answer["candidate_ids"][:, :k])
        scores = np.where(rows > 0, answer["scores"][:, :k], -np.inf)
        return rows, scores.astype(np.float32)

    def _embed(self, users: np.ndarray) -> np.ndarray:
        stored = np.full((len(users), 1), "", object)
        embedding: np.ndarray = ask(self._model, "embed_query", user_id=users, history=stored)[
            "embedding"
        ]
        return embedding

    def _histories(self, users: np.ndarray) -> tuple[np.ndarray, Ragged]:
        """Returns which users are known `[n]` bool, and the item rows that each has seen."""
        known, counts, rows = [np.zeros(0, bool)], [np.zeros(0, np.int64)], []
        for start in range(0, len(users), _HISTORY_BLOCK):
            block = users[start : start + _HISTORY_BLOCK]
            answer = ask(self._model, "stored_history", user_id=block)
            is_item = answer["item_ids"] != b""
            known.append(answer["known"])
            counts.append(is_item.sum(axis=1))
            rows.append(self._rows(answer["item_ids"][is_item]))
        offsets = np.concatenate([[0], np.cumsum(np.concatenate(counts))])
        return np.concatenate(known), Ragged(
            np.concatenate([*rows, np.zeros(0, np.int32)]), offsets
        )

    def _rows(self, ids: np.ndarray) -> np.ndarray:
        """Returns the item rows of ids of any shape, text as bytes; 0 for no item."""
        texts = pa.array(ids.reshape(-1), pa.binary()).cast(pa.large_binary())
        places = self._index.find(texts.cast(pa.large_string()))
        return np.maximum(places, 0).astype(np.int32).reshape(ids.shape)

    def _as_batch(
        self, user_ids: pa.Array, rows: np.ndarray, scores: np.ndarray, known: np.ndarray
    ) -> pa.RecordBatch:
        is_there = rows > 0
        offsets = pa.array(np.concatenate([[0], np.cumsum(is_there.sum(axis=1))]), pa.int32())
        ids = self._item_ids.take(pa.array(rows[is_there])).cast(pa.string())
        columns = [
            user_ids.cast(pa.string()),
            pa.ListArray.from_arrays(offsets, ids),
            pa.ListArray.from_arrays(offsets, pa.array(scores[is_there])),
            pa.array(known),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def _embeddings(bundle: Path, n_rows: int) -> np.ndarray:
    """Returns the item embeddings `[item rows, dim]`, which are read where they lie."""
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
    return np.asarray(found)
