"""The data: files, columns, features, vocabularies, and the gate."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, Self

import pydantic
from pydantic import Field, NonNegativeInt, PositiveInt, model_validator
from pydantic_core import core_schema

from recsys import registry
from recsys.config.time_format import time_pattern
from recsys.strict import Share, Strict

Split = Literal["time", "last_out", "random", "given"]
"""How the positives are split into those trained on and those held out."""
Order = Literal["time", "file", "none"]
"""What orders the events: timestamps, their places in the files, or nothing."""
_SPAN = re.compile(r"\{(SPAN|VERSION|YYYY|MM|DD)(:\d+)?\}")


def refuse(*rules: tuple[Any, str]) -> None:
    """Raises ValueError with the first sentence whose rule is broken.

    Args:
        *rules: Whether each is broken, and what to say then.
    """
    for is_broken, sentence in rules:
        if is_broken:
            raise ValueError(sentence)


# Tables and inputs of the model that are no features.
RESERVED_FEATURE_NAMES = frozenset(
    ("users", "items", "item_bias", "item_neighbours", "user_row", "history", "history_rows",
     "history_item", "history_place", "history_age", "history_weight", "asked_age", "asked_at",
     "segment", "at", "id_row", "item_row", "log_q", "weight", "known")
)  # fmt: skip


Files = str | tuple[str, ...]
"""A file, a glob, or several; `{SPAN}`, `{VERSION}`, `{YYYY}`, `{MM}`, `{DD}` are digits."""


MOST_SKIPPED = 1000
"""Lines above a table that can be left out."""


class CsvFormat(Strict):
    """How the rows of a CSV file are written."""

    delimiter: Annotated[str, Field(min_length=1)] = ","
    """What stands between two fields; one character or several, as `::`."""
    quote: Annotated[str, Field(min_length=1, max_length=1)] | None = '"'
    """What stands around a field that holds the delimiter; `null`: nothing does."""
    names: tuple[str, ...] = ()
    """Names of the columns of files without a header; empty: the first line has them."""
    encoding: str = "utf-8"
    """Encoding of the text, by the name that Python has for it."""
    decimal: Literal[".", ","] = "."
    """What stands before the decimals of a number, of ratings, weights and `number` features."""
    skip_rows: Annotated[int, Field(ge=0, le=MOST_SKIPPED)] = 0
    """Lines above the header, or above the first row of files without one."""


class FormatChoice(registry.Choice):
    """Marks a field that is `auto`, the name of a source, or a source with its options."""

    def __init__(self) -> None:
        super().__init__("source")

    def __get_pydantic_json_schema__(
        self, schema: core_schema.CoreSchema, handler: pydantic.GetJsonSchemaHandler
    ) -> dict[str, Any]:
        """Returns the JSON schema: `auto`, or what any other choice may be."""
        by_name, *options = super().__get_pydantic_json_schema__(schema, handler)["anyOf"]
        return {"anyOf": [{**by_name, "examples": ["auto", *by_name["examples"]]}, *options]}

    def read(self, value: Any) -> Any:
        """Returns the name of a source, or the source that options make.

        Raises:
            ValueError: It names nothing that is registered, or has wrong options.
        """
        is_name = isinstance(value, str)
        if value == "auto":
            return value
        source = super().read(value)
        return value if is_name else source

    def write(self, config: Any) -> Any:
        """Returns what `read` reads, fit for JSON."""
        return config if isinstance(config, str) else super().write(config)


class SourceConfig(Strict):
    """Files, and how they are written."""

    files: Files
    """Files: a path, a glob, or a list of them; also `gs://` and `s3://`."""
    format: Annotated[Any, FormatChoice()] = "auto"
    """`auto` tells by the name and the first bytes; `jsonl` is one JSON object a line,
    `tfrecord` holds serialized tf.Examples. A source of your own by its name, or with its
    options as `{type: NAME, …}`."""
    csv: CsvFormat = CsvFormat()
    """How the rows of CSV files are written."""

    @model_validator(mode="after")
    def _says_once_how_csv_is_written(self) -> Self:
        if isinstance(self.format, CsvFormat) and self.csv != CsvFormat():
            raise ValueError("options of csv stand either in format or in csv")
        return self

    @property
    def csv_format(self) -> CsvFormat:
        """How the rows of CSV files are written, as `format` or `csv` says."""
        return self.format if isinstance(self.format, CsvFormat) else self.csv


class ListOfEvents(Strict):
    """A column that holds a list of events: one row is a user's, or a session's."""

    column: str
    """The column. In `interactions.columns` its own name stands for an event that is a plain
    value, `column.field` for a field of one that is an object."""
    separator: Annotated[str, Field(min_length=1)] | None = None
    """What stands between the events of a text; `null`: the column holds lists. The last column
    of CSV that is split at `csv.delimiter` is the rest of the line."""


class EventSource(SourceConfig):
    """Files of events, and how they are written."""

    explode: ListOfEvents | None = None
    """The column with the events, where a row holds a list of them; `null`: a row is an event."""


class InteractionColumns(Strict):
    """Which column of the raw file holds what; `a.b` is the field `b` in the JSON object `a`."""

    user: str
    """Column of the user's id."""
    item: str
    """Column of the item's id."""
    timestamp: str | None = None
    """Column of the time of the event; `null`: the data have no usable times, and
    `data.split` is another one than `time`."""
    rating: str | None = None
    """Column of a rating, if there is one."""
    weight: str | None = None
    """Column of the weight of an event in the loss, if there is one; 0 is no positive."""
    event: str | None = None
    """Column of the kind of event, as `click` or `purchase`, if there is one."""
    part: str | None = None
    """Column that names the part of a row, as `train` or `test`, for `split: given`."""

    @model_validator(mode="after")
    def _user_is_no_item(self) -> Self:
        if self.user == self.item:
            raise ValueError(f"user and item must be two columns; both are {self.user!r}")
        return self


TimestampUnit = Literal["seconds", "milliseconds", "microseconds", "nanoseconds", "iso8601"]


class InteractionsConfig(EventSource):
    """The interactions: who did what to which item, and when."""

    files: Files = ()
    """Files: a path, a glob, or a list of them; also `gs://` and `s3://`."""
    query: str | None = None
    """Standard SQL that BigQuery answers with the interactions, in the place of `files`; it is
    asked anew in each run."""
    columns: InteractionColumns
    """Which column holds what."""
    context: tuple[str, ...] = ()
    """More columns to keep in the examples, where they are validated."""
    timestamp_unit: TimestampUnit = "seconds"
    """What the timestamps are: a number since 1970, UTC, or ISO 8601 text (without an
    offset: UTC). Columns that have a time type need none."""
    timestamp_format: str | None = None
    """How text of times is written, as Python's strptime has it: `%d/%m/%Y %H:%M`, with English
    names of months; it takes the place of the unit. `null`: as `timestamp_unit` says."""
    weight_scale: Literal["linear", "log"] = "linear"
    """`log`: the weight is ln(1 + value), for counts, of which a few are very large (Hu, Koren
    and Volinsky, ICDM 2008, equation 6)."""
    order: Literal["file", "none"] | None = None
    """What orders rows without timestamps: `file`, their places in the files, in which what
    happened later stands below; `none`, nothing. `null`: the timestamps; without them, nothing."""
    train_parts: tuple[str, ...] = ("train",)
    """Values of `columns.part` whose rows are trained on."""
    eval_parts: tuple[str, ...] = ("test",)
    """Values of `columns.part` whose positives are held out."""
    valid_parts: tuple[str, ...] = ()
    """Values of `columns.part` whose rows are trained on as those of `train_parts` are, but for
    a training with `train.validation`, which holds their positives back."""
    eval_files: Files = ()
    """Files whose positives are held out, for `split: given`, written as `files` are; a file
    that `files` names too is held out."""
    valid_files: Files = ()
    """Files beside `eval_files` whose rows are what those of `valid_parts` are."""
    positive_at_least: float | None = None
    """Ratings from here up are positives; `null`: the rating decides nothing."""
    positive_events: tuple[str, ...] = ()
    """Kinds of event that are positives; empty: the kind decides nothing."""
    spans: PositiveInt | None = None
    """Newest spans that are read, where `files` has `{SPAN}` or a date; `null`: all."""
    bad_spans: Literal["stop", "set_aside"] = "stop"
    """What a broken span does, one that can't be read or with more rejected rows than
    `gate.max_rejected_share`: end the run, or be left out of it, and reported."""

    @model_validator(mode="after")
    def _keys_fit_each_other(self) -> Self:
        columns, events, has_part = self.columns, self.explode, self.columns.part is not None
        read = [str(name) for name in columns.model_dump().values()]
        parts = [*self.train_parts, *self.valid_parts, *self.eval_parts]
        twice = sorted({part for part in parts if parts.count(part) > 1})
        refuse(
            (
                bool(self.files) == (self.query is not None),
                "exactly one of files and query must be given",
            ),
            (
                events and not any(f"{name}.".startswith(f"{events.column}.") for name in read),
                f"explode names {events and events.column!r}, of which columns must read"
                " something: the column itself where an event is a plain value, or a field of it"
                " as 'column.id'",
            ),
            (
                self.positive_at_least is not None and columns.rating is None,
                "positive_at_least needs columns.rating",
            ),
            (
                self.positive_events and columns.event is None,
                "positive_events needs columns.event",
            ),
            (
                self.order is not None and columns.timestamp is not None,
                "order says what takes the place of timestamps, and columns.timestamp names"
                " them: leave out one of the two",
            ),
            (
                self.order == "file" and self.query is not None,
                "order: file needs files: the rows that a query returns have no order",
            ),
            (
                self.eval_files and self.query is not None,
                "eval_files needs files: name the part of a query's rows by columns.part",
            ),
            (
                self.eval_files and has_part,
                "eval_files and columns.part both name the held-out rows: leave out one of the two",
            ),
            (
                has_part and not (self.train_parts and self.eval_parts),
                "columns.part needs a value or more in each of train_parts and eval_parts",
            ),
            (
                has_part and twice,
                f"train_parts, valid_parts and eval_parts name {', '.join(map(repr, twice))} twice:"
                " a row is of one part",
            ),
            (
                self.valid_parts and not has_part,
                "valid_parts needs columns.part",
            ),
            (
                self.valid_files and not self.eval_files,
                "valid_files needs eval_files: without them no file is of a part",
            ),
        )
        if self.timestamp_format is not None:
            time_pattern(self.timestamp_format)
        return self

    @property
    def ordered_by(self) -> Order:
        """What orders the events: `time`, `file` or `none`."""
        return "time" if self.columns.timestamp is not None else self.order or "none"


_FEATURE = registry.Choice("feature", key="kind")
write_feature = _FEATURE.write
"""Returns a feature as a map of its options, fit for JSON."""
read_feature = _FEATURE.read
"""Returns the feature (`recsys.data.features.Feature`) that a map of its options makes."""


class ItemColumns(Strict):
    """Which column of the raw file holds what."""

    item: str
    """Column of the item's id."""
    title: str | None = None
    """Column of the name that people see; `null`: the id is shown."""


class ItemsConfig(SourceConfig):
    """The catalogue."""

    columns: ItemColumns
    """Which column holds what."""
    features: tuple[Annotated[Any, _FEATURE], ...] = ()
    """Features of the item tower; each has `name`, `column`, `kind` and the options of its
    kind: [features.md](features.md#kinds)."""


class UserColumns(Strict):
    """Which column of the raw file holds what."""

    user: str
    """Column of the user's id."""


class UsersConfig(SourceConfig):
    """What is known of the users."""

    columns: UserColumns
    """Which column holds what."""
    features: Annotated[tuple[Annotated[Any, _FEATURE], ...], Field(min_length=1)]
    """Features of the user tower, as `items.features`."""


class VocabularyConfig(Strict):
    """Which ids have a row of their own."""

    min_count: PositiveInt = 1
    """Training positives from which on an id gets a row."""
    hash_buckets: NonNegativeInt = 0
    """Rows that all other ids share, by hash; 0: they read row 0. Fixed for good."""
    evict_after_days: PositiveInt | None = None
    """Days without a training event after which an id loses its row to a new id;
    `null`: never [days]."""


class VocabulariesConfig(Strict):
    """The vocabularies of users and items, which grow from run to run."""

    users: VocabularyConfig = VocabularyConfig()
    """Which users have a row of their own."""
    items: VocabularyConfig = VocabularyConfig()
    """Which items have a row of their own."""


class GateConfig(Strict):
    """When rejected data stops the run."""

    max_rejected_share: Share = 0.01
    """Highest share of rows in the dead letters [0..1]."""
    max_drift: Share | None = 0.3
    """Highest distance of a column from the data that was accepted last; `null`: any [0..1]."""
    max_skew: Share | None = 0.3
    """Highest distance of a column from the data that the last blessed model was trained on;
    `null`: any [0..1]."""
    schema_dir: str | None = None
    """Folder of committed TFDV schemas `interactions.pbtxt`, `items.pbtxt` and `users.pbtxt`;
    `null`: infer them from the data of the run."""


class DataConfig(Strict):
    """From raw files to the interaction store."""

    interactions: InteractionsConfig
    """Who did what to which item, and when."""
    items: ItemsConfig | None = None
    """The catalogue; `null`: the items of the interactions, without features."""
    users: UsersConfig | None = None
    """What is known of the users; `null`: their ids and histories alone."""
    vocabulary: VocabulariesConfig = VocabulariesConfig()
    """Which users and items have a row of their own."""
    split: Split = "time"
    """Which positives are held out: `time`, the newest, from one UTC midnight on; `last_out`,
    the last one of each user; `random`, any; `given`, those that `columns.part` or
    `interactions.eval_files` names. What each figure then means: docs/evaluation.md."""
    eval_share: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.1
    """Share of the positives that `time` and `random` hold out [0..1]."""
    gate: GateConfig = GateConfig()
    """When rejected data stops the run."""

    @property
    def sides(self) -> dict[str, ItemsConfig | UsersConfig]:
        """The `items` and the `users`, those of them that there are."""
        sides = {"items": self.items, "users": self.users}
        return {what: side for what, side in sides.items() if side is not None}

    @model_validator(mode="after")
    def _split_can_be_made(self) -> Self:
        source, split = self.interactions, self.split
        names_parts = source.columns.part is not None or bool(source.eval_files)
        listed = (source.files, source.eval_files, source.valid_files)
        files = [file for part in listed for file in ((part,) if isinstance(part, str) else part)]
        spans = [file for file in files if _SPAN.search(file)]
        refuse(
            (
                split == "time" and source.ordered_by != "time",
                "split: time needs interactions.columns.timestamp: name the column of the times,"
                " or set data.split to last_out, random or given, which need none",
            ),
            (
                split == "last_out" and source.ordered_by == "none",
                "split: last_out needs an order: name interactions.columns.timestamp, or set"
                " interactions.order to file where rows stand in the order in which things"
                " happened; without an order, set data.split to random",
            ),
            (
                split == "given" and not names_parts,
                "split: given needs interactions.columns.part or interactions.eval_files",
            ),
            (
                split != "given" and names_parts,
                "interactions.columns.part and interactions.eval_files need split: given; leave"
                f" them out to split by {split}",
            ),
            (
                split != "time" and spans,
                f"split: {split} can't go with spans {spans[:1]}: a window of nights is split by"
                " time; set data.split to time, or name the files without {SPAN} or a date",
            ),
            *(
                (
                    getattr(self.vocabulary, name).evict_after_days and source.ordered_by != "time",
                    f"vocabulary.{name}.evict_after_days needs interactions.columns.timestamp:"
                    " without times nobody knows how long an id has not been seen; leave it out",
                )
                for name in ("users", "items")
            ),
        )
        return self

    @model_validator(mode="after")
    def _feature_names_are_free(self) -> Self:
        names = [feature.name for side in self.sides.values() for feature in side.features]
        taken = {name for name in names if names.count(name) > 1} | RESERVED_FEATURE_NAMES
        taken_here = sorted(taken.intersection(names))
        if taken_here:
            raise ValueError(f"a feature needs a name of its own; these are taken: {taken_here}")
        return self
