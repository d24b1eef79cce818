"""What models may read of a question and its history beside items: times, weights and kinds.

Each is a whole number an event, `UNKNOWN` where nobody knows it. An age counts back from a
moment of the history's own, so that no date reaches a model: from the question, or in a packed
row of training from the newest event of the same user. Models read differences of ages alone.
A weight is read as its bucket on a scale of logarithms, a kind of event (`click`, `purchase`) as
its place among the kinds of the data (`recsys.data.vocabulary.load_kinds`). The moment of a
question itself is a fact too, for models that know how old items are then
(`recsys.models.times`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from recsys.data.config import AGES as AGES  # Ages of events [s].
from recsys.data.config import ASKED_AT as ASKED_AT  # Moment of the question [min].
from recsys.data.config import KINDS as KINDS  # Their kinds.
from recsys.data.config import WEIGHTS as WEIGHTS  # Buckets of their weights.

OF_EVENTS = (AGES, WEIGHTS, KINDS)
"""Facts of the events of a history, each also an input of a bundle that reads it."""
FACTS = (*OF_EVENTS, ASKED_AT)
ASKED = "asked_age"
"""Of packed training, ages of the events to predict `[rows, examples of a row]` int32 [s]."""
ITEM, PLACE = "history_item", "history_place"
"""Of a batch, the items of its histories once each, and which of them is where; see
`recsys.tasks.retrieval.training.batches.each_once`."""
Facts = Mapping[str, np.ndarray]
"""What is told of the items of histories `[n, history]`, and of questions `[n]`, by the names
of inputs."""
UNKNOWN = -1
"""Of padding, and of an event of which nobody knows it."""
OLDEST = 1 << 30
"""What is older, than 34 years, counts as so old [s]."""

_OF_AN_OCTAVE, _LOWEST, _N_OCTAVES = 4, -8, 16
LEAST_WEIGHTS = 2.0 ** (
    _LOWEST + np.arange(_OF_AN_OCTAVE * _N_OCTAVES + 1, dtype=np.float64) / _OF_AN_OCTAVE
)
"""Least weight of each bucket but the first `[buckets - 1]`: four to a doubling, 1/256 … 256.
The first is of smaller ones, the last of all that are larger."""
LEAST_WEIGHTS = LEAST_WEIGHTS.astype(np.float32)
N_WEIGHTS = len(LEAST_WEIGHTS) + 1
MOST_KINDS = 255
"""Kinds of events at most: the store has a byte an event, in which 0 means unknown."""


def ages(now: np.ndarray | int, times: np.ndarray) -> np.ndarray:
    """Returns how long before `now` events at `times` were [s] int32, 0 … `OLDEST`.

    Args:
        now: Moments from which ages count back [seconds since 1970, UTC].
        times: When the events happened [seconds since 1970, UTC]; what is later has the age 0.
    """
    return np.clip(now - times, 0, OLDEST).astype(np.int32)


def minutes(times: np.ndarray | int) -> np.ndarray:
    """Returns times [seconds since 1970, UTC] as whole minutes since then int32, 0 at least.

    Keras and JAX have no int64, and seconds leave int32 in 2038.
    """
    return np.clip(np.asarray(times) // 60, 0, np.iinfo(np.int32).max).astype(np.int32)


def weight_buckets(weights: np.ndarray) -> np.ndarray:
    """Returns the buckets of weights `[…]` float32, 0 … `N_WEIGHTS` - 1, int32."""
    return np.searchsorted(LEAST_WEIGHTS, weights, side="right").astype(np.int32)


def kind_numbers(rows: np.ndarray) -> np.ndarray:
    """Returns the numbers of kinds `[…]` int32 by their rows; that of row 0 is `UNKNOWN`."""
    return rows.astype(np.int32) + UNKNOWN


def all_of(names: Iterable[str], facts: Facts | None, history: np.ndarray) -> dict[str, np.ndarray]:
    """Returns the facts called so of histories, `UNKNOWN` those that nobody told.

    Args:
        names: Which are wanted.
        facts: What is told; None: nothing.
        history: Item rows `[n, history]`, 0 for none.
    """
    unknown = np.full(history.shape, UNKNOWN, np.int32)
    nothing = {name: unknown[:, 0] if name == ASKED_AT else unknown for name in names}
    return {name: (facts or {}).get(name, nothing[name]) for name in names}
