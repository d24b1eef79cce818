"""JSON Lines as Arrow batches; a line that is no JSON object becomes a dead letter.

Arrow parses a block at a time. If it rejects one, or would change a value (large integers, text
that looks like a time, lists of lists), the lines are parsed one by one.
"""

from __future__ import annotations

import itertools
import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pa_json

from recsys.data.dead_letters import NOT_TEXT
from recsys.data.sources.nested import find_path, pick_name, pick_type
from recsys.data.sources.source import Piece, RawBatch, as_json, missing_column
from recsys.data.sources.source_files import is_text
from recsys.data.sources.streams import START_BYTES
from recsys.data.sources.text_source import (
    Rows,
    Text,
    TextSource,
    is_valid_utf8,
    sort_out,
)
from recsys.errors import RecsysError

NOT_JSON = "not a JSON object"

_PARTS = 100
"""Number of objects in a list whose fields are examined."""
_MOST_NAMES = 2000
"""Maximum number of fields that Arrow converts to columns, since it pads each one."""
_NAME = re.compile(rb'"([^"\\]*)"\s*:')
_SAMPLE_BYTES = 8 << 20
_SAMPLE_LINES = 10_000
_BLANKS = b"\xef\xbb\xbf \t\r\n"
_EXACT, _INT64 = 2.0**53, 2.0**63
MOST_DEEP = 64
TOO_DEEP = f"nested more than {MOST_DEEP} deep"
DUPLICATE_FIELD = "a field is given twice"

# Also matches a string without an end, so that each byte is searched only once.
_TEXT = re.compile(rb'"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)', re.DOTALL)
_STEP = np.zeros(256, np.int8)
_STEP[[ord("["), ord("{")]] = 1
_STEP[[ord("]"), ord("}")]] = -1


class JsonLinesSource(TextSource):
    """JSON Lines with an object each; nested fields are columns `a.b`."""

    title: ClassVar[str] = "JSON Lines"
    extensions: ClassVar[tuple[str, ...]] = (".jsonl", ".ndjson", ".json")

    @classmethod
    def detects(cls, start: bytes) -> bool:
        """Returns whether bytes begin an object, or an array of objects."""
        return start.lstrip(_BLANKS).startswith(b"{") or _is_array(start)

    @classmethod
    def fits(cls, start: bytes) -> bool:
        """Returns whether the first bytes of a file may be JSON Lines, or an array of objects."""
        return super().fits(start) and start.lstrip(_BLANKS)[:1] in (b"{", b"[", b"")

    def column_names(self, file: Piece) -> list[str]:
        """Returns the names of the fields of the first objects."""
        return list(self.count_names(file))

    def count_names(self, file: Piece) -> Counter[str]:
        """Returns the number of first objects that have each field, nested ones as `a.b`.

        Raises:
            RecsysError: None of the first lines is an object.
        """
        rows = itertools.islice(self._first_objects(file), _SAMPLE_LINES)
        return Counter(name for row in rows for name in field_names(row))

    def check(self, file: Piece) -> Piece:
        """Returns a file after a check for the columns in its first objects."""
        names: dict[str, None] = {}
        for row in self._first_objects(file):
            names.update(dict.fromkeys(field_names(row)))
            if names.keys() >= set(file.columns):
                return file
        missing = next((name for name in file.columns if name not in names), "")
        raise missing_column(file.file, missing, list(names), file.columns)

    def _first_objects(self, file: Piece) -> Iterator[dict[str, Any]]:
        n_bytes, n_objects, start = 0, 0, b""
        for rows in self.blocks(file, START_BYTES):
            start = start or bytes(rows.text)
            if _is_array(start):
                break
            for row in map(_object, rows.raw()):
                if isinstance(row, dict):
                    n_objects += 1
                    yield row
            n_bytes += rows.n_bytes
            if n_bytes > _SAMPLE_BYTES:
                break
        if not n_objects:
            raise json_over_lines(file.file, start)

    def read_rows(self, piece: Piece, blocks: Iterator[Rows]) -> Iterator[RawBatch]:
        """Yields the parsed rows of a piece, block by block."""
        arrow = _ArrowParser(piece.columns)
        for rows in blocks:
            columns = arrow.parse(rows)
            if columns is None:
                yield self.parse(piece, rows)
            else:
                yield sort_out(piece.file, rows, columns)

    def parse(self, piece: Piece, rows: Rows) -> RawBatch:
        """Returns the columns of rows, parsed line by line."""
        good: list[list[Any]] = []
        reasons: dict[int, str] = {}
        for at, line in enumerate(rows.raw()):
            row = _object(line)
            if isinstance(row, str):
                reasons[at] = row
                continue
            values = [_value(row, name) for name in piece.columns]
            if any(map(_is_twice, values)):
                reasons[at] = DUPLICATE_FIELD
            else:
                good.append(values)
        columns = [_column([row[at] for row in good]) for at in range(len(piece.columns))]
        batch = pa.RecordBatch.from_arrays(columns, names=list(piece.columns))
        return sort_out(piece.file, rows, batch, reasons)


def _is_array(start: bytes) -> bool:
    """Returns whether bytes begin a JSON array of objects, or a line with only a bracket."""
    return re.match(rb"\[\s*[{\n[]", start.lstrip(_BLANKS)) is not None


def json_over_lines(path: str, start: bytes) -> RecsysError:
    """Returns the error for a file without a readable row of JSON Lines.

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
    """Returns whether a row is nested more than `MOST_DEEP` deep."""
    data = np.frombuffer(rows.text, np.uint8)
    is_bracket = data & 0xDF == ord("[")  # Or "{", which differs in one bit.
    if np.count_nonzero(is_bracket) <= len(rows) + MOST_DEEP - 1:
        return False
    starts = np.append(rows.places.starts, len(data))
    n_before = np.searchsorted(np.flatnonzero(is_bracket), starts)
    return any(map(is_deep, rows.raw(np.flatnonzero(np.diff(n_before) > MOST_DEEP))))


def field_names(row: dict[str, object], prefix: str = "") -> Iterator[str]:
    """Yields the names of the fields of a JSON object, nested ones as `a.b`.

    Fields of the objects in a list count as fields of one object. Names that are invalid text,
    such as lone surrogates, are left out.
    """
    for name, value in row.items():
        if not is_text(name):
            continue
        parts = value[:_PARTS] if isinstance(value, list) else [value]
        objects = [part for part in parts if isinstance(part, dict)]
        if not objects:
            yield f"{prefix}{name}"
        merged: dict[str, object] = {}
        for part in objects:
            merged |= part
        yield from field_names(merged, f"{prefix}{name}.")


# --- with Arrow


class _ArrowParser:
    """Parses blocks with Arrow, reusing the types of the last block once they are known."""

    def __init__(self, columns: Sequence[str]) -> None:
        self._columns = columns
        self._schema: pa.Schema | None = None

    def parse(self, rows: Rows) -> pa.RecordBatch | None:
        """Returns the columns of rows; `None` if the lines must be parsed one by one."""
        if not _are_objects(rows) or has_deep(rows):
            return None
        try:
            table = self._read(rows.text)
            batch = table.combine_chunks().to_batches()[0] if table is not None else None
            if batch is None or batch.num_rows != len(rows):
                return None
            batch.validate()  # Arrow 18.1 loses null objects in some lists.
        except pa.ArrowInvalid:
            return None
        columns = [pick_name(batch, name) for name in self._columns]
        if any(map(_may_differ, columns)):
            return None
        return pa.RecordBatch.from_arrays(columns, names=list(self._columns))

    def _read(self, text: Text) -> pa.Table | None:
        start = text[: text.find(b"\n", START_BYTES) + 1]
        if self._schema is None and start:
            self._infer(start)
        if self._schema is not None:
            try:
                return _read_json(text, self._schema, "ignore")
            except pa.ArrowInvalid:
                self._schema = None
        return self._infer(text)

    def _infer(self, text: Text) -> pa.Table | None:
        """Returns all columns of a text, and remembers the types of those to read."""
        if len({name[1] for name in _NAME.finditer(text)}) > _MOST_NAMES:
            return None
        table = _read_json(text, None, "infer")
        as_text = pa.schema([(field.name, _texted(field.type)) for field in table.schema])
        if as_text != table.schema:
            table = _read_json(text, as_text, "infer")
        self._schema = _schema_of(table.schema, self._columns)
        return table


def _are_objects(rows: Rows) -> bool:
    """Returns whether each line has the braces of an object, and all bytes are UTF-8."""
    data, places = np.frombuffer(rows.text, np.uint8), rows.places
    has_braces = (data[places.starts] == ord("{")) & (data[places.stops - 1] == ord("}"))
    return bool(has_braces.all()) and b"\0" not in rows.text and is_valid_utf8(rows.text)


def _read_json(text: Text, schema: pa.Schema | None, unexpected: str) -> pa.Table:
    return pa_json.read_json(
        pa.BufferReader(text),
        pa_json.ReadOptions(use_threads=False, block_size=len(text) + 1),
        pa_json.ParseOptions(explicit_schema=schema, unexpected_field_behavior=unexpected),
    )


def _texted(kind: pa.DataType) -> pa.DataType:
    """Returns a type with text instead of the times that Arrow inferred from text."""
    if pa.types.is_temporal(kind):
        return pa.string()
    if pa.types.is_list(kind):
        return pa.list_(_texted(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, _texted(field.type)) for field in kind])
    return kind


def _schema_of(schema: pa.Schema, columns: Sequence[str]) -> pa.Schema | None:
    """Returns the fields that hold the columns; `None` if any type is unknown."""
    paths = [path for name in columns if (path := find_path(schema, name))]
    kinds = [pick_type(schema, path) for path in paths]
    if len(paths) < len(columns) or any(map(_is_unknown, kinds)):
        return None
    return pa.schema([schema.field(top) for top in dict.fromkeys(path[0] for path in paths)])


def _is_unknown(kind: pa.DataType) -> bool:
    if pa.types.is_list(kind):
        return _is_unknown(kind.value_type)
    return pa.types.is_null(kind) or pa.types.is_struct(kind)


def _may_differ(column: pa.Array) -> bool:
    """Returns whether values may differ from those parsed line by line.

    There, lists of lists are JSON text; here, integers may have become doubles.
    """
    kind = column.type
    if pa.types.is_list(kind):
        return pa.types.is_list(kind.value_type) or _may_differ(column.flatten())
    if not pa.types.is_floating(kind):
        return False
    return bool(pc.any(pc.greater_equal(pc.abs(column), _EXACT), min_count=0).as_py())


# --- line by line


def _object(line: bytes) -> dict[str, Any] | str:
    """Returns the object in a line, or the reason why it has none; empty for a blank line."""
    if b"\0" in line or not is_valid_utf8(line):
        return NOT_TEXT
    if is_deep(line):
        return TOO_DEEP
    try:
        value = json.loads(line, object_pairs_hook=_paired)
    except ValueError:
        value = None
    return value if isinstance(value, dict) else NOT_JSON if line.strip() else ""


def _paired(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Returns an object; a field that is given twice has the value `DUPLICATE_FIELD`."""
    row = dict(pairs)
    if len(row) < len(pairs):
        counts = Counter(name for name, _ in pairs)
        row |= {name: DUPLICATE_FIELD for name, count in counts.items() if count > 1}
    return row


def _is_twice(value: Any) -> bool:
    """Returns whether a value, or an element of a list, is that of a field given twice."""
    return value is DUPLICATE_FIELD or (isinstance(value, list) and any(map(_is_twice, value)))


def _value(row: dict[str, Any], name: str) -> Any:
    if name in row:
        return row[name]
    value: Any = row
    for part in name.split("."):
        is_several = isinstance(value, list)
        value = [_part(element, part) for element in value] if is_several else _part(value, part)
    return value


def _part(value: Any, name: str) -> Any:
    if value is DUPLICATE_FIELD:
        return value
    return value.get(name) if isinstance(value, dict) else None


def _column(values: Sequence[Any]) -> pa.Array:
    """Returns values of mixed kinds as text, or as lists of text if any is a list."""
    if not any(isinstance(value, list) for value in values):
        return pa.array(map(_written, values), pa.string())
    lists = [value if value is None or isinstance(value, list) else [value] for value in values]
    texts = [None if value is None else list(map(_written, value)) for value in lists]
    return pa.array(texts, pa.list_(pa.string()))


def _written(value: Any) -> str | None:
    """Returns a value as text, as `recsys.data.sources.values` writes it."""
    if value is None or isinstance(value, dict):
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() and abs(value) < _INT64 else repr(value)
    # A lone surrogate is invalid text, and can't be an id.
    text = as_json(value).decode() if isinstance(value, list) else str(value)
    return text if is_text(text) else None
