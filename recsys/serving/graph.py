"""The functions of the SavedModel: raw ids in, candidates out.

Conventions of every signature:

- Ids are text. An id that the vocabularies don't know reads row 0.
- `history` `[batch, any length]` holds item ids, the newest first; the empty
  string is padding. A row of nothing but padding stands for the stored history of
  its user; any other row replaces it. An unknown item keeps its place in a
  history and counts nothing, as in training.
- `exclude_seen` masks what the user did, stored or given.
- Candidates come best first, always `k` of them: who wants fewer takes the first
  ones. Where fewer than `k` items remain, the rest is `""` with the score `NO_SCORE`.
- `known` tells whether the data hold the user.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from recsys.data.histories import ServingHistories
from recsys.serving.raw_features import RawFeatures
from recsys.serving.towers import RowTowers

NO_SCORE = float(np.finfo(np.float32).min)
_Tensors = dict[str, tf.Tensor]


class Retrieval(tf.Module):
    """Answers with the best candidates of the whole catalogue, exactly.

    Args:
        towers: The two towers.
        item_ids: Id of each item row `[item rows]`; the one of row 0 is empty.
        item_embeddings: Of each item row `[item rows, dim]` float32.
        histories: What every user did.
        raw_features: From raw columns to token rows; None where the bundle has none.
        k: Candidates of an answer.
    """

    def __init__(
        self,
        towers: RowTowers,
        item_ids: Sequence[str],
        item_embeddings: np.ndarray,
        histories: ServingHistories,
        raw_features: RawFeatures | None,
        k: int,
    ) -> None:
        super().__init__(name="retrieval")
        # The saved graph finds variables and tables through the attributes of a module.
        self._towers, self._raw, self._k = towers, raw_features, k
        self._tower_variables = list(towers.variables)
        self._item_table = _lookup(item_ids[1:])
        self._user_table = _lookup(histories.ids)
        self._item_ids = _constant(np.asarray(item_ids, object), tf.string)
        self._item_embeddings = _constant(item_embeddings, tf.float32)
        # Place 0 is the unknown user, who did nothing.
        self._user_rows = _constant([0, *histories.user_rows], tf.int32)
        self._history_offsets = _constant([0, *histories.offsets], tf.int64)
        self._history_items = _constant([*histories.item_rows, 0], tf.int32)

    def signatures(self) -> dict[str, Any]:
        """Returns the functions to save, by the name of their signature."""
        ids = tf.TensorSpec([None], tf.string)
        query = {
            "user_id": tf.TensorSpec([None], tf.string, "user_id"),
            "history": tf.TensorSpec([None, None], tf.string, "history"),
        }
        exclude_seen = tf.TensorSpec([None], tf.bool, "exclude_seen")
        columns = self._raw.columns if self._raw else ()
        raw = {name: tf.TensorSpec([None], tf.string, name) for name in ("item_id", *columns)}
        return {
            "serving_default": _traced(self.recommend_examples, {"examples": ids}),
            "recommend": _traced(self.recommend, {**query, "exclude_seen": exclude_seen}),
            "embed_query": _traced(self.embed_query, query),
            "embed_candidate": _traced(self.embed_candidate, raw),
            "stored_history": _traced(self.stored_history, {"user_id": ids}),
        }

    def recommend(
        self, user_id: tf.Tensor, history: tf.Tensor, exclude_seen: tf.Tensor
    ) -> _Tensors:
        """Returns `candidate_ids` `[b, k]`, `scores` `[b, k]` and `known` `[b]`."""
        user, given = self._user_table.lookup(user_id), self._item_table.lookup(history)
        query = self._query(user, history, given)
        scores = tf.matmul(query, self._item_embeddings, transpose_b=True)
        scores = _mask(scores, self._seen(user, given, exclude_seen))
        best, rows = tf.math.top_k(scores, self._k)
        ids = tf.where(best > NO_SCORE, tf.gather(self._item_ids, rows), "")
        return {"candidate_ids": ids, "scores": best, "known": user > 0}

    def recommend_examples(self, examples: tf.Tensor) -> _Tensors:
        """Answers serialized tf.Examples `[b]` as `recommend` does.

        Their features: `user_id`, one text; `history`, any number of texts;
        `exclude_seen`, one integer, 1 where it is missing.
        """
        parsed = tf.io.parse_example(
            examples,
            {
                "user_id": tf.io.FixedLenFeature([], tf.string, ""),
                "history": tf.io.RaggedFeature(tf.string),
                "exclude_seen": tf.io.FixedLenFeature([], tf.int64, 1),
            },
        )
        history = parsed["history"].to_tensor("")
        return self.recommend(parsed["user_id"], history, parsed["exclude_seen"] != 0)

    def embed_query(self, user_id: tf.Tensor, history: tf.Tensor) -> _Tensors:
        """Returns the query's `embedding` `[b, dim]`."""
        user = self._user_table.lookup(user_id)
        return {"embedding": self._query(user, history, self._item_table.lookup(history))}

    def embed_candidate(self, item_id: tf.Tensor, **raw: tf.Tensor) -> _Tensors:
        """Returns the item's `embedding` `[b, dim]`.

        Args:
            item_id: Ids `[b]`.
            **raw: Raw columns `[b]`, text. Where all of an item are empty, what the
                catalogue holds of it is read instead.
        """
        row = self._item_table.lookup(item_id)
        bags = self._towers.stored_bags(row)
        if self._raw:
            is_given = tf.reduce_any([column != "" for column in raw.values()], axis=0)
            fresh = self._raw.bags(item_id, raw, {n: bag.shape[1] for n, bag in bags.items()})
            bags = {
                name: tf.where(is_given[:, None], fresh[name], bag) for name, bag in bags.items()
            }
        return {"embedding": self._towers.candidate(row, bags)}

    def stored_history(self, user_id: tf.Tensor) -> _Tensors:
        """Returns `item_ids` `[b, longest]`, the newest first, padded with `""`; `known` `[b]`."""
        user = self._user_table.lookup(user_id)
        rows = tf.reverse(self._stored(user), axis=[1]).to_tensor(0)
        return {"item_ids": tf.gather(self._item_ids, rows), "known": user > 0}

    def _query(self, user: tf.Tensor, history: tf.Tensor, given: tf.Tensor) -> tf.Tensor:
        length = self._towers.history
        is_given = tf.reduce_any(history != "", axis=1)
        given = tf.pad(given[:, :length], [[0, 0], [0, tf.maximum(length - tf.shape(given)[1], 0)]])
        rows = tf.where(is_given[:, None], given, self._newest(user, length))
        return self._towers.query(tf.gather(self._user_rows, user), rows)

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


def _lookup(ids: Sequence[str]) -> tf.lookup.StaticHashTable:
    """Returns a table from each id to its place, counted from 1; 0 for others."""
    keys = tf.constant(np.asarray(ids, object), tf.string, [len(ids)])
    places = tf.range(1, len(ids) + 1, dtype=tf.int32)
    return tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(keys, places), 0)


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
