"""Event features that are numbers: amounts, gaps and vectors."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from recsys.data.encodings import (
    buckets,
    encode_number,
    encode_vectors,
    learn_number,
)
from recsys.data.event_features.feature import Encoded, EventFeature, Graph, Value
from recsys.data.feature_options import NumberOptions, VectorOptions


class Number(NumberOptions, EventFeature):
    """A number: its quantile bucket, or as floats."""

    value: ClassVar[Value] = "number"

    def learn(self, counted: pa.Table, previous: pa.Table | None) -> pa.Table:
        """Returns the properties that `encode_number` needs; see `recsys.data.encodings`."""
        values, counts = (counted[name].to_numpy() for name in ("value", "count"))
        return pa.table(dict(learn_number(self, values, counts)))

    def table_rows(self, learned: pa.Table) -> int:
        """Returns the number of rows: row 0 and the buckets; 0 without buckets."""
        return 0 if self.floats else 1 + self.buckets

    def encode(self, values: pa.Array, learned: pa.Table) -> Encoded:
        """Returns the bucket of each number, from 1 on; or its floats. 0 if it is missing."""
        return encode_number(self, _floats(values), _arrays(learned))

    def graph(self, learned: pa.Table) -> Graph:
        """Returns the function of numbers; NaN is missing."""
        from recsys.data import encoding_graphs

        return lambda values: encoding_graphs.encode_number(self, values, _arrays(learned))

    def token_names(self, learned: pa.Table) -> list[str] | None:
        """Returns the numbers of the buckets, such as `bucket 1 of 10`; None without buckets."""
        if self.floats:
            return None
        return ["", *(f"bucket {n} of {self.buckets}" for n in range(1, self.buckets + 1))]


class Vector(VectorOptions, EventFeature):
    """A list of numbers."""

    value: ClassVar[Value] = "vector"

    def encode(self, values: pa.Array, learned: pa.Table) -> Encoded:
        """Returns the numbers of each list, and 1 if it is there; zeros if it is missing."""
        return encode_vectors(values, self.length)

    def graph(self, learned: pa.Table) -> Graph:
        """Returns the function of vectors `[n, length]` float32; NaN is missing."""
        from recsys.data import encoding_graphs

        return lambda values: encoding_graphs.encode_vectors(values, self.length)


_LOG_BOUNDS = (2.0 ** np.linspace(-8, 24, 129)).astype(np.float32)
"""1/256 … 2^24, four bounds per octave."""


class Price(EventFeature):
    """A positive amount on a logarithmic scale, in four buckets per octave."""

    value: ClassVar[Value] = "number"

    def table_rows(self, learned: pa.Table) -> int:
        """Returns the number of rows: row 0 and the buckets."""
        return len(_LOG_BOUNDS) + 2

    def encode(self, values: pa.Array, learned: pa.Table) -> Encoded:
        """Returns the bucket of each amount, from 1 on; 0 if it is missing."""
        return buckets(_floats(values), _LOG_BOUNDS)

    def graph(self, learned: pa.Table) -> Graph:
        """Returns the function of amounts; NaN is missing."""
        from recsys.data import encoding_graphs

        return lambda values: encoding_graphs.buckets(values, _LOG_BOUNDS)


class Gap(Price):
    """The time since the user's event before, on the scale of `price` in hours."""

    value: ClassVar[Value] = "gap"

    def encode(self, values: pa.Array, learned: pa.Table) -> Encoded:
        """Returns the bucket of each gap, from 1 on; 0 for a user's first event."""
        return super().encode(pc.divide(values.cast(pa.float64()), 3600.0), learned)

    def graph(self, learned: pa.Table) -> Graph:
        """Returns the function of gaps [s] int64; the lowest int64 is missing."""
        from recsys.data import event_graphs

        return event_graphs.bucketed_hours(_LOG_BOUNDS)


def _floats(values: pa.Array) -> np.ndarray:
    """Returns numbers as float32; NaN for null."""
    floats: np.ndarray = pc.fill_null(values, np.nan).to_numpy(zero_copy_only=False)
    return floats.astype(np.float32)


def _arrays(learned: pa.Table) -> dict[str, np.ndarray]:
    return {name: learned[name].to_numpy() for name in learned.column_names}
