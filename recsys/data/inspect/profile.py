"""Profiles the columns of a source in one pass, including units and formats of times."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from recsys.data.config import TimestampUnit
from recsys.data.hashes import fingerprints
from recsys.data.inspect.dialect import Understood
from recsys.data.inspect.names import name_score
from recsys.data.interactions import EARLIEST, UNITS
from recsys.data.sources.pieces import read_all
from recsys.data.sources.values import (
    to_ids,
    to_numbers,
    to_times,
    without_point_zero,
    written_times,
)
from recsys.data.sources.written_lists import read_list, split_lists
from recsys.data.time_format import time_pattern

Advance = Callable[[int], None]
"""Called with the number of bytes of each batch."""

_EXACT = _LEAST_LOOSE = 1 << 20
_MOST_VALUES = 200
_JOINED_BYTES = 8 << 20
_EXAMPLES = 3
_SAMPLE, _SAMPLE_CHARACTERS = 2000, 1 << 22
_MOST_NUMBERS = 1 << 14
_URL = r"^\s*(https?://|www\.)\S+$"
_ASIN = r"^(B0[0-9A-Z]{8}|[0-9]{9}[0-9X])$"


@dataclasses.dataclass
class Profile:
    """Statistics of one column.

    Attributes:
        name: Name of the column.
        kind: `empty`, `whole number`, `number`, `time`, `list` or `text`.
        n_rows: Number of rows.
        n_null: Number of rows without a value.
        distinct: Counts distinct values.
        unit: Unit in which the values are times.
        time_formats: Formats in which the text values are times; several if ambiguous.
        lowest: Lowest number, or time if there is a unit [seconds since 1970].
        highest: Highest number or time.
        values: Frequency of each value, as long as there are few distinct ones.
        n_characters: Total number of characters.
        n_runs: Number of runs of equal consecutive values.
        n_urls: Number of values that are URLs.
        n_asins: Number of values that are Amazon's product ids, or ISBNs.
        numbers: A sample of the numbers, with repetitions.
        sample: A sample of the distinct values.
        is_folder: Whether the column comes from the names of folders.
        n_point_zero: Number of integers that are written like 13.0.
    """

    name: str
    kind: str = "empty"
    n_rows: int = 0
    n_null: int = 0
    distinct: HashCount = dataclasses.field(default_factory=lambda: HashCount(_EXACT))
    unit: TimestampUnit | None = None
    is_recent: bool = True
    lowest: float | None = None
    highest: float | None = None
    values: Counter[str] = dataclasses.field(default_factory=Counter)
    has_all_values: bool = True
    n_characters: int = 0
    decimal: str = "."
    time_formats: tuple[str, ...] = ()
    n_runs: int = 0
    n_urls: int = 0
    n_asins: int = 0
    numbers: NumberSample = dataclasses.field(default_factory=lambda: NumberSample())
    sample: list[str] = dataclasses.field(default_factory=list)
    is_folder: bool = False
    n_point_zero: int = 0
    _last: str | None = None

    @property
    def examples(self) -> list[str]:
        """A few values."""
        return self.sample[:_EXAMPLES]

    @property
    def n_values(self) -> int:
        """Number of rows with a value."""
        return self.n_rows - self.n_null

    @property
    def is_number(self) -> bool:
        """Whether nearly all values are numbers."""
        return self.kind in ("whole number", "number")

    @property
    def is_grouped(self) -> bool:
        """Whether equal values are consecutive, and some occur several times."""
        n = len(self.distinct)
        return self.n_runs <= 1.01 * n and 1 < n <= 0.8 * self.n_values

    @property
    def is_url(self) -> bool:
        """Whether most values are URLs."""
        return self.n_urls > 0.5 * max(1, self.n_values)

    @property
    def is_asin(self) -> bool:
        """Whether nearly all values are Amazon's product ids, or ISBNs."""
        return self.n_asins >= 0.9 * max(1, self.n_values)

    def add(self, column: pa.Array, now: int) -> None:
        """Adds values `[n]`; the first ones determine the kind."""
        if pa.types.is_string(column.type) and (
            self.kind == "list" or (self.kind == "empty" and _are_lists(column))
        ):
            column = split_lists(pc.fill_null(column, "[]"), None)
        is_list = pa.types.is_list(column.type) or pa.types.is_large_list(column.type)
        ids = to_ids(column.flatten() if is_list else column)
        if self.kind == "empty" and len(ids) > ids.null_count:
            self._decide(column, ids, is_list, now)
        self.n_rows += len(column)
        self.n_null += column.null_count if is_list else ids.null_count
        self._count(ids.drop_null())
        if self.unit is not None or len(self.time_formats) == 1:
            self._widen(pc.min_max(self.times(column)))
        elif self.is_number:
            numbers = to_numbers(column, self.decimal).drop_null().cast(pa.float64())
            self._widen(pc.min_max(numbers))
            self.numbers.add(numbers.to_numpy())

    def times(self, column: pa.Array) -> pa.Array:
        """Returns the times of raw values, in the detected unit or format."""
        return to_times(column, self.unit or "seconds", next(iter(self.time_formats), None))

    def _decide(self, column: pa.Array, ids: pa.Array, is_list: bool, now: int) -> None:
        """Determines the kind from the first values."""
        head, ids = column.slice(0, 20_000), ids.slice(0, 20_000).drop_null()
        if is_list:
            self.kind = "list"
            return
        self.unit, self.is_recent = find_unit(head, now)
        if pa.types.is_temporal(column.type) or self.unit == "iso8601":
            self.kind = "time"
            return
        numbers = to_numbers(head, self.decimal).drop_null()
        if len(numbers) >= 0.9 * max(1, len(ids)):
            is_whole = pc.all(pc.equal(pc.round(numbers), numbers), min_count=0).as_py()
            self.kind = "whole number" if is_whole else "number"
        if self.kind == "empty" or (self.unit is None and name_score(self.name, "timestamp")):
            self.time_formats = find_formats(pc.unique(ids))
            self.kind = "time" if self.time_formats else self.kind
        if self.kind == "empty":
            self.kind = "text"

    def _count(self, raw: pa.Array) -> None:
        if not len(raw):
            return
        # A run removes the `.0` of an id, too.
        values = without_point_zero(raw) if self.kind == "whole number" else raw
        if values is not raw:
            self.n_point_zero += pc.sum(pc.not_equal(values, raw)).as_py()
        self.distinct.add_texts(values)
        changes = pc.sum(pc.not_equal(values.slice(1), values.slice(0, len(values) - 1)))
        self.n_runs += (changes.as_py() or 0) + (self._last != values[0].as_py())
        self._last = values[-1].as_py()
        self.n_asins += _n_matching(values, _ASIN)
        if self.kind == "text":
            self.n_characters += pc.sum(pc.utf8_length(values)).as_py() or 0
        if self.kind in ("text", "list"):
            self.n_urls += _n_matching(values, _URL)
        if len(self.sample) < _SAMPLE and sum(map(len, self.sample)) < _SAMPLE_CHARACTERS:
            new = pc.unique(values.slice(0, 10 * _SAMPLE)).to_pylist()
            self.sample = list(dict.fromkeys([*self.sample, *new]))[:_SAMPLE]
        if self.has_all_values:
            for entry in pc.value_counts(raw).to_pylist()[: 10 * _MOST_VALUES]:
                self.values[entry["values"]] += entry["counts"]
            if len(self.values) > _MOST_VALUES:
                self.has_all_values = False
                self.values.clear()

    def _widen(self, ends: pa.StructScalar) -> None:
        low, high = ends["min"].as_py(), ends["max"].as_py()
        if low is not None:
            self.lowest = low if self.lowest is None else min(self.lowest, low)
            self.highest = high if self.highest is None else max(self.highest, high)

    def to_json(self) -> dict[str, Any]:
        """Returns the profile for `recsys check --json`."""
        return {
            "name": self.name,
            "type": self.kind,
            "rows": self.n_rows,
            "nulls": self.n_null,
            "distinct": len(self.distinct),
            "distinct_is_exact": self.distinct.is_exact,
            "lowest": self.lowest,
            "highest": self.highest,
            "examples": self.examples,
        }


def _are_lists(texts: pa.Array) -> bool:
    """Returns whether nearly all texts are lists such as `['a', 'b']`."""
    known = pc.unique(texts.slice(0, _SAMPLE).drop_null()).to_pylist()
    known = [text for text in known if text.strip()]
    n_lists = sum(read_list(text) is not None for text in known)
    return n_lists >= _NEARLY_ALL * max(1, len(known))


def _n_matching(values: pa.Array, pattern: str) -> int:
    return pc.sum(pc.match_substring_regex(values, pattern)).as_py() or 0


class NumberSample:
    """A systematic sample of the added numbers, of at most a few thousand."""

    def __init__(self) -> None:
        self._kept, self._step, self._n_added = np.zeros(0), 1, 0

    def add(self, numbers: np.ndarray) -> None:
        """Adds numbers `[n]`."""
        first = -self._n_added % self._step
        self._n_added += len(numbers)
        self._kept = np.concatenate([self._kept, numbers[first :: self._step]])
        while len(self._kept) > _MOST_NUMBERS:
            self._kept, self._step = self._kept[::2], 2 * self._step

    def quantile(self, share: float) -> float:
        """Returns a quantile of the numbers; `share` is in [0..1]."""
        return float(np.quantile(self._kept, share)) if len(self._kept) else 0.0

    def share_from(self, least: float) -> float:
        """Returns the share of numbers that are at least `least` [0..1]."""
        return float((self._kept >= least).mean()) if len(self._kept) else 0.0

    def distinct(self) -> list[float]:
        """Returns the distinct numbers, ascending, with six significant digits."""
        return sorted({float(f"{number:g}") for number in np.unique(self._kept)})


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
        self._flags.append(np.ones(len(hashes), bool) if flags is None else flags)
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

    def share_of(self, hashes: np.ndarray) -> float:
        """Returns the share of hashes `[n]` uint64 that were added [0..1], maybe estimated."""
        self._join()
        hashes = hashes[self._is_kept(hashes)]
        return float(np.isin(hashes, self._hashes[0]).mean()) if len(hashes) else 0.0

    def _join(self) -> None:
        if len(self._hashes) == 1:
            return
        hashes, first = np.unique(np.concatenate(self._hashes), return_index=True)
        flags = np.concatenate(self._flags)[first]
        is_kept = self._is_kept(hashes)
        while self._most is not None and is_kept.sum() > self._most:
            self._shift += 1
            is_kept = self._is_kept(hashes)
        self._hashes, self._flags, self._n_loose = [hashes[is_kept]], [flags[is_kept]], 0

    def _is_kept(self, hashes: np.ndarray) -> np.ndarray:
        return hashes & np.uint64((1 << self._shift) - 1) == 0


def profile_columns(
    understood: Understood, what: str, now: int, sample: int | None, advance: Advance
) -> dict[str, Profile]:
    """Returns the profile of each column of a source, by name.

    Args:
        understood: Its format and layout.
        what: Its content, for errors.
        now: The current time [seconds since 1970, UTC].
        sample: Number of rows to read; `None`: all.
        advance: Called with the progress.
    """
    decimal = understood.source.csv.decimal
    profiles = {
        name: Profile(name, decimal=decimal, is_folder=name in understood.folders)
        for name in understood.columns
    }
    batches = read_all(understood.source, what, understood.columns, sample, advance)
    for rows in _joined(batch.columns for _, batch in batches):
        for name, profile in profiles.items():
            profile.add(rows.column(name), now)
    return profiles


def _joined(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yields batches, joining small ones with the same columns, such as those of small files."""
    parts: list[pa.RecordBatch] = []
    n_bytes = 0
    for batch in batches:
        n_bytes += batch.nbytes
        if parts and (n_bytes > _JOINED_BYTES or batch.schema != parts[0].schema):
            yield from pa.Table.from_batches(parts).combine_chunks().to_batches()
            parts, n_bytes = [], batch.nbytes
        parts.append(batch)
    if parts:
        yield from pa.Table.from_batches(parts).combine_chunks().to_batches()


def has_words(profile: Profile) -> bool:
    """Returns whether a text column holds sentences rather than categories."""
    return profile.kind == "text" and profile.n_characters > 12 * max(1, profile.n_values)


_LEAST = {"iso8601": EARLIEST}
_BULK_AFTER = 631_152_000
"""1990 [seconds since 1970]: the bulk of numbers that are times is between then and now."""
_LATER_THAN = 788_918_400
"""1995 [seconds since 1970]: numbers between then and now are rarely anything but times."""
_NEARLY_ALL = 0.9
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
    n_values = max(1, len(column) - column.null_count)
    for unit in UNITS:
        times = to_times(column, unit).drop_null().to_numpy()
        if len(times) < 0.5 * n_values:
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


def fits_format(profile: Profile, format_: str) -> bool:
    """Returns whether nearly all values of a column are times in a format."""
    texts = pa.array(profile.sample, pa.string())
    return written_times(texts, format_).null_count < (1.0 - _NEARLY_ALL) * len(texts)


@functools.cache
def _patterns() -> dict[str, re.Pattern[str]]:
    return {format_: re.compile(time_pattern(format_)) for format_ in _FORMATS}
