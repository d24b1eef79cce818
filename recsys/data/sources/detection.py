"""The format and the compression of a file, by its name and its first bytes."""

from __future__ import annotations

import codecs
import re
from pathlib import Path
from typing import Literal

from recsys.config import SourceConfig
from recsys.data.sources.framing import is_framed
from recsys.data.sources.json_depth import MOST_DEEP, TOO_DEEP, is_deep
from recsys.errors import RecsysError

Format = Literal["csv", "parquet", "jsonl", "tfrecord"]
Compression = Literal["gzip", "bz2", "xz", "zstd"]

START_BYTES = 1 << 16

_BLANKS = b"\xef\xbb\xbf \t\r\n"
_COMPRESSIONS: dict[bytes, Compression] = {
    b"\x1f\x8b\x08": "gzip",
    b"BZh": "bz2",
    b"\xfd7zXZ\x00": "xz",
    b"\x28\xb5\x2f\xfd": "zstd",
}
_COMPRESSED_NAMES: dict[str, Compression] = {
    ".gz": "gzip",
    ".gzip": "gzip",
    ".bz2": "bz2",
    ".xz": "xz",
    ".zst": "zstd",
    ".zstd": "zstd",
}
_NAMES: dict[str, Format] = {
    ".csv": "csv",
    ".tsv": "csv",
    ".psv": "csv",
    ".dat": "csv",
    ".txt": "csv",
    ".data": "csv",
    # RecBole's atomic files.
    ".inter": "csv",
    ".item": "csv",
    ".user": "csv",
    ".parquet": "parquet",
    ".pq": "parquet",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".tfrecord": "tfrecord",
    ".tfrecords": "tfrecord",
    ".tfr": "tfrecord",
}
_MARKS = (b"\xef\xbb\xbf", b"\xff\xfe\0\0", b"\0\0\xfe\xff", b"\xff\xfe", b"\xfe\xff")
_SPACES = b" \t\r\n\v\f"
_KINDS = {
    b"PAR1": "a Parquet file",
    b"\x1f\x8b": "a gzip file",
    b"PK\x03\x04": "a zip file",
    b"\x28\xb5\x2f\xfd": "a zstd file",
    b"\xfd7zXZ": "an xz file",
    b"ARROW1": "an Arrow file",
    b"%PDF": "a PDF file",
    b"SQLite format 3": "an SQLite database",
    b"Obj\x01": "an Avro file",
    b"ORC": "an ORC file",
    b"\xff\xfe": "UTF-16 text",
    b"\xfe\xff": "UTF-16 text",
}
_WORDS = {
    "csv": "CSV text",
    "parquet": "Parquet",
    "jsonl": "JSON Lines",
    "tfrecord": "TFRecord",
}


def compression_of(path: str, start: bytes) -> Compression | None:
    """Returns how a file is compressed.

    Raises:
        RecsysError: Its name says another thing than its bytes.
    """
    found = next((kind for magic, kind in _COMPRESSIONS.items() if start.startswith(magic)), None)
    if found == "bz2" and start[4:10] != b"1AY&SY":
        found = None
    named = _COMPRESSED_NAMES.get(Path(path).suffix.lower())
    if named is not None and found is None and start:
        raise RecsysError(
            "R204",
            f"{path!r} must be a {named} file, as its name says.",
            "Correct the name, or write the file again.",
            start[:20],
        )
    return found


def holds_nothing(start: bytes) -> bool:
    """Returns whether the first bytes of a file are blanks, and a byte order mark at most."""
    mark = next((mark for mark in _MARKS if start.startswith(mark)), b"")
    is_wide = len(mark) in (2, 4)
    return not start.removeprefix(mark).strip(_SPACES + (b"\0" if is_wide else b""))


def wide_encoding(start: bytes) -> str | None:
    """Returns how a text of two bytes a character is written, by its mark or its NUL bytes."""
    if start.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "utf-16"
    n_even, n_odd = start[::2].count(0), start[1::2].count(0)
    if (n_even + n_odd) * 16 <= len(start):
        return None
    name = "utf-16-le" if n_odd > n_even else "utf-16-be"
    decoder = codecs.getincrementaldecoder(name)()
    try:
        text = decoder.decode(start)
    except UnicodeDecodeError:
        return None
    return None if 16 * text.count("\0") > len(text) else name


def format_of(path: str, start: bytes, source: SourceConfig) -> Format:
    """Returns the format of a file, whose first bytes, decompressed, are `start`.

    Raises:
        RecsysError: The config or the name says another thing than the bytes.
    """
    stated = None if source.format == "auto" else source.format
    if _is_wide(source.csv.encoding) and (stated or by_name(path)) in ("csv", "jsonl", None):
        start = _narrowed(path, start, source.csv.encoding)
    told = stated or by_name(path) or _by_bytes(start)
    kind = _kind(start)
    fits = {
        "parquet": kind == "a Parquet file",
        "tfrecord": kind == "a TFRecord file",
        "csv": kind is None,
        "jsonl": kind is None and start.lstrip(_BLANKS)[:1] in (b"{", b""),
    }
    if fits[told]:
        return told
    if told == "jsonl" and kind is None and _is_array(start):
        raise json_over_lines(path, start)
    raise RecsysError(
        "R204",
        f"{path!r} must be {_WORDS[told]}, as {'the config' if stated else 'its name'} says.",
        _cure(told, kind, stated, start),
        kind or "other text",
    )


_BINARY = "binary data (NUL bytes)"


def by_name(path: str) -> Format | None:
    """Returns the format that a file's name says; `None` if it says none."""
    name = Path(path.lower())
    if name.suffix in _COMPRESSED_NAMES:
        name = name.with_suffix("")
    return _NAMES.get(name.suffix)


def _by_bytes(start: bytes) -> Format:
    if start.startswith(b"PAR1"):
        return "parquet"
    if is_framed(start):
        return "tfrecord"
    is_json = start.lstrip(_BLANKS).startswith(b"{") or _is_array(start)
    return "jsonl" if is_json else "csv"


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


def _kind(start: bytes) -> str | None:
    """Returns what bytes are that are no text of one byte or several a character."""
    if is_framed(start):
        return "a TFRecord file"
    kind = next((kind for magic, kind in _KINDS.items() if start.startswith(magic)), None)
    # A few NUL bytes are damage; a text that is full of them is none.
    if kind is None and start.count(b"\0") * 16 > len(start):
        return "UTF-16 text" if wide_encoding(start) else _BINARY
    return kind


def _is_wide(encoding: str) -> bool:
    return encoding.lower().replace("_", "-").startswith(("utf-16", "utf-32", "utf16", "utf32"))


def _narrowed(path: str, start: bytes, encoding: str) -> bytes:
    """Returns the start of a text of several bytes a character as UTF-8."""
    try:
        text = codecs.getincrementaldecoder(encoding)("replace").decode(start)
    except UnicodeError:  # Of `utf-16` and `utf-32`, which ask for a mark.
        name = wide_encoding(start)
        cure = f"Set csv.encoding: {name}." if name else "Set csv.encoding to what it is in."
        raise RecsysError(
            "R204",
            f"{path!r} must begin with a byte order mark, as csv.encoding: {encoding} says.",
            cure,
            start[:20],
        ) from None
    return text.encode("utf-8", "replace")


def _cure(told: Format, kind: str | None, stated: str | None, start: bytes) -> str:
    if kind == "UTF-16 text":
        return f"Set csv.encoding: {wide_encoding(start)} beside its files in the config."
    if stated:
        return "Correct format in the config, or name another file."
    return "Give it the extension of its format, set format in the config, or convert it."
