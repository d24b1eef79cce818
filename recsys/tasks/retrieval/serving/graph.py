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
  given `history`, in its order. `recsys.tasks.retrieval.serving.events` has the uses of times.
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

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from recsys.data.catalogue import FeatureBags, of_history
from recsys.data.event_features import TIME_COLUMN
from recsys.data.store import ServingHistories
from recsys.data.vocabulary import Vocabulary
from recsys.models.inputs import trained_rows
from recsys.savedmodel.inputs import RawFeatures, VocabularyRows, text_columns
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
from recsys.savedmodel.variables import constant, variables_of
from recsys.tasks.model_folder import TrainedModel
from recsys.tasks.retrieval.serving.candidates import (
    Allow,
    GraphFilters,
    GraphRanker,
    Kind,
    popularity_shares,
    stored,
)
from recsys.tasks.retrieval.serving.events import EventReads, ServedEvents, encoded_inputs
from recsys.tasks.retrieval.serving.stored_users import StoredUsers

_Tensors = dict[str, tf.Tensor]


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
        # The saved graph finds variables and tables through the attributes of a module.
        self._towers = RowEmbedder(saved)
        self._raw_items, self._raw_users = raw_items, raw_users
        self._excludes_seen = excludes_seen
        self._tower_variables = list(self._towers.variables)
        is_item = saved.catalogue.is_item
        # Histories may contain items that are no longer candidates.
        self._items = VocabularyRows(saved.items)
        self._item_ids = constant(np.asarray([*saved.catalogue.ids], object), tf.string)
        shares = popularity_shares(histories, is_item)
        self._is_apart = item_embeddings is None
        embeddings = None if item_embeddings is None else stored(item_embeddings, kind)
        self._candidates = GraphRanker(embeddings, is_item, shares, k)
        bags = self._towers.item_bag_tables
        self._filters = GraphFilters(saved.catalogue.features, bags)
        self._users = StoredUsers(saved, histories)
        self._reads = EventReads.of(saved)
        length = self._towers.config.history
        self._events = ServedEvents(self._reads, length, time_column)
        # `recsys forget` finds them by this name in any copy of a bundle.
        self._of_user_rows = self._towers.of_user_rows

    def signatures(self) -> dict[str, Any]:
        """Returns the functions to save, by the name of their signature."""
        ids = tf.TensorSpec([None], tf.string)
        query = {
            "user_id": tf.TensorSpec([None], tf.string, "user_id"),
            "history": tf.TensorSpec([None, None], tf.string, "history"),
            **text_columns(self._query_columns),
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
            encoded = encoded_inputs(self._reads.inputs, self._towers.config.history)
            ranking[ENCODED] = (self.embed_encoded, {**stored_query, **encoded})
        return {
            **{name: _traced(*traced) for name, traced in ranking.items()},
            "prepare_query": _traced(self.prepare_query, {**query, **seen}),
            "embed_query": _traced(self.embed_query, query),
            "embed_candidate": _traced(self.embed_candidate, candidate),
            "stored_history": _traced(self.stored_history, {"user_id": ids}),
        }

    def recommend(
        self, user_id: tf.Tensor, history: tf.Tensor, exclude_seen: tf.Tensor, **raw: tf.Tensor
    ) -> _Tensors:
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
    ) -> _Tensors:
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
    ) -> _Tensors:
        """Answers all queries by popularity, otherwise like `recommend_filtered`.

        For bundles without vectors: clients call it if the `source` of `prepare_query` is
        `popularity`.
        """
        user, seen = self._seen(user_id, history, exclude_seen)
        source = tf.fill([tf.shape(user)[0]], POPULARITY)
        hidden = tf.concat([seen, self._items(exclude_ids)], axis=1)
        query = Query(tf.zeros([tf.shape(user)[0], 0]), source)
        return self._answer(user, query, hidden, self._filters.allow(only) if only else None)

    def recommend_examples(self, examples: tf.Tensor) -> _Tensors:
        """Answers serialized tf.Examples `[b]` like `recommend`.

        Their features are `user_id`, one text; `history`, any number of texts;
        `exclude_seen`, one integer, by default 1, or 0 in a bundle whose config includes
        repeats; and the raw columns of events and users, any number of texts each.
        """
        columns = self._query_columns
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
    ) -> _Tensors:
        """Returns the inputs for ranking outside of the graph, with the result of `recommend`.

        They are `embedding` `[b, dim]`, `known` and `source` `[b]`, and the item rows to mask,
        `seen_rows` `[seen]` int32: rows of query `i` are at `seen_offsets[i]` … `seen_offsets[i +
        1]`, `[b + 1]` int64. If `source` is `popularity`, the embedding is meaningless: call
        `recommend`.
        """
        user, seen = self._seen(user_id, history, exclude_seen)
        query = self._query(user, user_id, history, raw)
        rows = tf.ragged.boolean_mask(seen, seen > 0)
        return {
            "embedding": query.embedding,
            "known": user > 0,
            "source": query.source,
            "seen_rows": rows.values,
            "seen_offsets": rows.row_splits,
        }

    def embed_query(self, user_id: tf.Tensor, history: tf.Tensor, **raw: tf.Tensor) -> _Tensors:
        """Returns the query's `embedding` `[b, dim]`."""
        query = self._query(self._users.numbers(user_id), user_id, history, raw)
        return {"embedding": query.embedding}

    def embed_encoded(
        self, user_id: tf.Tensor, history: tf.Tensor, **encoded: tf.Tensor
    ) -> _Tensors:
        """Returns the `embedding` `[b, dim]` of a query whose features of events are encoded.

        The evaluation calls it: a store has no raw values of events. The stored history is never
        used.
        """
        user = self._users.numbers(user_id)
        row = self._users.rows(user, user_id)
        events = {name: encoded[encoded_name(name)] for name in self._reads.names}
        rows, bags = self._given_rows(history), self._towers.user_bags(row)
        return {"embedding": self._towers.query(row, rows, bags, events).embedding}

    def embed_candidate(self, item_id: tf.Tensor, **raw: tf.Tensor) -> _Tensors:
        """Returns the item's `embedding` `[b, dim]` and whether it is `known` `[b]`.

        An unknown item has the embedding of its features, if raw columns are given.
        """
        row = self._items(item_id)
        bags = _fresh(self._raw_items, item_id, raw, self._towers.item_bags(row))
        return {"embedding": self._towers.candidate(row, bags), "known": self._items.known(item_id)}

    def stored_history(self, user_id: tf.Tensor) -> _Tensors:
        """Returns `item_ids` `[b, longest]`, the newest first, padded with `""`; `known` `[b]`."""
        user = self._users.numbers(user_id)
        rows = tf.reverse(self._users.history(user), axis=[1]).to_tensor(0)
        return {"item_ids": tf.gather(self._item_ids, rows), "known": user > 0}

    @property
    def _query_columns(self) -> tuple[str, ...]:
        """Names of the optional texts `[b, any]` of a query, besides user and history."""
        of_users = self._raw_users.columns if self._raw_users else ()
        return (*self._events.columns.inputs, *of_users)

    def _answer(
        self, user: tf.Tensor, query: Query, hidden: tf.RaggedTensor, allow: Allow | None = None
    ) -> _Tensors:
        is_popular = query.source == POPULARITY
        scores, rows = self._candidates.best(query.embedding, is_popular, hidden, allow)
        ids = tf.where(scores > NO_SCORE, tf.gather(self._item_ids, rows), "")
        answer = {"candidate_ids": ids, "scores": scores}
        return {**answer, "known": user > 0, "source": query.source}

    def _query(
        self, user: tf.Tensor, user_id: tf.Tensor, history: tf.Tensor, columns: _Tensors
    ) -> Query:
        """Embeds queries; `user` `[b]` holds the users' numbers, `columns` the `_query_columns`."""
        row, length = self._users.rows(user, user_id), self._towers.config.history
        # The rest is never read.
        rows_given = self._given_rows(history)
        has_history = tf.reduce_any(history != "", axis=1)
        rows = tf.where(has_history[:, None], rows_given, self._users.newest(user, length))
        texts = {name: columns[name] for name in self._events.columns.inputs}
        raw = {name: column for name, column in columns.items() if name not in texts}
        events = self._events.inputs(texts, self._users, user, has_history)
        bags = _fresh(self._raw_users, user_id, raw, self._towers.user_bags(row))
        return self._towers.query(row, rows, bags, events)

    def _given_rows(self, history: tf.Tensor) -> tf.Tensor:
        """Returns the item rows `[b, length]` of given histories, padded with 0."""
        length = self._towers.config.history
        return _padded(self._items(history[:, :length]), length, 0)

    def _seen(
        self, user_id: tf.Tensor, history: tf.Tensor, exclude_seen: tf.Tensor
    ) -> tuple[tf.Tensor, tf.RaggedTensor]:
        """Returns the users' numbers `[b]`, and the item rows to mask, including row 0."""
        user = self._users.numbers(user_id)
        seen = tf.concat([self._users.seen(user), self._items(history)], axis=1)
        seen = tf.ragged.boolean_mask(seen, _as_ragged(exclude_seen, seen))
        return user, tf.concat([tf.zeros_like(user, tf.int32)[:, None], seen], axis=1)


def _fresh(
    features: RawFeatures | None, ids: tf.Tensor, raw: Mapping[str, tf.Tensor], stored: Bags
) -> Bags:
    return features.or_stored(ids, raw, stored) if features else stored


def _traced(function: Any, inputs: Mapping[str, tf.TensorSpec]) -> Any:
    return tf.function(function, autograph=False).get_concrete_function(**inputs)


def _padded(values: tf.Tensor, length: int, padding: int) -> tf.Tensor:
    """Returns values `[b, n]` int32 as `[b, length]`, padded at the end."""
    missing = length - tf.shape(values)[1]
    padded = tf.pad(values, [[0, 0], [0, missing]], constant_values=padding)
    return tf.ensure_shape(padded, [None, length])  # Layers need the static shape.


def _as_ragged(flags: tf.Tensor, like: tf.RaggedTensor) -> tf.RaggedTensor:
    """Returns each row's flag, repeated for the values of the row of `like`."""
    return like.with_values(tf.gather(flags, like.value_rowids()))


# --- embeddings of users and items by row


Bags = dict[str, tf.Tensor]


class Query(NamedTuple):
    """Embedded queries.

    Attributes:
        embedding: `[b, dim]` float32.
        source: Source of each one `[b]` string, one of `recsys.savedmodel.signatures.SOURCES`.
    """

    embedding: tf.Tensor
    source: tf.Tensor


class RowEmbedder:
    """Embeds queries and items with a model and the stored features, by row.

    Args:
        saved: A model, loaded with Keras on TensorFlow.

    Attributes:
        config: Config of the model.
        item_bag_tables: Token rows of each item row `[item rows, width]` int32, by feature.
    """

    def __init__(self, saved: TrainedModel) -> None:
        self._model = saved.model
        self.config = saved.model.spec.config
        self._first_own_row = saved.users.first_own_row
        # A model without layers has no inputs for features.
        self._user_features = [feature.name for feature in saved.model.spec.of_side("user")]
        self._user_is_trained = _is_trained(saved.users)
        self._item_is_trained = _is_trained(saved.items)
        self._user_bags = _variables(saved.inputs.user_features)
        self.item_bag_tables = _variables(saved.catalogue.features)

    @property
    def variables(self) -> list[tf.Variable]:
        """All variables that the towers read."""
        bags = [*self._user_bags.values(), *self.item_bag_tables.values()]
        trained = [self._user_is_trained, self._item_is_trained]
        return [*variables_of(self._model), *trained, *bags]

    @property
    def of_user_rows(self) -> list[tf.Variable]:
        """The variables with a row for each user row: tables and stored features of users.

        The tables of features have a row for each token, which many users share.
        """
        spec = self._model.spec
        others = {"items", *(feature.name for feature in spec.features)}
        tables = [
            table.embeddings
            for table in self._model.embedding.tables
            if table.rows == spec.user_rows and self._model.rows_of_table(table.name) not in others
        ]
        read = [table for table in tables if isinstance(table, tf.Variable)]
        return [*read, self._user_is_trained, *self._user_bags.values()]

    def query(self, user_row: tf.Tensor, history: tf.Tensor, bags: Bags, events: _Tensors) -> Query:
        """Embeds queries.

        Args:
            user_row: User rows `[b]`.
            history: Item rows `[b, history]`.
            bags: Token rows `[b, width]` of each feature of the users.
            events: Features of the query and of the events of its history, by input of the model;
                see `ServedEvents.inputs`.
        """
        rows = {
            "user_row": _or_0(self._user_is_trained, user_row),
            "history": _or_0(self._item_is_trained, history),
        }
        # An untrained user reads row 0; one without its own row reads a lower, shared row.
        has_row = (rows["user_row"] >= self._first_own_row) & self.config.user_id
        tokens = [tf.reduce_any(bags[name] != 0, axis=1) for name in self._user_features]
        of_items = self.item_bags(rows["history"]) if self.config.history_features else {}
        of_items = {of_history(name): tokens for name, tokens in of_items.items()}
        return Query(
            embedding=self._model.embed_query({**rows, **events, **bags, **of_items}),
            source=_source(
                has_row,
                tf.reduce_any(rows["history"] > 0, axis=1) & self.config.reads_history,
                tf.reduce_any(tf.stack([tf.zeros_like(has_row), *tokens]), axis=0),
            ),
        )

    def candidate(self, item_row: tf.Tensor, bags: Bags) -> tf.Tensor:
        """Returns embeddings `[b, dim]` of `item_row` `[b]` and token rows `[b, width]`."""
        row = _or_0(self._item_is_trained, item_row)
        return self._model.embed_candidate({"id_row": row, **bags})

    def user_bags(self, user_row: tf.Tensor) -> Bags:
        """Returns the stored token rows of `user_row` `[b]`."""
        return {name: tf.gather(bag, user_row) for name, bag in self._user_bags.items()}

    def item_bags(self, item_row: tf.Tensor) -> Bags:
        """Returns the stored token rows of `item_row` `[b]`."""
        # Converted once, since gathering from a variable copies it each time, and filters read
        # all of them.
        read = {name: tf.convert_to_tensor(bag) for name, bag in self.item_bag_tables.items()}
        return {name: tf.gather(bag, item_row) for name, bag in read.items()}


def _is_trained(vocabulary: Vocabulary) -> tf.Variable:
    """Returns which rows are trained `[rows]` bool; others read row 0 of the table."""
    rows = np.arange(vocabulary.n_rows)
    return constant(trained_rows(rows, vocabulary) == rows, tf.bool)


def _or_0(is_trained: tf.Variable, rows: tf.Tensor) -> tf.Tensor:
    """Returns the table rows to read for rows `[...]`: 0 for untrained ones."""
    return tf.where(tf.gather(is_trained, rows), rows, 0)


def _variables(features: Iterable[FeatureBags]) -> dict[str, tf.Variable]:
    dtypes = {False: tf.int32, True: tf.float32}
    return {f.name: constant(f.bags, dtypes[f.floats > 0]) for f in features}


def _source(has_row: tf.Tensor, has_history: tf.Tensor, has_features: tf.Tensor) -> tf.Tensor:
    """Returns the best source for each query `[b]`, from the available information `[b]` bool."""
    weaker = tf.where(has_features, FEATURES, POPULARITY)
    return tf.where(has_row, USER, tf.where(has_history, HISTORY, weaker))
