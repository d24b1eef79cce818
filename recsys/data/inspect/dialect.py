"""Detects format, encoding and table layout of files from their first lines."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Literal

from recsys import registry
from recsys.data.config import MOST_SKIPPED, CsvFormat, EventSource, ListOfEvents
from recsys.data.inspect.encodings import guess_encoding, reading
from recsys.data.inspect.names import RECBOLE_TYPE, name_score, role_words, shown
from recsys.data.sources.csv_source import CsvSource
from recsys.data.sources.jsonl_source import JsonLinesSource
from recsys.data.sources.pieces import folder_columns, format_of_name, open_source
from recsys.data.sources.source_files import SourceFile, match_files, skipped_files
from recsys.data.sources.streams import (
    HEADER_LIMIT_BYTES,
    START_BYTES,
    compression_of,
    long_line,
    open_bytes,
    wide_encoding,
)
from recsys.data.sources.text_source import is_valid_utf8, split_fields
from recsys.errors import RecsysError
from recsys.formats import counted

_SAMPLE_BYTES = 4 << 20
_MOST_COLUMNS = 500


@dataclasses.dataclass(frozen=True)
class Understood:
    """Format and layout of the files of a source.

    Attributes:
        source: Config of the source.
        files: The files.
        format: Their format.
        compression: Their compression; empty: none.
        columns: Names of the columns that a config can use.
        evidence: The observations, a sentence each.
        types: Types of columns in the header, as in RecBole's files.
        folders: Columns that come from the names of folders.
        repeated: Names of several columns, which are left out.
        doubts: Uncertainties, a sentence each.
    """

    source: EventSource
    files: list[SourceFile]
    format: str
    compression: str
    columns: list[str]
    evidence: list[str]
    types: Mapping[str, str] = dataclasses.field(default_factory=dict)
    folders: tuple[str, ...] = ()
    repeated: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()

    @property
    def has_header(self) -> bool:
        """Returns whether the columns have names of their own."""
        return not self.source.csv.names

    def with_events(self, events: ListOfEvents, reason: str) -> Understood:
        """Returns the same files with a list of events per row."""
        source = self.source.model_copy(update={"explode": events})
        return dataclasses.replace(self, source=source, evidence=[*self.evidence, reason])


def understand(patterns: Sequence[str], what: str) -> Understood:
    """Inspects the first of some files.

    Args:
        patterns: Paths or globs.
        what: Content, for errors: `interactions`, `items` or `users`.

    Raises:
        RecsysError: They can't be read, or their format isn't recognised.
        RecsysError: They can't be read, or can't be understood.
    """
    source = EventSource(files=tuple(patterns))
    files = _named_files(source, what)
    path, size = files[0].path, files[0].size
    start = open_bytes(path, 0, size).read(START_BYTES)
    compression = compression_of(path, start)
    start = open_bytes(path, 0, size, compression).read(_SAMPLE_BYTES)
    encoding, why, readings = _encoding(start)
    source = source.model_copy(update={"csv": CsvFormat(encoding=encoding)})
    file = open_source(files[0], source)
    table = TextTable(CsvFormat(), [], [])
    counts: Counter[str] = Counter()
    repeated: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()
    if isinstance(file.source, CsvSource):
        text = file.source.open(file).read(_SAMPLE_BYTES)
        may_be_lists = what == "interactions"
        table = understand_table(path, text, encoding, may_be_lists=may_be_lists)
        counts = Counter(table.names)
        columns = [name for name in table.names if name.strip() and counts[name] == 1]
        if len(columns) < len(table.names):
            table.evidence.append("left out: columns without a name, or with that of another")
        table.evidence.append(why)
        repeated = tuple(name for name, n in counts.items() if n > 1 and name.strip())
        doubts = _doubts(path, what, repeated, readings)
    elif isinstance(file.source, JsonLinesSource):
        counts = file.source.count_names(file)
        columns = list(counts)
        if wide_encoding(start[:START_BYTES]):
            table = TextTable(CsvFormat(encoding=encoding), [], [why])
    else:
        columns = file.source.column_names(file)
    folders = tuple(name for name in folder_columns(path) if name not in columns)
    columns = [*columns, *folders]
    if len(columns) > _MOST_COLUMNS:
        n_left_out = len(columns) - _MOST_COLUMNS
        table.evidence.append(f"left out: {n_left_out:,} of {len(columns):,} columns")
        # Keep the columns with the most values and the most telling names.
        likely = sorted(columns, key=lambda name: (-counts.get(name, 1), not role_words(name)))
        columns = [name for name in columns if name in set(likely[:_MOST_COLUMNS])]
    format_ = registry.name_of("source", file.source)
    source = source.model_copy(update={"csv": table.csv, "explode": table.explode})
    if format_of_name(path) is None:
        source = source.model_copy(update={"format": format_})
    evidence, types = table.evidence, table.types
    if folders:
        evidence.append(f"columns in the names of folders: {', '.join(map(shown, folders))}")
    if skipped := skipped_files(source.files):
        n_skipped = counted(len(skipped), "file", "files")
        evidence.append(f"skipped, by their names: {n_skipped}, such as {shown(skipped[0], 100)}")
    return Understood(
        source=source,
        files=files,
        format=format_,
        compression=compression or "",
        columns=columns,
        evidence=evidence,
        types=types,
        folders=folders,
        repeated=repeated,
        doubts=doubts,
    )


def _doubts(
    path: str, what: str, repeated: Sequence[str], readings: Sequence[str]
) -> tuple[str, ...]:
    """Returns the uncertainties about a text file.

    Args:
        path: The file.
        what: Its content.
        repeated: Names of several columns.
        readings: A sample word decoded with each possible encoding, the likeliest first.
    """
    doubts = []
    if readings:
        key = f"data.{what}.csv.encoding"
        others = ", ".join(readings[1:]) or "another one"
        doubts.append(
            f"The encoding is a guess: {readings[0]}. It may be {others}: if letters are wrong,"
            f" set {key} in the config."
        )
    if repeated:
        names = ", ".join(shown(name) for name in repeated[:5])
        doubts.append(
            f"Several columns of {shown(path, 100)} are called {names}: they are left out. Give"
            " each a name of its own."
        )
    return tuple(doubts)


def _named_files(source: EventSource, what: str) -> list[SourceFile]:
    """Returns the files of the command line; errors refer to it instead of a config."""
    try:
        return match_files(source, what)
    except RecsysError as error:
        word = "FILE" if what == "interactions" else f"--{what}"
        cure = error.cure.replace(f"data.{what}.files", f"{word} on the command line")
        raise RecsysError.from_json({**error.to_json(), "cure": cure}) from None


def _encoding(start: bytes) -> tuple[str, str, list[str]]:
    """Returns the encoding of a text, the evidence for it, and sample words if it is a guess."""
    wide = wide_encoding(start[:START_BYTES])
    if wide is not None:
        why = "it begins with its mark" if wide in ("utf-16", "utf-32") else "its NUL bytes"
        return wide, f"encoding {wide}: {why}", []
    lines = [line for line in start.split(b"\n")[:-1] or [start] if not line.isascii()]
    if not lines:
        return "utf-8", "encoding utf-8: all is ASCII so far", []
    n_good = sum(is_valid_utf8(line) for line in lines)
    if 2 * n_good >= len(lines):
        return "utf-8", f"encoding utf-8: {n_good:,} of {len(lines):,} lines beyond ASCII are", []
    strange = [line for line in lines if not is_valid_utf8(line)]
    name, others = guess_encoding(strange)
    return (
        name,
        f"encoding {name}: {len(strange):,} lines are not UTF-8; a guess",
        [reading(strange, other) for other in (name, *others)],
    )


_LINES = 500
_ROW_LINES = 20
_MOST_ABOVE = 50
_NEARLY_ALL = 0.95
_DELIMITERS = (",", "\t", ";", "|", "::")
_ISO_DATE = re.compile(r"\s*\d{4}-\d\d-\d\d(?!\d)")
_ID = re.compile(r"[\w.:-]{1,64}")
_LIST = "items"
_COMMA, _POINT = re.compile(r"\s*[+-]?\d+,\d+\s*"), re.compile(r"\s*[+-]?\d+\.\d+\s*")


@dataclasses.dataclass(frozen=True)
class TextTable:
    """Layout of a text table.

    Attributes:
        csv: Dialect of its rows.
        names: Names of its columns, in order.
        evidence: The observations, a sentence each.
        explode: The column that holds a list of events, if it is certain.
        types: Types of columns in the header, as in RecBole's files.
    """

    csv: CsvFormat
    names: list[str]
    evidence: list[str]
    explode: ListOfEvents | None = None
    types: Mapping[str, str] = dataclasses.field(default_factory=dict)


def understand_table(path: str, text: bytes, encoding: str, *, may_be_lists: bool) -> TextTable:
    """Returns the layout of a text as a table.

    Args:
        path: Its file, for errors.
        text: Its start, UTF-8.
        encoding: The encoding of the file.
        may_be_lists: Whether a line may be a user and all its items.

    Raises:
        RecsysError: It is not a table.
    """
    if len(text) > HEADER_LIMIT_BYTES and text.find(b"\n", 0, HEADER_LIMIT_BYTES) < 0:
        raise long_line(path, 1, HEADER_LIMIT_BYTES, text)
    lines = [line.rstrip("\r") for line in text.decode("utf-8", "replace").split("\n")]
    numbered = [(at, line) for at, line in enumerate(lines) if line][:_LINES]
    filled = [line for _, line in numbered]
    ragged = _ragged(filled, encoding) if may_be_lists else None
    if ragged is not None:
        return ragged
    share, width, dialect = _best_dialect(filled)
    if width < 2 or share < 0.5:
        raise RecsysError(
            "R208",
            f"{path!r} must be a table: most of its lines must have as many fields.",
            "Convert it to CSV, or write its config by hand: docs/data.md.",
            shown(filled[0]),
        )
    n_above = _rows_above(filled, width, dialect)
    skip_rows = numbered[n_above][0] if n_above else 0
    if n_above is None or skip_rows > MOST_SKIPPED:
        raise _no_start(path, filled[0], width)
    rows = _rows(filled[n_above:], dialect)
    fitting = [row for row in rows if len(row) == width]
    types = _recbole_types(rows[0])
    has_header, why = (True, "header: names with types") if types else _header(fitting, rows[0])
    above = _rows(filled[:n_above], dialect)
    if above and not has_header and any(_is_name(name) for name in above[-1]):
        raise _no_start(path, filled[0], width)  # It is a header without a name for each column.
    names = rows[0] if has_header else [f"c{at + 1}" for at in range(width)]
    csv = CsvFormat(
        delimiter=dialect.delimiter,
        quote=dialect.quote,
        names=() if has_header else tuple(names),
        encoding=encoding,
        decimal=_decimal(fitting[has_header:], dialect),
        skip_rows=skip_rows,
    )
    n_fitting = f"{len(fitting):,} of {len(rows):,} rows have {width}"
    evidence = [f"{csv.delimiter!r} between fields: {n_fitting}"]
    if any('"' in line for line in filled):
        evidence.append("quotes around fields" if csv.quote else "quotes are text")
    if csv.skip_rows:
        evidence.append(f"{csv.skip_rows} line(s) above the table are left out")
    if csv.decimal == ",":
        evidence.append("numbers have a comma before their decimals")
    return TextTable(csv, names, [*evidence, why], types=types)


def _best_dialect(lines: Sequence[str]) -> tuple[float, int, CsvFormat]:
    """Returns the share of rows that fit, their number of fields, and the best dialect."""
    scored = []
    for delimiter in _DELIMITERS:
        dialects = CsvFormat(delimiter=delimiter), CsvFormat(delimiter=delimiter, quote=None)
        quoted, plain = ((*_fit(_rows(lines, dialect)), dialect) for dialect in dialects)
        # Without quotes there may be more fields: use quotes unless rows fit worse with them.
        is_quoted = round(quoted[0], 2) >= round(plain[0], 2) and quoted[1] > 1
        scored.append(quoted if is_quoted else plain)
    best = max(scored, key=lambda fit: (fit[1] > 1, round(fit[0], 2), fit[1]))
    if best[1] < 2 or best[0] < 0.5:
        # Fields may contain blanks, so they are the last delimiter to try.
        dialect = CsvFormat(delimiter=" ", quote=None)
        blank = (*_fit(_rows(lines, dialect)), dialect)
        best = blank if blank[0] >= _NEARLY_ALL else best
    return best


def _rows_above(lines: Sequence[str], width: int, dialect: CsvFormat) -> int | None:
    """Returns the number of lines above the first three rows that fit; `None`: too many."""
    for at in range(min(_MOST_ABOVE, len(lines))):
        rows = _rows(lines[at : at + 3 * _ROW_LINES], dialect)[:3]
        if all(len(row) == width for row in rows):
            return at
    return None


def _ragged(lines: Sequence[str], encoding: str) -> TextTable | None:
    """Returns the table of lines that are a user and all its items; `None` for other lines."""
    for delimiter in (" ", "\t", ",", ";", "|"):
        rows = [line.strip().split(delimiter) for line in lines]
        widths = Counter(len(row) for row in rows)
        is_list = (
            len(rows) >= 3
            and widths.most_common(1)[0][1] <= 0.9 * len(rows)
            and len({row[0] for row in rows}) == len(rows)
            and all(_ID.fullmatch(field) for row in rows for field in row)
            and len({field.isdecimal() for row in rows for field in row[1:]}) == 1
        )
        if is_list:
            csv = CsvFormat(
                delimiter=delimiter, quote=None, names=("user", _LIST), encoding=encoding
            )
            evidence = (
                f"a list on each line: {delimiter!r} between {min(widths)} to {max(widths)}"
                " fields, of which the first is another one each time"
            )
            events = ListOfEvents(column=_LIST, separator=delimiter)
            return TextTable(csv, ["user", _LIST], [evidence], events)
    return None


def _recbole_types(names: Sequence[str]) -> dict[str, str]:
    """Returns the types in the suffixes of column names; empty if any name has none."""
    types = {name: match[1] for name in names if (match := RECBOLE_TYPE.search(name))}
    return types if len(types) == len(set(names)) else {}


def _decimal(rows: Sequence[Sequence[str]], dialect: CsvFormat) -> Literal[".", ","]:
    """Returns the decimal separator of numbers.

    A comma before exactly three digits may be a thousands separator.
    """
    fields = [field for row in rows for field in row]
    commas = [field for field in fields if _COMMA.fullmatch(field)]
    n_points = sum(1 for field in fields if _POINT.fullmatch(field))
    is_decimal = any(len(field.strip().partition(",")[2]) != 3 for field in commas)
    if dialect.delimiter != "," and is_decimal and len(commas) > n_points:
        return ","
    return "."


def _no_start(path: str, line: str, width: int) -> RecsysError:
    return RecsysError(
        "R208",
        f"{path!r} must begin with its header or a row: {width} fields, as most have.",
        "Delete the lines above the table, or correct its first line.",
        shown(line),
    )


def _rows(lines: Sequence[str], dialect: CsvFormat) -> list[list[str]]:
    """Returns the fields of each row; quoted rows may span lines, and unclosed ones are empty."""
    rows: list[list[str]] = []
    at = 0
    while at < len(lines):
        stops = range(at + 1, min(at + _ROW_LINES, len(lines)) + 1)
        texts = ("\n".join(lines[at:stop]) for stop in stops)
        split = ((text, *split_fields(text, dialect)) for text in texts)
        row, fields, _ = next((row for row in split if not row[2]), ("", [], True))
        rows.append(fields)
        at += 1 + row.count("\n")
    return rows


def _fit(rows: Sequence[Sequence[str]]) -> tuple[float, int]:
    """Returns the share of rows with the most common number of fields, and that number."""
    counts = Counter(len(row) for row in rows if len(row) > 1)
    if not counts:
        return 0.0, 1
    width, n_rows = counts.most_common(1)[0]
    return n_rows / len(rows), width


def _header(rows: Sequence[Sequence[str]], first: Sequence[str]) -> tuple[bool, str]:
    """Returns whether the first line names the columns, and why."""
    if any(_is_number(field) or _ISO_DATE.match(field) for field in first):
        return False, "no header: the first line has numbers or times"
    below = rows[1:]
    others = [row for row in below if row != first]  # Concatenated files repeat the header.
    repeated = [field for at, field in enumerate(first) if any(row[at] == field for row in others)]
    n_names = sum(_is_name(field) for field in first if field not in repeated)
    if n_names < 2:
        if len(set(first)) < len(first) or not all(field.strip() for field in first):
            return False, "no header: fields of the first line are empty or alike"
        if repeated or first in below:
            again = shown([*repeated, *first][0])
            return False, f"no header: '{again}' of the first line comes again below"
    if n_names:
        return True, "header: its first line has names of columns"
    if any(_is_number(row[at]) for row in below for at in range(len(first))):
        return True, "header: numbers stand below its first line, and not in it"
    return True, "header: what its first line has never comes again below"


def _is_name(field: str) -> bool:
    """Returns whether a text is a column name, and not a value such as `user6`."""
    return any(name_score(field, role) >= 2 for role in role_words(field))


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
