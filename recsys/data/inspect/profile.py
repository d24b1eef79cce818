"""Statistics of a column's values, including the unit or format of times; counts of hashes."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import re
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from recsys.data.config import TimestampUnit
from recsys.data.hashes import fingerprints
from recsys.data.interactions import EARLIEST, UNITS
from recsys.data.sources.values import (
    is_list,
    read_list,
    split_lists,
    to_ids,
    to_numbers,
    to_times,
    without_point_zero,
    written_times,
)
from recsys.data.time_format import time_pattern

_EXAMPLES, _MOST_VALUES, _SAMPLE, _HEAD = 3, 200, 2000, 20_000
_NEARLY_ALL = 0.9
_URL = r"^\s*(https?://|www\.)\S+$"
_ASIN = r"^(B0[0-9A-Z]{8}|[0-9]{9}[0-9X])$"


@dataclasses.dataclass
class Profile:
    """A column in a sample of rows.

    Attributes:
        name: Name of the column.
        kind: `empty`, `whole number`, `number`, `time`, `list` or `text`.
        n_rows: Number of rows.
        n_null: Number of rows without a value.
        texts: Values as ids `[n_rows]`, null if missing; the elements of lists.
        numbers: Numbers, or times [seconds since 1970], without missing ones.
        unit: Unit in which the values are times.
        time_formats: Formats in which the text values are times; several if ambiguous.
        is_recent: Whether nearly all times are between 1995 and now.
        is_folder: Whether the column comes from the names of folders.
        had_point_zero: Whether the values are integers that are all written like 13.0.
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
    had_point_zero: bool = False

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
        return self.sample[:_EXAMPLES]

    @property
    def n_values(self) -> int:
        """Number of rows with a value."""
        return self.n_rows - self.n_null

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
    def is_grouped(self) -> bool:
        """Whether equal values are consecutive, and some occur several times."""
        values, n = self.texts.drop_null(), len(self.distinct)
        n_changes = pc.sum(pc.not_equal(values[1:], values[: max(0, len(values) - 1)])).as_py() or 0
        return n_changes < 1.01 * n and 1 < n <= 0.8 * self.n_values

    @functools.cached_property
    def is_url(self) -> bool:
        """Whether most values are URLs."""
        return self.kind in ("text", "list") and self._share_of(_URL) > 0.5

    @functools.cached_property
    def is_asin(self) -> bool:
        """Whether nearly all values are Amazon's product ids, or ISBNs."""
        return self._share_of(_ASIN) >= _NEARLY_ALL

    @property
    def has_words(self) -> bool:
        """Whether a text column holds sentences rather than categories."""
        return self.kind == "text" and sum(map(len, self.sample)) > 12 * len(self.sample)

    def _share_of(self, pattern: str) -> float:
        matches = pc.match_substring_regex(pa.array(self.sample, pa.string()), pattern)
        return (pc.sum(matches).as_py() or 0) / max(1, len(self.sample))

    def to_json(self) -> dict[str, Any]:
        """Returns the profile for `recsys check --json`."""
        return {
            "name": self.name,
            "type": self.kind,
            "rows": self.n_rows,
            "nulls": self.n_null,
            "distinct": len(self.distinct),
            "lowest": self.lowest,
            "highest": self.highest,
            "examples": self.examples,
        }


def profile_column(
    name: str, column: pa.Array, now: int, decimal: str, *, may_be_days: bool, is_folder: bool
) -> Profile:
    """Returns the profile of a column.

    Args:
        name: Its name.
        column: Its raw values `[n]`; the first ones determine the kind.
        now: The current time [seconds since 1970, UTC].
        decimal: Decimal separator of numbers as text.
        may_be_days: Whether numbers may be days, such as 20240131.
        is_folder: Whether the column comes from the names of folders.
    """
    n_rows, n_null = len(column), column.null_count
    if pa.types.is_string(column.type) and _are_lists(column):
        column = split_lists(pc.fill_null(column, "[]"), None)
    if is_list(column.type):
        texts = to_ids(column.flatten())
        kind = "list" if len(texts) > texts.null_count else "empty"
        return Profile(name, kind, n_rows, n_null, texts, is_folder=is_folder)
    texts = to_ids(column)
    head = column.filter(texts.is_valid()).slice(0, _HEAD)
    profile = Profile(name, "empty", n_rows, texts.null_count, texts, is_folder=is_folder)
    if not len(head):
        return profile
    numbers = to_numbers(head, decimal).drop_null()
    profile.unit, profile.is_recent = find_unit(head, now)
    if pa.types.is_temporal(column.type) or profile.unit == "iso8601":
        profile.kind = "time"
    elif len(numbers) >= _NEARLY_ALL * len(head):
        is_whole = pc.all(pc.equal(pc.round(numbers), numbers)).as_py()
        profile.kind = "whole number" if is_whole else "number"
    else:
        profile.kind = "text"
    if profile.kind == "text" or (may_be_days and profile.unit is None and profile.is_number):
        formats = find_formats(pc.unique(to_ids(head)))
        profile.kind = "time" if formats else profile.kind
        profile.time_formats = formats
    if profile.kind == "whole number":  # A run removes the `.0` of an id, too.
        profile.texts = without_point_zero(texts)
        is_same = pc.equal(profile.texts, texts)
        profile.had_point_zero = profile.texts is not texts and not pc.any(is_same).as_py()
    if profile.unit is not None or len(profile.time_formats) == 1:
        times = to_times(column, profile.unit or "seconds", next(iter(profile.time_formats), None))
        profile.numbers = times.drop_null().to_numpy()
    elif profile.is_number:
        profile.numbers = to_numbers(column, decimal).drop_null().to_numpy().astype(np.float64)
    return profile


def _are_lists(texts: pa.Array) -> bool:
    """Returns whether nearly all texts are lists such as `['a', 'b']`."""
    known = pc.unique(texts.slice(0, _SAMPLE).drop_null()).to_pylist()
    known = [text for text in known if text.strip()]
    n_lists = sum(read_list(text) is not None for text in known)
    return bool(known) and n_lists >= _NEARLY_ALL * len(known)


# --- units and formats of times

_LEAST = {"iso8601": EARLIEST}
_BULK_AFTER = 631_152_000
"""1990 [seconds since 1970]: the bulk of numbers that are times is between then and now."""
_LATER_THAN = 788_918_400
"""1995 [seconds since 1970]: numbers between then and now are rarely anything but times."""
_LONGEST = 64

_DAYS = [
    *(f"{a}{sign}{b}{sign}{c}" for sign in "/-." for a, b, c in (
        ("%d", "%m", "%Y"), ("%m", "%d", "%Y"), ("%Y", "%m", "%d"), ("%d", "%m", "%y"),
        ("%m", "%d", "%y"), ("%d", "%b", "%Y"),
    )),
    *("%B %d, %Y", "%d %B %Y", "%d. %B %Y", "%B %d %Y", "%a, %d %b %Y", "%A, %B %d, %Y"),
    *("%Y年%m月%d日", "%Y%m%d"),
]  # fmt: skip
_CLOCKS = (
    "", " %H:%M", " %H:%M:%S", " %H:%M:%S.%f", " %I:%M %p", " %I:%M:%S %p", ", %H:%M",
    ", %H:%M:%S", ", %I:%M %p", ", %I:%M:%S %p", "T%H:%M:%S", ":%H:%M:%S",
)  # fmt: skip
_FORMATS = [
    *(f"{day}{clock}{zone}" for day, clock in itertools.product(_DAYS, _CLOCKS)
      for zone in (("", " %z", " %Z") if clock else ("",))),
    *(f"%a %b %d %H:%M:%S{zone} %Y" for zone in ("", " %z", " %Z")),
]  # fmt: skip


def find_unit(column: pa.Array, now: int) -> tuple[TimestampUnit | None, bool]:
    """Returns the unit in which the bulk of values are times, and whether they are recent.

    Outliers such as the year 9999 for "never" have no effect: the median decides. A number is a
    time in at most one unit, since units differ by a factor of a thousand.

    Args:
        column: Raw values `[n]`.
        now: The current time [seconds since 1970, UTC].
    """
    for unit in UNITS:
        times = to_times(column, unit).drop_null().to_numpy()
        if len(times) < max(1, 0.5 * len(column)):
            continue
        if _LEAST.get(unit, _BULK_AFTER) <= np.median(times) <= now:
            is_recent = (times >= _LATER_THAN) & (times <= now)
            return unit, bool(is_recent.mean() >= _NEARLY_ALL)
    return None, True


def find_formats(texts: pa.Array) -> tuple[str, ...]:
    """Returns the formats that fit nearly all texts; several if they fit equally well.

    Args:
        texts: Distinct texts `[n]`.
    """
    few = texts.slice(0, 8).to_pylist()
    if not few or max(map(len, few)) > _LONGEST:
        return ()
    shares = {
        format_: 1.0 - written_times(texts, format_).null_count / len(texts)
        for format_, pattern in _patterns().items()
        if sum(pattern.match(text) is not None for text in few) >= 0.5 * len(few)
    }
    best = max(shares.values(), default=0.0)
    if best < _NEARLY_ALL:
        return ()
    return tuple(format_ for format_, share in shares.items() if share == best)


@functools.cache
def _patterns() -> dict[str, re.Pattern[str]]:
    return {format_: re.compile(time_pattern(format_)) for format_ in _FORMATS}


# --- counts of distinct values

_LEAST_LOOSE = 1 << 20


class HashCount:
    """Counts distinct hashes, exactly up to a limit, and by a sample of their last bits beyond.

    Args:
        most: Maximum number of hashes to keep; None: no limit.
    """

    def __init__(self, most: int | None = None) -> None:
        self.n_added = 0
        self._most, self._shift, self._n_loose = most, 0, 0
        self._hashes, self._flags = [np.zeros(0, np.uint64)], [np.zeros(0, bool)]

    def add(self, hashes: np.ndarray, flags: np.ndarray | None = None) -> None:
        """Adds hashes `[n]` uint64 with flags `[n]` bool; the first flag of a hash counts."""
        self.n_added += len(hashes)
        self._n_loose += len(hashes)
        self._hashes.append(hashes)
        self._flags.append(np.zeros(len(hashes), bool) if flags is None else flags)
        # So rarely that the total work is linear in the number of hashes.
        if self._n_loose > max(_LEAST_LOOSE, len(self._hashes[0])):
            self._join()

    def add_texts(self, texts: pa.Array) -> None:
        """Adds texts `[n]`, except nulls."""
        self.add(fingerprints(pc.unique(texts).drop_null().cast(pa.large_string())))

    @property
    def is_exact(self) -> bool:
        """Whether all hashes are kept."""
        self._join()
        return self._shift == 0

    @property
    def n_flagged(self) -> int:
        """Number of distinct flagged hashes."""
        self._join()
        return int(self._flags[0].sum()) << self._shift

    def __len__(self) -> int:
        self._join()
        return len(self._hashes[0]) << self._shift

    def _join(self) -> None:
        if len(self._hashes) == 1:
            return
        hashes, first = np.unique(np.concatenate(self._hashes), return_index=True)
        flags = np.concatenate(self._flags)[first]
        is_kept = hashes & np.uint64((1 << self._shift) - 1) == 0
        while self._most is not None and is_kept.sum() > self._most:
            self._shift += 1
            is_kept = hashes & np.uint64((1 << self._shift) - 1) == 0
        self._hashes, self._flags, self._n_loose = [hashes[is_kept]], [flags[is_kept]], 0
