"""The statistics of earlier events in a bundle: what `recsys.data.statistics` does, in TensorFlow.

The bundle holds the states of the newest row. A request may give a labelled history of its user, of
which the user's statistics are computed instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, cast

import numpy as np
import tensorflow as tf

from recsys.data.event_features.statistics import Last, Statistic, prior_mean
from recsys.data.label_config import LabelConfig, dependencies_first
from recsys.data.statistics import TOKEN_BITS, StatisticsState
from recsys.savedmodel.inputs import typed
from recsys.savedmodel.variables import constant

Variables = dict[str, tf.Variable]


class LabelledHistory(NamedTuple):
    """Events that requests give, the newest first.

    Attributes:
        is_there: Which events are there `[b, h]` bool; the rest is padding. If a user has none, the
            stored states are used.
        labels: Their labels by name `[b, h]` float, NaN is unknown; see `labels_of_texts`.
        tokens: Tokens of their items by feature `[b, h, width]`.
    """

    is_there: tf.Tensor
    labels: Mapping[str, tf.Tensor]
    tokens: Mapping[str, tf.Tensor]


class StoredStatistics(tf.Module):
    """Computes the statistics of users and items from stored states.

    Args:
        state: The states.
    """

    def __init__(self, state: StatisticsState) -> None:
        super().__init__(name="statistics")
        self._statistics = {one.name: cast(Statistic, one.feature) for one in state.statistics}
        self._means = {one.name: prior_mean(one.learned) for one in state.statistics}
        self._graphs = {one.name: one.feature.graph(one.learned) for one in state.statistics}
        self._user_keys, self._user_values = self._stored(state, of_users=True)
        self._item_keys, self._item_values = self._stored(state, of_users=False)

    def _stored(self, state: StatisticsState, of_users: bool) -> tuple[Variables, Variables]:
        """Returns the keys and the values of the statistics of users, or of items, by name."""
        keys, values = {}, {}
        for name, statistic in self._statistics.items():
            if statistic.is_of_users == of_users:
                states = state.states[name]
                # A last entry that no user or item has, so that there is one.
                empty = np.full((1, statistic.n_states), statistic.empty)
                keys[name] = constant(np.append(states.keys, np.iinfo(np.int64).max), tf.int64)
                values[name] = constant(np.append(states.values, empty, axis=0), tf.float64)
        return keys, values

    def __call__(
        self,
        user_row: tf.Tensor,
        item_row: tf.Tensor,
        item_tokens: Mapping[str, tf.Tensor],
        history: LabelledHistory | None = None,
    ) -> dict[str, tf.Tensor]:
        """Returns the statistics of users with items, as a model reads them.

        Args:
            user_row: User rows `[b]`.
            item_row: Item rows `[b, n]`.
            item_tokens: Tokens of the items by feature `[b, n, width]`.
            history: Events that replace the users' states; None: there are none.

        Returns:
            Token rows `[b, n, width]` int64, or numbers `[b, n, floats]` float32, by name.
        """
        shape = tf.shape(item_row)
        found = {}
        for name, statistic in self._statistics.items():
            state = self._state(name, user_row, item_row, item_tokens)
            if history is not None and statistic.is_of_users:
                own = _state_of_history(statistic, history, item_tokens)
                has_own = tf.reduce_any(history.is_there, axis=1)[:, None, None]
                state = tf.where(has_own, own, state)
            state = tf.broadcast_to(state, [shape[0], shape[1], statistic.n_states])
            numbers = statistic.values(
                tf.reshape(state, [-1, statistic.n_states]), self._means[name]
            )
            encoded = self._graphs[name](tf.cast(numbers, tf.float32))
            found[name] = tf.reshape(encoded, [shape[0], shape[1], encoded.shape[1]])
        return found

    def _state(
        self,
        name: str,
        user_row: tf.Tensor,
        item_row: tf.Tensor,
        item_tokens: Mapping[str, tf.Tensor],
    ) -> tf.Tensor:
        """Returns the stored states `[b, n or 1, n_states]`."""
        statistic = self._statistics[name]
        rows = tf.cast(user_row[:, None] if statistic.is_of_users else item_row, tf.int64)
        keys = tf.bitwise.left_shift(rows, tf.constant(TOKEN_BITS, tf.int64))
        if statistic.item_feature is None:
            return self._find(name, keys)
        tokens = tf.cast(item_tokens[statistic.item_feature], tf.int64)
        return tf.reduce_sum(self._find(name, keys[:, :, None] + tokens), axis=2)

    def _find(self, name: str, keys: tf.Tensor) -> tf.Tensor:
        """Returns the states of keys `[…, n_states]`."""
        stored = {**self._user_keys, **self._item_keys}, {**self._user_values, **self._item_values}
        known, values = (tf.convert_to_tensor(variables[name]) for variables in stored)
        at = tf.reshape(tf.searchsorted(known, tf.reshape(keys, [-1])), tf.shape(keys))
        is_known = (tf.gather(known, at) == keys)[..., None]
        return tf.where(is_known, tf.gather(values, at), self._statistics[name].empty)


def _state_of_history(
    statistic: Statistic, history: LabelledHistory, item_tokens: Mapping[str, tf.Tensor]
) -> tf.Tensor:
    """Returns the states `[b, n or 1, n_states]` of given events."""
    labels = tf.ones_like(history.is_there, tf.float64)
    if statistic.label is not None:
        labels = tf.cast(history.labels[statistic.label], tf.float64)
    is_known = history.is_there & ~tf.math.is_nan(labels)
    if isinstance(statistic, Last):
        return _last(labels, is_known, statistic.length)[:, None]
    one = tf.cast(is_known, tf.float64)
    columns = [tf.where(is_known, labels, 0.0), one][-statistic.n_states :]
    events = tf.stack(columns, axis=2)
    if statistic.item_feature is None:
        return tf.reduce_sum(events, axis=1, keepdims=True)
    theirs, own = (x[statistic.item_feature] for x in (history.tokens, item_tokens))
    return _sum_by_token(events, theirs, own)


def _last(labels: tf.Tensor, is_known: tf.Tensor, length: int) -> tf.Tensor:
    """Returns the first known labels `[b, length]`, NaN if there are fewer."""
    ranks = tf.cumsum(tf.cast(is_known, tf.int64), axis=1, exclusive=True)
    is_rank = is_known[:, None] & (ranks[:, None] == tf.range(length, dtype=tf.int64)[:, None])
    found = tf.reduce_sum(tf.where(is_rank, labels[:, None], 0.0), axis=2)
    return tf.where(tf.reduce_any(is_rank, axis=2), found, np.nan)


def _sum_by_token(events: tf.Tensor, theirs: tf.Tensor, own: tf.Tensor) -> tf.Tensor:
    """Returns the sums `[b, n, k]` of the events that have the tokens of items, over the tokens.

    Args:
        events: Numbers of the events `[b, h, k]`.
        theirs: Tokens of their items `[b, h, width]`.
        own: Tokens of the items `[b, n, width]`.
    """
    theirs, own = (tf.cast(tokens, tf.int64) for tokens in (theirs, own))
    n_users, width, k = tf.shape(own, tf.int64)[0], theirs.shape[2], events.shape[2]
    n_tokens = 1 + tf.maximum(
        tf.reduce_max(tf.pad(tf.reshape(theirs, [-1]), [[0, 1]])),
        tf.reduce_max(tf.pad(tf.reshape(own, [-1]), [[0, 1]])),
    )
    first = (tf.range(n_users) * n_tokens)[:, None, None]
    each = tf.reshape(tf.repeat(events[:, :, None], width, axis=2), [-1, k])
    sums = tf.math.unsorted_segment_sum(each, tf.reshape(first + theirs, [-1]), n_users * n_tokens)
    found = tf.where((own > 0)[..., None], tf.gather(sums, first + own), 0.0)
    return tf.reduce_sum(found, axis=2)


def labels_of_texts(
    labels: Mapping[str, LabelConfig], texts: Mapping[str, tf.Tensor]
) -> dict[str, tf.Tensor]:
    """Returns the labels `[b, h]` float64 of events by name, NaN if unknown, as the ingest does.

    Args:
        labels: The labels by name.
        texts: Raw values `[b, h]` by column, empty if unknown; numbers must be numbers.
    """
    found: dict[str, tf.Tensor] = {}
    for name in dependencies_first(labels):
        label, texts_of = labels[name], texts[labels[name].column]
        if label.values:
            words = typed(label.column, "text", texts_of)
            is_yes = tf.reduce_any(words[..., None] == tf.constant(label.values), axis=-1)
            is_known, value = words != "", tf.cast(is_yes, tf.float64)
        else:
            number = typed(label.column, "number", texts_of)
            is_known = ~tf.math.is_nan(number)
            # In the precision of the ingest: float32(4.1) is greater than float64(4.1).
            is_amount = label.at_least is None
            value = number if is_amount else number >= np.float32(label.at_least)
            value = tf.cast(value, tf.float64)
        if label.given is not None:
            is_known &= found[label.given] == 1.0
        found[name] = tf.where(is_known, value, np.nan)
    return found
