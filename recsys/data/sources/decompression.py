"""Decompresses files of one or several streams; data after the last one are an error.

Python's readers of bz2 and xz stop if the bytes after a stream don't begin another one, and so
lose the rows after damage.
"""

from __future__ import annotations

import bz2
import contextlib
import io
import lzma
import zlib
from collections.abc import Callable
from typing import Any, BinaryIO, Literal

import pyarrow as pa

from recsys.errors import RecsysError

Compression = Literal["gzip", "bz2", "xz", "zstd"]

_MOST_TIMES = 1000
_INPUT_BYTES = 1 << 16
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


class Decompressed(io.RawIOBase):
    """The decompressed bytes of a file.

    Args:
        path: The file.
        open_raw: Opens its compressed bytes.
        compression: Its compression.
        size: Its size [bytes].

    Raises:
        RecsysError: While reading: the file is damaged or truncated, or unpacks to too much.
    """

    def __init__(
        self, path: str, open_raw: Callable[[], BinaryIO], compression: Compression, size: int
    ) -> None:
        super().__init__()
        self._path, self._size, self._compression = path, size, compression
        self._open_raw, self._stream = open_raw, _decompressor(open_raw(), compression)
        self._n_read, self._error = 0, ""

    def readable(self) -> bool:
        """Returns True."""
        return True

    def readinto(self, buffer: Any, /) -> int:
        """Fills a buffer with the next bytes; returns their number."""
        data = b"" if self._error else self._next(len(buffer))
        if self._error and not data:
            raise RecsysError(
                "R253",
                f"{self._path!r} must be a whole {self._compression} file.",
                f"It is good up to byte {self._n_read:,} of what it holds. Write it again, "
                "or unpack what can be saved.",
                self._error,
            )
        self._n_read += len(data)
        check_growth(self._path, self._size, self._n_read)
        buffer[: len(data)] = data
        return len(data)

    def _next(self, size: int) -> bytes:
        try:
            return bytes(self._stream.read(size))
        except _ERRORS as error:
            self._error = str(error)
        # A call that fails returns nothing, even if part of the data is intact.
        stream, good = _decompressor(self._open_raw(), self._compression), bytearray()
        skipped = self._n_read
        with contextlib.suppress(*_ERRORS):
            while skipped and (data := stream.read(min(_INPUT_BYTES, skipped))):
                skipped -= len(data)
            while len(good) < size and (data := stream.read(1)):
                good += data
        return bytes(good)


def _decompressor(raw: BinaryIO, compression: Compression) -> Any:
    if compression == "zstd":
        return pa.CompressedInputStream(pa.PythonFile(raw, "r"), compression)
    return _Streams(raw, compression)


class _Streams:
    """Reads consecutive streams of gzip, bz2 or xz."""

    def __init__(self, raw: BinaryIO, compression: Compression) -> None:
        self._raw, self._compression = raw, compression
        self._input, self._n_input = b"", 0
        self._begin()

    def _begin(self) -> None:
        self._decoder = _DECODERS[self._compression]()
        self._start = self._n_input - len(self._input)

    def _fill(self) -> bool:
        """Reads more input if there is none; returns whether there is any."""
        if not self._input:
            self._input = self._raw.read(_INPUT_BYTES)
            self._n_input += len(self._input)
        return bool(self._input)

    def read(self, size: int) -> bytes:
        """Returns the next bytes, at most `size`; none at the end."""
        while True:
            if self._decoder.eof:
                self._input = self._decoder.unused_data
                if not self._skip_padding():
                    return b""
                self._begin()
            try:
                data = self._decode(size)
            except EOFError:
                raise EOFError(f"{self._place()} is cut off") from None
            except _ERRORS as error:
                raise OSError(f"{self._place()}: {error}") from None
            if data:
                return data

    def _decode(self, size: int) -> bytes:
        """Returns the next bytes of a stream; none if it needs more input or has ended."""
        needs_input = getattr(self._decoder, "needs_input", True)
        has_input = self._fill() if needs_input else False
        data: bytes = self._decoder.decompress(self._input if needs_input else b"", size)
        if needs_input:
            self._input = getattr(self._decoder, "unconsumed_tail", b"")
        if not data and not has_input and needs_input and not self._decoder.eof:
            raise EOFError
        return data

    def _place(self) -> str:
        return f"the {self._compression} stream from byte {self._start:,} of the file on"

    def _skip_padding(self) -> bool:
        """Skips zeros that the format allows after a stream; returns whether another follows."""
        n_zeros = 0
        while self._fill() and self._input.startswith(b"\0") and self._compression != "bz2":
            behind = self._input.lstrip(b"\0")
            n_zeros += len(self._input) - len(behind)
            self._input = behind
        is_legal = {"gzip": not n_zeros or not self._input, "xz": n_zeros % 4 == 0}
        if not is_legal.get(self._compression, True):
            self._begin()
            zeros = f"{n_zeros:,} zero bytes are no padding of {self._compression}"
            raise OSError(f"up to byte {self._start:,} of the file, {zeros}")
        return bool(self._input)
