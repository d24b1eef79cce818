"""Configs of the data: files, columns, features, vocabularies, and the gate."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, Any, Literal, Self

import pydantic
from pydantic import Field, NonNegativeInt, PositiveInt, model_validator
from pydantic_core import core_schema

from recsys import registry
from recsys.data.feature_options import check_crosses
from recsys.data.label_config import (
    Duration,
    LabelConfig,
    SampledConfig,
    dependencies_first,
    to_seconds,
)
from recsys.data.time_format import time_pattern
from recsys.strict import Name, Share, Strict

Split = Literal["time", "last_out", "random", "given"]
"""How positives are split into training and held-out ones."""
Order = Literal["time", "file", "none"]
"""What the order of events is based on: timestamps, positions in the files, or nothing."""
_SPAN = re.compile(r"\{(SPAN|VERSION|YYYY|MM|DD)(:\d+)?\}")


# Names of the model's other tables and inputs, which features can't have.
RESERVED_FEATURE_NAMES = frozenset(
    ("users", "items", "item_bias", "item_neighbours", "user_row", "history", "history_rows",
     "history_item", "history_place", "history_age", "history_weight", "history_kind",
     "asked_age", "asked_at", "segment", "at", "id_row", "item_row", "log_q", "weight", "known")
)  # fmt: skip


Files = str | tuple[str, ...]
"""A file, a glob, or several; `{SPAN}`, `{VERSION}`, `{YYYY}`, `{MM}`, `{DD}` are digits."""


MOST_SKIPPED = 1000
"""Highest number of lines above a table that can be skipped."""
AGES, WEIGHTS, KINDS = "history_age", "history_weight", "history_kind"
"""Inputs that hold properties of history events besides their items; see
`recsys.data.event_log`."""
ASKED_AT = "asked_at"
"""Input that holds the time of a query."""


class CsvFormat(Strict):
    """Dialect of CSV files."""

    delimiter: Annotated[str, Field(min_length=1)] = ","
    """Field delimiter: one character or several, such as `::`."""
    quote: Annotated[str, Field(min_length=1, max_length=1)] | None = '"'
    """Quote character of fields that contain the delimiter; `null`: fields are not quoted."""
    names: tuple[str, ...] = ()
    """Column names of files without a header; empty: the first line has them."""
    encoding: str = "utf-8"
    """Text encoding, by its name in Python."""
    decimal: Literal[".", ","] = "."
    """Decimal separator of ratings, weights and `number` features."""
    skip_rows: Annotated[int, Field(ge=0, le=MOST_SKIPPED)] = 0
    """Number of lines to skip before the header, or before the first row of files without one."""


class FormatChoice(registry.Choice):
    """Marks a field that holds `auto`, the name of a source, or a source with its options."""

    def __init__(self) -> None:
        super().__init__("source")

    def __get_pydantic_json_schema__(
        self, schema: core_schema.CoreSchema, handler: pydantic.GetJsonSchemaHandler
    ) -> dict[str, Any]:
        """Returns the JSON schema, like that of any choice, with `auto` among the examples."""
        by_name, *options = super().__get_pydantic_json_schema__(schema, handler)["anyOf"]
        return {"anyOf": [{**by_name, "examples": ["auto", *by_name["examples"]]}, *options]}

    def read(self, value: Any, context: Any = None) -> Any:
        """Returns the name of a source, or the source with the given options.

        Raises:
            ValueError: The name is not registered, or the options are invalid.
        """
        is_name = isinstance(value, str)
        if value == "auto":
            return value
        source = super().read(value, context)
        return value if is_name else source

    def write(self, config: Any, context: Any = None) -> Any:
        """Returns the JSON-serializable input of `read`."""
        return config if isinstance(config, str) else super().write(config, context)


_FEATURE = registry.Choice("feature", key="kind")
write_feature = _FEATURE.write
"""Returns the options of a feature as a JSON-serializable dict."""
read_feature = _FEATURE.read
"""Returns the feature (`recsys.data.features.Feature`) that a dict of options describes."""
_EVENT_FEATURE = registry.Choice("event_feature", key="kind")
write_event_feature = _EVENT_FEATURE.write
"""Returns the options of an event feature as a JSON-serializable dict."""
read_event_feature = _EVENT_FEATURE.read
"""Returns the event feature (`recsys.data.event_features`) that a dict of options describes."""


class SourceConfig(Strict):
    """Files and their format."""

    files: Files
    """Files: a path, a glob, or a list of them; also `gs://` and `s3://`."""
    format: Annotated[Any, FormatChoice()] = "auto"
    """Format of the files. `auto` detects it from the name and the first bytes; `jsonl` has one
    JSON object per line, `tfrecord` serialized tf.Examples. A registered source is given by its
    name, or with options as `{type: NAME, …}`."""
    csv: CsvFormat = CsvFormat()
    """Dialect of CSV files."""

    @model_validator(mode="after")
    def _says_once_how_csv_is_written(self) -> Self:
        if isinstance(self.format, CsvFormat) and self.csv != CsvFormat():
            raise ValueError("CSV options must be given in either format or csv, not in both")
        return self

    @property
    def csv_format(self) -> CsvFormat:
        """Dialect of CSV files, from `format` or `csv`."""
        return self.format if isinstance(self.format, CsvFormat) else self.csv


class ElementFields(Strict):
    """The fields of an event that is a text, such as `N1-1` in `N1-1 N2-0`."""

    separator: Annotated[str, Field(min_length=1)]
    """Separator of the fields."""
    names: Annotated[tuple[Name, ...], Field(min_length=2)]
    """Names of the fields. In `interactions.columns`, `column.name` refers to a field."""


class ListOfEvents(Strict):
    """A column that holds a list of events: a row is a user, a session, or what was shown."""

    column: str
    """The column. In `interactions.columns`, its name refers to an event that is a plain value,
    and `column.field` to a field of an event that is an object."""
    separator: Annotated[str, Field(min_length=1)] | None = None
    """Separator of the events in a text; `null`: the column holds lists. The last column of a CSV
    file that is split at `csv.delimiter` takes the rest of the line."""
    fields: ElementFields | None = None
    """How an event that is a text is divided into fields; `null`: it isn't."""
    parallel: tuple[str, ...] = ()
    """Other columns of lists, such as labels: elements with the same index belong together."""

    @model_validator(mode="after")
    def _separators_differ(self) -> Self:
        if self.fields is not None and self.fields.separator == self.separator:
            raise ValueError(
                f"fields.separator must differ from separator; both are {self.separator!r}"
            )
        if self.column in self.parallel:
            raise ValueError(f"parallel names other columns than column, {self.column!r}")
        return self

    def raw_column(self, name: str) -> str:
        """Returns the column of the file that holds a column of the events."""
        is_field = self.fields is not None and name.startswith(f"{self.column}.")
        return self.column if is_field else name

    def holds(self, name: str) -> bool:
        """Returns whether a column has a value for each event of a list."""
        return f"{name}.".startswith(f"{self.column}.") or name in self.parallel


class EventSource(SourceConfig):
    """Files of events and their format."""

    explode: ListOfEvents | None = None
    """Column that holds a list of events per row; `null`: one row is one event."""


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

    files: Files = ()
    """Files: a path, a glob, or a list of them; also `gs://` and `s3://`."""
    query: str | None = None
    """BigQuery query (standard SQL) that returns the interactions, in place of `files`. It is
    executed in each run."""
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
        if bool(self.files) == (self.query is not None):
            raise ValueError("exactly one of files and query must be given")
        if events and not any(map(events.holds, read)):
            raise ValueError(
                f"columns must refer to the column of explode, {events.column!r}: by"
                " its name if an event is a plain value, or to a field of it, as 'column.id'"
            )
        if self.positive_at_least is not None and columns.rating is None:
            raise ValueError("positive_at_least needs columns.rating")
        if self.positive_events and columns.event is None:
            raise ValueError("positive_events needs columns.event")
        if self.order is not None and columns.timestamp is not None:
            raise ValueError(
                "order replaces timestamps, so order and columns.timestamp exclude each other:"
                " remove one of them"
            )
        if self.order == "file" and self.query is not None:
            raise ValueError("order: file needs files: the rows of a query have no order")
        if self.eval_files and self.query is not None:
            raise ValueError(
                "eval_files needs files: mark the held-out rows of a query by columns.part"
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
            if feature.value in ("gap", "time") and self.columns.timestamp is None:
                raise ValueError(f"feature {feature.name} ({feature.kind}) needs columns.timestamp")
            if feature.column in outcomes and not feature.outcome:
                raise ValueError(
                    f"feature {feature.name} reads the column of {outcomes[feature.column]}, which"
                    " is not known when the model is asked: set outcome: true"
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


class EntitySourceConfig(SourceConfig):
    """Files of items or users and their format."""

    latest: str | None = None
    """Column of a number, or of a time in ISO 8601, that says which of several rows with one id is
    used: the one with the highest value; `null`: the first row."""


class ItemColumns(Strict):
    """Column names in the raw files."""

    item: str
    """Column of the item id."""
    title: str | None = None
    """Column of the display name; `null`: the id is shown."""


class ItemsConfig(EntitySourceConfig):
    """The catalogue."""

    columns: ItemColumns
    """Column names of the catalogue."""
    features: tuple[Annotated[Any, _FEATURE], ...] = ()
    """Features of the item tower; each has `name`, `column`, `kind` and the options of its kind:
    [features.md](features.md#kinds)."""


class UserColumns(Strict):
    """Column names in the raw files."""

    user: str
    """Column of the user id."""


class UsersConfig(EntitySourceConfig):
    """The users and their features."""

    columns: UserColumns
    """Column names of the users."""
    features: Annotated[tuple[Annotated[Any, _FEATURE], ...], Field(min_length=1)]
    """Features of the user tower, in the form of `items.features`."""


class VocabularyConfig(Strict):
    """Rules that select the ids with a row of their own."""

    min_count: PositiveInt = 1
    """Lowest number of training positives of an id with a row of its own."""
    hash_buckets: NonNegativeInt = 0
    """Number of rows that all other ids share by hash; 0: they read row 0. Can't be changed after
    the first run."""
    evict_after_days: PositiveInt | None = None
    """Days without a training event after which the row of an id can be given to a new id; `null`:
    never [days]."""


class VocabulariesConfig(Strict):
    """Vocabularies of users and items, which grow from run to run."""

    users: VocabularyConfig = VocabularyConfig()
    """Vocabulary of users."""
    items: VocabularyConfig = VocabularyConfig()
    """Vocabulary of items."""


class GateConfig(Strict):
    """Thresholds above which rejected or drifted data stop the run."""

    max_rejected_share: Share = 0.01
    """Highest share of rows in the dead letters [0..1]."""
    max_drift: Share | None = 0.3
    """Highest distance of a column from the last accepted data; `null`: any [0..1]."""
    max_skew: Share | None = 0.3
    """Highest distance of a column from the training data of the last blessed model; `null`: any
    [0..1]."""
    schema_dir: str | None = None
    """Folder of committed TFDV schemas `interactions.pbtxt`, `items.pbtxt` and `users.pbtxt`;
    `null`: inferred from the data of the run."""


class DataConfig(Strict):
    """The data, from raw files to the interaction store."""

    interactions: InteractionsConfig
    """The interactions of users with items."""
    items: ItemsConfig | None = None
    """The catalogue; `null`: the items of the interactions, without features."""
    users: UsersConfig | None = None
    """The users and their features; `null`: only their ids and histories."""
    vocabulary: VocabulariesConfig = VocabulariesConfig()
    """Vocabularies of users and items."""
    split: Split = "time"
    """Which positives are held out. `time`: the newest, from a UTC midnight on; `last_out`: the
    last one of each user; `random`: a random sample; `given`: those marked by `columns.part` or
    `interactions.eval_files`. docs/evaluation.md explains the figures of each."""
    eval_share: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.1
    """Share of the positives that `time` and `random` hold out [0..1]."""
    gate: GateConfig = GateConfig()
    """Thresholds above which rejected or drifted data stop the run."""
    forget: str | None = None
    """File of salted hashes of the users whose rows are left out, which `recsys forget` writes;
    `null`: none."""

    @property
    def sides(self) -> dict[str, ItemsConfig | UsersConfig]:
        """The configs of `items` and `users`, without those that are `null`."""
        sides = {"items": self.items, "users": self.users}
        return {what: side for what, side in sides.items() if side is not None}

    @model_validator(mode="after")
    def _split_can_be_made(self) -> Self:
        source, split = self.interactions, self.split
        names_parts = source.columns.part is not None or bool(source.eval_files)
        listed = (source.files, source.eval_files, source.valid_files)
        files = [file for part in listed for file in ((part,) if isinstance(part, str) else part)]
        spans = [file for file in files if _SPAN.search(file)]
        if split == "time" and source.ordered_by != "time":
            raise ValueError(
                "split: time needs interactions.columns.timestamp: set it, or set data.split to"
                " last_out, random or given, which do not need it"
            )
        if split == "last_out" and source.ordered_by == "none":
            raise ValueError(
                "split: last_out needs an order: set interactions.columns.timestamp, or set"
                " interactions.order to file if the rows are in chronological order; without an"
                " order, set data.split to random"
            )
        if split == "given" and not names_parts:
            raise ValueError(
                "split: given needs interactions.columns.part or interactions.eval_files"
            )
        if split != "given" and names_parts:
            raise ValueError(
                "interactions.columns.part and interactions.eval_files need split: given; remove"
                f" them to split by {split}"
            )
        if split != "time" and spans:
            raise ValueError(
                f"split: {split} can't be used with spans {spans[:1]}, which are split by time:"
                " set data.split to time, or name the files without {SPAN} or a date"
            )
        for name in ("users", "items"):
            if getattr(self.vocabulary, name).evict_after_days and source.ordered_by != "time":
                raise ValueError(
                    f"vocabulary.{name}.evict_after_days needs interactions.columns.timestamp:"
                    " without times the age of an id is unknown; remove it"
                )
        return self

    @model_validator(mode="after")
    def _feature_names_are_free(self) -> Self:
        sides = (*self.sides.values(), self.interactions)
        names = [feature.name for side in sides for feature in side.features]
        taken = {name for name in names if names.count(name) > 1} | RESERVED_FEATURE_NAMES
        taken_here = sorted(taken.intersection(names))
        if taken_here:
            raise ValueError(f"feature names must be unique; these are taken: {taken_here}")
        for what, side in {"interactions": self.interactions, **self.sides}.items():
            check_crosses(side.features, f"{what}.features")
        return self


class ShuffleConfig(Strict):
    """Order of the training positives within an epoch."""

    kind: Literal["global", "shards"] = "global"
    """`global`: a uniform shuffle of all positives; `shards`: the shards of the store in random
    order, shuffled within a buffer, so that a store larger than memory is read sequentially."""
    buffer: PositiveInt = 1_000_000
    """Number of consecutive events of a shard that `shards` shuffles together; they are all events
    of some users."""


class ValidationConfig(Strict):
    """Validation during training, on training positives that are held back."""

    like: Literal["newest", "last", "random", "popular", "given"] | None = None
    """How validation positives are drawn, which should match the test part. `newest`: the newest of
    all; `last`: the last of each user; `random`: a random share of each user's; `popular`: the
    same, preferring popular items; `given`: marked by `interactions.valid_parts` or `valid_files`.
    `null`: follows `data.split`."""
    share: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.05
    """Share of the training positives that `newest`, `random` and `popular` hold back [0..1]."""
    last: PositiveInt = 1
    """Number of events of each user that `last` holds back; the first event is always kept."""
    popularity: Annotated[float, Field(ge=-8.0, le=8.0)] | None = None
    """Exponent of an item's training positives in the probability of its events, for `popular`; 0
    equals `random`. `null`: estimated from the marked validation part."""
    metric: Annotated[str, Field(pattern=r"^((recall|ndcg)@[1-9][0-9]*|mrr)$")] = "recall@10"
    """Metric to monitor: `recall@k`, `ndcg@k` or `mrr`."""
    every_epochs: PositiveInt = 1
    """Number of epochs between two evaluations."""
    patience: PositiveInt | None = 3
    """Number of evaluations without improvement after which training stops; `null`: never. The
    best model is kept in any case."""
    max_queries: PositiveInt = 5_000
    """Highest number of queries per evaluation."""

    @model_validator(mode="after")
    def _draw_is_whole(self) -> Self:
        if self.popularity is not None and self.like != "popular":
            raise ValueError("popularity can only be set with like: popular")
        if self.last > 1 and self.like not in (None, "last"):
            raise ValueError(f"last can only be set with like: last; received like: {self.like}")
        return self
