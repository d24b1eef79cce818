"""Opens files as bytes or UTF-8 text, in any compression and encoding, within limits."""

from __future__ import annotations

import bz2
import codecs
import io
import lzma
import re
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, Literal, cast

import pyarrow as pa

from recsys.data.sources.source_files import Section
from recsys.errors import RecsysError

START_BYTES = 1 << 16
"""Size of the start of a file that is read to detect its format [bytes]."""
LINE_LIMIT_BYTES = 64 << 20
"""Maximum size of a row [bytes]."""
HEADER_LIMIT_BYTES = 1 << 20
"""Maximum size of a header [bytes]."""
Compression = Literal["gzip", "bz2", "xz", "zstd"]
_COMPRESSIONS: dict[bytes, Compression] = {
    b"\x1f\x8b\x08": "gzip",
    b"BZh": "bz2",
    b"\xfd7zXZ\x00": "xz",
    b"\x28\xb5\x2f\xfd": "zstd",
}
_BZ2_BLOCKS = (b"1AY&SY", b"\x17rE8P\x90")
"""Start of a bz2 block, and end of a stream without blocks."""
COMPRESSED_NAMES: dict[str, Compression] = {
    ".gz": "gzip",
    ".gzip": "gzip",
    ".bz2": "bz2",
    ".xz": "xz",
    ".zst": "zstd",
    ".zstd": "zstd",
}
"""File extensions of compressions."""
_KINDS = {
    b"PAR1": "a Parquet file",
    **{
        magic: f"{'an' if name == 'xz' else 'a'} {name} file"
        for magic, name in _COMPRESSIONS.items()
    },
    b"PK\x03\x04": "a zip file",
    b"\xd0\xcf\x11\xe0": "an Excel file",
    b"7z\xbc\xaf": "a 7z file",
    b"ARROW1": "an Arrow file",
    b"FEA1": "an Arrow file",
    b"%PDF": "a PDF file",
    b"SQLite format 3": "an SQLite database",
    b"Obj\x01": "an Avro file",
    b"ORC": "an ORC file",
    b"\x89HDF": "an HDF5 file",
    b"\x93NUMPY": "a NumPy file",
}
_WIDE_MARKS = {
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
_DAMAGED = "recsys.damaged"
_BUFFER_BYTES = 1 << 18
# Not encodings of files: for domain names, the one that always fails, and Python source code.
_NOT_OF_FILES = ("idna", "punycode", "undefined", "unicode-escape", "raw-unicode-escape")


def long_line(file: str, line: int, limit_bytes: int, start: bytes) -> RecsysError:
    """Returns the error for a line that is too long."""
    return RecsysError(
        "R280",
        f"{file!r} must have lines of at most {limit_bytes >> 20} MiB; line {line:,} is longer.",
        "Write one row a line, with a line feed behind it.",
        start[:100].decode("utf-8", "replace"),
    )


def read_line(
    stream: BinaryIO, file: str, number: int = 1, limit_bytes: int = HEADER_LIMIT_BYTES
) -> bytes:
    """Returns the next line of a stream, with its line end; empty at the end.

    Args:
        stream: The text.
        file: Its file, for the error.
        number: Number of the line, for the error.
        limit_bytes: Maximum size of the line [bytes].

    Raises:
        RecsysError: The line is longer.
    """
    line = stream.readline(limit_bytes + 1)
    if len(line) > limit_bytes:
        raise long_line(file, number, limit_bytes, line)
    return line


# --- detection


def compression_of(path: str, start: bytes) -> Compression | None:
    """Returns the compression of a file.

    Raises:
        RecsysError: Its name contradicts its bytes.
    """
    kinds = (kind for magic, kind in _COMPRESSIONS.items() if start.startswith(magic))
    compression = next(kinds, None)
    if compression == "bz2" and start[4:10] not in _BZ2_BLOCKS:
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
    """Returns whether a file's first bytes are only blanks, after an optional byte order mark."""
    mark = next(filter(start.startswith, (codecs.BOM_UTF8, *_WIDE_MARKS)), b"")
    blanks = b" \t\r\n\v\f" + (b"\0" if mark in _WIDE_MARKS else b"")
    return not start.removeprefix(mark).strip(blanks)


def wide_encoding(start: bytes) -> str | None:
    """Returns the encoding of UTF-16 or UTF-32 text, by its byte order mark or its NUL bytes."""
    mark = next(filter(start.startswith, _WIDE_MARKS), None)
    if mark is not None:
        return _WIDE_MARKS[mark]
    if start.count(b"\0") * 16 <= len(start):
        return None
    n_ascii: dict[str, int] = {}
    for name in ("utf-32-le", "utf-32-be", "utf-16-le", "utf-16-be"):
        with suppress(UnicodeDecodeError):
            text = codecs.getincrementaldecoder(name)().decode(start)
            if 16 * text.count("\0") <= len(text):
                n_ascii[name] = len(text.encode("ascii", "ignore"))
    return max(n_ascii, key=n_ascii.__getitem__, default=None)


def kind_of_bytes(start: bytes) -> str | None:
    """Returns the kind of bytes that aren't text, or None."""
    kind = next((kind for magic, kind in _KINDS.items() if start.startswith(magic)), None)
    if kind == "a zip file" and b"[Content_Types].xml" in start:
        return "an Excel file"
    if kind is None and start[257:262] == b"ustar":
        return "a tar file"
    wide = wide_encoding(start)
    if kind is None and wide:
        return f"{wide[:6].upper()} text"
    # A few NUL bytes are damage; many mean that it is no text.
    is_binary = kind is None and start.count(b"\0") * 16 > len(start)
    return "binary data (NUL bytes)" if is_binary else kind


def has_lone_cr(start: bytes) -> bool:
    """Returns whether the first line of a text has carriage returns outside of quotes."""
    line = start.partition(b"\n")[0].rstrip(b"\r")
    return b"\r" in line and b"\r" in re.sub(rb'"[^"]*"', b"", line)


def is_encoding(encoding: str) -> bool:
    """Returns whether Python supports an encoding, and can continue after damage in it."""
    try:
        known = codecs.lookup(encoding)
    except (LookupError, ValueError):
        return False
    return getattr(known, "_is_text_encoding", True) and known.name not in _NOT_OF_FILES


def is_utf8(encoding: str) -> bool:
    """Returns whether text in `encoding` is valid UTF-8 without conversion."""
    return codecs.lookup(encoding).name in ("utf-8", "utf-8-sig", "ascii")


def is_splittable(encoding: str) -> bool:
    """Returns whether a line end is always the single byte, as in UTF-8 and 8-bit encodings."""
    name = codecs.lookup(encoding).name
    return is_utf8(encoding) or name.startswith(("iso8859", "cp125", "koi8", "mac-"))


# --- opening


def open_bytes(
    path: str, start: int, stop: int, compression: Compression | None = None
) -> io.BufferedReader:
    """Opens the bytes of a file, decompressed.

    Args:
        path: The file.
        start: First byte, 0 for a compressed file.
        stop: End, exclusive.
        compression: Compression of the file.

    Raises:
        RecsysError: The file can't be opened, or is truncated while it is read.
    """
    raw = io.BufferedReader(cast(Any, Section(path, start, stop)), _BUFFER_BYTES)
    return raw if compression is None else _stream(_unpacked(path, raw, compression, stop))


def open_text(
    path: str, start: int, stop: int, compression: Compression | None, encoding: str
) -> io.BufferedReader:
    """Opens the text of a file as UTF-8, without a byte order mark.

    Damaged characters become bytes that aren't UTF-8, so that only their rows are rejected.

    Args:
        path: The file.
        start: First byte; must be 0 unless `is_splittable`.
        stop: End, exclusive.
        compression: Compression of the file.
        encoding: Encoding of the text.

    Raises:
        RecsysError: See `open_bytes`.
    """
    stream = open_bytes(path, start, stop, compression)
    if not is_utf8(encoding):
        stream = _stream(_transcoded(stream, encoding))
    if start == 0:
        skip_mark(stream)
    return stream


def to_utf8(text: bytes, encoding: str) -> bytes:
    """Returns lines as UTF-8, as `open_text` does; the encoding must be splittable."""
    if is_utf8(encoding):
        return text
    return text.decode(encoding, _DAMAGED).encode("utf-8", _DAMAGED)


def skip_mark(stream: io.BufferedReader) -> int:
    """Skips the byte order mark at the start of UTF-8; returns its length [bytes]."""
    return len(stream.read(3)) if stream.peek(3).startswith(codecs.BOM_UTF8) else 0


def _stream(parts: Iterator[bytes]) -> io.BufferedReader:
    return io.BufferedReader(_Parts(parts), _BUFFER_BYTES)


class _Parts(io.RawIOBase):
    """The bytes of parts that are made while they are read."""

    def __init__(self, parts: Iterator[bytes]) -> None:
        super().__init__()
        self._parts, self._rest = parts, memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        while not self._rest and (part := next(self._parts, None)) is not None:
            self._rest = memoryview(part)
        n_bytes = min(len(buffer), len(self._rest))
        buffer[:n_bytes], self._rest = self._rest[:n_bytes], self._rest[n_bytes:]
        return n_bytes


def _transcoded(stream: io.BufferedReader, encoding: str) -> Iterator[bytes]:
    """Yields the text of a stream as UTF-8."""
    reader = io.TextIOWrapper(stream, encoding, _DAMAGED, newline="\n")
    while text := reader.read(_BUFFER_BYTES):
        yield text.encode("utf-8", _DAMAGED)


def _mark_damage(error: UnicodeError) -> tuple[str | bytes, int]:
    """Decodes damage as a lone surrogate, and encodes any surrogate as the byte 0xff."""
    if isinstance(error, UnicodeEncodeError):
        return b"\xff" * (error.end - error.start), error.end
    return "\udcff", cast(UnicodeDecodeError, error).end


codecs.register_error(_DAMAGED, _mark_damage)


# --- decompression of one or several streams; data after the last one are an error

_MOST_TIMES = 1000
_ZSTD_BYTES = 1 << 14
_INPUT_BYTES = 1 << 12  # Small, as bz2 may unpack it to ten thousand times its size.
_ERRORS = (OSError, EOFError, zlib.error, lzma.LZMAError, pa.ArrowException)
_DECODERS: dict[str, Callable[[], Any]] = {
    "gzip": lambda: zlib.decompressobj(16 + zlib.MAX_WBITS),
    "bz2": bz2.BZ2Decompressor,
    "xz": lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ),
}


def check_growth(file: str, file_bytes: int, amount: int, unit: str = "bytes") -> None:
    """Raises an error if a file unpacks to more than 1000 times its size, plus 64 MiB.

    Args:
        file: The file.
        file_bytes: Size of the file [bytes].
        amount: Number of bytes, rows or values that it unpacks to.
        unit: Unit of `amount`.
    """
    if amount > (64 << 20) + _MOST_TIMES * file_bytes:
        raise RecsysError(
            "R281",
            f"{file!r} of {file_bytes:,} bytes must not unpack to more than {_MOST_TIMES:,} times "
            "that and 64 MiB.",
            "Files of rows compress by far less: check its origin. If it is correct, provide it"
            " uncompressed.",
            f"{amount:,} {unit}",
        )


def _unpacked(path: str, raw: BinaryIO, compression: Compression, size: int) -> Iterator[bytes]:
    """Yields the decompressed bytes of a file.

    Raises:
        RecsysError: The file is damaged or truncated, or unpacks to too much.
    """
    n_read = 0
    try:
        for part in _unpack_zstd(raw) if compression == "zstd" else _unpack(raw, compression):
            n_read += len(part)
            check_growth(path, size, n_read)
            yield part
    except _ERRORS as error:
        raise RecsysError(
            "R253",
            f"{path!r} must be a whole {compression} file.",
            f"It is good up to byte {n_read:,} of what it holds. Write it again, "
            "or unpack what can be saved.",
            str(error),
        ) from None


def _unpack_zstd(raw: BinaryIO) -> Iterator[bytes]:
    """Yields the decompressed bytes of a file of zstd.

    They come in small parts, since a call that fails returns nothing of what is good.
    """
    stream = pa.CompressedInputStream(pa.PythonFile(raw, "r"), "zstd")
    while part := stream.read(_ZSTD_BYTES):
        yield part


def _unpack(raw: BinaryIO, compression: Compression) -> Iterator[bytes]:
    """Yields the decompressed bytes of consecutive streams of gzip, bz2 or xz."""
    data, at = raw.read(_INPUT_BYTES), 0
    while data:
        decoder, start = _DECODERS[compression](), at
        while not decoder.eof:
            try:
                if not data:
                    raise EOFError("it is cut off")
                part = decoder.decompress(data)
            except _ERRORS as error:
                place = f"the {compression} stream from byte {start:,} of the file on"
                raise OSError(f"{place}: {error}") from None
            at += len(data) - len(decoder.unused_data)
            data = decoder.unused_data or raw.read(_INPUT_BYTES)
            yield part
        n_zeros = 0
        while data.startswith(b"\0") and compression != "bz2":
            rest = data.lstrip(b"\0")
            n_zeros += len(data) - len(rest)
            data = rest or raw.read(_INPUT_BYTES)
        at += n_zeros
        # Padding is legal behind the last stream of gzip, and by four bytes behind any of xz.
        if (n_zeros and data) if compression == "gzip" else n_zeros % 4:
            zeros = f"{n_zeros:,} zero bytes are no padding of {compression}"
            raise OSError(f"up to byte {at:,} of the file, {zeros}")
