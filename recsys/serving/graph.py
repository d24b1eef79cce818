"""The functions of the SavedModel: raw ids in, candidates out.

Conventions of every signature:

- Ids and raw columns are text, normalised as the ingest does it (Unicode NFC). An id
  that the vocabularies don't know reads row 0, or a row that such ids share.
- `history` `[batch, any length]` holds item ids, the newest first; the empty
  string is padding. A row of nothing but padding stands for the stored history of
  its user; any other row replaces it. An unknown item keeps its place in a
  history and counts nothing, as in training.
- Raw columns `[batch, any]` are those that the features are made of, padded with the
  empty string. Where all columns of a row are empty, the features are the stored ones.
- `exclude_seen` masks what the user did, stored or given.
- Candidates come best first, always `k` of them: who wants fewer takes the first
  ones. Where fewer than `k` items remain, the rest is `""` with the score `NO_SCORE`.
- `known` tells whether the data hold the user.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import tensorflow as tf

from recsys.data.histories import ServingHistories
from recsys.model.saved import SavedModel
from recsys.serving.id_table import IdTable, hash_rows
from recsys.serving.raw_features import RawFeatures, text_columns
from recsys.serving.towers import Bags, RowTowers

NO_SCORE = float(np.finfo(np.float32).min)
_Tensors = dict[str, tf.Tensor]


class Retrieval(tf.Module):
    """Answers with the best candidates of the whole catalogue, exactly.

    Args:
        saved: The model.
        item_embeddings: Of each item row `[item rows, dim]` float32.
        histories: What every user did.
        raw_items: From raw columns of items to token rows; None where there are none.
        raw_users: The same for users.
        k: Candidates of an answer.
    """

    def __init__(
        self,
        saved: SavedModel,
        item_embeddings: np.ndarray,
        histories: ServingHistories,
        raw_items: RawFeatures | None,
        raw_users: RawFeatures | None,
        k: int,
    ) -> None:
        super().__init__(name="retrieval")
        # The saved graph finds variables and tables through the attributes of a module.
        self._towers, self._k = RowTowers(saved), k
        self._raw_items, self._raw_users = raw_items, raw_users
        self._tower_variables = list(self._towers.variables)
        is_item = saved.catalogue.is_item
        self._item_table = IdTable(
            [id_ for id_ in saved.catalogue.ids if id_], np.flatnonzero(is_item)
        )
        self._n_hash_rows = {
            "user": saved.users.first_own_row - 1,
            "item": saved.items.first_own_row - 1,
        }
        self._item_ids = _constant(np.asarray(saved.catalogue.ids, object), tf.string)
        self._item_embeddings = _constant(item_embeddings, tf.float32)
        # Row 0 is masked with what the user did.
        self._is_item = None if is_item[1:].all() else _constant(is_item, tf.bool)
        silent = _without_events(saved, histories)
        ids = [*histories.ids, *silent]
        self._user_table = IdTable(ids, np.arange(1, len(ids) + 1))
        # Place 0 is the unknown user, who did nothing.
        rows = np.concatenate([[0], histories.user_rows, saved.users.rows(silent)])
        self._user_rows = _constant(rows, tf.int32)
        ends = np.full(len(silent), histories.offsets[-1])
        self._history_offsets = _constant(np.concatenate([[0], histories.offsets, ends]), tf.int64)
        self._history_items = _constant(np.append(histories.item_rows, 0), tf.int32)

    def signatures(self) -> dict[str, Any]:
        """Returns the functions to save, by the name of their signature."""
        ids = tf.TensorSpec([None], tf.string)
        query = {
            "user_id": tf.TensorSpec([None], tf.string, "user_id"),
            "history": tf.TensorSpec([None, None], tf.string, "history"),
            **text_columns(self._raw_users.columns if self._raw_users else ()),
        }
        exclude_seen = tf.TensorSpec([None], tf.bool, "exclude_seen")
        candidate = {
            "item_id": tf.TensorSpec([None], tf.string, "item_id"),
            **text_columns(self._raw_items.columns if self._raw_items else ()),
        }
        return {
            "serving_default": _traced(self.recommend_examples, {"examples": ids}),
            "recommend": _traced(self.recommend, {**query, "exclude_seen": exclude_seen}),
            "embed_query": _traced(self.embed_query, query),
            "embed_candidate": _traced(self.embed_candidate, candidate),
            "stored_history": _traced(self.stored_history, {"user_id": ids}),
        }

    def recommend(
        self, user_id: tf.Tensor, history: tf.Tensor, exclude_seen: tf.Tensor, **raw: tf.Tensor
    ) -> _Tensors:
        """Returns `candidate_ids` `[b, k]`, `scores` `[b, k]` and `known` `[b]`."""
        user, given = self._user_table.lookup(user_id), self._items(history)
        query = self._query(user_id, history, raw)
        scores = tf.matmul(query, self._item_embeddings, transpose_b=True)
        if self._is_item is not None:
            scores = tf.where(self._is_item, scores, NO_SCORE)
        scores = _mask(scores, self._seen(user, given, exclude_seen))
        best, rows = tf.math.top_k(scores, self._k)
        ids = tf.where(best > NO_SCORE, tf.gather(self._item_ids, rows), "")
        return {"candidate_ids": ids, "scores": best, "known": user > 0}

    def recommend_examples(self, examples: tf.Tensor) -> _Tensors:
        """Answers serialized tf.Examples `[b]` as `recommend` does.

        Their features: `user_id`, one text; `history`, any number of texts;
        `exclude_seen`, one integer, 1 where it is missing; and the raw columns of the
        users, any number of texts each.
        """
        columns = self._raw_users.columns if self._raw_users else ()
        parsed = tf.io.parse_example(
            examples,
            {
                "user_id": tf.io.FixedLenFeature([], tf.string, ""),
                "history": tf.io.RaggedFeature(tf.string),
                "exclude_seen": tf.io.FixedLenFeature([], tf.int64, 1),
                **{name: tf.io.RaggedFeature(tf.string) for name in columns},
            },
        )
        raw = {name: parsed[name].to_tensor("") for name in columns}
        history = parsed["history"].to_tensor("")
        return self.recommend(parsed["user_id"], history, parsed["exclude_seen"] != 0, **raw)

    def embed_query(self, user_id: tf.Tensor, history: tf.Tensor, **raw: tf.Tensor) -> _Tensors:
        """Returns the query's `embedding` `[b, dim]`."""
        return {"embedding": self._query(user_id, history, raw)}

    def embed_candidate(self, item_id: tf.Tensor, **raw: tf.Tensor) -> _Tensors:
        """Returns the item's `embedding` `[b, dim]`."""
        row = self._items(item_id)
        bags = _fresh(self._raw_items, item_id, raw, self._towers.item_bags(row))
        return {"embedding": self._towers.candidate(row, bags)}

    def stored_history(self, user_id: tf.Tensor) -> _Tensors:
        """Returns `item_ids` `[b, longest]`, the newest first, padded with `""`; `known` `[b]`."""
        user = self._user_table.lookup(user_id)
        rows = tf.reverse(self._stored(user), axis=[1]).to_tensor(0)
        return {"item_ids": tf.gather(self._item_ids, rows), "known": user > 0}

    def _items(self, ids: tf.Tensor) -> tf.Tensor:
        """Returns the item rows of `ids`; 0 for the empty one."""
        rows = self._item_table.lookup(ids)
        return tf.where(rows > 0, rows, hash_rows(ids, self._n_hash_rows["item"]))

    def _query(self, user_id: tf.Tensor, history: tf.Tensor, raw: _Tensors) -> tf.Tensor:
        user, given = self._user_table.lookup(user_id), self._items(history)
        row = tf.where(
            user > 0,
            tf.gather(self._user_rows, user),
            hash_rows(user_id, self._n_hash_rows["user"]),
        )
        length = self._towers.history
        is_given = tf.reduce_any(history != "", axis=1)
        given = tf.pad(given[:, :length], [[0, 0], [0, tf.maximum(length - tf.shape(given)[1], 0)]])
        rows = tf.where(is_given[:, None], given, self._newest(user, length))
        bags = _fresh(self._raw_users, user_id, raw, self._towers.user_bags(row))
        return self._towers.query(row, rows, bags)

    def _newest(self, user: tf.Tensor, length: int) -> tf.Tensor:
        """Returns the newest stored item rows `[b, length]`, padded with 0."""
        start, end = self._slice(user)
        places = end[:, None] - 1 - tf.range(length, dtype=tf.int64)
        is_inside = places >= start[:, None]
        rows = tf.gather(self._history_items, tf.where(is_inside, places, 0))
        return tf.where(is_inside, rows, 0)

    def _stored(self, user: tf.Tensor) -> tf.RaggedTensor:
        start, end = self._slice(user)
        return tf.gather(self._history_items, tf.ragged.range(start, end))

    def _slice(self, user: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return tf.gather(self._history_offsets, user), tf.gather(self._history_offsets, user + 1)

    def _seen(self, user: tf.Tensor, given: tf.Tensor, exclude_seen: tf.Tensor) -> tf.RaggedTensor:
        """Returns the item rows to mask of each query; row 0 always."""
        seen = tf.concat([self._stored(user), given], axis=1)
        seen = tf.ragged.boolean_mask(seen, _as_ragged(exclude_seen, seen))
        return tf.concat([tf.zeros_like(user, tf.int32)[:, None], seen], axis=1)


def _without_events(saved: SavedModel, histories: ServingHistories) -> list[str]:
    """Returns the ids of the users who have a row, for their features, and did nothing."""
    ids = saved.users.own_ids.drop_null()
    with_events = pa.array(histories.ids, ids.type)
    return ids.filter(pc.invert(pc.is_in(ids, value_set=with_events))).to_pylist()


def _fresh(
    features: RawFeatures | None, ids: tf.Tensor, raw: Mapping[str, tf.Tensor], stored: Bags
) -> Bags:
    return features.or_stored(ids, raw, stored) if features else stored


def _constant(values: Any, dtype: tf.DType) -> tf.Variable:
    """Returns a variable, which is saved in a file of its own and not in the graph."""
    return tf.Variable(tf.convert_to_tensor(values, dtype), trainable=False)


def _traced(function: Any, inputs: Mapping[str, tf.TensorSpec]) -> Any:
    return tf.function(function, autograph=False).get_concrete_function(**inputs)


def _as_ragged(flags: tf.Tensor, like: tf.RaggedTensor) -> tf.RaggedTensor:
    """Returns each row's flag for each value of the row of `like`."""
    return like.with_values(tf.gather(flags, like.value_rowids()))


def _mask(scores: tf.Tensor, rows: tf.RaggedTensor) -> tf.Tensor:
    places = tf.stack([rows.value_rowids(), tf.cast(rows.values, tf.int64)], axis=1)
    lowest = tf.fill([tf.shape(places)[0]], tf.constant(NO_SCORE))
    return tf.tensor_scatter_nd_update(scores, places, lowest)
