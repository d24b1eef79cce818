"""CSV files as Arrow batches of text, where damage costs the damaged row and no more.

A row that can't be placed (`recsys.data.csv_columns`) becomes a dead letter with
its line number; a file that isn't a CSV file with the expected columns is refused
with one `RecsysError`.
"""

from __future__ import annotations

import csv
import glob
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

from recsys.data.csv_columns import CsvBatch, parse_rows
from recsys.data.csv_rows import row_blocks
from recsys.errors import RecsysError

_BLOCK_BYTES = 8 << 20
_MAGIC = {
    b"PAR1": "a Parquet file",
    b"\x1f\x8b": "a gzip file",
    b"PK\x03\x04": "a zip file",
    b"BZh": "a bzip2 file",
    b"\x28\xb5\x2f\xfd": "a zstd file",
    b"ARROW1": "an Arrow file",
    b"%PDF": "a PDF file",
    b"\xff\xfe": "UTF-16 text",
    b"\xfe\xff": "UTF-16 text",
}


def match_files(pattern: str, what: str) -> list[str]:
    """Returns the files that a path or glob names, sorted.

    Args:
        pattern: A file or a glob.
        what: What the files hold, for the error: `interactions` or `items`.

    Raises:
        RecsysError: There is none.
    """
    named = Path(pattern)
    files = [pattern] if named.exists() else sorted(glob.glob(pattern, recursive=True))
    files = [file for file in files if not Path(file).is_dir()]
    if files:
        return files
    if named.is_dir():
        found, cure = "a folder", f"Name its files: {named / '*.csv'}."
    elif glob.has_magic(pattern):
        found, cure = "no file matches", f"Correct data.{what}.files."
    else:
        found, cure = "no such file", f"Correct data.{what}.files."
    raise RecsysError("R201", f"{pattern!r} must name at least one CSV file.", cure, found)


def read_header(file: str, expected: Sequence[str]) -> list[str]:
    """Returns the names of the columns of a CSV file.

    Raises:
        RecsysError: The file can't be read, is empty, is of another format, or
            lacks a column of `expected`.
    """
    with _open(file) as stream:
        start = stream.read(1 << 16)
    _check_format(file, start, expected)
    first = start.removeprefix(b"\xef\xbb\xbf").split(b"\n", 1)[0]
    names = next(csv.reader([first.decode("utf-8", "replace").rstrip("\r")]), [])
    for name in expected:
        if names.count(name) != 1:
            _raise_missing(file, name, names, expected)
    return names


def check_files(pattern: str, what: str, expected: Sequence[str]) -> list[str]:
    """Returns the files of a pattern after a look at the start of each.

    Raises:
        RecsysError: As `match_files` and `read_batches`, before the work starts.
    """
    files = match_files(pattern, what)
    for file in files:
        next(read_batches(file, expected, block_bytes=1 << 16))
    return files


def read_batches(
    file: str, expected: Sequence[str], block_bytes: int = _BLOCK_BYTES
) -> Iterator[CsvBatch]:
    """Reads a CSV file.

    Args:
        file: Path of the file; its first line names the columns.
        expected: Columns to return; the file may have more.
        block_bytes: Bytes parsed at a time.

    Raises:
        RecsysError: As `read_header`, or the file has no row.
    """
    names = read_header(file, expected)
    n_read = 0
    with _open(file) as stream:
        _skip_bom(stream)
        stream.readline()
        for rows in row_blocks(stream, block_bytes, len(names)):
            batch = parse_rows(file, rows, names, list(dict.fromkeys(expected)))
            n_read += batch.n_read
            yield batch
    if n_read == 0:
        raise RecsysError(
            "R202",
            f"{file!r} must hold rows below its header.",
            "Write the data into it, or name another file.",
            "a header alone",
        )


def _open(file: str) -> BinaryIO:
    try:
        return Path(file).open("rb")
    except OSError as error:
        raise RecsysError(
            "R205",
            f"{file!r} must be a readable file.",
            "Check the path and its permissions.",
            error.strerror or str(error),
        ) from None


def _skip_bom(stream: BinaryIO) -> None:
    if stream.read(3) != b"\xef\xbb\xbf":
        stream.seek(0)


def _check_format(file: str, start: bytes, expected: Sequence[str]) -> None:
    wanted = f"CSV text with the columns {', '.join(expected)}"
    if not start.strip():
        raise RecsysError(
            "R202",
            f"{file!r} must be {wanted}.",
            "Write the data into it, or name another file.",
            "an empty file",
        )
    kind = next((kind for magic, kind in _MAGIC.items() if start.startswith(magic)), None)
    if kind is None and b"\0" in start:
        kind = "binary data (NUL bytes)"
    if kind is not None:
        raise RecsysError(
            "R204", f"{file!r} must be {wanted}.", "Convert it to CSV in UTF-8.", kind
        )


def _raise_missing(file: str, name: str, names: list[str], expected: Sequence[str]) -> None:
    cure = "Correct the columns in the config, or the file's first line."
    other = next((s for s in ";\t|" if len(names) == 1 and s in names[0]), None)
    if other:
        cure = f"The columns stand between {other!r}: put commas there."
    amount = "once" if name not in names else "only once"
    raise RecsysError(
        "R203",
        f"{file!r} must have the column {name!r} {amount}"
        f" (expected: {', '.join(dict.fromkeys(expected))}).",
        cure,
        names,
    )
