"""Opens files as bytes or UTF-8 text, of any compression and encoding, within limits."""

from __future__ import annotations

import bz2
import codecs
import gzip
import lzma
import zlib
from pathlib import Path
from typing import IO, Any, Literal, Protocol, cast

import pyarrow as pa

from recsys.data.sources.files import Section
from recsys.errors import RecsysError, UsageError

Compression = Literal["gzip", "bz2", "xz", "zstd"]

START_BYTES = 1 << 16
"""Bytes of the start of a file that tell what it is."""
LINE_LIMIT_BYTES = 64 << 20
"""Bytes of one row."""
HEADER_LIMIT_BYTES = 1 << 20
"""Bytes of a header."""
_COMPRESSIONS: dict[bytes, Compression] = {
    b"\x1f\x8b\x08": "gzip",
    b"BZh": "bz2",
    b"\xfd7zXZ\x00": "xz",
    b"\x28\xb5\x2f\xfd": "zstd",
}
COMPRESSED_NAMES: dict[str, Compression] = {
    ".gz": "gzip",
    ".gzip": "gzip",
    ".bz2": "bz2",
    ".xz": "xz",
    ".zst": "zstd",
    ".zstd": "zstd",
}
"""Ends of names that tell a compression."""
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
_BINARY = "binary data (NUL bytes)"
_MOST_TIMES = 1000
_FREE_BYTES = 64 << 20
_BOM = b"\xef\xbb\xbf"
_DAMAGED = "recsys.damaged"
_READ_BYTES = 1 << 20
_CHUNK_BYTES = 1 << 16
# Of names of the net, of none, and of Python's own sources, whose escapes may be line ends.
_NOT_OF_FILES = ("idna", "punycode", "undefined", "unicode-escape", "raw-unicode-escape")


class Readable(Protocol):
    """A stream that bytes are read from."""

    def read(self, size: int, /) -> bytes:
        """Returns the next bytes, at most `size`; none at the end."""
        ...


def most_bytes(file_bytes: int) -> int:
    """Returns the limit of a file's content [bytes]: 1000 times its size, plus 64 MiB."""
    return _FREE_BYTES + _MOST_TIMES * file_bytes


def most_rows(file_bytes: int) -> int:
    """Returns how many rows, or values of a column, a file may have: a thousand a byte."""
    return (1 << 20) + _MOST_TIMES * file_bytes


class Growth:
    """Adds up the decompressed bytes of a file, up to the limit.

    Args:
        file: The file.
        file_bytes: Its size [bytes].
    """

    def __init__(self, file: str, file_bytes: int) -> None:
        self._file, self._file_bytes, self._n_bytes = file, file_bytes, 0

    def add(self, n_bytes: int) -> None:
        """Adds bytes that were unpacked.

        Raises:
            RecsysError: It is more than `most_bytes`.
        """
        self._n_bytes += n_bytes
        if self._n_bytes > most_bytes(self._file_bytes):
            raise bomb(self._file, self._file_bytes, f"more than {self._n_bytes:,} bytes")


def bomb(file: str, file_bytes: int, received: str) -> RecsysError:
    """Returns the error of a file whose content is too large."""
    return RecsysError(
        "R281",
        f"{file!r} of {file_bytes:,} bytes must not unpack to more than {_MOST_TIMES:,} times "
        "that and 64 MiB.",
        "Files of rows shrink by far less: look who wrote it. Write it unpacked if it is right.",
        received,
    )


def long_line(file: str, line: int, limit_bytes: int, start: bytes) -> RecsysError:
    """Returns the error of a line that is too long to be held."""
    return RecsysError(
        "R280",
        f"{file!r} must have lines of at most {limit_bytes >> 20} MiB; line {line:,} is longer.",
        "Write one row a line, with a line feed behind it.",
        start[:100].decode("utf-8", "replace"),
    )


# --- what bytes are


def compression_of(path: str, start: bytes) -> Compression | None:
    """Returns how a file is compressed.

    Raises:
        RecsysError: Its name says another thing than its bytes.
    """
    kinds = (kind for magic, kind in _COMPRESSIONS.items() if start.startswith(magic))
    compression = next(kinds, None)
    if compression == "bz2" and start[4:10] != b"1AY&SY":
        compression = None
    named = COMPRESSED_NAMES.get(Path(path).suffix.lower())
    if named is not None and compression is None and start:
        raise RecsysError(
            "R204",
            f"{path!r} must be a {named} file, as its name says.",
            "Correct the name, or write the file again.",
            start[:20],
        )
    return compression


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


def kind_of_bytes(start: bytes) -> str | None:
    """Returns the kind of bytes that are no text."""
    kind = next((kind for magic, kind in _KINDS.items() if start.startswith(magic)), None)
    # A few NUL bytes are damage; a text that is full of them is none.
    if kind is None and start.count(b"\0") * 16 > len(start):
        return "UTF-16 text" if wide_encoding(start) else _BINARY
    return kind


# --- opening


def open_bytes(path: str, start: int, stop: int, compression: Compression | None) -> Readable:
    """Opens the bytes of a file, decompressed.

    Args:
        path: The file.
        start: First byte, 0 for a compressed one.
        stop: One past the last byte.
        compression: How it is compressed.

    Raises:
        RecsysError: The file can't be opened; or, while reading, is cut off.
    """
    section = Section(path, start, stop)
    if compression is None:
        return section
    return _Decompressed(path, section, compression, stop - start)


def open_text(
    path: str, start: int, stop: int, compression: Compression | None, encoding: str
) -> Readable:
    """Opens the text of a file as UTF-8, without a byte order mark.

    Characters that are damaged come out as bytes that aren't UTF-8, so that they cost
    their rows.

    Args:
        path: The file.
        start: First byte; not 0 only where `is_splittable`.
        stop: One past the last byte.
        compression: How it is compressed.
        encoding: How its characters are written.

    Raises:
        RecsysError: As `open_bytes`.
    """
    stream = open_bytes(path, start, stop, compression)
    if not is_utf8(encoding):
        return _Transcoded(stream, encoding)
    return _WithoutMark(stream) if start == 0 else stream


def check_encoding(encoding: str, what: str) -> None:
    """Raises an error if Python has no such encoding of text.

    Args:
        encoding: Its name.
        what: The part of `data` in the config that names it.
    """
    if not is_encoding(encoding):
        raise UsageError(
            "R255",
            f"data.{what}.csv.encoding must be an encoding of text that Python knows.",
            "Write for example utf-8, latin-1, cp1252 or utf-16.",
            encoding,
        )


def is_encoding(encoding: str) -> bool:
    """Returns whether Python knows an encoding, and can go on behind damage in it."""
    try:
        known = codecs.lookup(encoding)
    except (LookupError, ValueError):
        return False
    return getattr(known, "_is_text_encoding", True) and known.name not in _NOT_OF_FILES


def is_utf8(encoding: str) -> bool:
    """Returns whether a text in `encoding` is UTF-8 as it is."""
    return codecs.lookup(encoding).name in ("utf-8", "utf-8-sig", "ascii")


def is_splittable(encoding: str) -> bool:
    """Returns whether each byte is a character, or bytes of UTF-8: line ends stand alone."""
    name = codecs.lookup(encoding).name
    return is_utf8(encoding) or name.startswith(("iso8859", "cp125", "koi8", "mac-"))


class _Decompressed:
    """Decompresses a stream; names the file and how far it was good if that fails."""

    def __init__(self, path: str, section: Section, compression: Compression, n_bytes: int) -> None:
        self._path, self._compression, self._n_read = path, compression, 0
        self._stream = _decompressor(section, compression)
        self._growth = Growth(path, n_bytes)

    def read(self, size: int, /) -> bytes:
        try:
            data = self._stream.read(size)
        except (OSError, EOFError, zlib.error, lzma.LZMAError, pa.ArrowException) as error:
            raise RecsysError(
                "R253",
                f"{self._path!r} must be a whole {self._compression} file.",
                f"It is good up to byte {self._n_read:,} of what it holds. Write it again, "
                "or unpack what can be saved.",
                str(error),
            ) from None
        self._n_read += len(data)
        self._growth.add(len(data))
        return cast(bytes, data)


def _decompressor(section: Section, compression: Compression) -> Any:
    if compression == "gzip":
        return gzip.GzipFile(fileobj=section)
    if compression == "bz2":
        return bz2.BZ2File(section)
    if compression == "xz":
        return lzma.LZMAFile(cast(IO[bytes], section))
    return pa.CompressedInputStream(pa.PythonFile(section, "r"), compression)


class _WithoutMark:
    """Skips a byte order mark at the start of a stream."""

    def __init__(self, stream: Readable) -> None:
        self._stream, self._is_at_start = stream, True

    def read(self, size: int, /) -> bytes:
        if not self._is_at_start:
            return self._stream.read(size)
        self._is_at_start = False
        data = self._stream.read(max(size, len(_BOM)))
        return data.removeprefix(_BOM) or self._stream.read(size)


class _Transcoded:
    """Turns a stream into UTF-8."""

    def __init__(self, stream: Readable, encoding: str) -> None:
        self._stream = stream
        self._decoder = codecs.getincrementaldecoder(encoding)(_DAMAGED)
        self._is_first = True

    def read(self, size: int, /) -> bytes:
        while True:
            data = self._stream.read(size)
            text = self._decoder.decode(data, final=not data)
            if text and self._is_first:
                # `utf-16-le` takes a byte order mark for text.
                text, self._is_first = text.removeprefix("\ufeff"), False
            if text or not data:
                return text.encode("utf-8", _DAMAGED)


def _mark_damage(error: UnicodeError) -> tuple[str | bytes, int]:
    """Marks damage by a lone surrogate, and writes that, or any other, as the byte 0xff."""
    if isinstance(error, UnicodeEncodeError):
        return b"\xff" * (error.end - error.start), error.end
    return "\udcff", cast(UnicodeDecodeError, error).end


codecs.register_error(_DAMAGED, _mark_damage)


def read_some(stream: Readable, size: int) -> bytes:
    """Returns the next bytes of a stream: `size` of them, or all where there are fewer."""
    # A damaged length may ask for more than there is memory.
    parts, left = [], size
    while left > 0 and (data := stream.read(min(left, _READ_BYTES))):
        parts.append(data)
        left -= len(data)
    return b"".join(parts)


class Ahead:
    """A stream with bytes put back in front of it.

    Args:
        start: The bytes.
        stream: What follows.
    """

    def __init__(self, start: bytes, stream: Readable) -> None:
        self._start, self._stream = start, stream

    def read(self, size: int, /) -> bytes:
        """Returns the next bytes."""
        if not self._start:
            return self._stream.read(size)
        data, self._start = self._start[:size], self._start[size:]
        return data


def split_line(
    stream: Readable,
    file: str = "The file",
    line_number: int = 1,
    limit_bytes: int = HEADER_LIMIT_BYTES,
) -> tuple[bytes, Readable]:
    """Returns the first line of a stream, with its line end, and the stream behind it.

    Args:
        stream: The text.
        file: Its file, for the error.
        line_number: Line that it stands at, for the error.
        limit_bytes: Most bytes of the line, about.

    Raises:
        RecsysError: The line is longer than that.
    """
    parts, n_bytes = [], 0
    while data := stream.read(_CHUNK_BYTES):
        parts.append(data)
        n_bytes += len(data)
        if b"\n" in data:
            break
        if n_bytes > limit_bytes:
            raise long_line(file, line_number, limit_bytes, b"".join(parts))
    line, end, rest = b"".join(parts).partition(b"\n")
    return line + end, Ahead(rest, stream)


def skip_lines(stream: Readable, n_lines: int, file: str = "The file") -> Readable:
    """Returns a stream behind its first lines; at its end where it has no more.

    Args:
        stream: The text.
        n_lines: How many.
        file: Its file, for the error of a line that is too long.
    """
    for number in range(1, n_lines + 1):
        line, stream = split_line(stream, file, number, LINE_LIMIT_BYTES)
        if not line:
            break
    return stream
