"""Statistics of earlier events: counts, mean labels and last labels of a user or an item.

A statistic belongs to a row, a pair of a user and an item at a time. It is computed from the rows
before the row's second whose labels were known by then:

    {name: user_like_rate, kind: mean, label: like, by: user, prior: 20}
    {name: item_rows, kind: count, by: item, as: dense, scale: log}
    {name: genre_like_rate, kind: mean, label: like, by: [user, genres]}
    {name: last_likes, kind: last, label: like, length: 5}

`recsys.data.ingest.statistics` computes it for all rows, and `recsys.data.statistics` for the state
at the end of the data.
"""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
import pyarrow as pa
from pydantic import Field, PositiveInt, model_validator

from recsys.data.encodings import encode_columns, learn_number
from recsys.data.event_features.feature import Encoded, EventFeature, Graph, Side, Value
from recsys.data.feature_options import NumberOptions
from recsys.strict import Name

Reader = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""Returns the states `[k, n_states]` float64 of slices of rows: starts `[k]` and ends `[k]`."""
YES_BOUND = np.array([0.5], np.float32)
"""Bound of the buckets of labels that are 0 or 1."""
_MEAN, _DELAY = "prior_mean", "label_after_s"


class Statistic(NumberOptions, EventFeature, abc.ABC):
    """A statistic of earlier rows.

    The state of a user, an item or a pair is `[n_states]` float64.
    """

    value: ClassVar[Value] = "statistic"
    side: ClassVar[Side] = "row"
    empty: ClassVar[float] = 0.0
    """State without earlier rows."""

    by: Literal["user", "item"] | tuple[Literal["user"], Name] = "user"
    """Whose earlier rows: `user`, `item`, or `[user, FEATURE]`: the user's rows with the tokens
    that the item has of this feature of items, summed over these tokens."""
    label: Name | None = None
    """The label; rows where it is unknown are left out."""

    @model_validator(mode="after")
    def _has_no_use(self) -> Self:
        if self.context or self.outcome:
            raise ValueError(f"{self.name} is a statistic, which has neither context nor outcome")
        return self

    @property
    def is_context(self) -> bool:
        """False: it belongs to a query and an item."""
        return False

    @property
    def is_attribute(self) -> bool:
        """False: the events of a history don't have it."""
        return False

    @property
    def item_feature(self) -> str | None:
        """Feature of items in `by`; None: there is none."""
        return self.by[1] if isinstance(self.by, tuple) else None

    @property
    def is_of_users(self) -> bool:
        """Whether each user has an own state."""
        return self.by != "item"

    @property
    def n_values(self) -> int:
        """Number of numbers per row."""
        return 1

    @property
    @abc.abstractmethod
    def n_states(self) -> int:
        """Number of float64 values of a state."""

    @abc.abstractmethod
    def values(self, state: Any, prior_mean: float) -> Any:
        """Returns the numbers `[…, n_values]` float64 of states, NaN is missing.

        Args:
            state: States `[…, n_states]` float64, an array or a tensor; for `by: [user, FEATURE]`
                summed over the tokens.
            prior_mean: Mean label of the training rows.
        """

    def reader(self, labels: np.ndarray, is_seen: np.ndarray) -> Reader:
        """Returns a function that returns the states of slices of rows.

        The states are the last `n_states` of the sums of `(label, 1)`.

        Args:
            labels: Labels of rows `[n]` float64, NaN is unknown; the oldest first in a slice.
            is_seen: Which rows count `[n]` bool.
        """
        is_known = is_seen & ~np.isnan(labels)
        columns = (np.where(is_known, labels, 0.0), is_known)[-self.n_states :]
        sums = np.stack([_cumulated(column) for column in columns], axis=1)
        return lambda starts, ends: sums[ends] - sums[starts]

    @property
    def floats(self) -> int:
        """Number of float32 values per row; 0: it has tokens."""
        return super().floats * self.n_values

    def learn(self, counted: pa.Table, previous: pa.Table | None) -> pa.Table:
        """Returns the properties that `encode_number` needs, each a list in one row."""
        learned = self._learned(*(counted[name].to_numpy() for name in ("value", "count")))
        return pa.table({name: [values] for name, values in learned.items()})

    def _learned(self, values: np.ndarray, counts: np.ndarray) -> dict[str, np.ndarray]:
        return dict(learn_number(self, values.astype(np.float32), counts))

    def table_rows(self, learned: pa.Table) -> int:
        """Returns the number of rows: row 0, and the buckets of each number."""
        return 0 if self.floats else 1 + self.n_values * self.buckets

    def encode(self, values: np.ndarray, learned: pa.Table) -> Encoded:
        """Returns the buckets or floats of numbers.

        Args:
            values: Numbers `[n, n_values]` float32; NaN is missing.
            learned: The result of `learn`, with the prior mean.
        """
        return encode_columns(self, values, learned_arrays(learned))

    def graph(self, learned: pa.Table) -> Graph:
        """Returns the function of numbers `[n, n_values]` float32."""
        from recsys.data import encoding_graphs

        arrays = learned_arrays(learned)
        return lambda values: encoding_graphs.encode_columns(self, values, arrays)

    def token_names(self, learned: pa.Table) -> list[str] | None:
        """Returns the numbers of the buckets, such as `bucket 1 of 10`; None without buckets."""
        if self.floats:
            return None
        buckets = [f"bucket {n} of {self.buckets}" for n in range(1, self.buckets + 1)]
        numbers = [f"number {n}, " for n in range(1, self.n_values + 1)]
        prefixes = numbers if len(numbers) > 1 else [""]
        return ["", *(f"{prefix}{bucket}" for prefix in prefixes for bucket in buckets)]


class Mean(Statistic):
    """The mean label of earlier rows, with `prior` more rows that have the mean of all."""

    label: Name
    """The label whose mean is taken."""
    prior: Annotated[float, Field(ge=0.0)] = 20.0
    """Number of rows with the mean label of all training rows that are added to each mean; with 0,
    the mean of no rows is missing."""

    @property
    def n_states(self) -> int:
        """The sum and the number of the labels."""
        return 2

    def values(self, state: Any, prior_mean: float) -> Any:
        """Returns the means `[…, 1]` float64."""
        with np.errstate(invalid="ignore"):
            return (state[..., :1] + self.prior * prior_mean) / (state[..., 1:] + self.prior)


class Count(Statistic):
    """The number of earlier rows; with `label` of those whose label is known."""

    @property
    def n_states(self) -> int:
        """The number."""
        return 1

    def values(self, state: Any, prior_mean: float) -> Any:
        """Returns the numbers `[…, 1]` float64."""
        return state


class Last(Statistic):
    """The labels of the last earlier rows, the newest first."""

    empty: ClassVar[float] = np.nan

    by: Literal["user", "item"] = "user"
    """Whose earlier rows: `user` or `item`."""
    label: Name
    """The label."""
    length: PositiveInt = 5
    """Number of labels."""

    @property
    def width(self) -> int:  # type: ignore[override]
        """Number of tokens: a label has one; 1 for floats."""
        return 1 if self.floats else self.length

    @property
    def n_values(self) -> int:
        """Number of labels."""
        return self.length

    @property
    def n_states(self) -> int:
        """The labels."""
        return self.length

    def reader(self, labels: np.ndarray, is_seen: np.ndarray) -> Reader:
        """Returns the reader of the last labels."""
        is_known = is_seen & ~np.isnan(labels)
        known, ranks = np.append(labels[is_known], np.nan), _cumulated(is_known).astype(np.int64)

        def read(starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
            places = ranks[ends][:, None] - 1 - np.arange(self.length)
            return known[np.where(places >= ranks[starts][:, None], places, -1)]

        return read

    def values(self, state: Any, prior_mean: float) -> Any:
        """Returns the labels `[…, length]` float64."""
        return state

    def _learned(self, values: np.ndarray, counts: np.ndarray) -> dict[str, np.ndarray]:
        if self.as_ == "buckets" and np.isin(values, (0.0, 1.0)).all():
            return {"bound": YES_BOUND}
        return super()._learned(values, counts)


def with_facts(learned: pa.Table, mean: float, label_after_s: int) -> pa.Table:
    """Returns what a statistic learned with two more facts.

    Args:
        learned: What it learned.
        mean: Mean label of the training rows.
        label_after_s: Age from which its labels are known [s].
    """
    for name, value in ((_MEAN, mean), (_DELAY, float(label_after_s))):
        learned = learned.append_column(name, pa.array([[value]], pa.list_(pa.float64())))
    return learned


def learned_arrays(learned: pa.Table) -> dict[str, np.ndarray]:
    """Returns what a statistic learned by name `[…]`."""
    return {
        name: learned[name].combine_chunks().flatten().to_numpy(zero_copy_only=False)
        for name in learned.column_names
    }


def prior_mean(learned: pa.Table) -> float:
    """Returns the mean label of the training rows."""
    return float(learned_arrays(learned)[_MEAN][0])


def label_after_s(learned: pa.Table) -> int:
    """Returns the age from which the labels of a statistic are known [s]."""
    return int(learned_arrays(learned)[_DELAY][0])


def _cumulated(values: np.ndarray) -> np.ndarray:
    """Returns the sum of the values before each index `[n + 1]` float64."""
    return np.concatenate([[0.0], np.cumsum(values, dtype=np.float64)])
