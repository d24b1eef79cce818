"""Facts of a query and its history that models can read besides items: times, weights, kinds.

Each fact is an integer per event, or `UNKNOWN`. Ages are relative, so that no date reaches a
model: to the query time or, in a packed row of training, to the newest event of the same user.
Models only use differences of ages. A weight is read as its bucket on a logarithmic scale, and a
kind of event (`click`, `purchase`) as its index in the kinds of the data
(`recsys.data.vocabulary.load_kinds`). The query time is a fact, too, for models that use the age
of items (`recsys.models.terms.item_age`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from recsys.data.config import AGES as AGES  # Ages of events [s].
from recsys.data.config import ASKED_AT as ASKED_AT  # Query time [min].
from recsys.data.config import KINDS as KINDS  # Kinds of events.
from recsys.data.config import WEIGHTS as WEIGHTS  # Buckets of events' weights.

EVENT_FACTS = (AGES, WEIGHTS, KINDS)
"""Facts of the events of a history; each is also an input of a bundle whose model reads it."""
FACTS = (*EVENT_FACTS, ASKED_AT)
ASKED = "asked_age"
"""In packed training, ages of the events to predict `[rows, examples per row]` int32 [s]."""
ITEM, PLACE = "history_item", "history_place"
"""The unique items of a batch's histories, and the index of each history entry in them; see
`recsys.tasks.retrieval.training.batches.unique_items`."""
Facts = Mapping[str, np.ndarray]
"""Facts of histories' items `[n, history]` and of queries `[n]`, by name of the input."""
UNKNOWN = -1
"""Value for padding and for events without this fact."""
OLDEST = 1 << 30
"""Ages are clipped to this value, about 34 years [s]."""

_OCTAVE_BUCKETS, _LOWEST, _N_OCTAVES = 4, -8, 16
LEAST_WEIGHTS = 2.0 ** (
    _LOWEST + np.arange(_OCTAVE_BUCKETS * _N_OCTAVES + 1, dtype=np.float64) / _OCTAVE_BUCKETS
)
"""Lower bound of each bucket but the first `[buckets - 1]`: 1/256 … 256, four buckets per octave.
The first bucket holds all smaller weights, the last all larger ones."""
LEAST_WEIGHTS = LEAST_WEIGHTS.astype(np.float32)
N_WEIGHTS = len(LEAST_WEIGHTS) + 1
MOST_KINDS = 255
"""Maximum number of kinds of events: the store has a byte per event, and 0 means unknown."""


def ages(now: np.ndarray | int, times: np.ndarray) -> np.ndarray:
    """Returns the ages of events at `now` [s] int32, 0 … `OLDEST`.

    Args:
        now: Times to which ages are relative [seconds since 1970, UTC].
        times: Times of the events [seconds since 1970, UTC]; later ones have the age 0.
    """
    return np.clip(now - times, 0, OLDEST).astype(np.int32)


def minutes(times: np.ndarray | int) -> np.ndarray:
    """Converts times [seconds since 1970, UTC] to whole minutes since 1970, int32, at least 0.

    Keras and JAX have no int64, and seconds leave int32 in 2038.
    """
    return np.clip(np.asarray(times) // 60, 0, np.iinfo(np.int32).max).astype(np.int32)


def weight_buckets(weights: np.ndarray) -> np.ndarray:
    """Returns the buckets of weights `[…]` float32, 0 … `N_WEIGHTS` - 1, int32."""
    return np.searchsorted(LEAST_WEIGHTS, weights, side="right").astype(np.int32)


def kind_numbers(rows: np.ndarray) -> np.ndarray:
    """Returns the indices of kinds `[…]` int32 from their rows; `UNKNOWN` for row 0."""
    return rows.astype(np.int32) + UNKNOWN


def facts_or_unknown(
    names: Iterable[str], facts: Facts | None, history: np.ndarray
) -> dict[str, np.ndarray]:
    """Returns the named facts of histories, with `UNKNOWN` for facts that aren't given.

    Args:
        names: Names of the facts to return.
        facts: Given facts by name; None: none.
        history: Item rows `[n, history]`, 0 is padding.
    """
    unknown = np.full(history.shape, UNKNOWN, np.int32)
    nothing = {name: unknown[:, 0] if name == ASKED_AT else unknown for name in names}
    return {name: (facts or {}).get(name, nothing[name]) for name in names}
