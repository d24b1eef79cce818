"""Configs of raw files: their format, and rows that hold lists of events."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

import pydantic
from pydantic import Field, model_validator
from pydantic_core import core_schema

from recsys import registry
from recsys.data.sources.tables import Table
from recsys.strict import Name, Strict

Files = str | tuple[str, ...]
"""A file, a glob, or several; `{SPAN}`, `{VERSION}`, `{YYYY}`, `{MM}`, `{DD}` are digits."""
MOST_SKIPPED = 1000
"""Highest number of lines above a table that can be skipped."""


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


class SourceConfig(Strict):
    """Files and their format, or a table of another system."""

    files: Files = ()
    """Files: a path, a glob, or a list of them; also `s3://`, `gs://` and `az://`. None for a
    table."""
    format: Annotated[Any, FormatChoice()] = "auto"
    """Format of the files. `auto` detects it from the name and the first bytes; `jsonl` has one
    JSON object per line, `tfrecord` serialized tf.Examples. A registered source is given by its
    name, or with options as `{type: NAME, …}`; so are the tables of `delta`, `iceberg`, `sql` and
    `kafka`, which have no `files`."""
    csv: CsvFormat = CsvFormat()
    """Dialect of CSV files."""

    @model_validator(mode="after")
    def _says_once_how_csv_is_written(self) -> Self:
        if isinstance(self.format, CsvFormat) and self.csv != CsvFormat():
            raise ValueError("CSV options must be given in either format or csv, not in both")
        return self

    @model_validator(mode="after")
    def _has_files_or_a_table(self) -> Self:
        if bool(self.files) == isinstance(self.format, Table):
            raise ValueError(
                "exactly one of files and a format that is a table (delta, iceberg, sql or kafka)"
                " must be given"
            )
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
