"""The events for training: those of a log, without the ones held back for validation.

Numbers count the kept events, 0 … n - 1; places are where they lie in the log. Without
a hold-out the two are the same, and nothing is copied. With one, the places held back
take 8 bytes each, and the kept items, where they are read at all, 4 bytes an event.
"""

from __future__ import annotations

import dataclasses
import functools

import numpy as np

from recsys.config import RetrievalConfig, TrainConfig
from recsys.data.event_log import EventLog, EventShard, newest_first, split_sorted
from recsys.data.sampling import Permutation
from recsys.errors import RecsysError

_NONE = np.zeros(0, np.int64)


@dataclasses.dataclass(frozen=True, eq=False)
class KeptShard:
    """The kept events of a shard.

    Attributes:
        shard: All of its events.
        held: Places of those held back `[h]` int64, ascending.
    """

    shard: EventShard
    held: np.ndarray

    def __len__(self) -> int:
        return len(self.shard) - len(self.held)

    def places(self, numbers: np.ndarray) -> np.ndarray:
        """Returns where the kept events `numbers` `[b]` lie in the shard `[b]` int64."""
        if not len(self.held):
            return numbers
        return numbers + np.searchsorted(self._kept_before, numbers, side="right")

    def newest(self, numbers: np.ndarray, length: int) -> np.ndarray:
        """Returns the newest kept items of the users of events, before or after them.

        Args:
            numbers: Kept events of the shard `[b]`.
            length: Items of a user at the most.

        Returns:
            Item rows `[b, length]` int32, the newest first, padded with 0; the event's
            own item is among them.
        """
        user = self._user(numbers)
        return newest_first(self.item_row, self.offsets[user], self.offsets[user + 1], length)

    def others(self, numbers: np.ndarray, length: int) -> np.ndarray:
        """Returns what `newest` does, without the events themselves (leave one out)."""
        end = self.offsets[self._user(numbers) + 1]
        rows = self.newest(numbers, length + 1)
        # Places of a row count back from the user's last event.
        is_before = np.arange(length) < (end - 1 - numbers)[:, None]
        others = np.where(is_before, rows[:, :-1], rows[:, 1:])
        # Where the user took the same item twice, the answer must not stand in the question.
        own = self.item_row[numbers]
        return np.where(others == own[:, None], 0, others)

    def of_user(self, numbers: np.ndarray) -> np.ndarray:
        """Returns how many kept events the users of events `[b]` have `[b]` int64."""
        user = self._user(numbers)
        return self.offsets[user + 1] - self.offsets[user]

    @functools.cached_property
    def item_row(self) -> np.ndarray:
        """Items of the kept events `[kept]` int32."""
        return np.delete(self.shard.item_row, self.held) if len(self.held) else self.shard.item_row

    @functools.cached_property
    def offsets(self) -> np.ndarray:
        """First kept event of each user, and the end `[users + 1]` int64."""
        return self.shard.offsets - np.searchsorted(self.held, self.shard.offsets)

    @functools.cached_property
    def _kept_before(self) -> np.ndarray:
        return self.held - np.arange(len(self.held))

    def _user(self, numbers: np.ndarray) -> np.ndarray:
        return np.searchsorted(self.offsets, numbers, side="right") - 1


@dataclasses.dataclass(frozen=True, eq=False)
class KeptEvents:
    """The kept events of a log.

    Attributes:
        log: All events.
        held: Places of those held back `[h]` int64, ascending.
    """

    log: EventLog
    held: np.ndarray = dataclasses.field(default_factory=lambda: _NONE)

    def __len__(self) -> int:
        return len(self.log) - len(self.held)

    @functools.cached_property
    def shards(self) -> tuple[KeptShard, ...]:
        """The kept events of each shard."""
        starts = self.log.item_row.starts
        borders = np.searchsorted(self.held, starts)
        return tuple(
            KeptShard(shard, self.held[borders[i] : borders[i + 1]] - starts[i])
            for i, shard in enumerate(self.log.shards)
        )

    def item_counts(self, n_rows: int) -> np.ndarray:
        """Returns the kept events of each item row `[n_rows]` int64."""
        return np.pad(self._item_counts, (0, n_rows - len(self._item_counts)))

    def user_counts(self, n_rows: int) -> np.ndarray:
        """Returns the kept events of each user row `[n_rows]` int64."""
        counts = np.zeros(n_rows, np.int64)
        for part in self.shards:
            counts += np.bincount(part.shard.user_row, minlength=n_rows)
            counts -= np.bincount(part.shard.user_row[part.held], minlength=n_rows)
        return counts

    @functools.cached_property
    def n_users(self) -> int:
        """Users with a kept event."""
        return sum(int((np.diff(part.offsets) > 0).sum()) for part in self.shards)

    @functools.cached_property
    def starts(self) -> np.ndarray:
        """First kept event of each shard, and the end `[shards + 1]` int64."""
        return np.cumsum([0, *(len(shard) for shard in self.shards)])

    @functools.cached_property
    def _item_counts(self) -> np.ndarray:
        counts = np.zeros(0, np.int64)
        for part in self.shards:
            of_shard = np.bincount(part.shard.item_row)
            of_shard -= np.bincount(part.shard.item_row[part.held], minlength=len(of_shard))
            longest = max(len(counts), len(of_shard))
            counts, of_shard = (np.pad(x, (0, longest - len(x))) for x in (counts, of_shard))
            counts += of_shard
        return counts


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


# --- examples


def read_events(
    events: KeptEvents,
    numbers: np.ndarray,
    model: RetrievalConfig,
    known: int,
    user_balance: float = 0.0,
) -> dict[str, np.ndarray]:
    """Reads events at any places, with the histories of their users.

    Sorted, they meet each shard once and its pages in order, which is several times
    faster for many events than as they come.

    Args:
        events: The events that training sees.
        numbers: Which of them `[n]` int64.
        model: What a history is, and how long.
        known: Newest items of each event's user.
        user_balance: Power of its user's events that an event's weight is divided by:
            at 1 all users weigh the same, whatever they did (Covington et al., "Deep
            Neural Networks for YouTube Recommendations", RecSys 2016, section 3.3,
            takes equally many examples of each).

    Returns:
        `user_row` and `item_row` `[n]` int32; `history` `[n, model.history]` int32, what the
        user did before, or did else; where `known` is not 0, `known` `[n, known]` int32, the
        newest items of the user, its own among them or not; and `weight` `[n]` float32 where
        one is not 1. Items are the newest first, padded with 0.
    """
    n, order = len(numbers), np.argsort(numbers)
    widths = {"history": model.history, **({"known": known} if known else {})}
    read = {name: np.empty(n, np.int32) for name in ("user_row", "item_row")}
    read |= {name: np.empty((n, width), np.int32) for name, width in widths.items()}
    if events.log.weight is not None or user_balance > 0:
        read["weight"] = np.empty(n, np.float32)
    for number, part in split_sorted(numbers[order], events.starts):
        kept, to = events.shards[number], order[part]
        ordered, shard = numbers[to] - events.starts[number], kept.shard
        places = kept.places(ordered)
        read["user_row"][to] = shard.user_row[places]
        read["item_row"][to] = shard.item_row[places]
        if model.history and model.history_of == "others":
            read["history"][to] = kept.others(ordered, model.history)
        elif model.history:
            # What lies before a kept event in time is kept, too: the newest are held back.
            read["history"][to] = shard.histories(places, model.history)
        if known:
            read["known"][to] = kept.newest(ordered, known)
        if "weight" in read:
            own = 1.0 if shard.weight is None else shard.weight[places]
            read["weight"][to] = own * kept.of_user(ordered) ** -user_balance
    return read
