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
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import model_validator

from recsys import registry
from recsys.data.config import read_event_feature, write_event_feature
from recsys.data.label_config import LabelConfig, dependencies_first
from recsys.data.vocabulary import reading_data
from recsys.strict import Name, Strict
from recsys.system.files import read_json

Value = Literal["text", "number", "time", "vector", "gap", "tokens", "statistic"]
"""Type of the values of a feature: text; float32; int64 [seconds since 1970, UTC]; lists of
float32; int64 time since the user's event before [s]; the tokens of other features; or statistics
of earlier events."""
NOT_STORED: tuple[Value, ...] = ("gap", "tokens", "statistic")
"""Types of values that are no column of the raw events."""
Encoded = np.ndarray
"""Token rows `[n, width]` int32, 0 is missing; or numbers `[n, floats]` float32."""
Graph = Callable[[Any], Any]
"""Maps typed values `[n]` to what `encode` returns, with TensorFlow. A missing text is empty, a
missing number NaN, a missing time or gap the lowest int64. Vectors are `[n, length]`, NaN if
missing, and tokens `[n, features]` int64."""

Side = Literal["event", "row"]
"""What has a feature: an event; or a row, a pair of a query and an item."""

FOLDER, SUMMARY = "event_features", "features.json"
_CONTENT = "the features of events"
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
    side: ClassVar[Side] = "event"
    """What has the feature; only models that learn labels read features of rows."""

    @model_validator(mode="after")
    def _has_one_use(self) -> Self:
        if self.context and self.outcome:
            raise ValueError(
                f"{self.name} can't be context and outcome: an outcome isn't known when the model"
                " is asked"
            )
        needs_column = self.value not in NOT_STORED
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
                before the cut. Of numbers a sample, see `recsys.data.ingest.event_values`.
            previous: The result of the run before; tokens must keep their rows.
        """
        del counted, previous
        return pa.table({})

    def table_rows(self, learned: pa.Table) -> int:
        """Returns the number of rows of its table, row 0 (missing) included; 0 without tokens."""
        return 0

    @abc.abstractmethod
    def encode(self, values: Any, learned: pa.Table) -> Encoded:
        """Returns the tokens or numbers of values.

        Args:
            values: Typed values `[n]`, null is missing; for the type `tokens` the token rows of the
                features in `of`, an array `[n, features]` int32, 0 is missing.
            learned: The result of `learn`.
        """

    @abc.abstractmethod
    def graph(self, learned: pa.Table) -> Graph:
        """Returns `encode` as a TensorFlow function; a `tf.Module` if it has tables."""

    def token_names(self, learned: pa.Table) -> list[str] | None:
        """Returns the name of each token row, empty for row 0; None: they have no names."""
        return None


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

    def encode(self, values: Any) -> Encoded:
        """Returns the tokens or numbers of values, see `EventFeature.encode`."""
        return self.feature.encode(values, self.learned)

    def is_same(self, other: LearnedFeature | None) -> bool:
        """Returns whether another feature encodes all values alike."""
        return (
            other is not None
            and self.feature == other.feature
            and self.learned.equals(other.learned)
        )


def values_at(value: str, now: np.ndarray, idle_s: np.ndarray) -> pa.Array:
    """Returns the values of a feature of query times.

    Args:
        value: `time`, or `gap`.
        now: Query times `[n]`.
        idle_s: Time since the user's last event `[n]`; -1 without one.
    """
    return pa.array(now) if value == "time" else pa.array(idle_s, mask=idle_s < 0)


def encode_features(
    features: Sequence[LearnedFeature], values: Mapping[str, pa.Array]
) -> dict[str, Encoded]:
    """Returns the tokens or numbers of some events by feature.

    Args:
        features: The features.
        values: Typed values `[n]` of each feature by name, but for those of the type `tokens`.
    """
    made = {f.name: f.encode(values[f.name]) for f in features if f.feature.value != "tokens"}
    for cross in features:
        if cross.name not in made:
            of: Any = cross.feature
            made[cross.name] = cross.encode(np.concatenate([made[name] for name in of.of], axis=1))
    return {f.name: made[f.name] for f in features}


def save_event_features(
    folder: Path,
    features: Sequence[LearnedFeature],
    time_column: str | None = None,
    labels: Mapping[str, LabelConfig] | None = None,
) -> None:
    """Writes event features into `folder`, created if missing.

    Args:
        folder: The folder.
        features: The features.
        time_column: Raw column of the times of events; None: `TIME_COLUMN`.
        labels: Labels of events by name; None: there are none.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for one in features:
        pq.write_table(one.learned, folder / f"{one.name}.parquet")
    options = [write_event_feature(one.feature) for one in features]
    ordered = {name: (labels or {})[name] for name in dependencies_first(labels or {})}
    summary = {
        "time_column": time_column or TIME_COLUMN,
        "features": options,
        "labels": {name: label.model_dump(mode="json") for name, label in ordered.items()},
    }
    (folder / SUMMARY).write_text(json.dumps(summary, indent=1) + "\n")


def load_event_features(folder: Path) -> tuple[LearnedFeature, ...]:
    """Reads the event features in `folder`; none if it is missing.

    Raises:
        RecsysError: The folder is damaged (R230).
    """
    if not folder.exists():
        return ()
    with reading_data(folder, _CONTENT):
        options = read_json(folder / SUMMARY)["features"]
        features = [read_event_feature(one) for one in options]
        tables = [pq.read_table(folder / f"{feature.name}.parquet") for feature in features]
    return tuple(map(LearnedFeature, features, tables))


def time_column_of(folder: Path) -> str:
    """Returns the raw column of the times of events, by which bundles take the query time.

    Args:
        folder: Folder that `save_event_features` wrote; it may be missing.
    """
    if not (folder / SUMMARY).is_file():
        return TIME_COLUMN
    return str(read_json(folder / SUMMARY).get("time_column", TIME_COLUMN))


def labels_of(folder: Path) -> dict[str, LabelConfig]:
    """Returns the labels of events by name, each after its `given`; none if there are none.

    Args:
        folder: Folder that `save_event_features` wrote; it may be missing.

    Raises:
        RecsysError: The folder is damaged (R230).
    """
    if not (folder / SUMMARY).is_file():
        return {}
    with reading_data(folder, _CONTENT):
        labels = read_json(folder / SUMMARY).get("labels", {})
        return {
            name: LabelConfig.model_validate(label, strict=False) for name, label in labels.items()
        }
