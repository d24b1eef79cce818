"""The functions of the SavedModel: raw ids in, a probability or an amount for each label out.

Conventions of every signature:

- Ids and raw columns are text, normalised as in the ingest (Unicode NFC). The empty string is
  padding of lists, and an unknown value in a column.
- `item_id` `[batch, items]` holds the items to score. An unknown item, like padding, is scored as
  an item without a row and without features; `known_items` is false.
- `history` `[batch, any]` holds item ids, the newest first. A row of only padding is replaced by
  the user's stored history; any other row replaces the stored history.
- Raw columns of users `[batch, any]`: if all are empty, the stored features are used.
- `context_<column>` has one value for a request `[batch, 1]`, or one for each item
  `[batch, items]`; `history_<column>` `[batch, any]` one for each item of the given `history`.
  `recsys.tasks.serving.events` has the uses of times.
- Statistics of earlier events are of all rows of the data. A given history replaces the
  user's if `history_<column>` has a label.
- A label that depends on another one has the joint probability:
  `P(buy) = P(click) · P(buy | click)`.
  Probabilities are calibrated. An amount is in its own unit, for rows that have the label.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from recsys.data.statistics import StatisticsState
from recsys.data.store import ServingHistories
from recsys.models.calibration import Isotonic, Temperature
from recsys.models.lookups import InputSpec
from recsys.savedmodel.event_columns import CONTEXT
from recsys.savedmodel.inputs import RawFeatures, text_columns
from recsys.savedmodel.signatures import (
    DEFAULT_SIGNATURE,
    ORDER,
    RANK,
    RANK_ENCODED,
    encoded_name,
)
from recsys.savedmodel.statistics import LabelledHistory, StoredStatistics, labels_of_texts
from recsys.tasks.model_folder import TrainedModel
from recsys.tasks.ranking.serving.calibration import calibrated
from recsys.tasks.serving.events import encoded_inputs, padded
from recsys.tasks.serving.queries import Queries, Tensors, traced

KNOWN, KNOWN_ITEMS = "known", "known_items"
"""Outputs besides the labels and `ORDER`."""


class Rank(tf.Module):
    """Predicts the labels of given items for users.

    Args:
        saved: The model, a `RankingModel`.
        histories: The events of every user.
        raw_users: Maps raw columns of users to token rows; None without features.
        calibration: Map from log odds to probabilities by label; others aren't calibrated.
        time_column: Raw column of the times of events.
        statistics: Statistics of the newest rows; None: the model reads none.
    """

    def __init__(
        self,
        saved: TrainedModel,
        histories: ServingHistories,
        raw_users: RawFeatures | None,
        calibration: Mapping[str, Temperature | Isotonic],
        time_column: str,
        statistics: StatisticsState | None = None,
    ) -> None:
        super().__init__(name="rank")
        self._queries = Queries(saved, histories, raw_users, time_column)
        self._rows, self._items = self._queries.rows, self._queries.items
        self._calibration = dict(calibration)
        self._statistics = None if statistics is None else StoredStatistics(statistics)
        # The saved graph finds variables and tables through the attributes of a module.
        self._model_variables = list(self._rows.variables)
        # `recsys forget` finds them by these names in any copy of a bundle.
        self._users = self._queries.users
        self._of_user_rows = self._rows.of_user_rows

    def signatures(self) -> dict[str, Any]:
        """Returns the functions to save, by the name of their signature."""
        examples = {"examples": tf.TensorSpec([None], tf.string, "examples")}
        return {
            RANK: traced(self.rank, self.texts),
            DEFAULT_SIGNATURE: traced(self.rank_examples, examples),
            RANK_ENCODED: traced(self.rank_encoded, self.encoded_rows),
        }

    @property
    def texts(self) -> dict[str, tf.TensorSpec]:
        """The inputs of `rank`."""
        lists = text_columns(["history", "item_id", *self._queries.columns])
        return {"user_id": tf.TensorSpec([None], tf.string, "user_id"), **lists}

    @property
    def encoded_rows(self) -> dict[str, tf.TensorSpec]:
        """Returns the inputs of `rank_encoded`."""
        spec = self._rows.model.spec
        length = spec.config.history
        shapes = {"user_row": [None], "item_row": [None], "history": [None, length]}
        rows = {name: tf.TensorSpec(shape, tf.int32, name) for name, shape in shapes.items()}
        rows |= encoded_inputs(self._queries.reads.inputs, length)
        for x in self._of_rows:
            name = encoded_name(x.name)
            rows[name] = tf.TensorSpec([None, *x.shape], x.dtype, name)
        return rows

    @property
    def _of_rows(self) -> list[InputSpec]:
        return [x for x in self._rows.model.inputs_of_sides if x.side == "row"]

    def rank(
        self, user_id: tf.Tensor, history: tf.Tensor, item_id: tf.Tensor, **columns: tf.Tensor
    ) -> Tensors:
        """Returns predictions, `order` and `known_items` `[b, items]`, and `known` `[b]`.

        Args:
            user_id: Ids of the users `[b]`.
            history: Item ids `[b, any]`.
            item_id: Ids of the items to score `[b, items]`.
            **columns: Raw columns `[b, any]`.
        """
        return self.rank_with({}, user_id, history, item_id, columns)

    def rank_with(
        self,
        of_items: Tensors,
        user_id: tf.Tensor,
        history: tf.Tensor,
        item_id: tf.Tensor,
        columns: Tensors,
    ) -> Tensors:
        """Answers as `rank`, with further inputs of the model `[b, items, size]` float32."""
        shape = tf.shape(item_id)
        user = self._users.numbers(user_id)
        columns, n_values = _as_wide(columns, shape[1])
        query, context = self._queries.inputs(user, user_id, history, columns, n_values)
        item_row, is_known = self._items.rows_and_known(tf.reshape(item_id, [-1]))
        rows = self._rows.candidate(item_row, self._rows.item_bags(item_row))
        rows |= {name: _of_items(x, n_values, shape[1]) for name, x in context.items()}
        if self._statistics is not None:
            pairs = self._users.rows(user, user_id), tf.reshape(item_row, shape)
            tokens = self._rows.item_bags(pairs[1])
            found = self._statistics(*pairs, tokens, self._labelled(history, columns))
            rows |= {name: _flat(x) for name, x in found.items()}
        rows |= {name: _flat(x) for name, x in of_items.items()}
        joint = self._joint_scores(query.inputs, rows, tf.repeat(tf.range(shape[0]), shape[1]))
        labels = self._predictions(joint) | {ORDER: joint[self._rows.model.label_names[0]]}
        answers = {name: tf.reshape(x, shape) for name, x in labels.items()}
        return {**answers, KNOWN: user > 0, KNOWN_ITEMS: tf.reshape(is_known, shape)}

    def rank_encoded(
        self, user_row: tf.Tensor, item_row: tf.Tensor, history: tf.Tensor, **encoded: tf.Tensor
    ) -> Tensors:
        """Returns predictions `[n]` by label, of rows whose inputs are encoded.

        The evaluation calls it: a store has no raw values. Nothing that is stored of the users'
        events is used.

        Args:
            user_row: User rows of the bundle `[n]`.
            item_row: Item rows of the bundle `[n]`.
            history: Item rows `[n, history]`, the newest first, padded with 0.
            **encoded: Context, attributes, statistics, and what a retriever says of the items
                `[n, …]`, by `encoded_name`.
        """
        events = {name: encoded[encoded_name(name)] for name in self._queries.reads.names}
        query = self._rows.query(user_row, history, self._rows.user_bags(user_row), events)
        rows = self._rows.candidate(item_row, self._rows.item_bags(item_row))
        rows |= {x.name: encoded[encoded_name(x.name)] for x in self._of_rows}
        joint = self._joint_scores(query.inputs, rows, tf.range(tf.size(item_row)))
        return self._predictions(joint)

    def _joint_scores(self, query: Tensors, rows: Tensors, place: tf.Tensor) -> Tensors:
        """Returns log odds and amounts `[rows]` by label; see `RankingModel.score_pairs`."""
        model = self._rows.model
        joint: Tensors = model.joint_scores(model.score_pairs(query, rows, place))
        return joint

    def _predictions(self, joint: Tensors) -> Tensors:
        """Returns calibrated probabilities, and amounts, of log odds and amounts by label."""
        return self._rows.model.predictions(joint) | {
            name: calibrated(map_, joint[name]) for name, map_ in self._calibration.items()
        }

    def _labelled(self, history: tf.Tensor, columns: Tensors) -> LabelledHistory:
        """Returns the events of given histories, none for a history without any label."""
        labels, n = self._queries.reads.labels, tf.shape(history)[1]
        of_columns = self._queries.event_columns.history
        names = dict.fromkeys(label.column for label in labels.values())
        texts = {name: padded(columns[of_columns[name].input], n) for name in names}
        is_given = tf.concat([history[:, :0], *texts.values()], axis=1) != ""
        is_there = (history != "") & tf.reduce_any(is_given, axis=1, keepdims=True)
        tokens = self._rows.item_bags(self._items(history))
        return LabelledHistory(is_there, labels_of_texts(labels, texts), tokens)

    def rank_examples(self, examples: tf.Tensor) -> Tensors:
        """Answers serialized tf.Examples `[b]` like `rank`.

        Their features are `user_id`, one text; `item_id`, the items; `history`; and the raw columns
        of events and users, any number of texts each. Answers are as wide as the longest list of
        items; a context of one value is shared by all items.
        """
        lists = ["history", "item_id", *self._queries.columns]
        parsed = tf.io.parse_example(
            examples,
            {
                "user_id": tf.io.FixedLenFeature([], tf.string, ""),
                **{name: tf.io.RaggedFeature(tf.string) for name in lists},
            },
        )
        columns = {name: parsed[name].to_tensor("") for name in lists}
        n_items = tf.shape(columns["item_id"])[1]
        for name in (name for name in lists if name.startswith(CONTEXT)):
            is_shared = parsed[name].row_lengths() == 1
            missing = tf.maximum(0, n_items - tf.shape(columns[name])[1])
            padded = tf.pad(columns[name], [[0, 0], [0, missing]], constant_values="")
            columns[name] = tf.where(is_shared[:, None], padded[:, :1], padded)
        return self.rank(parsed["user_id"], **columns)


def _as_wide(columns: Tensors, n_items: tf.Tensor) -> tuple[Tensors, tf.Tensor]:
    """Returns raw columns, with equally many values in each column of the context, and this number.

    It is 1 if all columns of the context have at most one value, else the number of items.
    """
    of_context = [name for name in columns if name.startswith(CONTEXT)]
    widths = {name: tf.shape(columns[name])[1] for name in of_context}
    n_values = tf.reduce_max(tf.stack([tf.constant(1), *widths.values()]))
    is_right = [(n <= 1) | (n == n_items) for n in widths.values()]
    rule = "Each context_<column> must have one value, or one for each item. Received"
    said = [rule, *widths.values(), "values for", n_items, "items."]
    with tf.control_dependencies([tf.debugging.Assert(tf.reduce_all(is_right), said)]):
        places = tf.range(n_values)
    wide = dict(columns)
    for name, width in widths.items():
        texts = tf.pad(
            columns[name], [[0, 0], [0, tf.cast(width == 0, tf.int32)]], constant_values=""
        )
        wide[name] = tf.gather(texts, tf.minimum(places, tf.maximum(width - 1, 0)), axis=1)
    return wide, n_values


def _of_items(values: tf.Tensor, n_values: tf.Tensor, n_items: tf.Tensor) -> tf.Tensor:
    """Returns context `[b, n_values, size]`, of one or of all items, as `[b * n_items, size]`."""
    places = tf.minimum(tf.range(n_items), n_values - 1)
    return _flat(tf.gather(values, places, axis=1))


def _flat(values: tf.Tensor) -> tf.Tensor:
    """Returns token rows or numbers `[b, items, size]` as inputs of the model `[rows, size]`."""
    flat = tf.reshape(values, [-1, values.shape[2]])
    return flat if flat.dtype == tf.float32 else tf.cast(flat, tf.int32)
