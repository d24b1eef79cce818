"""Text as UTF-8 bytes, whatever compression and encoding its file has."""

from __future__ import annotations

import bz2
import codecs
import gzip
import lzma
import zlib
from typing import IO, Any, cast

import pyarrow as pa

from recsys.data.sources.csv_rows import Readable
from recsys.data.sources.detection import Compression
from recsys.data.sources.files import Section
from recsys.data.sources.limits import (
    HEADER_LIMIT_BYTES,
    LINE_LIMIT_BYTES,
    Growth,
    long_line,
)
from recsys.errors import RecsysError, UsageError

_BOM = b"\xef\xbb\xbf"
_DAMAGED = "recsys.damaged"
_READ_BYTES = 1 << 20
_CHUNK_BYTES = 1 << 16
# Of names of the net, of none, and of Python's own sources, whose escapes may be line ends.
_NOT_OF_FILES = ("idna", "punycode", "undefined", "unicode-escape", "raw-unicode-escape")


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
    if not _is_of_text(encoding):
        raise UsageError(
            "R255",
            f"data.{what}.csv.encoding must be an encoding of text that Python knows.",
            "Write for example utf-8, latin-1, cp1252 or utf-16.",
            encoding,
        )


def _is_of_text(encoding: str) -> bool:
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
    """Leaves out a byte order mark at the start of a stream."""

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
