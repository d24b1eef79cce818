"""Features of events: context of a query, and attributes of the events of a history.

A feature belongs to an event, for example the device of a click. It is used in two ways: as context
of the query that is asked, and as attribute of an event in a history. `context: true` and
`outcome: true` limit a feature to the first or the second.

A kind is a registered class, and a config selects it by `kind`:

    @recsys.register_event_feature("parity")
    class ParityFeature(EventFeature):
        value: ClassVar[Value] = "number"

        def table_rows(self, learned):
            return 3                                       # padding, even, odd

        def encode(self, values, learned):
            return np.where(values.is_null(), 0, 1 + values.to_numpy() % 2).astype(np.int32)

        def graph(self, learned):
            return lambda values: 1 + tf.cast(values % 2, tf.int64)

The ingest parses raw values as the type `value`. `learn` is called with the values before the cut.
`encode` applies what was learned to all values with Arrow and NumPy. `graph` does the same in the
exported model; the export's parity check compares the two.
"""

from __future__ import annotations

import abc
import dataclasses
import functools
import json
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pydantic import Field, PositiveInt, field_validator, model_validator

from recsys import registry
from recsys.data.config import read_event_feature, write_event_feature
from recsys.data.hashes import fingerprints
from recsys.errors import RecsysError
from recsys.strict import Name, Strict
from recsys.system.files import DAMAGE, read_json

Value = Literal["text", "number", "time", "vector", "gap", "tokens"]
"""Type of the values of a feature: text; float32; int64 [seconds since 1970, UTC]; lists of
float32; int64 time since the user's event before [s]; or the tokens of other features."""
Encoded = np.ndarray
"""Token rows `[n, width]` int32, 0 is missing; or numbers `[n, floats]` float32."""
Graph = Callable[[Any], Any]
"""Maps typed values `[n]`, missing ones as in `recsys.savedmodel.inputs`, to what `encode` returns,
with TensorFlow."""

FOLDER, SUMMARY = "event_features", "features.json"
TIME_COLUMN = "timestamp"
"""Default name of the raw column of the times of events."""


class EventFeature(Strict, abc.ABC):
    """A feature of events; a subclass is registered under a name."""

    name: Name
    """Name of the feature, of its table and of its input."""
    column: str | None = None
    """Column of the raw interactions; `null` for a kind that reads none."""
    context: bool = False
    """Whether it is only context of the query, and no attribute of a history's events."""
    outcome: bool = False
    """Whether it is known only after the event, such as a dwell time or a rating: then it is only
    an attribute of a history's events."""

    value: ClassVar[Value] = "text"
    """Type that raw values are parsed as."""
    width: ClassVar[int] = 1
    """Number of tokens per event."""

    @model_validator(mode="after")
    def _has_one_use(self) -> Self:
        if self.context and self.outcome:
            raise ValueError(
                f"{self.name} can't be context and outcome: an outcome isn't known when the model"
                " is asked"
            )
        needs_column = self.value not in ("gap", "tokens")
        if needs_column != (self.column is not None):
            raise ValueError(f"{self.name} {'needs' if needs_column else 'has no'} column")
        return self

    @property
    def kind(self) -> str:
        """Registered name of the class."""
        return registry.name_of("event_feature", self)

    @property
    def is_context(self) -> bool:
        """Whether a query has it."""
        return not self.outcome

    @property
    def is_attribute(self) -> bool:
        """Whether the events of a history have it."""
        return not self.context

    @property
    def floats(self) -> int:
        """Number of float32 values per event; 0: it has tokens."""
        return 0

    def learn(self, counted: pa.Table, previous: pa.Table | None) -> pa.Table:
        """Returns what `encode` and `graph` need to know of the training data, by default nothing.

        Args:
            counted: `value`, unique and sorted, without nulls; and `count`, its number of events
                before the cut. For numbers and vectors a sample, see `recsys.data.store`.
            previous: The result of the run before; tokens must keep their rows.
        """
        del counted, previous
        return pa.table({})

    def table_rows(self, learned: pa.Table) -> int:
        """Returns the number of rows of its table, row 0 (missing) included; 0 without tokens."""
        return 0

    @abc.abstractmethod
    def encode(self, values: pa.Array, learned: pa.Table) -> Encoded:
        """Returns the tokens or numbers of values.

        Args:
            values: Typed values `[n]`; null is missing.
            learned: The result of `learn`.
        """

    @abc.abstractmethod
    def graph(self, learned: pa.Table) -> Graph:
        """Returns `encode` as a TensorFlow function; a `tf.Module` if it has tables."""

    def token_names(self, learned: pa.Table) -> list[str] | None:
        """Returns the name of each token row, empty for row 0; None: they have no names."""
        return None


# --- kinds


@registry.register_event_feature("category")
class Category(EventFeature):
    """The whole value is one token; new tokens get rows after the known ones."""

    min_count: PositiveInt = 1
    """Minimum number of events of a token with a row of its own."""
    hash_buckets: PositiveInt | None = None
    """Number of rows for hashed tokens; `null`: each known token has a row."""

    def learn(self, counted: pa.Table, previous: pa.Table | None) -> pa.Table:
        """Returns the known tokens: those of the run before, then the most frequent first."""
        if self.hash_buckets is not None:
            return pa.table({})
        known = pa.array([], pa.string())
        if previous is not None:
            known = previous["token"].combine_chunks()
        is_new = pc.and_(
            pc.greater_equal(counted["count"], self.min_count),
            pc.invert(pc.is_in(counted["value"], value_set=known)),
        )
        order = [("count", "descending"), ("value", "ascending")]
        new = counted.filter(is_new).sort_by(order)["value"]
        return pa.table({"token": pa.chunked_array([known, *new.chunks], pa.string())})

    def table_rows(self, learned: pa.Table) -> int:
        """Returns the number of rows: row 0, and one per known token or bucket."""
        return 1 + (learned.num_rows if self.hash_buckets is None else self.hash_buckets)

    def encode(self, values: pa.Array, learned: pa.Table) -> Encoded:
        """Returns the row of each token; 0 if it is missing or unknown."""
        coded = values.dictionary_encode()
        if self.hash_buckets is not None:
            buckets = fingerprints(coded.dictionary) % np.uint64(self.hash_buckets)
            rows = 1 + buckets.astype(np.int32)
        else:
            known = learned["token"].combine_chunks()
            places = pc.index_in(coded.dictionary, value_set=known)
            rows = 1 + pc.fill_null(places, -1).to_numpy(zero_copy_only=False).astype(np.int32)
        codes = pc.fill_null(coded.indices, len(rows)).to_numpy(zero_copy_only=False)
        return np.append(rows, np.int32(0))[codes][:, None]

    def graph(self, learned: pa.Table) -> Graph:
        """Returns the function of texts, empty for a missing one."""
        from recsys.data import event_graphs

        if self.hash_buckets is not None:
            return event_graphs.hashed(self.hash_buckets)
        graph: Graph = event_graphs.TokenRows(learned["token"].to_pylist())
        return graph

    def token_names(self, learned: pa.Table) -> list[str] | None:
        """Returns the tokens; None if they are hashed."""
        return ["", *learned["token"].to_pylist()] if self.hash_buckets is None else None


@registry.register_event_feature("number")
class Number(EventFeature):
    """The quantile bucket of a number."""

    value: ClassVar[Value] = "number"
    buckets: Annotated[int, Field(ge=2)] = 10
    """Number of buckets."""

    def learn(self, counted: pa.Table, previous: pa.Table | None) -> pa.Table:
        """Returns the lower bound of each bucket but the first, float32."""
        count = np.cumsum(counted["count"].to_numpy())
        ranks = np.arange(1, self.buckets) * (count[-1] if len(count) else 0) / self.buckets
        values = counted["value"].to_numpy()
        at = np.searchsorted(count, ranks, side="right")
        bounds = values[np.minimum(at, len(values) - 1)] if len(values) else np.zeros(len(ranks))
        return pa.table({"bound": bounds.astype(np.float32)})

    def table_rows(self, learned: pa.Table) -> int:
        """Returns the number of rows: row 0 and the buckets."""
        return 1 + self.buckets

    def encode(self, values: pa.Array, learned: pa.Table) -> Encoded:
        """Returns the bucket of each number, from 1 on; 0 if it is missing."""
        return _buckets(values, learned["bound"].to_numpy())

    def graph(self, learned: pa.Table) -> Graph:
        """Returns the function of numbers; NaN is missing."""
        from recsys.data import event_graphs

        return event_graphs.bucketed(learned["bound"].to_numpy())

    def token_names(self, learned: pa.Table) -> list[str] | None:
        """Returns the numbers of the buckets, such as `bucket 1 of 10`."""
        return ["", *(f"bucket {n} of {self.buckets}" for n in range(1, self.buckets + 1))]


_LOG_BOUNDS = (2.0 ** np.linspace(-8, 24, 129)).astype(np.float32)
"""1/256 … 2^24, four bounds per octave."""


@registry.register_event_feature("price")
class Price(EventFeature):
    """A positive amount on a logarithmic scale, in four buckets per octave."""

    value: ClassVar[Value] = "number"

    def table_rows(self, learned: pa.Table) -> int:
        """Returns the number of rows: row 0 and the buckets."""
        return len(_LOG_BOUNDS) + 2

    def encode(self, values: pa.Array, learned: pa.Table) -> Encoded:
        """Returns the bucket of each amount, from 1 on; 0 if it is missing."""
        return _buckets(values, _LOG_BOUNDS)

    def graph(self, learned: pa.Table) -> Graph:
        """Returns the function of amounts; NaN is missing."""
        from recsys.data import event_graphs

        return event_graphs.bucketed(_LOG_BOUNDS)


@registry.register_event_feature("gap")
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


class _Calendar(EventFeature):
    """A part of the local time."""

    value: ClassVar[Value] = "time"
    zone: str = "UTC"
    """Time zone, such as `Europe/Paris`."""

    _n: ClassVar[int]

    @field_validator("zone")
    @classmethod
    def _zone_exists(cls, zone: str) -> str:
        try:
            ZoneInfo(zone)
        except (ZoneInfoNotFoundError, ValueError, OSError):
            raise ValueError(f"zone must be a name like Europe/Paris; received {zone!r}") from None
        return zone

    def table_rows(self, learned: pa.Table) -> int:
        """Returns the number of rows: row 0 and the values."""
        return 1 + self._n

    def encode(self, values: pa.Array, learned: pa.Table) -> Encoded:
        """Returns the part of each time, from 1 on; 0 if it is missing."""
        borders, offsets = offsets_of(self.zone)
        time = pc.fill_null(values, 0).to_numpy(zero_copy_only=False)
        local = time + offsets[np.searchsorted(borders, time, side="right")]
        is_there = values.is_valid().to_numpy(zero_copy_only=False)
        return np.where(is_there, 1 + self.of_local(local), 0).astype(np.int32)[:, None]

    def graph(self, learned: pa.Table) -> Graph:
        """Returns the function of times [s] int64; the lowest int64 is missing."""
        from recsys.data import event_graphs

        return event_graphs.of_local_time(*offsets_of(self.zone), self.of_local)

    def of_local(self, time: Any) -> Any:
        """Returns the value, from 0 on, of local times [s] int64: arrays or tensors."""
        raise NotImplementedError

    def token_names(self, learned: pa.Table) -> list[str] | None:
        """Returns the name of the feature with each value."""
        return ["", *(f"{self.kind} {n}" for n in range(self._n))]


@registry.register_event_feature("hour")
class Hour(_Calendar):
    """The hour of the day, 0 … 23."""

    _n: ClassVar[int] = 24

    def of_local(self, time: Any) -> Any:
        """Returns the hour of local times."""
        return time // 3600 % 24


@registry.register_event_feature("weekday")
class Weekday(_Calendar):
    """The day of the week, Monday is 0."""

    _n: ClassVar[int] = 7

    def of_local(self, time: Any) -> Any:
        """Returns the weekday of local times; 1970-01-01 was a Thursday."""
        return (time // 86_400 + 3) % 7


@registry.register_event_feature("month")
class Month(_Calendar):
    """The month, January is 0."""

    _n: ClassVar[int] = 12

    def of_local(self, time: Any) -> Any:
        """Returns the month of local times, in the Gregorian calendar.

        Howard Hinnant, "chrono-Compatible Low-Level Date Algorithms", civil_from_days.
        """
        day_of_era = (time // 86_400 + 719_468) % 146_097
        leap_days = day_of_era // 1460 - day_of_era // 36_524 + day_of_era // 146_096
        year_of_era = (day_of_era - leap_days) // 365
        day_of_year = day_of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
        return ((5 * day_of_year + 2) // 153 + 2) % 12


def _buckets(values: pa.Array, bounds: np.ndarray) -> Encoded:
    """Returns the bucket of each number `[n, 1]` int32, from 1 on; 0 for null and NaN."""
    x = pc.fill_null(values, np.nan).to_numpy(zero_copy_only=False).astype(np.float32)
    rows = 1 + np.searchsorted(bounds, x, side="right")
    return np.where(np.isnan(x), 0, rows).astype(np.int32)[:, None]


_FIRST, _LAST = 0, 4_102_444_800
"""1970 and 2100 [seconds since 1970]: outside, the offsets at these times are used."""


@functools.cache
def offsets_of(zone: str) -> tuple[np.ndarray, np.ndarray]:
    """Returns the times at which a zone's offset from UTC changes `[n]`, and the offsets `[n + 1]`.

    Both are int64 [s]. The offset `i` is used between the changes `i - 1` and `i`.
    """
    info = ZoneInfo(zone)

    def offset(time: int) -> int:
        at = datetime(1970, 1, 1, tzinfo=timezone.utc) + timedelta(seconds=time)  # noqa: UP017
        delta = at.astimezone(info).utcoffset()
        return 0 if delta is None else int(delta.total_seconds())

    step = 7 * 86_400
    borders, offsets = list[int](), [offset(_FIRST)]
    for end in range(_FIRST + step, _LAST, step):
        if (new := offset(end)) == offsets[-1]:
            continue
        low, high = end - step, end  # The offset changes in (low, high].
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if offset(middle) == new else (middle, high)
        borders.append(high)
        offsets.append(new)
    return np.array(borders, np.int64), np.array(offsets, np.int64)


# --- what was learned, on disk


@dataclasses.dataclass(frozen=True)
class LearnedFeature:
    """An event feature of given data.

    Attributes:
        feature: The feature, with its options.
        learned: What it learned from the training events.
    """

    feature: EventFeature
    learned: pa.Table

    @property
    def name(self) -> str:
        """Name of the feature."""
        return self.feature.name

    @property
    def rows(self) -> int:
        """Rows of its table; 0 without tokens."""
        return self.feature.table_rows(self.learned)

    def encode(self, values: pa.Array) -> Encoded:
        """Returns the tokens or numbers of typed values."""
        return self.feature.encode(values, self.learned)

    def is_same(self, other: LearnedFeature | None) -> bool:
        """Returns whether another feature encodes all values alike."""
        return (
            other is not None
            and self.feature == other.feature
            and self.learned.equals(other.learned)
        )


def save_event_features(
    folder: Path, features: Sequence[LearnedFeature], time_column: str | None = None
) -> None:
    """Writes event features into `folder`, created if missing.

    Args:
        folder: The folder.
        features: The features.
        time_column: Raw column of the times of events; None: `TIME_COLUMN`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for one in features:
        pq.write_table(one.learned, folder / f"{one.name}.parquet")
    options = [write_event_feature(one.feature) for one in features]
    summary = {"time_column": time_column or TIME_COLUMN, "features": options}
    (folder / SUMMARY).write_text(json.dumps(summary, indent=1) + "\n")


def load_event_features(folder: Path) -> tuple[LearnedFeature, ...]:
    """Reads the event features in `folder`; none if it is missing.

    Raises:
        RecsysError: The folder is damaged (R230).
    """
    if not folder.exists():
        return ()
    try:
        options = read_json(folder / SUMMARY)["features"]
        features = [read_event_feature(one) for one in options]
        tables = [pq.read_table(folder / f"{feature.name}.parquet") for feature in features]
    except (*DAMAGE, pa.ArrowException) as error:
        raise RecsysError(
            "R230",
            f"{str(folder)!r} must hold the features of events.",
            "Name the folder that the InteractionEncoder wrote, or run again.",
            f"{type(error).__name__}: {error}",
        ) from None
    return tuple(map(LearnedFeature, features, tables))


def time_column_of(folder: Path) -> str:
    """Returns the raw column of the times of events, by which bundles take the query time.

    Args:
        folder: Folder that `save_event_features` wrote; it may be missing.
    """
    if not (folder / SUMMARY).is_file():
        return TIME_COLUMN
    return str(read_json(folder / SUMMARY).get("time_column", TIME_COLUMN))
