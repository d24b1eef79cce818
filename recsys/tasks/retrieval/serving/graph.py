"""The functions of the SavedModel: raw ids in, candidates out.

Conventions of every signature:

- Ids and raw columns are text, normalised as in the ingest (Unicode NFC). An out-of-vocabulary
  id reads row 0, or the hash row of the id.
- `history` `[batch, any length]` holds item ids, the newest first; the empty string is padding.
  A row of only padding is replaced by the user's stored history; any other row replaces the
  stored history. An unknown item keeps its position in a history and is ignored, as in training.
- Raw columns `[batch, any]` are the inputs of the features, padded with the empty string. If all
  columns of a row are empty, the stored features are used.
- Features of events are raw columns, too, `[batch, any]` text, and the empty string means unknown:
  `context_<column>` describes the query, by its first value; `history_<column>` the events of the
  given `history`, in its order. `recsys.tasks.serving.events` has the uses of times.
- `exclude_seen` masks the items of the stored and the given history.
- Candidates come best first, always `k` of them; a client that needs fewer takes the first ones.
  If fewer than `k` items remain, the others are `""` with the score `NO_SCORE`.
- `known` is whether the data contain the user or the item.
- `source` is the information that an answer is based on, see `recsys.savedmodel.signatures`.
  Without any it is `popularity`, and the scores are the items' shares of all positives.
- If the vectors are not in the bundle (`export.vectors`), only `popular` ranks, by popularity.
- Every item with a row can be recommended, even without any interaction: its embedding is then
  computed from its features.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from recsys.data.event_features import TIME_COLUMN
from recsys.data.store import ServingHistories
from recsys.savedmodel.inputs import RawFeatures, text_columns
from recsys.savedmodel.signatures import (
    ENCODED,
    FEATURES,
    HISTORY,
    NO_SCORE,
    POPULAR,
    POPULARITY,
    USER,
    encoded_name,
)
from recsys.savedmodel.variables import constant
from recsys.tasks.model_folder import TrainedModel
from recsys.tasks.retrieval.serving.candidates import (
    Allow,
    GraphFilters,
    GraphRanker,
    Kind,
    popularity_shares,
    stored,
)
from recsys.tasks.serving.events import encoded_inputs
from recsys.tasks.serving.queries import Queries, Tensors, or_stored, traced


class Query(NamedTuple):
    """Embedded queries.

    Attributes:
        embedding: `[b, dim]` float32.
        source: Source of each one `[b]` string, one of `recsys.savedmodel.signatures.SOURCES`.
        history: Item rows of the history `[b, history]`, the newest first, padded with 0.
    """

    embedding: tf.Tensor
    source: tf.Tensor
    history: tf.Tensor


class Retrieval(tf.Module):
    """Recommends the exact best candidates of the whole catalogue.

    Args:
        saved: The model.
        item_embeddings: Embeddings of the item rows `[item rows, dim]` float32; None: they are
            not in the bundle, and only popular items are ranked here.
        histories: The positives of every user.
        raw_items: Maps raw columns of items to token rows; None without features.
        raw_users: Maps raw columns of users to token rows; None without features.
        k: Number of candidates per query.
        kind: Dtype in which the item embeddings are stored.
        excludes_seen: Default of `exclude_seen` in tf.Examples.
        time_column: Raw column of the times of events.

    Raises:
        RecsysError: The item embeddings don't fit the dtype (R539).
    """

    def __init__(
        self,
        saved: TrainedModel,
        item_embeddings: np.ndarray | None,
        histories: ServingHistories,
        raw_items: RawFeatures | None,
        raw_users: RawFeatures | None,
        k: int,
        kind: Kind = "float32",
        *,
        excludes_seen: bool = True,
        time_column: str = TIME_COLUMN,
    ) -> None:
        super().__init__(name="retrieval")
        self._config = saved.model.spec.config
        self._queries = Queries(saved, histories, raw_users, time_column)
        self._rows, self._reads = self._queries.rows, self._queries.reads
        self._raw_items, self._excludes_seen = raw_items, excludes_seen
        # The saved graph finds variables and tables through the attributes of a module.
        self._tower_variables = list(self._rows.variables)
        is_item = saved.catalogue.is_item
        # Histories may contain items that are no longer candidates.
        self._items = self._queries.items
        self._item_ids = constant(np.asarray([*saved.catalogue.ids], object), tf.string)
        shares = popularity_shares(histories, is_item)
        self._is_apart = item_embeddings is None
        has_pairs = saved.model.transitions is not None
        self._transitions = saved.model.terms["transitions"] if has_pairs else None
        embeddings = None if item_embeddings is None else stored(item_embeddings, kind)
        self._candidates = GraphRanker(embeddings, is_item, shares, k)
        self._filters = GraphFilters(saved.catalogue.features, self._rows.item_bag_tables)
        # `recsys forget` finds them by these names in any copy of a bundle.
        self._users = self._queries.users
        self._of_user_rows = self._rows.of_user_rows

    def signatures(self) -> dict[str, Any]:
        """Returns the functions to save, by the name of their signature."""
        ids = tf.TensorSpec([None], tf.string)
        query = {
            "user_id": tf.TensorSpec([None], tf.string, "user_id"),
            "history": tf.TensorSpec([None, None], tf.string, "history"),
            **text_columns(self._queries.columns),
        }
        seen = {"exclude_seen": tf.TensorSpec([None], tf.bool, "exclude_seen")}
        candidate = {
            "item_id": tf.TensorSpec([None], tf.string, "item_id"),
            **text_columns(self._raw_items.columns if self._raw_items else ()),
        }
        filters = text_columns(["exclude_ids", *self._filters.inputs])
        stored_query = {name: query[name] for name in ("user_id", "history")}
        ranking = {
            "serving_default": (self.recommend_examples, {"examples": ids}),
            "recommend": (self.recommend, {**query, **seen}),
            "recommend_filtered": (self.recommend_filtered, {**query, **seen, **filters}),
        }
        if self._is_apart:
            ranking = {POPULAR: (self.popular, {**stored_query, **seen, **filters})}
        if self._reads.inputs:
            encoded = encoded_inputs(self._reads.inputs, self._config.history)
            ranking[ENCODED] = (self.embed_encoded, {**stored_query, **encoded})
        return {
            **{name: traced(*one) for name, one in ranking.items()},
            "prepare_query": traced(self.prepare_query, {**query, **seen}),
            "embed_query": traced(self.embed_query, query),
            "embed_candidate": traced(self.embed_candidate, candidate),
            "stored_history": traced(self.stored_history, {"user_id": ids}),
        }

    def recommend(
        self, user_id: tf.Tensor, history: tf.Tensor, exclude_seen: tf.Tensor, **raw: tf.Tensor
    ) -> Tensors:
        """Returns `candidate_ids` `[b, k]`, `scores` `[b, k]`, `known` and `source` `[b]`."""
        user, seen = self._seen(user_id, history, exclude_seen)
        return self._answer(user, self._query(user, user_id, history, raw), seen)

    def recommend_filtered(
        self,
        user_id: tf.Tensor,
        history: tf.Tensor,
        exclude_seen: tf.Tensor,
        exclude_ids: tf.Tensor,
        **others: tf.Tensor,
    ) -> Tensors:
        """Answers like `recommend`, with filters of the items.

        Args:
            user_id: See `recommend`.
            history: See `recommend`.
            exclude_seen: See `recommend`.
            exclude_ids: Ids of items to exclude `[b, any]`, padded with `""`.
            **others: Raw columns of the users; and `only_<feature>` `[b, any]` for each
                feature of the items with named tokens, see `GraphFilters.allow`.
        """
        only = {name: others.pop(name) for name in self._filters.inputs}
        user, seen = self._seen(user_id, history, exclude_seen)
        query = self._query(user, user_id, history, others)
        hidden = tf.concat([seen, self._items(exclude_ids)], axis=1)
        return self._answer(user, query, hidden, self._filters.allow(only) if only else None)

    def popular(
        self,
        user_id: tf.Tensor,
        history: tf.Tensor,
        exclude_seen: tf.Tensor,
        exclude_ids: tf.Tensor,
        **only: tf.Tensor,
    ) -> Tensors:
        """Answers all queries by popularity, otherwise like `recommend_filtered`.

        For bundles without vectors: clients call it if the `source` of `prepare_query` is
        `popularity`.
        """
        user, seen = self._seen(user_id, history, exclude_seen)
        source = tf.fill([tf.shape(user)[0]], POPULARITY)
        hidden = tf.concat([seen, self._items(exclude_ids)], axis=1)
        n = tf.shape(user)[0]
        query = Query(tf.zeros([n, 0]), source, tf.zeros([n, 1], tf.int32))
        return self._answer(user, query, hidden, self._filters.allow(only) if only else None)

    def recommend_examples(self, examples: tf.Tensor) -> Tensors:
        """Answers serialized tf.Examples `[b]` like `recommend`.

        Their features are `user_id`, one text; `history`, any number of texts;
        `exclude_seen`, one integer, by default 1, or 0 in a bundle whose config includes
        repeats; and the raw columns of events and users, any number of texts each.
        """
        columns = self._queries.columns
        parsed = tf.io.parse_example(
            examples,
            {
                "user_id": tf.io.FixedLenFeature([], tf.string, ""),
                "history": tf.io.RaggedFeature(tf.string),
                "exclude_seen": tf.io.FixedLenFeature([], tf.int64, int(self._excludes_seen)),
                **{name: tf.io.RaggedFeature(tf.string) for name in columns},
            },
        )
        raw = {name: parsed[name].to_tensor("") for name in columns}
        history = parsed["history"].to_tensor("")
        return self.recommend(parsed["user_id"], history, parsed["exclude_seen"] != 0, **raw)

    def prepare_query(
        self, user_id: tf.Tensor, history: tf.Tensor, exclude_seen: tf.Tensor, **raw: tf.Tensor
    ) -> Tensors:
        """Returns the inputs for ranking outside of the graph, with the result of `recommend`.

        They are `embedding` `[b, dim]`, `known` and `source` `[b]`, and the item rows to mask,
        `seen_rows` `[seen]` int32: rows of query `i` are at `seen_offsets[i]` … `seen_offsets[i +
        1]`, `[b + 1]` int64. If `source` is `popularity`, the embedding is meaningless: call
        `recommend`. A model with transitions also returns `history_rows` `[b, history]` int32,
        for `recsys.data.transitions.TransitionScores`.
        """
        user, seen = self._seen(user_id, history, exclude_seen)
        query = self._query(user, user_id, history, raw)
        rows = tf.ragged.boolean_mask(seen, seen > 0)
        of_pairs = {} if self._transitions is None else {"history_rows": query.history}
        return {
            "embedding": query.embedding,
            "known": user > 0,
            "source": query.source,
            "seen_rows": rows.values,
            "seen_offsets": rows.row_splits,
            **of_pairs,
        }

    def embed_query(self, user_id: tf.Tensor, history: tf.Tensor, **raw: tf.Tensor) -> Tensors:
        """Returns the query's `embedding` `[b, dim]`."""
        query = self._query(self._users.numbers(user_id), user_id, history, raw)
        return {"embedding": query.embedding}

    def embed_encoded(
        self, user_id: tf.Tensor, history: tf.Tensor, **encoded: tf.Tensor
    ) -> Tensors:
        """Returns the `embedding` `[b, dim]` of a query whose features of events are encoded.

        The evaluation calls it: a store has no raw values of events. The stored history is never
        used.
        """
        user = self._users.numbers(user_id)
        row = self._users.rows(user, user_id)
        events = {name: encoded[encoded_name(name)] for name in self._reads.names}
        rows, bags = self._queries.given_rows(history), self._rows.user_bags(row)
        inputs = self._rows.query(row, rows, bags, events).inputs
        return {"embedding": self._rows.model.embed_query(inputs)}

    def embed_candidate(self, item_id: tf.Tensor, **raw: tf.Tensor) -> Tensors:
        """Returns the item's `embedding` `[b, dim]` and whether it is `known` `[b]`.

        An unknown item has the embedding of its features, if raw columns are given.
        """
        row = self._items(item_id)
        bags = or_stored(self._raw_items, item_id, raw, self._rows.item_bags(row))
        embedding = self._rows.model.embed_candidate(self._rows.candidate(row, bags))
        return {"embedding": embedding, "known": self._items.known(item_id)}

    def stored_history(self, user_id: tf.Tensor) -> Tensors:
        """Returns `item_ids` `[b, longest]`, the newest first, padded with `""`; `known` `[b]`."""
        user = self._users.numbers(user_id)
        rows = tf.reverse(self._users.history(user), axis=[1]).to_tensor(0)
        return {"item_ids": tf.gather(self._item_ids, rows), "known": user > 0}

    def _answer(
        self, user: tf.Tensor, query: Query, hidden: tf.RaggedTensor, allow: Allow | None = None
    ) -> Tensors:
        is_popular = query.source == POPULARITY
        added = None
        if self._transitions is not None:
            added = self._transitions.of_history(query.history)
        scores, rows = self._candidates.best(query.embedding, is_popular, hidden, allow, added)
        ids = tf.where(scores > NO_SCORE, tf.gather(self._item_ids, rows), "")
        answer = {"candidate_ids": ids, "scores": scores}
        return {**answer, "known": user > 0, "source": query.source}

    def _query(
        self, user: tf.Tensor, user_id: tf.Tensor, history: tf.Tensor, columns: Tensors
    ) -> Query:
        """Embeds queries; `user` `[b]` holds the users' numbers, `columns` the raw columns."""
        query, context = self._queries.inputs(user, user_id, history, columns)
        inputs = query.inputs | {name: x[:, 0] for name, x in context.items()}
        has_history = query.has_history & self._config.reads_history
        return Query(
            embedding=self._rows.model.embed_query(inputs),
            source=_source(query.has_row, has_history, query.has_features),
            history=inputs["history"],
        )

    def _seen(
        self, user_id: tf.Tensor, history: tf.Tensor, exclude_seen: tf.Tensor
    ) -> tuple[tf.Tensor, tf.RaggedTensor]:
        """Returns the users' numbers `[b]`, and the item rows to mask, including row 0."""
        user = self._users.numbers(user_id)
        seen = tf.concat([self._users.seen(user), self._items(history)], axis=1)
        seen = tf.ragged.boolean_mask(seen, _as_ragged(exclude_seen, seen))
        return user, tf.concat([tf.zeros_like(user, tf.int32)[:, None], seen], axis=1)


def _as_ragged(flags: tf.Tensor, like: tf.RaggedTensor) -> tf.RaggedTensor:
    """Returns each row's flag, repeated for the values of the row of `like`."""
    return like.with_values(tf.gather(flags, like.value_rowids()))


def _source(has_row: tf.Tensor, has_history: tf.Tensor, has_features: tf.Tensor) -> tf.Tensor:
    """Returns the best source for each query `[b]`, from the available information `[b]` bool."""
    weaker = tf.where(has_features, FEATURES, POPULARITY)
    return tf.where(has_row, USER, tf.where(has_history, HISTORY, weaker))
