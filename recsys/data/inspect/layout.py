"""Detects the format, encoding and table layout of files from the start of the first one."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Sequence
from typing import Literal

from recsys import registry
from recsys.data.config import MOST_SKIPPED, CsvFormat, EventSource, ListOfEvents
from recsys.data.inspect.names import RECBOLE_TYPE, is_name
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
from recsys.errors import RecsysError, shown

_SAMPLE_BYTES = 4 << 20
_MOST_COLUMNS = 500


@dataclasses.dataclass
class Layout:
    """Format and layout of the files of a source.

    Attributes:
        source: Config of the source.
        files: The files.
        format: Their format.
        compression: Their compression; empty: none.
        columns: Names of the columns that a config can use.
        evidence: The observations, a sentence each.
        doubts: Uncertainties, a sentence each.
        folders: Columns that come from the names of folders.
        repeated: Names of several columns, which are left out.
    """

    source: EventSource
    files: list[SourceFile]
    format: str
    compression: str
    columns: list[str]
    evidence: list[str]
    doubts: list[str]
    folders: tuple[str, ...] = ()
    repeated: tuple[str, ...] = ()

    @property
    def has_header(self) -> bool:
        """Returns whether the columns have names of their own."""
        return not self.source.csv.names


def find_layout(patterns: Sequence[str], what: str) -> Layout:
    """Inspects the first of some files.

    Args:
        patterns: Paths or globs.
        what: Content, for errors: `interactions`, `items` or `users`.

    Raises:
        RecsysError: They can't be read, or can't be understood.
    """
    source = EventSource(files=tuple(patterns))
    try:
        files = match_files(source, what)
    except RecsysError as error:  # No config has been written that it could refer to.
        word = "FILE" if what == "interactions" else f"--{what}"
        cure = error.cure.replace(f"data.{what}.files", f"{word} on the command line")
        raise RecsysError.from_json({**error.to_json(), "cure": cure}) from None
    path, size = files[0].path, files[0].size
    compression = compression_of(path, open_bytes(path, 0, size).read(START_BYTES))
    start = open_bytes(path, 0, size, compression).read(_SAMPLE_BYTES)
    encoding, why, doubts = _encoding(start, what)
    csv, events, evidence = CsvFormat(encoding=encoding), None, [why]
    file = open_source(files[0], source.model_copy(update={"csv": csv}))
    format_ = registry.name_of("source", file.source)
    if isinstance(file.source, CsvSource):
        text = file.source.open(file).read(_SAMPLE_BYTES)
        csv, named, events, seen = _table(path, text, encoding, is_side=what != "interactions")
        counts, evidence = Counter(named), [*seen, why]
    elif isinstance(file.source, JsonLinesSource):
        counts, doubts = file.source.count_names(file), []
        csv = csv if wide_encoding(start[:START_BYTES]) else CsvFormat()
    else:
        counts, doubts, csv = Counter(file.source.column_names(file)), [], CsvFormat()
    evidence = [] if csv == CsvFormat() and format_ != "csv" else evidence
    repeated = tuple(n for n, k in counts.items() if n.strip() and k > 1 and format_ == "csv")
    if repeated:
        doubts.append(
            f"Several columns of {shown(path, 100)} are called"
            f" {', '.join(map(shown, repeated[:5]))}: they are left out. Give each a name of its"
            " own."
        )
    folders = tuple(name for name in folder_columns(path) if name not in counts)
    columns = [*(n for n in counts if n.strip() and n not in repeated), *folders]
    if len(columns) > _MOST_COLUMNS:  # Keep those with the most values and most telling names.
        evidence.append(f"left out: {len(columns) - _MOST_COLUMNS:,} of {len(columns):,} columns")
        likely = sorted(columns, key=lambda name: (-counts.get(name, 1), not is_name(name)))
        columns = [name for name in columns if name in set(likely[:_MOST_COLUMNS])]
    if folders:
        evidence.append(f"columns in the names of folders: {', '.join(map(shown, folders))}")
    if skipped := skipped_files(source.files):
        evidence.append(f"skipped, by their names: {shown(skipped[0], 100)}; {len(skipped)} in all")
    stated = "auto" if format_of_name(path) else format_
    source = source.model_copy(update={"csv": csv, "explode": events, "format": stated})
    return Layout(
        source, files, format_, compression or "", columns, evidence, doubts, folders, repeated
    )


# --- the encoding

_ENCODING_BYTES = 1 << 16
_LEAST_SCORE = 0.15
_STRANGE_WORD = re.compile(r"[^\s,;|\t]*[^\x00-\x7f\s,;|][^\s,;|\t]*")
_FEW_BEYOND_ASCII = re.compile(r"(?<![^\x00-\x7f])[^\x00-\x7f]{1,2}(?![^\x00-\x7f])")
_KANA = (0xA4, 0xA5)
_COMMON = {
    "euc_kr": ("euc_kr", range(0xB0, 0xC9)),
    "gb18030": ("gb2312", range(0xB0, 0xD8)),
    "big5": ("big5", range(0xA4, 0xC7)),
    "cp932": ("euc_jp", (*_KANA, *range(0xB0, 0xD0))),
    "euc_jp": ("euc_jp", (*_KANA, *range(0xB0, 0xD0))),
}
"""For each encoding, another and its first bytes of two of the characters that are common."""
_CYRILLIC = ("cp1251", "koi8-r")


def _encoding(start: bytes, what: str) -> tuple[str, str, list[str]]:
    """Returns the encoding of a text, the evidence for it, and a doubt if it is a guess."""
    wide = wide_encoding(start[:START_BYTES])
    if wide is not None:
        why = "it begins with its mark" if wide in ("utf-16", "utf-32") else "its NUL bytes"
        return wide, f"encoding {wide}: {why}", []
    lines = [line for line in start.split(b"\n")[:-1] or [start] if not line.isascii()]
    strange = [line for line in lines if not is_valid_utf8(line)]
    if 2 * len(strange) <= len(lines):
        n_good = f"{len(lines) - len(strange):,} of {len(lines):,} lines beyond ASCII are"
        return "utf-8", f"encoding utf-8: {n_good if lines else 'all is ASCII so far'}", []
    sample = strange[: len(strange) * _ENCODING_BYTES // sum(map(len, strange)) + 1]
    scores = {name: _score(sample, name) for name in ("cp1252", *_COMMON, *_CYRILLIC)}
    best, *others = sorted(scores, key=lambda name: -scores[name])
    others = [name for name in others if scores[name] >= _LEAST_SCORE]
    if best == "cp1252":
        others = ["cp1250", "cp1254", *others]  # Central European and Turkish.
        is_latin = not any(0x80 <= byte < 0xA0 for line in sample for byte in line)
        best = "latin-1" if is_latin else best
    readings = []
    for name in (best, *others[:3]):
        words = _STRANGE_WORD.search("\n".join(line.decode(name, "replace") for line in sample))
        readings.append(f"{name} ({shown(words[0] if words else '', 24)})")
    doubt = (
        f"The encoding is a guess: {readings[0]}. It may be"
        f" {', '.join(readings[1:]) or 'another one'}: if letters are wrong, set"
        f" data.{what}.csv.encoding in the config."
    )
    return best, f"encoding {best}: {len(strange):,} lines are not UTF-8; a guess", [doubt]


def _score(lines: Sequence[bytes], name: str) -> float:
    """Returns the share of characters beyond ASCII that are common in an encoding's languages."""
    texts = [line.decode(name, "replace") for line in lines]
    text = "".join(texts)
    letters = [char for char in text if not char.isascii()]
    # Latin letters beyond ASCII are single or in pairs, as in `café`.
    latin = sum(map(len, _FEW_BEYOND_ASCII.findall(text))) / len(letters)
    if name == "cp1252":
        return latin
    if sum("\ufffd" in text for text in texts) > 0.01 * len(texts):
        return 0.0
    if name in _CYRILLIC:  # Most of its letters are small, and follow one another.
        return sum("а" <= char <= "ё" for char in letters) / len(letters) * (1.0 - latin)
    other, leads = _COMMON[name]
    codes = [char.encode(other, "ignore") for char in letters]
    firsts = [code[0] for code in codes if len(code) == 2]
    share = sum(first in leads for first in firsts) / len(letters)
    # It is hardly Japanese without kana.
    return share / 2 if other == "euc_jp" and not set(_KANA).intersection(firsts) else share


# --- the table of a text

_LINES, _ROW_LINES = 500, 20
_MOST_ABOVE = 50
_DELIMITERS = (",", "\t", ";", "|", "::")
_ISO_DATE = re.compile(r"\s*\d{4}-\d\d-\d\d(?!\d)")
_ID = re.compile(r"[\w.:-]{1,64}")
_COMMA, _POINT = re.compile(r"\s*[+-]?\d+,\d+\s*"), re.compile(r"\s*[+-]?\d+\.\d+\s*")

_Table = tuple[CsvFormat, list[str], ListOfEvents | None, list[str]]
"""Dialect, names of columns, the column that holds a list of events, and observations."""


def _table(path: str, text: bytes, encoding: str, *, is_side: bool) -> _Table:
    """Returns the layout of a text as a table.

    Args:
        path: Its file, for errors.
        text: Its start, UTF-8.
        encoding: The encoding of the file.
        is_side: Whether a line can't be a user and all its items.

    Raises:
        RecsysError: It is not a table.
    """
    if len(text) > HEADER_LIMIT_BYTES and text.find(b"\n", 0, HEADER_LIMIT_BYTES) < 0:
        raise long_line(path, 1, HEADER_LIMIT_BYTES, text)
    lines = [line.rstrip("\r") for line in text.decode("utf-8", "replace").split("\n")]
    numbered = [(at, line) for at, line in enumerate(lines) if line][:_LINES]
    filled = [line for _, line in numbered]
    if not is_side and (ragged := _ragged(filled, encoding)):
        return ragged
    share, width, dialect = _best_dialect(filled)
    if width < 2 or share < 0.5:
        raise _no_table(path, filled, "be a table: most of its lines must have as many fields")
    n_above = _rows_above(filled, width, dialect)
    rows = _rows(filled[n_above:], dialect)
    fitting = [row for row in rows if len(row) == width]
    is_whole = len(rows[0]) == width
    has_header, why = _header(fitting, rows[0]) if is_whole else (False, "")
    above = _rows(filled[:n_above], dialect)
    is_short_header = above and not has_header and any(map(is_name, above[-1]))
    skip_rows = numbered[n_above][0] if n_above else 0
    if skip_rows > MOST_SKIPPED or not is_whole or is_short_header:
        raise _no_table(path, filled, f"begin with its header or a row: {width} fields, as most")
    names = rows[0] if has_header else [f"c{at + 1}" for at in range(width)]
    decimal = _decimal(fitting[has_header:], dialect)
    stated = () if has_header else tuple(names)
    update = {"names": stated, "encoding": encoding, "decimal": decimal, "skip_rows": skip_rows}
    evidence = [
        f"{dialect.delimiter!r} between fields: {len(fitting):,} of {len(rows):,} rows have {width}"
    ]
    evidence += [f"{skip_rows} line(s) above the table are left out"] * bool(skip_rows)
    return dialect.model_copy(update=update), names, None, [*evidence, why]


def _no_table(path: str, lines: Sequence[str], must: str) -> RecsysError:
    return RecsysError(
        "R208",
        f"{path!r} must {must}.",
        "Convert it to CSV with a header, or write its config by hand: docs/data.md.",
        shown(lines[0]),
    )


def _ragged(lines: Sequence[str], encoding: str) -> _Table | None:
    """Returns the layout of lines that are a user and all its items; `None` for other lines."""
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
            names = ["user", "items"]
            csv = CsvFormat(delimiter=delimiter, quote=None, names=tuple(names), encoding=encoding)
            why = (
                f"a list on each line: {delimiter!r} between {min(widths)} to {max(widths)}"
                " fields, of which the first is another one each time"
            )
            return csv, names, ListOfEvents(column="items", separator=delimiter), [why]
    return None


def _best_dialect(lines: Sequence[str]) -> tuple[float, int, CsvFormat]:
    """Returns the share of rows that fit, their number of fields, and the best dialect.

    Fields may contain blanks, so a blank is the last delimiter to try.
    """
    scored = []
    for delimiter in _DELIMITERS:
        dialects = CsvFormat(delimiter=delimiter), CsvFormat(delimiter=delimiter, quote=None)
        quoted, plain = (_fit(lines, dialect) for dialect in dialects)
        # Without quotes there may be more fields: use quotes unless rows fit worse with them.
        is_quoted = round(quoted[0], 2) >= round(plain[0], 2) and quoted[1] > 1
        scored.append(quoted if is_quoted else plain)
    best = max(scored, key=lambda fit: (fit[1] > 1, round(fit[0], 2), fit[1]))
    blanks = _fit(lines, CsvFormat(delimiter=" ", quote=None))
    return blanks if (best[1] < 2 or best[0] < 0.5) and blanks[0] >= 0.95 else best


def _fit(lines: Sequence[str], dialect: CsvFormat) -> tuple[float, int, CsvFormat]:
    """Returns the share of rows with the most common number of fields, that number, the dialect."""
    rows = _rows(lines, dialect)
    counts = Counter(len(row) for row in rows if len(row) > 1)
    width, n_rows = counts.most_common(1)[0] if counts else (1, 0)
    return n_rows / len(rows), width, dialect


def _rows(lines: Sequence[str], dialect: CsvFormat) -> list[list[str]]:
    """Returns the fields of each row; quoted rows may span lines, and unclosed ones are empty."""
    rows: list[list[str]] = []
    at = 0
    while at < len(lines):
        for n_lines in range(1, min(_ROW_LINES, len(lines) - at) + 1):
            fields, is_open = split_fields("\n".join(lines[at : at + n_lines]), dialect)
            if not is_open:
                break
        rows.append([] if is_open else fields)
        at += 1 if is_open else n_lines
    return rows


def _rows_above(lines: Sequence[str], width: int, dialect: CsvFormat) -> int:
    """Returns the number of lines above the first three rows that fit."""
    for at in range(min(_MOST_ABOVE, len(lines))):
        rows = _rows(lines[at : at + 3 * _ROW_LINES], dialect)[:3]
        if all(len(row) == width for row in rows):
            return at
    return 0


def _header(rows: Sequence[Sequence[str]], first: Sequence[str]) -> tuple[bool, str]:
    """Returns whether the first line names the columns, and why."""
    if all(map(RECBOLE_TYPE.search, first)):
        return True, "header: names with types"
    if any(_is_number(field) or _ISO_DATE.match(field) for field in first):
        return False, "no header: the first line has numbers or times"
    below = rows[1:]
    others = [row for row in below if row != first]  # Concatenated files repeat the header.
    repeated = [field for at, field in enumerate(first) if any(row[at] == field for row in others)]
    n_names = sum(is_name(field) for field in first if field not in repeated)
    if n_names < 2:
        if len(set(first)) < len(first) or not all(field.strip() for field in first):
            return False, "no header: fields of the first line are empty or alike"
        if repeated or first in below:
            again = shown([*repeated, *first][0])
            return False, f"no header: '{again}' of the first line comes again below"
    return True, "header: its first line has names of columns, or what never comes again below"


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _decimal(rows: Sequence[Sequence[str]], dialect: CsvFormat) -> Literal[".", ","]:
    """Returns the decimal separator of numbers.

    A comma before exactly three digits may be a thousands separator.
    """
    fields = [field for row in rows for field in row]
    commas = [field for field in fields if _COMMA.fullmatch(field)]
    n_points = sum(1 for field in fields if _POINT.fullmatch(field))
    is_decimal = any(len(field.strip().partition(",")[2]) != 3 for field in commas)
    is_comma = dialect.delimiter != "," and is_decimal and len(commas) > n_points
    return "," if is_comma else "."
