"""Description of a column's values in a sample, including the unit or format of times."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from recsys.data.config import TimestampUnit
from recsys.data.inspect.layout import Layout
from recsys.data.inspect.names import name_score
from recsys.data.interactions import EARLIEST, UNITS
from recsys.data.sources.pieces import plan_pieces, read_piece
from recsys.data.sources.source import RawBatch
from recsys.data.sources.time_formats import find_formats
from recsys.data.sources.values import (
    is_list,
    list_lengths,
    read_list,
    split_lists,
    to_ids,
    to_numbers,
    to_times,
)

MOST_ROWS, _MOST_BYTES = 1 << 20, 256 << 20
"""Size of a sample [rows], [bytes]."""
_PIECE_BYTES, _WHOLE_FILES, _MOST_PIECES = 64 << 20, 1 << 62, 256
_MOST_VALUES, _SAMPLE, _HEAD = 200, 2000, 20_000
_NEARLY_ALL = 0.9
_SIGNS = ("|", ";", ",", " ")
_ID = re.compile(r"\s*[\w.:-]{1,64}\s*")
_LEAST_WIDTH = 4
"""Width from which lists of as many numbers are vectors."""


Advance = Callable[[int], None]
"""Called with the number of bytes of each batch."""


@dataclasses.dataclass
class Profile:
    """A column in a sample of rows.

    Attributes:
        name: Name of the column.
        kind: `empty`, `whole number`, `number`, `time`, `list`, `vector` or `text`.
        n_rows: Number of rows.
        n_null: Number of rows without a value.
        texts: Values as ids `[n_rows]`, null if missing; the elements of lists.
        numbers: Numbers, or times [seconds since 1970], without missing ones.
        unit: Unit in which the values are times.
        time_formats: Formats in which the text values are times; several if ambiguous.
        is_recent: Whether nearly all times are between 1995 and now.
        is_folder: Whether the column comes from the names of folders.
        lengths: Number of elements of each row's list `[n_rows]`; None: no lists.
    """

    name: str
    kind: str
    n_rows: int
    n_null: int
    texts: pa.Array
    numbers: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(0))
    unit: TimestampUnit | None = None
    time_formats: tuple[str, ...] = ()
    is_recent: bool = True
    is_folder: bool = False
    lengths: np.ndarray | None = None

    @functools.cached_property
    def counts(self) -> pa.StructArray:
        """Frequencies `counts` of the distinct `values`, in the order of their first rows."""
        return pc.value_counts(self.texts.drop_null())

    @property
    def distinct(self) -> pa.Array:
        """The distinct values."""
        return self.counts.field("values")

    @functools.cached_property
    def values(self) -> dict[str, int]:
        """Frequency of each value, the most frequent first; empty if there are many."""
        few = self.counts.to_pylist() if len(self.counts) <= _MOST_VALUES else []
        few.sort(key=lambda entry: -entry["counts"])
        return {entry["values"]: entry["counts"] for entry in few}

    @functools.cached_property
    def sample(self) -> list[str]:
        """The first distinct values."""
        return self.distinct.slice(0, _SAMPLE).to_pylist()

    @property
    def examples(self) -> list[str]:
        """A few values."""
        return self.sample[:3]

    @property
    def n_values(self) -> int:
        """Number of rows with a value."""
        return self.n_rows - self.n_null

    @property
    def width(self) -> int:
        """Number of elements of the longest list."""
        return 0 if self.lengths is None else int(self.lengths.max())

    @property
    def lowest(self) -> float | None:
        """Lowest number or time."""
        return self.numbers.min().item() if len(self.numbers) else None

    @property
    def highest(self) -> float | None:
        """Highest number or time."""
        return self.numbers.max().item() if len(self.numbers) else None

    @property
    def is_number(self) -> bool:
        """Whether nearly all values are numbers."""
        return self.kind in ("whole number", "number")

    @property
    def all_numbers(self) -> bool:
        """Whether all values are numbers, so that a run rejects none."""
        return self.is_number and len(self.numbers) == self.n_values

    @property
    def is_nameless(self) -> bool:
        """Whether the name was generated because the file has no header."""
        return self.name[:1] == "c" and self.name[1:].isdecimal()

    @property
    def is_grouped(self) -> bool:
        """Whether equal values are consecutive, and some occur several times."""
        values, n = self.texts.drop_null(), len(self.distinct)
        n_changes = pc.sum(pc.not_equal(values[1:], values[: max(0, len(values) - 1)])).as_py() or 0
        return n_changes < 1.01 * n and 1 < n <= 0.8 * self.n_values

    @functools.cached_property
    def separator(self) -> str | None:
        """Separator of ids in most values of a text; None: lists; empty: single values."""
        if self.kind == "list":
            return None
        for sign in _SIGNS if self.kind == "text" else ():
            lists = [[part for part in value.split(sign) if part] for value in self.sample]
            parts = [part for parts in lists for part in parts]
            are_ids = all(_ID.fullmatch(part) and any(map(str.isdigit, part)) for part in parts)
            if are_ids and 2 * sum(len(parts) > 1 for parts in lists) >= len(lists):
                return sign
        return ""

    @property
    def has_words(self) -> bool:
        """Whether a text column holds sentences rather than categories."""
        return self.kind == "text" and sum(map(len, self.sample)) > 12 * len(self.sample)

    def share_of(self, pattern: str) -> float:
        """Returns the share of distinct values that match a regular expression [0..1]."""
        matches = pc.match_substring_regex(pa.array(self.sample, pa.string()), pattern)
        return (pc.sum(matches).as_py() or 0) / max(1, len(self.sample))

    def to_json(self) -> dict[str, Any]:
        """Returns the profile for `recsys check --json`."""
        names = {"name": "name", "type": "kind", "rows": "n_rows", "nulls": "n_null"}
        ends = {end: getattr(self, end) for end in ("lowest", "highest", "examples")}
        told = {key: getattr(self, name) for key, name in names.items()}
        return {**told, "distinct": len(self.distinct), **ends}


@dataclasses.dataclass(frozen=True)
class Sample:
    """Rows of the files of a source: the first ones of many pieces, since files may be sorted.

    Attributes:
        batches: Index of the file, and rows.
        n_wanted: Number of rows that were asked for.
        is_whole: Whether these are all rows.
    """

    batches: list[tuple[int, RawBatch]]
    n_wanted: int
    is_whole: bool

    @classmethod
    def of(cls, layout: Layout, what: str, n_rows: int, advance: Advance) -> Sample:
        """Reads about `n_rows` rows of the files of `what`."""
        # To cut a file into pieces may take reading it.
        size = _PIECE_BYTES if n_rows >= MOST_ROWS else _WHOLE_FILES
        pieces = plan_pieces(layout.source, what, layout.columns, size, ids=layout.columns)
        step = -(-len(pieces) // _MOST_PIECES)
        batches: list[tuple[int, RawBatch]] = []
        is_whole = step == 1
        for piece in pieces[::step]:
            rows_left = -(-n_rows * step // len(pieces))
            bytes_left = _MOST_BYTES * step // len(pieces)
            for batch in read_piece(piece):
                advance(batch.columns.nbytes)
                is_kept = np.arange(batch.columns.num_rows) < rows_left
                batches.append((piece.file_index, batch if is_kept.all() else batch.take(is_kept)))
                rows_left -= batch.columns.num_rows
                bytes_left -= batch.columns.nbytes
                if rows_left <= 0 or bytes_left <= 0:
                    is_whole = False
                    break
        return cls(batches, n_rows, is_whole)

    def profiles(self, layout: Layout, now: int) -> dict[str, Profile]:
        """Returns the profiles of the columns, by name."""
        profiles = {}
        for name in layout.columns:
            parts = [batch.columns.column(name) for _, batch in self.batches]
            if len({part.type for part in parts}) > 1:  # Of JSON, or of several files.
                parts = [to_ids(part) for part in parts]
            column = pa.concat_arrays(parts or [pa.nulls(0, pa.string())])
            decimal, is_folder = layout.source.csv.decimal, name in layout.folders
            profiles[name] = profile_column(name, column, now, decimal, is_folder=is_folder)
        return profiles


def profile_column(
    name: str, column: pa.Array, now: int, decimal: str, *, is_folder: bool
) -> Profile:
    """Returns the profile of a column.

    Args:
        name: Its name. If it suggests a time, numbers may be days, such as 20240131.
        column: Its raw values `[n]`; the first ones determine the kind.
        now: The current time [seconds since 1970, UTC].
        decimal: Decimal separator of numbers as text.
        is_folder: Whether the column comes from the names of folders.
    """
    n_rows, n_null = len(column), column.null_count
    if pa.types.is_string(column.type) and _are_lists(column):
        column = split_lists(pc.fill_null(column, "[]"), None)
    if is_list(column.type):
        return _profile_lists(Profile(name, "list", n_rows, n_null, column, is_folder=is_folder))
    texts = to_ids(column)
    head = column.filter(texts.is_valid()).slice(0, _HEAD)
    profile = Profile(name, "empty", n_rows, texts.null_count, texts, is_folder=is_folder)
    if not len(head):
        return profile
    numbers = to_numbers(head, decimal).drop_null()
    profile.unit, profile.is_recent = _find_unit(head, now)
    if pa.types.is_temporal(column.type) or profile.unit == "iso8601":
        profile.kind = "time"
    elif len(numbers) >= _NEARLY_ALL * len(head):
        is_whole = pc.all(pc.equal(pc.round(numbers), numbers)).as_py()
        profile.kind = "whole number" if is_whole else "number"
    else:
        profile.kind = "text"
    may_be_days = name_score(name, "timestamp") > 0 and profile.unit is None and profile.is_number
    if profile.kind == "text" or may_be_days:
        profile.time_formats = find_formats(pc.unique(to_ids(head)))
        profile.kind = "time" if profile.time_formats else profile.kind
    if profile.unit is not None or len(profile.time_formats) == 1:
        times = to_times(column, profile.unit or "seconds", next(iter(profile.time_formats), None))
        profile.numbers = times.drop_null().to_numpy()
    elif profile.is_number:
        profile.numbers = to_numbers(column, decimal).drop_null().to_numpy().astype(np.float64)
    return profile


def _profile_lists(profile: Profile) -> Profile:
    """Returns the profile of a column of lists, given in `texts`."""
    lists, elements = profile.texts, profile.texts.flatten()
    lengths = list_lengths(lists)
    texts = to_ids(elements)
    profile = dataclasses.replace(profile, texts=texts, lengths=lengths)
    widths = np.unique(lengths[lists.is_valid().to_numpy(zero_copy_only=False)])
    head = elements.slice(0, _HEAD)
    are_numbers = to_numbers(head).null_count == 0 and len(head) > 0
    has_fractions = bool(pc.any(pc.match_substring(texts.slice(0, _HEAD), ".")).as_py())
    if len(texts) == texts.null_count:
        profile.kind = "empty"
    elif len(widths) == 1 and widths[0] >= _LEAST_WIDTH and are_numbers and has_fractions:
        profile.kind = "vector"
    return profile


def _are_lists(texts: pa.Array) -> bool:
    """Returns whether nearly all texts are lists such as `['a', 'b']`."""
    known = pc.unique(texts.slice(0, _SAMPLE).drop_null()).to_pylist()
    known = [text for text in known if text.strip()]
    n_lists = sum(read_list(text) is not None for text in known)
    return bool(known) and n_lists >= _NEARLY_ALL * len(known)


# --- units and formats of times

_BULK_AFTER = 631_152_000
"""1990 [seconds since 1970]: the bulk of numbers that are times is between then and now."""
_LATER_THAN = 788_918_400
"""1995 [seconds since 1970]: numbers between then and now are rarely anything but times."""


def _find_unit(column: pa.Array, now: int) -> tuple[TimestampUnit | None, bool]:
    """Returns the unit in which the bulk of values are times, and whether they are recent.

    Outliers such as the year 9999 for "never" have no effect: the median decides. A number is a
    time in at most one unit, since units differ by a factor of a thousand.

    Args:
        column: Raw values `[n]`.
        now: The current time [seconds since 1970, UTC].
    """
    for unit in UNITS:
        times = to_times(column, unit).drop_null().to_numpy()
        least = EARLIEST if unit == "iso8601" else _BULK_AFTER
        if len(times) >= max(1, 0.5 * len(column)) and least <= np.median(times) <= now:
            is_recent = (times >= _LATER_THAN) & (times <= now)
            return unit, bool(is_recent.mean() >= _NEARLY_ALL)
    return None, True
