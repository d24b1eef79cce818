"""The effect of an item's age on its score."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
from keras import ops

from recsys.data.history_facts import ASKED_AT, OLDEST, UNKNOWN, minutes
from recsys.data.kept_events import KeptEvents
from recsys.data.vocabulary import UNKNOWN_ROW
from recsys.models.config import ItemAgeConfig
from recsys.models.inputs import ModelInputs, ModelSpec
from recsys.models.terms.term import Tensors, Term
from recsys.registry import register_term

_N_KNOTS = 16
_HOUR = 60.0
_STEP = math.log1p(OLDEST / 60 / _HOUR) / (_N_KNOTS - 1)
KNOTS = np.expm1(_STEP * np.arange(_N_KNOTS)) * _HOUR
"""Ages at which g is learned `[16]` [minutes]: evenly on the scale ln(1 + hours), to 34 years."""


@register_term("item_age")
class ItemAge(Term):
    """Keeps when items were born, and learns what their age adds to their score.

    The score of an item born at b, for a query at time t, is the similarity plus g(m - b): m is
    the last of K moments that isn't after t, and g a learned function, the same for all items.
    The item's K numbers are g of its ages at the K moments, the query's are 1 at its moment and 0
    elsewhere, so that their dot product is that term.

    Ages are counted at a moment *before* the query, and an item is born with its first training
    event, so an item's own event never reveals that the item exists: items that weren't seen
    before the moment share a learned value with items without any event, as in serving. The last
    moment is the end of the training events: all later queries have it, and no training example
    does. Time-dependent biases of items in bins are Koren's ("Collaborative Filtering with
    Temporal Dynamics", KDD 2009, section 4.1), there free numbers of each item; age as an input
    of a ranking is Covington et al.'s "example age" (RecSys 2016, section 3.3).

    Births and moments are weights that come from the training events and that no step changes,
    so they are saved, restored and exported with the model. Each device holds all of them.
    """

    def __init__(self, options: ItemAgeConfig, spec: ModelSpec) -> None:
        super().__init__(options, spec, name="item_ages")

    def build(self, input_shape: Any = None) -> None:
        """Creates births `[rows]` and moments `[bins]` [min], g at its knots, and of the unseen."""
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
        """Sets births and moments from the training events."""
        self.births.assign(item_births(events, self.spec.item_rows))
        self.moments.assign(moments(events, self.options.bins))

    @property
    def adapted(self) -> list[Any]:
        """The weights that `adapt` sets."""
        return [self.births, self.moments]

    def of_query(self, read: Tensors, vectors: keras.KerasTensor) -> keras.KerasTensor:
        """Returns `at_moment` of the query times."""
        return self.at_moment(read[ASKED_AT])

    def of_candidate(self, read: Tensors, vectors: keras.KerasTensor) -> keras.KerasTensor:
        """Returns `of_items` of the candidates."""
        return self.of_items(read["id_row"])

    def of_items(self, rows: keras.KerasTensor) -> keras.KerasTensor:
        """Returns the numbers `[b, bins]` float32 of items `[b]`: g of their ages."""
        birth = ops.take(self.births, rows, axis=0)[:, None]
        moment = ops.convert_to_tensor(self.moments)[None, :]
        was_seen = ops.logical_and(birth != UNKNOWN, birth < moment)
        age = ops.cast(ops.where(was_seen, moment - birth, 0), "float32")
        place = ops.log1p(age / _HOUR) / _STEP
        # Linear between two knots: of all others the weight is 0.
        distance = ops.abs(place[..., None] - ops.arange(_N_KNOTS, dtype="float32"))
        of_age = ops.sum(ops.maximum(1.0 - distance, 0.0) * self.at_knots, axis=-1)
        return ops.where(was_seen, of_age, ops.convert_to_tensor(self.unseen))

    def at_moment(self, time: keras.KerasTensor) -> keras.KerasTensor:
        """Returns the numbers `[b, bins]` float32 of queries.

        Args:
            time: Their times `[b]` int32 [min]; `UNKNOWN`: after all training events.

        Returns:
            1 at the last moment that isn't after the query; all 0 before the first moment.
        """
        time = ops.where(time == UNKNOWN, np.iinfo(np.int32).max, time)
        moment = ops.convert_to_tensor(self.moments)[None, :]
        passed = ops.sum(ops.cast(time[:, None] >= moment, "int32"), axis=1)
        places = ops.arange(1, self.options.bins + 1, dtype="int32")
        return ops.cast(passed[:, None] == places, "float32")


def item_births(events: KeptEvents, n_rows: int) -> np.ndarray:
    """Returns when each item had its first event `[n_rows]` int32 [minutes since 1970, UTC].

    Args:
        events: The events that training sees.
        n_rows: Item rows, row 0 included.

    Returns:
        `UNKNOWN` of an item without an event, and of row 0, which is none.
    """
    never = np.iinfo(np.int32).max
    births = np.full(n_rows, never, np.int32)
    for item_row, minute in _items_and_minutes(events):
        np.minimum.at(births, item_row, minute)
    births[births == never] = UNKNOWN
    births[UNKNOWN_ROW] = UNKNOWN
    return births


def moments(events: KeptEvents, n: int) -> np.ndarray:
    """Returns moments `[n]` int32 [minutes since 1970, UTC], ascending, that divide the events.

    About as many events lie before the first as between one and the next; the last is the
    minute after the newest event.

    Args:
        events: The events that training sees; at least one.
        n: How many moments.
    """
    newest = max(int(minute.max()) for _, minute in _items_and_minutes(events))
    places = np.arange(1, n) * len(events.times) // n
    return np.append(minutes(events.times[places]), newest + 1).astype(np.int32)


def _items_and_minutes(events: KeptEvents) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields the item row and the minute of each kept event, of a shard that has some."""
    for part in events.shards:
        if len(part):
            minute = minutes(part.shard.timestamp)
            yield part.item_row, np.delete(minute, part.held) if len(part.held) else minute
