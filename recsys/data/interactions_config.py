"""The config of the interactions: columns, labels, features, and which rows are positives."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal, Self

from pydantic import Field, PositiveInt, model_validator

from recsys import registry
from recsys.data.label_config import (
    Duration,
    LabelConfig,
    SampledConfig,
    dependencies_first,
    to_seconds,
)
from recsys.data.source_config import EventSource, Files
from recsys.data.time_format import time_pattern
from recsys.strict import Name, Strict

Order = Literal["time", "file", "none"]
"""What the order of events is based on: timestamps, positions in the files, or nothing."""
_EVENT_FEATURE = registry.Choice("event_feature", key="kind")
write_event_feature = _EVENT_FEATURE.write
"""Returns the options of an event feature as a JSON-serializable dict."""
read_event_feature = _EVENT_FEATURE.read
"""Returns the event feature (`recsys.data.event_features`) that a dict of options describes."""


class InteractionColumns(Strict):
    """Column names in the raw files; `a.b` is the field `b` of the JSON object `a`."""

    user: str
    """Column of the user id."""
    item: str
    """Column of the item id."""
    timestamp: str | None = None
    """Column of the event time; `null`: the data have no usable times, and `data.split` must not
    be `time`."""
    rating: str | None = None
    """Column of the rating; `null`: none."""
    weight: str | None = None
    """Column of the weight of an event in the loss; an event of weight 0 is no positive; `null`:
    none."""
    event: str | None = None
    """Column of the kind of event, such as `click` or `purchase`; `null`: none."""
    part: str | None = None
    """Column of the part that a row belongs to, such as `train` or `test`, for `split: given`."""
    impression: str | None = None
    """Column of the id of what was shown at once. Rows of a user and an item with the same id are
    one event. `null`: none; for a list of what was shown, the row."""
    position: str | None = None
    """Column of the position in what was shown, from 0 on; `null`: none; for a list of what was
    shown, the index in it."""

    @model_validator(mode="after")
    def _user_is_no_item(self) -> Self:
        if self.user == self.item:
            raise ValueError(f"user and item must be different columns; both are {self.user!r}")
        return self


TimestampUnit = Literal["seconds", "milliseconds", "microseconds", "nanoseconds", "iso8601"]


class InteractionsConfig(EventSource):
    """The interactions of users with items."""

    columns: InteractionColumns
    """Column names of the interactions."""
    features: tuple[Annotated[Any, _EVENT_FEATURE], ...] = ()
    """Features of the events: context of a query, and attributes of the events of a history. Each
    has `name`, `kind`, mostly `column`, and the options of its kind:
    [features.md](features.md#events)."""
    timestamp_unit: TimestampUnit = "seconds"
    """Unit of numeric timestamps since 1970 UTC, or `iso8601` for text (UTC unless it has an
    offset). Ignored for columns with a time type."""
    timestamp_format: str | None = None
    """Format of times given as text, as in Python's strptime: `%d/%m/%Y %H:%M`, with English names
    of months. Takes precedence over `timestamp_unit`; `null`: not used."""
    weight_scale: Literal["linear", "log"] = "linear"
    """`log`: the weight is ln(1 + value), for heavy-tailed counts (Hu, Koren and Volinsky, ICDM
    2008, equation 6)."""
    order: Literal["file", "none"] | None = None
    """Order of rows without timestamps. `file`: by position in the files, oldest first; `none`: no
    order. `null`: by timestamp if there is one, else no order."""
    train_parts: tuple[str, ...] = ("train",)
    """Values of `columns.part` that mark training rows."""
    eval_parts: tuple[str, ...] = ("test",)
    """Values of `columns.part` that mark rows whose positives are held out."""
    valid_parts: tuple[str, ...] = ()
    """Values of `columns.part` that mark training rows whose positives are held back for
    validation if `train.validation` is set."""
    eval_files: Files = ()
    """Files whose positives are held out, for `split: given`, in the form of `files`. A file that
    `files` matches as well is held out."""
    valid_files: Files = ()
    """Files, besides `eval_files`, whose rows are treated like those of `valid_parts`."""
    positive_at_least: float | None = None
    """Lowest rating of a positive; `null`: ratings are not used to select positives."""
    positive_events: tuple[str, ...] = ()
    """Kinds of event that are positives; empty: the kind is not used to select positives."""
    history_events: Literal["all"] | tuple[str, ...] = ()
    """Kinds of event that histories hold besides positives, such as `view`; `all`: histories hold
    all good rows. For retrieval they are never examples, and leave no item out of a
    recommendation."""
    labels: dict[Name, LabelConfig] = Field(default={})
    """Labels by name. With labels, all good rows are kept, not only positives."""
    positive: Name | None = None
    """The label of positives, which retrieval learns: yes, or an amount above 0. `null`: the only
    label, or `positive_at_least` and `positive_events`, which are short for it."""
    label_after: Duration | None = None
    """Time until the labels of an event are known, such as `1d` (s, m, h, d). Events that are
    younger at the cut, for training, or at the newest event, for evaluation, have no labels.
    `null`: at once."""
    sampled: SampledConfig | None = None
    """Rows of which the source kept only a share; `null`: it kept all."""
    spans: PositiveInt | None = None
    """Number of newest spans to read, if `files` contains `{SPAN}` or a date; `null`: all."""
    bad_spans: Literal["stop", "set_aside"] = "stop"
    """What to do with a span that can't be read or has more rejected rows than
    `gate.max_rejected_share`: `stop` ends the run, `set_aside` excludes the span and reports
    it."""

    @model_validator(mode="after")
    def _keys_fit_each_other(self) -> Self:
        columns, events, has_part = self.columns, self.explode, self.columns.part is not None
        read = [name for name in columns.model_dump().values() if name is not None]
        parts = [*self.train_parts, *self.valid_parts, *self.eval_parts]
        twice = sorted({part for part in parts if parts.count(part) > 1})
        if events and not any(map(events.holds, read)):
            raise ValueError(
                f"columns must refer to the column of explode, {events.column!r}: by"
                " its name if an event is a plain value, or to a field of it, as 'column.id'"
            )
        if self.positive_at_least is not None and columns.rating is None:
            raise ValueError("positive_at_least needs columns.rating")
        if self.positive_events and columns.event is None:
            raise ValueError("positive_events needs columns.event")
        kinds = set() if self.history_events == "all" else set(self.history_events)
        if kinds and columns.event is None:
            raise ValueError("history_events needs columns.event")
        if kinds and kinds <= set(self.positive_events):
            raise ValueError(
                "history_events must name a kind that is not in positive_events: positives are in"
                " histories anyway"
            )
        if self.order is not None and columns.timestamp is not None:
            raise ValueError(
                "order replaces timestamps, so order and columns.timestamp exclude each other:"
                " remove one of them"
            )
        if self.order == "file" and not self.files:
            raise ValueError("order: file needs files: the rows of a table have no order")
        if self.eval_files and not self.files:
            raise ValueError(
                "eval_files needs files: mark the held-out rows of a table by columns.part"
            )
        if self.eval_files and has_part:
            raise ValueError(
                "eval_files and columns.part both mark held-out rows: remove one of them"
            )
        if has_part and not (self.train_parts and self.eval_parts):
            raise ValueError(
                "columns.part needs at least one value in each of train_parts and eval_parts"
            )
        if has_part and twice:
            raise ValueError(
                f"train_parts, valid_parts and eval_parts must not share values; they share"
                f" {', '.join(map(repr, twice))}"
            )
        if self.valid_parts and not has_part:
            raise ValueError("valid_parts needs columns.part")
        if self.valid_files and not self.eval_files:
            raise ValueError("valid_files needs eval_files")
        if self.timestamp_format is not None:
            time_pattern(self.timestamp_format)
        return self

    @model_validator(mode="after")
    def _labels_fit(self) -> Self:
        dependencies_first(self.labels)
        names = ", ".join(sorted(self.labels))
        has_short_form = self.positive_at_least is not None or bool(self.positive_events)
        needing = {
            "positive": self.positive,
            "label_after": self.label_after,
            "sampled": self.sampled,
            "columns.impression": self.columns.impression,
            "columns.position": self.columns.position,
            **{f"feature {f.name} ({f.kind})": f.value == "statistic" for f in self.features},
        }
        for key, value in needing.items():
            if value and not self.labels:
                raise ValueError(
                    f"{key} needs labels, with which all rows are kept: write labels: {{NAME:"
                    " {column: …}}"
                )
        if self.positive is not None and has_short_form:
            raise ValueError(
                "positive and positive_at_least or positive_events exclude each other: remove one"
            )
        if self.positive is not None and self.positive not in self.labels:
            raise ValueError(f"positive must be a label ({names}); received {self.positive!r}")
        if len(self.labels) > 1 and self.positive is None and not has_short_form:
            raise ValueError(f"positive must name the label that retrieval learns: one of {names}")
        if self.label_after is not None and self.columns.timestamp is None:
            raise ValueError("label_after needs columns.timestamp")
        return self

    @model_validator(mode="after")
    def _features_fit(self) -> Self:
        outcomes = {label.column: f"label {name!r}" for name, label in self.labels.items()}
        if self.columns.rating is not None:
            outcomes.setdefault(self.columns.rating, "the rating")
        for feature in self.features:
            if feature.value in ("gap", "time", "statistic") and self.columns.timestamp is None:
                raise ValueError(f"feature {feature.name} ({feature.kind}) needs columns.timestamp")
            if feature.column in outcomes and not feature.outcome:
                raise ValueError(
                    f"feature {feature.name} reads the column of {outcomes[feature.column]}, which"
                    " is not known when the model is asked: set outcome: true"
                )
            label = getattr(feature, "label", None)
            if feature.value == "statistic" and label not in (None, *self.labels):
                raise ValueError(
                    f"feature {feature.name} must have a label of interactions.labels"
                    f" ({', '.join(sorted(self.labels))}); received {label!r}"
                )
        return self

    @model_validator(mode="after")
    def _lists_are_read(self) -> Self:
        events = self.explode
        if events is None:
            return self
        read = list(self.raw_names())
        unused = [name for name in events.parallel if name not in read]
        if unused:
            raise ValueError(
                f"explode.parallel must name columns that columns, labels or features read;"
                f" {unused[0]!r} isn't read"
            )
        if events.fields is not None:
            fields = [f"{events.column}.{name}" for name in events.fields.names]
            for name in read:
                if events.raw_column(name) == events.column and name not in fields:
                    raise ValueError(
                        f"with explode.fields, an event has the columns {', '.join(fields)};"
                        f" received {name!r}"
                    )
        return self

    def raw_names(self) -> Iterator[str]:
        """Yields the columns of the events that are read, repeated ones too."""
        yield from (name for name in self.columns.model_dump().values() if name is not None)
        yield from (label.column for label in self.labels.values())
        yield from () if self.sampled is None else (self.sampled.column,)
        yield from (feature.column for feature in self.features if feature.column is not None)

    @property
    def positive_label(self) -> str | None:
        """Name of the label of positives; None: the rules of the short form."""
        has_short_form = self.positive_at_least is not None or bool(self.positive_events)
        only = next(iter(self.labels)) if len(self.labels) == 1 and not has_short_form else None
        return self.positive or only

    @property
    def label_after_s(self) -> int:
        """`label_after` in seconds; 0: labels are known at once."""
        return 0 if self.label_after is None else to_seconds(self.label_after)

    @property
    def rows_are_impressions(self) -> bool:
        """Whether a row is a list of what was shown at once, and its events have no own times."""
        time, events = self.columns.timestamp, self.explode
        if events is None or not self.labels or self.ordered_by == "file":
            return False
        return time is None or not events.holds(time)

    @property
    def has_impressions(self) -> bool:
        """Whether events have the id of an impression."""
        return self.columns.impression is not None or self.rows_are_impressions

    @property
    def has_positions(self) -> bool:
        """Whether events have a position in what was shown."""
        is_index = self.explode is not None and self.has_impressions
        return self.columns.position is not None or is_index

    @property
    def ordered_by(self) -> Order:
        """Basis of the order of events: `time`, `file` or `none`."""
        return "time" if self.columns.timestamp is not None else self.order or "none"
