"""Which training positives validation holds back: the newest of all users together."""

from __future__ import annotations

import numpy as np

from recsys.config import TrainConfig
from recsys.data.event_log import EventLog
from recsys.data.kept_events import KeptEvents
from recsys.data.permutation import Permutation
from recsys.errors import RecsysError

_BINS = 1 << 16
_SEED = (0, 2)


def training_events(events: EventLog, train: TrainConfig) -> KeptEvents:
    """Returns what training sees of `events`: all, or all but what validation holds back.

    Raises:
        RecsysError: There are fewer than two events to divide.
    """
    if train.validation is None:
        return KeptEvents(events)
    return KeptEvents(events, held_back(events, train.validation.share))


def held_back(events: EventLog, share: float) -> np.ndarray:
    """Returns the places of the newest events.

    Of events in the second that the border falls into, as many as are needed are chosen
    at random, the same ones each time: data without an order are divided at random.

    Args:
        events: The training positives.
        share: Share of them that is held back (0..1).

    Returns:
        Places in the log `[h]` int64, ascending; at least one, and not all.

    Raises:
        RecsysError: There are fewer than two events.
    """
    n = len(events)
    if n < 2:
        raise RecsysError(
            "R328",
            "There must be two training positives or more, to hold some back for validation.",
            "Give more data, or set train.validation to null.",
            n,
        )
    n_held = min(max(round(share * n), 1), n - 1)
    moment, n_newer = _border(events, n_held)
    ties = [np.flatnonzero(shard.timestamp == moment) for shard in events.shards]
    chosen = _some(ties, n_held - n_newer)
    parts = [np.zeros(0, np.int64)]
    for shard, tied, start in zip(events.shards, chosen, events.item_row.starts, strict=False):
        newer = np.flatnonzero(shard.timestamp > moment)
        parts.append(np.sort(np.concatenate([newer, tied])) + start)
    return np.concatenate(parts)


def _border(events: EventLog, rank: int) -> tuple[int, int]:
    """Returns the time of the `rank`-th newest event, and how many are newer.

    Finds it by counting, in ever finer bins, so that no copy of the column is made.
    """
    times = [shard.timestamp for shard in events.shards if len(shard)]
    low = min(int(time.min()) for time in times)
    high = max(int(time.max()) for time in times) + 1
    n_newer = 0
    while high - low > 1:
        width = -(-(high - low) // _BINS)
        counts = np.sum([_counts(time, low, high, width) for time in times], axis=0)
        from_newest = n_newer + np.cumsum(counts[::-1])
        place = int(np.searchsorted(from_newest, rank))
        n_newer = int(from_newest[place - 1]) if place else n_newer
        high = min(low + (len(counts) - place) * width, high)
        low = low + (len(counts) - 1 - place) * width
    return low, n_newer


def _counts(time: np.ndarray, low: int, high: int, width: int) -> np.ndarray:
    """Returns how many times lie in each bin of `width` seconds from `low` to `high`."""
    inside = time[(time >= low) & (time < high)]
    return np.bincount((inside - low) // width, minlength=-(-(high - low) // width))


def _some(ties: list[np.ndarray], n: int) -> list[np.ndarray]:
    """Returns `n` of the places `ties`, which are those of each shard."""
    ends = np.cumsum([0, *(len(part) for part in ties)])
    chosen = np.sort(Permutation(int(ends[-1]), _SEED)[np.arange(n)])
    borders = np.searchsorted(chosen, ends)
    return [part[chosen[borders[i] : borders[i + 1]] - ends[i]] for i, part in enumerate(ties)]
