"""What a file may come to: the length of a line, and what it unpacks to by its size."""

from __future__ import annotations

from recsys.errors import RecsysError

LINE_LIMIT_BYTES = 64 << 20
"""Bytes of one row."""
HEADER_LIMIT_BYTES = 1 << 20
"""Bytes of a header."""
_MOST_TIMES = 1000
_FREE_BYTES = 64 << 20


def most_bytes(file_bytes: int) -> int:
    """Returns what a file may come to [bytes]: a thousand times its size, and 64 MiB."""
    return _FREE_BYTES + _MOST_TIMES * file_bytes


def most_rows(file_bytes: int) -> int:
    """Returns how many rows, or values of a column, a file may have: a thousand a byte."""
    return (1 << 20) + _MOST_TIMES * file_bytes


class Growth:
    """Adds up what a file comes to.

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
    """Returns the error of a file that comes to too much."""
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
