"""How a file is written, told by evidence over many lines."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Sequence

from recsys.check.names import name_score, role_words
from recsys.check.shown import shown
from recsys.config import CsvFormat, SourceConfig
from recsys.data.sources import parquet_source, tfrecord
from recsys.data.sources.csv_fields import Dialect, is_open, split_fields
from recsys.data.sources.detection import START_BYTES, by_name, compression_of, format_of
from recsys.data.sources.files import Section, SourceFile, match_files
from recsys.data.sources.jsonl import field_names, find_fields
from recsys.data.sources.text import open_bytes, open_text, read_some
from recsys.errors import RecsysError

_LOOK_BYTES = 4 << 20
_LINES = 500
_LINES_OF_A_ROW = 20
_DELIMITERS = (",", "\t", ";", "|", "::")
_ISO_DATE = re.compile(r"\s*\d{4}-\d\d-\d\d(?!\d)")


@dataclasses.dataclass(frozen=True)
class Understood:
    """How the files of a source are written.

    Attributes:
        source: What reads them.
        files: The files.
        format: Their format.
        compression: Their compression; empty: none.
        columns: Names of the columns that a config can name.
        evidence: What was seen, a sentence each.
    """

    source: SourceConfig
    files: list[SourceFile]
    format: str
    compression: str
    columns: list[str]
    evidence: list[str]

    @property
    def has_header(self) -> bool:
        """Returns whether the columns have names of their own."""
        return not self.source.csv.names


def understand(patterns: Sequence[str], what: str) -> Understood:
    """Looks at the first of some files.

    Args:
        patterns: Paths or globs.
        what: What they hold, for errors: `interactions`, `items` or `users`.

    Raises:
        RecsysError: They can't be read, or can't be understood.
    """
    source = SourceConfig(files=tuple(patterns))
    files = match_files(source, what)
    file = files[0]
    start = read_some(Section(file.path, 0, file.size), START_BYTES)
    compression = compression_of(file.path, start)
    start = read_some(open_bytes(file.path, 0, file.size, compression), _LOOK_BYTES)
    if not start.strip():
        raise RecsysError(
            "R202", f"{file.path!r} must hold rows.", "Name another file.", "an empty file"
        )
    encoding, told = _encoding(start)
    lenient = source.model_copy(update={"csv": CsvFormat(encoding=encoding)})
    format_ = format_of(file.path, start, lenient)
    evidence: list[str] = []
    csv = CsvFormat()
    if format_ == "csv":
        text = read_some(open_text(file.path, 0, file.size, compression, encoding), _LOOK_BYTES)
        csv, names, evidence = _csv(file.path, text, encoding)
        columns = [name for name in names if name.strip() and names.count(name) == 1]
        if len(columns) < len(names):
            evidence.append("left out: columns without a name, or with that of another")
        evidence.append(told)
    elif format_ == "jsonl":
        rows = find_fields(start.split(b"\n")[:10_000])
        columns = list(dict.fromkeys(name for row in rows for name in field_names(row)))
    elif format_ == "parquet":
        columns = parquet_source.column_names(file)
    else:
        stream = open_bytes(file.path, 0, file.size, compression)
        columns = tfrecord.feature_names(file.path, stream)
    source = source.model_copy(update={"csv": csv})
    if by_name(file.path) is None:
        source = source.model_copy(update={"format": format_})
    return Understood(source, files, format_, compression or "", columns, evidence)


def _encoding(start: bytes) -> tuple[str, str]:
    """Returns the encoding of a text, and what tells it."""
    if start.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "utf-16", "encoding utf-16: it begins with its mark"
    lines = [line for line in start.split(b"\n")[:-1] or [start] if not line.isascii()]
    if not lines:
        return "utf-8", "encoding utf-8: all is ASCII so far"
    n_good = sum(_is_utf8(line) for line in lines)
    if 2 * n_good >= len(lines):
        return "utf-8", f"encoding utf-8: {n_good:,} of {len(lines):,} lines beyond ASCII are"
    has_cp1252 = any(0x80 <= byte < 0xA0 for line in lines for byte in line)
    name = "cp1252" if has_cp1252 else "latin-1"
    return name, f"encoding {name}: {len(lines) - n_good:,} lines are no UTF-8"


def _is_utf8(line: bytes) -> bool:
    try:
        line.decode()
    except UnicodeDecodeError:
        return False
    return True


def _csv(path: str, text: bytes, encoding: str) -> tuple[CsvFormat, list[str], list[str]]:
    """Returns dialect, columns and evidence of a CSV text."""
    lines = [line.rstrip("\r") for line in text.decode("utf-8", "replace").split("\n")]
    lines = [line for line in lines if line][:_LINES]
    scored = [
        (*_fit(_rows(lines, Dialect(delimiter, quote))), delimiter, quote)
        for quote in ('"', "")
        for delimiter in _DELIMITERS
    ]
    best = max(scored, key=lambda one: (one[1] > 1, round(one[0], 2), one[1], bool(one[3])))
    share, width, delimiter, quote = best
    if width < 2 or share < 0.5:
        raise RecsysError(
            "R208",
            f"{path!r} must be a table: most of its lines must have as many fields.",
            "Convert it to CSV, or write its config by hand: docs/data.md.",
            shown(lines[0]),
        )
    rows = _rows(lines, Dialect(delimiter, quote))
    if len(rows[0]) != width:
        raise RecsysError(
            "R208",
            f"{path!r} must begin with its header or a row: {width} fields, as most have.",
            "Delete what stands above the table, or mend its first line.",
            shown(lines[0]),
        )
    evidence = [
        f"{delimiter!r} between fields: {round(share * len(rows)):,} of {len(rows):,}"
        f" rows have {width}"
    ]
    if any('"' in line for line in lines):
        evidence.append("quotes around fields" if quote else "quotes are text")
    has_header, why = _header([row for row in rows if len(row) == width], rows[0])
    evidence.append(why)
    columns = rows[0] if has_header else [f"c{at + 1}" for at in range(width)]
    csv = CsvFormat(
        delimiter=delimiter,
        quote=quote or None,
        names=() if has_header else tuple(columns),
        encoding=encoding,
    )
    return csv, columns, evidence


def _rows(lines: Sequence[str], dialect: Dialect) -> list[list[str]]:
    """Returns the fields of rows, over several lines where quotes say so; none of an open one."""
    rows: list[list[str]] = []
    at = 0
    while at < len(lines):
        stops = range(at + 1, min(at + _LINES_OF_A_ROW, len(lines)) + 1)
        texts = ("\n".join(lines[at:stop]) for stop in stops)
        row = next((text for text in texts if not is_open(text, dialect)), None)
        rows.append([] if row is None else split_fields(row, dialect))
        at += 1 if row is None else 1 + row.count("\n")
    return rows


def _fit(rows: Sequence[Sequence[str]]) -> tuple[float, int]:
    """Returns the share of rows that have as many fields as most, and how many that are."""
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
    others = [row for row in below if row != first]  # Joined files repeat a header whole.
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
    """Returns whether a text is a name of a column, and no value such as `user6`."""
    return any(name_score(field, role) >= 2 for role in role_words(field))


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
