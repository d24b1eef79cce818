"""JSON Lines as Arrow batches; a line that is no JSON object becomes a dead letter.

Arrow parses a block at a time. Where it refuses one, or would change a value (large
whole numbers, text that looks like a time, lists of lists), the lines are parsed one by one.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pa_json

from recsys.data.dead_letters import dead_letters
from recsys.data.sources.files import is_text
from recsys.data.sources.nested import find_path, pick_name, pick_type
from recsys.data.sources.rows import Rows, row_blocks
from recsys.data.sources.source import NOT_TEXT, Piece, RawBatch, as_json, missing_column
from recsys.data.sources.streams import Readable, kind_of_bytes, read_some
from recsys.data.sources.text_source import BLOCK_BYTES, LINES, TextSource
from recsys.errors import RecsysError
from recsys.registry import register_source

NOT_JSON = "not a JSON object"

_PARTS = 100
"""Objects of a list whose fields are looked at."""
_MOST_NAMES = 2000
"""Names of fields that Arrow is given to make columns of: it fills each up for each object."""
_NAME = re.compile(rb'"([^"\\]*)"\s*:')
_LOOK_BYTES = 8 << 20
_LOOK_LINES = 10_000
_BLANKS = b"\xef\xbb\xbf \t\r\n"
_EXACT, _INT64 = 2.0**53, 2.0**63
MOST_DEEP = 64
TOO_DEEP = f"nested more than {MOST_DEEP} deep"

# Also one that the line leaves open, so that the search goes over each byte once.
_TEXT = re.compile(rb'"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)', re.DOTALL)
_STEP = np.zeros(256, np.int8)
_STEP[[ord("["), ord("{")]] = 1
_STEP[[ord("]"), ord("}")]] = -1
_BRACE, _CASE = ord("{"), ord("{") ^ ord("[")


@register_source("jsonl")
class JsonLinesSource(TextSource):
    """JSON Lines, an object each; fields inside of others are columns `a.b`."""

    title: ClassVar[str] = "JSON Lines"
    extensions: ClassVar[tuple[str, ...]] = (".jsonl", ".ndjson", ".json")

    @classmethod
    def detects(cls, start: bytes) -> bool:
        """Returns whether bytes begin an object, or an array of objects."""
        return start.lstrip(_BLANKS).startswith(b"{") or _is_array(start)

    @classmethod
    def fits(cls, start: bytes) -> bool:
        """Returns whether the first bytes of a file may be JSON Lines."""
        return super().fits(start) and start.lstrip(_BLANKS)[:1] in (b"{", b"")

    def explain(self, path: str, start: bytes) -> RecsysError | None:
        """Returns the error of a file that is one JSON array."""
        is_array = kind_of_bytes(start) is None and _is_array(start)
        return json_over_lines(path, start) if is_array else None

    def column_names(self, file: Piece) -> list[str]:
        """Returns the names of the fields of the first objects."""
        return list(self.count_names(file))

    def count_names(self, file: Piece) -> Counter[str]:
        """Returns how many of the first objects have each field, nested ones as `a.b`.

        Raises:
            RecsysError: None of the first lines is an object.
        """
        lines = self._first_lines(file)[:_LOOK_LINES]
        rows = [row for row in map(_object, lines) if isinstance(row, dict)]
        if not rows:
            raise json_over_lines(file.file, b"\n".join(lines))
        return Counter(name for row in rows for name in field_names(row))

    def check(self, file: Piece) -> Piece:
        """Returns a file after a look for the columns in its first objects."""
        lines, names = self._first_lines(file), dict[str, None]()
        missing = list(file.columns)
        for line in lines:
            row = _object(line)
            if isinstance(row, dict):
                names.update(dict.fromkeys(field_names(row)))
                missing = [name for name in missing if name not in names]
            if not missing:
                return file
        if not names:
            raise json_over_lines(file.file, b"\n".join(lines))
        raise missing_column(file.file, missing[0], list(names), file.columns)

    def _first_lines(self, file: Piece) -> list[bytes]:
        text = read_some(self.open(file), _LOOK_BYTES)
        lines = text.split(b"\n")
        return lines[:-1] if len(text) == _LOOK_BYTES and len(lines) > 1 else lines

    def read_text(self, piece: Piece, stream: Readable, first_line: int) -> Iterator[RawBatch]:
        """Yields the rows of text."""
        yield from read_jsonl(piece.file, stream, piece.columns, first_line)


def read_jsonl(
    file: str,
    stream: Readable,
    columns: Sequence[str],
    first_line: int,
    block_bytes: int = BLOCK_BYTES,
) -> Iterator[RawBatch]:
    """Yields the rows of JSON Lines.

    Args:
        file: The file.
        stream: Its text, UTF-8.
        columns: Fields to return, nested ones as `a.b`; null where a row has none.
        first_line: Line that the stream stands at, from 1 on.
        block_bytes: Bytes parsed at a time.
    """
    arrow = _ArrowParser(columns)
    for rows in row_blocks(stream, block_bytes, first_line, 0, LINES, file):
        parsed = arrow.parse(rows)
        if parsed is not None:
            yield RawBatch(file, parsed, rows.line, dead_letters([], file, [], []), rows.raw)
        else:
            yield _parse_lines(file, rows, columns)


def _is_array(start: bytes) -> bool:
    """Returns whether bytes begin a JSON array of objects, or an array alone on its line."""
    return re.match(rb"\[\s*(\{|\n|\[)", start.lstrip(_BLANKS)) is not None


def json_over_lines(path: str, start: bytes) -> RecsysError:
    """Returns the error of a file without a readable row of JSON Lines.

    Most such files are one JSON value, pretty-printed or an array.

    Args:
        path: The file.
        start: Its first bytes.
    """
    text = start.lstrip(_BLANKS)
    if is_deep(text.partition(b"\n")[0]):
        return RecsysError(
            "R204",
            f"{path!r} must hold objects that are nested at most {MOST_DEEP} deep.",
            "Write the fields that a run reads as plain values.",
            TOO_DEEP,
        )
    wrapped = re.match(rb'\{\s*"([A-Za-z_]\w*)"\s*:\s*\[\s*\{', text)
    rows = ".[]" if text.startswith(b"[") else f".{wrapped[1].decode()}[]" if wrapped else "."
    is_one = text.startswith(b"[") or wrapped
    return RecsysError(
        "R204",
        f"{path!r} must be JSON Lines: one whole object on each line.",
        f"Write it so: jq -c '{rows}' FILE > FILE.jsonl.",
        "a JSON array of all rows" if is_one else "pretty-printed JSON, an object over many lines",
    )


def is_deep(line: bytes) -> bool:
    """Returns whether a line is nested more than `MOST_DEEP` deep."""
    if line.count(b"{") + line.count(b"[") <= MOST_DEEP:
        return False
    steps = _STEP[np.frombuffer(_TEXT.sub(b"", line), np.uint8)]
    return bool(np.cumsum(steps, dtype=np.int64).max(initial=0) > MOST_DEEP)


def has_deep(rows: Rows) -> bool:
    """Returns whether a row is nested more than `MOST_DEEP` deep.

    Only rows where so many brackets stand close are looked at; good data has few of them.

    Args:
        rows: Rows that begin with a brace each.
    """
    data = np.frombuffer(rows.block, np.uint8)
    is_bracket = (data | _CASE) == _BRACE
    if np.count_nonzero(is_bracket) < len(rows) + MOST_DEEP:
        return False
    places = np.flatnonzero(is_bracket)
    longest = (rows.stops - rows.starts).max()
    near = np.flatnonzero(places[MOST_DEEP:] - places[:-MOST_DEEP] < longest)
    dense = np.unique(np.searchsorted(rows.starts, places[near], "right") - 1)
    return any(map(is_deep, rows.raw(np.maximum(dense, 0))))


def field_names(row: dict[str, object], prefix: str = "") -> Iterator[str]:
    """Yields the names of the fields of a JSON object, those inside of others as `a.b`.

    Fields of objects in a list count as those of one object. Those that are no text, as
    lone surrogates, are left out.
    """
    for name, value in row.items():
        if not is_text(name):
            continue
        objects = [part for part in _parts(value) if isinstance(part, dict)]
        if not objects:
            yield f"{prefix}{name}"
        merged: dict[str, object] = {}
        for part in objects:
            merged |= part
        yield from field_names(merged, f"{prefix}{name}.")


def _parts(value: object) -> Sequence[object]:
    return value[:_PARTS] if isinstance(value, list) else [value]


# --- by Arrow


class _ArrowParser:
    """Parses blocks by Arrow, with the types of the last one where they are known."""

    def __init__(self, columns: Sequence[str]) -> None:
        self._columns = columns
        self._schema: pa.Schema | None = None

    def parse(self, rows: Rows) -> pa.RecordBatch | None:
        """Returns the columns of rows; `None` where it takes another look at each line."""
        if not _are_objects(rows) or has_deep(rows):
            return None
        text = pa.py_buffer(rows.joined())
        table = self._read(text)
        if table is None or table.num_rows != len(rows):
            return None
        batch = table.combine_chunks().to_batches()[0]
        if not _is_sound(batch):
            return None
        picked = [pick_name(batch, name) for name in self._columns]
        if any(_has_inner_lists(c.type) or _may_have_lost_digits(c) for c in picked):
            return None
        return pa.RecordBatch.from_arrays(picked, names=list(self._columns))

    def _read(self, text: pa.Buffer) -> pa.Table | None:
        if self._schema is not None:
            try:
                return _read_json(text, self._schema, "ignore")
            except pa.ArrowInvalid:
                self._schema = None
        if len({name[1] for name in _NAME.finditer(text)}) > _MOST_NAMES:
            return None
        try:
            table = _read_json(text, None, "infer")
            as_text = pa.schema([(f.name, _texted(f.type)) for f in table.schema])
            if as_text != table.schema:
                table = _read_json(text, as_text, "infer")
        except pa.ArrowInvalid:
            return None
        self._schema = _wanted_schema(table.schema, self._columns)
        return table


def _are_objects(rows: Rows) -> bool:
    """Returns whether each line has the braces of an object, and all is UTF-8."""
    data = np.frombuffer(rows.block, np.uint8)
    has_braces = (data[rows.starts] == ord("{")) & (data[rows.stops - 1] == ord("}"))
    if not has_braces.all() or b"\0" in rows.block:
        return False
    try:
        return rows.block.isascii() or bool(rows.block.decode())
    except UnicodeDecodeError:
        return False


def _read_json(text: pa.Buffer, schema: pa.Schema | None, unexpected: str) -> pa.Table:
    return pa_json.read_json(
        pa.BufferReader(text),
        pa_json.ReadOptions(use_threads=False, block_size=len(text) + 1),
        pa_json.ParseOptions(explicit_schema=schema, unexpected_field_behavior=unexpected),
    )


def _texted(kind: pa.DataType) -> pa.DataType:
    """Returns a type with text in place of the times that Arrow found in text."""
    if pa.types.is_temporal(kind):
        return pa.string()
    if pa.types.is_list(kind):
        return pa.list_(_texted(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, _texted(field.type)) for field in kind])
    return kind


def _wanted_schema(schema: pa.Schema, columns: Sequence[str]) -> pa.Schema | None:
    """Returns the fields that hold the columns; `None` while a type isn't known."""
    paths = [find_path(schema, name) for name in columns]
    if any(path is None or _is_unknown(pick_type(schema, path)) for path in paths):
        return None
    tops = dict.fromkeys(path[0] for path in paths if path)
    return pa.schema([schema.field(top) for top in tops])


def _is_unknown(kind: pa.DataType) -> bool:
    if pa.types.is_list(kind):
        return _is_unknown(kind.value_type)
    return pa.types.is_null(kind) or pa.types.is_struct(kind)


def _is_sound(batch: pa.RecordBatch) -> bool:
    """Returns whether lists have all their elements: Arrow 18.1 loses null objects in some."""
    try:
        batch.validate()
    except pa.ArrowInvalid:
        return False
    return True


def _has_inner_lists(kind: pa.DataType) -> bool:
    """Returns whether a type is of lists of lists: line by line these are JSON text."""
    return pa.types.is_list(kind) and pa.types.is_list(kind.value_type)


def _may_have_lost_digits(column: pa.Array) -> bool:
    """Returns whether doubles may have been whole numbers that are none any more."""
    if pa.types.is_list(column.type):
        return _may_have_lost_digits(column.flatten())
    if not pa.types.is_floating(column.type):
        return False
    return bool(pc.any(pc.greater_equal(pc.abs(column), _EXACT), min_count=0).as_py())


# --- line by line


def _parse_lines(file: str, rows: Rows, columns: Sequence[str]) -> RawBatch:
    raw = rows.raw(np.arange(len(rows)))
    objects, reasons = [], np.full(len(rows), "", object)
    is_blank = np.zeros(len(rows), bool)
    for at, line in enumerate(raw):
        parsed = _object(line)
        if isinstance(parsed, dict):
            objects.append(parsed)
        elif not line.strip():
            is_blank[at] = True
        else:
            reasons[at] = parsed
    bad = np.flatnonzero(reasons != "")
    rejected = dead_letters(reasons[bad].tolist(), file, rows.line[bad], rows.raw(bad))
    good = rows.take((reasons == "") & ~is_blank)
    values = [_column([_value(row, name) for row in objects]) for name in columns]
    batch = pa.RecordBatch.from_arrays(values, names=list(columns))
    return RawBatch(file, batch, good.line, rejected, good.raw)


def _object(line: bytes) -> dict[str, Any] | str:
    """Returns the object that a line is, or what is wrong with it."""
    try:
        text = line.decode()
    except UnicodeDecodeError:
        return NOT_TEXT
    if "\0" in text:
        return NOT_TEXT
    if is_deep(line):
        return TOO_DEEP
    try:
        value = json.loads(text)
    except ValueError:
        return NOT_JSON
    return value if isinstance(value, dict) else NOT_JSON


def _value(row: dict[str, Any], name: str) -> Any:
    if name in row:
        return row[name]
    value: Any = row
    for part in name.split("."):
        if isinstance(value, list):
            value = [_part(element, part) for element in value]
        else:
            value = _part(value, part)
    return value


def _part(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, dict) else None


def _column(values: list[Any]) -> pa.Array:
    """Returns values of mixed kinds as text, or as lists of text if there is a list."""
    if any(isinstance(value, list) for value in values):
        lists = [_listed(value) for value in values]
        return pa.array(lists, pa.list_(pa.string()))
    return pa.array([_written(value) for value in values], pa.string())


def _listed(value: Any) -> list[str | None] | None:
    if value is None:
        return None
    return [_written(part) for part in value] if isinstance(value, list) else [_written(value)]


def _written(value: Any) -> str | None:
    """Returns a value as text, as `recsys.data.sources.values` writes it."""
    if value is None or isinstance(value, dict):
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() and abs(value) < _INT64 else repr(value)
    # A lone surrogate is no text; nor will it be an id.
    text = as_json(value).decode() if isinstance(value, list) else str(value)
    return None if any("\ud800" <= char <= "\udfff" for char in text) else text
