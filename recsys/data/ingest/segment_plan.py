"""Plans segments: the smallest groups of days that must be processed together.

Rows that are duplicates have one second, so they lie in one UTC day, and the cut is a
midnight: days can be read, deduplicated and written each by itself. A span's rows are
laid into blocks of days, one day each where it has few days; blocks of several spans
that share a day are one segment. So a day that another span holds a few late rows of is
made anew, and its neighbours aren't.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Mapping, Sequence

from recsys.data.ingest.cache import key_of
from recsys.data.split import DAY_S

_BLOCKS_OF_A_SPAN = 32


@dataclasses.dataclass(frozen=True)
class SpanDays:
    """Days and files of the rows of a span.

    Attributes:
        key: Name of what made them.
        places: Place of each of its files among all files of the window.
        days: Rows of each UTC day [days since 1970].
        n_buckets: Buckets that its rows lie in, a power of two.
    """

    key: str
    places: tuple[int, ...]
    days: Mapping[int, int]
    n_buckets: int


@dataclasses.dataclass(frozen=True)
class Segment:
    """Some days of the window, and the spans that have rows of them.

    Attributes:
        first: First UTC day [days since 1970].
        last: Last UTC day.
        spans: Places of the spans that have rows of these days, ascending.
        ranks: For each of these spans, the rank of each of its files among all files of
            these spans: which of two equal rows is the first.
        n_buckets: Buckets that the rows are laid into, a power of two.
        key: Equal for equal rows.
    """

    first: int
    last: int
    spans: tuple[int, ...]
    ranks: tuple[tuple[int, ...], ...]
    n_buckets: int
    key: str

    def is_cut_by(self, cut: int) -> bool:
        """Returns whether the midnight `cut` [seconds since 1970, UTC] lies within."""
        return self.first < cut // DAY_S <= self.last


def plan_segments(spans: Sequence[SpanDays]) -> list[Segment]:
    """Returns the segments of a window, the oldest first; no two share a day."""
    blocks = sorted(block for span in spans for block in _blocks(span.days))
    joined: list[list[int]] = []
    for first, last in blocks:
        if joined and first <= joined[-1][1]:
            joined[-1][1] = max(joined[-1][1], last)
        else:
            joined.append([first, last])
    return [_segment(spans, first, last) for first, last in joined]


def whole_segment(key: str, n_files: int, n_buckets: int) -> Segment:
    """Returns the one segment of files without spans, of all their days.

    Args:
        key: Name of what made the rows.
        n_files: Files of the run.
        n_buckets: Buckets of their rows.
    """
    return Segment(0, 0, (0,), (tuple(range(n_files)),), n_buckets, key)


def split_segment(spans: Sequence[SpanDays], segment: Segment, cut: int) -> list[Segment]:
    """Returns the two segments that the midnight `cut` makes of one."""
    day = cut // DAY_S
    return [
        _segment(spans, segment.first, day - 1),
        _segment(spans, day, segment.last),
    ]


def _blocks(days: Iterable[int]) -> list[tuple[int, int]]:
    """Returns first and last day of each block of a span."""
    ordered = sorted(days)
    width = 1
    while len({day // width for day in ordered}) > _BLOCKS_OF_A_SPAN:
        width *= 2
    groups = itertools.groupby(ordered, key=lambda day: day // width)
    blocks = [list(group) for _, group in groups]
    return [(block[0], block[-1]) for block in blocks]


def _segment(spans: Sequence[SpanDays], first: int, last: int) -> Segment:
    inside = [at for at, span in enumerate(spans) if any(first <= day <= last for day in span.days)]
    places = sorted(place for at in inside for place in spans[at].places)
    rank = {place: number for number, place in enumerate(places)}
    ranks = tuple(tuple(rank[place] for place in spans[at].places) for at in inside)
    made_of = [[spans[at].key, list(some)] for at, some in zip(inside, ranks, strict=True)]
    return Segment(
        first=first,
        last=last,
        spans=tuple(inside),
        ranks=ranks,
        n_buckets=max((spans[at].n_buckets for at in inside), default=1),
        key=key_of("segment", first, last, made_of),
    )
