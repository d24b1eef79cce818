"""A learned function of the age of items."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
from keras import ops

from recsys.data.event_log import ASKED_AT, OLDEST, UNKNOWN, minutes
from recsys.data.hold_out import KeptEvents
from recsys.data.vocabulary import UNKNOWN_ROW
from recsys.models.config import ItemAgeConfig
from recsys.models.inputs import ModelInputs, ModelSpec
from recsys.models.terms import Tensors, Term
from recsys.registry import register_term

_N_KNOTS = 16
_HOUR = 60.0
_STEP = math.log1p(OLDEST / 60 / _HOUR) / (_N_KNOTS - 1)
KNOTS = np.expm1(_STEP * np.arange(_N_KNOTS)) * _HOUR
"""Ages at which g is learned `[16]` [min]: equidistant in ln(1 + hours), up to 34 years."""


@register_term("item_age")
class ItemAge(Term):
    """Adds a learned function of an item's age to its score.

    The birth b of an item is the time of its first training event. For a query at time t, the score
    is the similarity plus g(m - b), where m is the last of K reference times that is not after t,
    and g is a learned function that all items share. The item's K columns are g of its ages at the
    K reference times; the query's columns are the one-hot encoding of m. Their dot product is g(m -
    b).

    Ages are measured at a reference time *before* the query, so an event never reveals that its own
    item exists: items that are not born at the reference time share a learned value with items
    without events, as in serving. The last reference time is the end of the training events: it is
    used by all later queries and by no training example. Koren ("Collaborative Filtering with
    Temporal Dynamics", KDD 2009, section 4.1) has time-dependent item biases in bins, with free
    parameters for each item; Covington et al. (RecSys 2016, section 3.3) have the "example age" as
    an input of a ranker.

    Births and reference times are non-trainable weights, so they are saved, restored and exported
    with the model. They are replicated on all devices.
    """

    def __init__(self, options: ItemAgeConfig, spec: ModelSpec) -> None:
        super().__init__(options, spec, name="item_ages")

    def build(self, input_shape: Any = None) -> None:
        """Creates births `[rows]` and reference times `[bins]` [min], and the values of g."""
        options: dict[str, Any] = {"dtype": "int32", "trainable": False}
        unknown = keras.initializers.Constant(UNKNOWN)
        self.births = self.add_weight(
            name="births", shape=(self.spec.item_rows,), initializer=unknown, **options
        )
        self.moments = self.add_weight(
            name="moments", shape=(self.options.bins,), initializer="zeros", **options
        )
        self.at_knots = self.add_weight(
            name="at_knots", shape=(_N_KNOTS,), initializer="zeros", dtype="float32"
        )
        self.unseen = self.add_weight(
            name="unseen", shape=(1,), initializer="zeros", dtype="float32"
        )

    def adapt(self, events: KeptEvents, inputs: ModelInputs) -> None:
        """Sets births and reference times from the training events."""
        self.births.assign(item_births(events, self.spec.item_rows))
        self.moments.assign(moments(events, self.options.bins))

    @property
    def adapted(self) -> list[Any]:
        """The weights that `adapt` sets."""
        return [self.births, self.moments]

    def of_query(self, read: Tensors, vectors: keras.KerasTensor) -> keras.KerasTensor:
        """Returns the queries' columns `[batch, bins]` float32; see `at_moment`."""
        return self.at_moment(read[ASKED_AT])

    def of_candidate(self, read: Tensors, vectors: keras.KerasTensor) -> keras.KerasTensor:
        """Returns the candidates' columns `[candidates, bins]` float32; see `of_items`."""
        return self.of_items(read["id_row"])

    def of_items(self, rows: keras.KerasTensor) -> keras.KerasTensor:
        """Returns g of the ages of items `[b]` at the reference times, `[b, bins]` float32."""
        birth = ops.take(self.births, rows, axis=0)[:, None]
        moment = ops.convert_to_tensor(self.moments)[None, :]
        was_seen = ops.logical_and(birth != UNKNOWN, birth < moment)
        age = ops.cast(ops.where(was_seen, moment - birth, 0), "float32")
        place = ops.log1p(age / _HOUR) / _STEP
        # Linear interpolation: all but two knots have weight 0.
        distance = ops.abs(place[..., None] - ops.arange(_N_KNOTS, dtype="float32"))
        of_age = ops.sum(ops.maximum(1.0 - distance, 0.0) * self.at_knots, axis=-1)
        return ops.where(was_seen, of_age, ops.convert_to_tensor(self.unseen))

    def at_moment(self, time: keras.KerasTensor) -> keras.KerasTensor:
        """Returns the one-hot encoding `[b, bins]` float32 of the queries' reference times.

        Args:
            time: Query times `[b]` int32 [min]; `UNKNOWN`: after all training events.

        Returns:
            1 at the last reference time that is not after the query; zeros before the first one.
        """
        time = ops.where(time == UNKNOWN, np.iinfo(np.int32).max, time)
        moment = ops.convert_to_tensor(self.moments)[None, :]
        passed = ops.sum(ops.cast(time[:, None] >= moment, "int32"), axis=1)
        places = ops.arange(1, self.options.bins + 1, dtype="int32")
        return ops.cast(passed[:, None] == places, "float32")


def item_births(events: KeptEvents, n_rows: int) -> np.ndarray:
    """Returns the time of each item's first event `[n_rows]` int32 [minutes since 1970, UTC].

    Args:
        events: The training events.
        n_rows: Item rows, including row 0.

    Returns:
        `UNKNOWN` for items without events and for row 0.
    """
    never = np.iinfo(np.int32).max
    births = np.full(n_rows, never, np.int32)
    for item_row, minute in _items_and_minutes(events):
        np.minimum.at(births, item_row, minute)
    births[births == never] = UNKNOWN
    births[UNKNOWN_ROW] = UNKNOWN
    return births


def moments(events: KeptEvents, n: int) -> np.ndarray:
    """Returns the reference times `[n]` int32 [minutes since 1970, UTC], ascending.

    They divide the events into bins of about equal size. The last one is the minute after the
    newest event.

    Args:
        events: The training events; at least one.
        n: Number of reference times.
    """
    newest = max(int(minute.max()) for _, minute in _items_and_minutes(events))
    places = np.arange(1, n) * len(events.times) // n
    return np.append(minutes(events.times[places]), newest + 1).astype(np.int32)


def _items_and_minutes(events: KeptEvents) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields the item rows and minutes of the kept events, by shard."""
    for part in events.shards:
        if len(part):
            minute = minutes(part.shard.timestamp)
            yield part.item_row, np.delete(minute, part.held) if len(part.held) else minute
