"""Text files that grow while they are read: the line that stood unfinished is no row."""

from __future__ import annotations

import codecs

import pyarrow as pa

from recsys.data.dead_letters import dead_letters
from recsys.data.sources.files import Section, file_size
from recsys.data.sources.piece import Piece
from recsys.data.sources.raw_batch import RawBatch
from recsys.data.sources.text import read_some

UNFINISHED = "still being written: the file grew behind it"

_CHUNK_BYTES = 8 << 20


def finished_stop(piece: Piece) -> int:
    """Returns where the last finished line of a piece ends.

    A file that grew since the plan may have been in the middle of a line then.
    """
    is_last = piece.stop == piece.size and piece.compression is None
    if not is_last or file_size(piece.file) <= piece.size:
        return piece.stop
    stop, step = piece.stop, 1 << 16
    while stop > piece.start:
        start = max(piece.start, stop - step)
        with Section(piece.file, start, stop) as section:
            data = read_some(section, stop - start)
        end = _behind_line_end(data, start, _unit(piece.csv.encoding))
        if end is not None:
            return start + end
        stop = start
    return piece.start or piece.stop


def _unit(encoding: str) -> int:
    """Returns the bytes of the smallest character of an encoding."""
    name = codecs.lookup(encoding).name
    return 4 if name.startswith("utf-32") else 2 if name.startswith("utf-16") else 1


def _behind_line_end(data: bytes, start: int, unit: int) -> int | None:
    """Returns what follows the last line end of `data`, which begins at byte `start`."""
    end = data.rfind(b"\n")
    while end >= 0:
        first = end - (start + end) % unit
        if first >= 0 and data[first : first + unit].strip(b"\0") == b"\n":
            return first + unit
        end = data.rfind(b"\n", 0, end)
    return None


def unfinished(piece: Piece, start: int) -> RawBatch:
    """Returns the dead letter of a line that was still being written."""
    with Section(piece.file, piece.start, start) as section:
        n_lines = 0
        while data := section.read(_CHUNK_BYTES):
            n_lines += data.count(b"\n")
    with Section(piece.file, start, piece.stop) as section:
        row = read_some(section, piece.stop - start)
    row = row.decode(piece.csv.encoding, "replace").encode()
    letters = dead_letters([UNFINISHED], piece.file, [piece.first + n_lines], [row])
    columns = [pa.array([], pa.string()) for _ in piece.columns]
    nothing = pa.RecordBatch.from_arrays(columns, names=list(piece.columns))
    return RawBatch(piece.file, nothing, letters.column("line").to_numpy()[:0], letters)
