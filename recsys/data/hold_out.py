"""The training positives: those that validation holds back, and those that training sees.

Validation draws events like the test part: drawn differently, early stopping and tuning would
optimise a different task. The draws only read training positives.

newest_share   events after a point in time, like a split by time
last_events    the last events of each user, like `last_out`
random_share   a share of each user's events
given_part     events that the data mark

A kept event has a number, 0 … n - 1, and an index in the log. Without a hold-out the two are the
same, and nothing is copied. With one, each held-back event takes 8 bytes, and the
kept items, if they are read at all, 4 bytes per event.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, Literal

import numpy as np

from recsys.data.config import ValidationConfig
from recsys.data.event_log import EventLog, EventShard, ShardedColumn, UserLog, newest_first
from recsys.data.hashes import mix
from recsys.data.shuffle import Permutation
from recsys.data.split import SplitRule
from recsys.errors import RecsysError, UsageError
from recsys.ragged import ranges, run_starts

Draw = Literal["newest", "last", "random", "given"]
"""How events are chosen, as in `train.validation.like`."""
ONE_QUERY_PER_USER: tuple[Draw, ...] = ("random", "given")
"""Draws whose events aren't newer than the kept ones: one query per user covers all of them."""

_SEED = (0, 2)
_SALT = np.uint64(2)
_MOST = 0.75


def draw_of(events: EventLog, config: ValidationConfig, split: SplitRule) -> Draw:
    """Returns how validation draws: as the config says, or like the test part.

    Args:
        events: The training positives.
        config: Config of the validation.
        split: How the positives were split, and their order.

    Raises:
        UsageError: The draw needs something that the data don't have.
    """
    if config.like is None:
        draws: dict[str, Draw] = {"last_out": "last", "random": "random"}
        return "given" if events.valid is not None else draws.get(split.split, "newest")
    if config.like == "last" and split.order == "none":
        raise UsageError(
            "R337",
            "train.validation.like: last needs events that have an order.",
            "Set train.validation.like to random, or leave it out.",
            split.text,
        )
    if config.like == "given" and events.valid is None:
        raise UsageError(
            "R337",
            "train.validation.like: given needs a part that the data name for validation.",
            "Name it by data.interactions.valid_parts or valid_files, and ingest again;"
            " or set train.validation.like to another draw.",
            split.text,
        )
    return config.like


def has_one_query_per_user(
    events: EventLog, config: ValidationConfig | None, split: SplitRule
) -> bool:
    """Returns whether the held-back events aren't newer than the events in the queries' histories.

    Args:
        events: The training positives.
        config: How validation draws; None: without validation, the split decides.
        split: How the positives were split, and their order.

    Raises:
        UsageError: See `draw_of`.
    """
    draw = draw_of(events, config or ValidationConfig(), split)
    return draw in ONE_QUERY_PER_USER and not (
        draw == "given" and _come_last(events, given_part(events))
    )


def _come_last(events: EventLog, held: np.ndarray) -> bool:
    """Returns whether the events at indices `held` are the newest of most users with others."""
    lengths, user = np.diff(events.offsets), events.user_index(held)
    n_held = np.bincount(user, minlength=len(lengths))
    place = np.bincount(user, held - events.offsets[user], len(lengths))
    has_both = (n_held > 0) & (n_held < lengths)
    n, n_held, place = lengths[has_both], n_held[has_both], place[has_both]
    # In a random draw, the mean position is above that of the others for half of the users.
    is_last = place / n_held > (n * (n - 1) / 2 - place) / (n - n_held)
    return is_last.mean() > _MOST if len(is_last) else True


def held_back(events: EventLog, config: ValidationConfig, draw: Draw) -> np.ndarray:
    """Returns the indices of the events that validation holds back.

    They are a function of the events and the config, the same in every process and every run.

    Args:
        events: The training positives.
        config: Number of events, and how they are drawn.
        draw: The draw, as `draw_of` returned it.

    Returns:
        Indices in the log `[h]` int64, ascending; never all.

    Raises:
        RecsysError: There are fewer than two events, or the data mark all for validation.
    """
    if len(events) < 2:
        raise RecsysError(
            "R328",
            "There must be at least two training positives, to hold some back for validation.",
            "Add data, or set train.validation to null.",
            len(events),
        )
    if draw == "newest":
        return newest_share(events, config.share)
    if draw == "last":
        return last_events(events, config.last)
    return given_part(events) if draw == "given" else random_share(events, config.share)


# --- the newest


def newest_share(events: EventLog, share: float) -> np.ndarray:
    """Returns the indices of the newest `share` (0..1) of events: at least one, but never all."""
    n = len(events)
    return newest_events(events, min(max(round(share * n), 1), n - 1))


def newest_events(events: UserLog[Any], most: int) -> np.ndarray:
    """Returns the indices of the newest `most` events `[n]` int64, ascending.

    Ties within the second of the border are broken at random, but reproducibly: data without
    an order are divided at random.
    """
    if len(events) <= most:
        return np.arange(len(events))
    newest = _newest_times(events, most)
    moment = newest.min()
    ties = [np.flatnonzero(shard.timestamp == moment) for shard in events.shards]
    chosen = _some(ties, int((newest == moment).sum()))
    parts = [np.zeros(0, np.int64)]
    for shard, tied, start in zip(events.shards, chosen, events.item_row.starts, strict=False):
        newer = np.flatnonzero(shard.timestamp > moment)
        parts.append(np.sort(np.concatenate([newer, tied])) + start)
    return np.concatenate(parts)


def _newest_times(events: UserLog[Any], most: int) -> np.ndarray:
    """Returns the `most` newest times, in any order; holds no more than those and a shard."""
    newest = np.zeros(0, np.int64)
    for shard in events.shards:
        newest = np.concatenate([newest, shard.timestamp])
        if len(newest) > most:
            newest = np.partition(newest, len(newest) - most)[len(newest) - most :]
    return newest


def _some(ties: list[np.ndarray], n: int) -> list[np.ndarray]:
    """Returns `n` of the indices `ties`, which are grouped by shard."""
    ends = np.cumsum([0, *(len(part) for part in ties)])
    chosen = np.sort(Permutation(int(ends[-1]), _SEED)[np.arange(n)])
    borders = np.searchsorted(chosen, ends)
    return [part[chosen[borders[i] : borders[i + 1]] - ends[i]] for i, part in enumerate(ties)]


# --- of each user


def last_events(events: EventLog, n: int = 1) -> np.ndarray:
    """Returns the indices of each user's last `n` events `[h]` int64; the first is always kept."""
    offsets = events.offsets
    n_held = np.clip(np.diff(offsets) - 1, 0, n)
    return ranges(offsets[1:] - n_held, n_held)


def random_share(events: EventLog, share: float) -> np.ndarray:
    """Returns the indices of a random share of each user's events.

    The draw is a hash of user and item, so events with the same item go together. Each user keeps
    at least one event.

    Args:
        events: The training positives.
        share: Mean share of a user's events that is held back (0..1).

    Returns:
        Indices in the log `[h]` int64, ascending.
    """
    parts = [np.zeros(0, np.int64)]
    first_user = 0
    for shard, start in zip(events.shards, events.item_row.starts, strict=False):
        parts.append(np.flatnonzero(_drawn_of_users(shard, first_user, share)) + start)
        first_user += len(shard.offsets) - 1
    return np.concatenate(parts)


def _drawn_of_users(shard: EventShard, first_user: int, share: float) -> np.ndarray:
    """Returns which events of a shard are drawn `[n]` bool.

    Args:
        shard: The events.
        first_user: Index of its first user in the log.
        share: Share of a user's events.
    """
    lengths = np.diff(shard.offsets)
    user = np.repeat(np.arange(len(lengths)), lengths)
    mixed = mix(mix(_SALT + (user + first_user).astype(np.uint64)) ^ shard.item_row.view(np.uint32))
    draw = mixed / 2.0**64
    is_held = draw < share
    # A user who would have no event left keeps the one with the highest draw.
    is_whole = (np.bincount(user[is_held], minlength=len(lengths)) == lengths)[user]
    highest = np.zeros(len(lengths))
    np.maximum.at(highest, user[is_whole], draw[is_whole])
    is_held[is_whole & (draw == highest[user])] = False
    return is_held


# --- marked by the data


def given_part(events: EventLog) -> np.ndarray:
    """Returns the indices of the events that the data mark for validation `[h]` int64.

    Raises:
        RecsysError: They mark all events.
    """
    held = np.flatnonzero(np.zeros(0) if events.valid is None else np.asarray(events.valid))
    if len(held) == len(events):
        raise RecsysError(
            "R337",
            "Some training positives must not be of the part for validation.",
            "Correct data.interactions.train_parts and valid_parts, or files and valid_files.",
            f"{len(held)} of {len(events)}",
        )
    return held


# --- what training sees

_MOST_TIMES = 1 << 22
"""Maximum number of times to sort."""


class _Kept:
    """Events except the held-back ones, whose indices are `held`."""

    held: np.ndarray

    def log_indices(self, numbers: np.ndarray) -> np.ndarray:
        """Returns the indices in the log of the kept events `numbers` `[b]`, as int64 `[b]`."""
        if not len(self.held):
            return numbers
        return numbers + np.searchsorted(self._kept_before, numbers, side="right")

    @functools.cached_property
    def _kept_before(self) -> np.ndarray:
        return self.held - np.arange(len(self.held))


@dataclasses.dataclass(frozen=True, eq=False)
class KeptShard(_Kept):
    """The kept events of a shard.

    Attributes:
        shard: All events of the shard.
        held: Indices of the held-back events `[h]` int64, ascending.
        hidden: Indices of the events that are left out of histories `[k]` int64, ascending.
    """

    shard: EventShard
    held: np.ndarray
    hidden: np.ndarray

    def __len__(self) -> int:
        return len(self.shard) - len(self.held)

    def newest(self, numbers: np.ndarray, length: int) -> np.ndarray:
        """Returns the newest kept items of the events' users, before or after the events.

        Args:
            numbers: Kept events of the shard `[b]`.
            length: Maximum number of items per user.

        Returns:
            Item rows `[b, length]` int32, the newest first, padded with 0. They include the event
            itself.
        """
        user = self._user(numbers)
        return newest_first(self.item_row, self.offsets[user], self.offsets[user + 1], length)

    def past(self, numbers: np.ndarray, length: int, feature: str | None = None) -> np.ndarray:
        """Returns the histories before events; events of the same second are left out.

        Args:
            numbers: Kept events of the shard `[b]`.
            length: Maximum length of a history.
            feature: Name of a feature of these events to return instead of their items.

        Returns:
            Item rows `[b, length]` int32, or the feature `[b, length, …]` int32 or float32; the
            newest first, padded with 0.
        """
        indices = self.log_indices(numbers)
        if self._is_past_whole:
            return self.shard.histories(indices, length, feature)
        ends = self.shard.history.ends(indices)
        ends = ends - np.searchsorted(self.hidden, ends)
        start = self._history_offsets[self._user(numbers)]
        return newest_first(self._column(feature), start, ends, length)

    def others(self, numbers: np.ndarray, length: int, feature: str | None = None) -> np.ndarray:
        """Returns the newest events of histories, before or after events, without the events' own.

        Args and results are those of `past` (leave one out).
        """
        user, places = self._user(numbers), numbers
        if self.shard.longer_history is not None:
            places = self.shard.history.places(self.log_indices(numbers))
            places = places - np.searchsorted(self.hidden, places)
        start, end = self._history_offsets[user], self._history_offsets[user + 1]
        rows = newest_first(self._column(feature), start, end, length + 1)
        # Columns count back from the user's last event.
        is_before = np.arange(length) < (end - 1 - places)[:, None]
        is_before = is_before.reshape(*is_before.shape, *[1] * (rows.ndim - 2))
        others = np.where(is_before, rows[:, :-1], rows[:, 1:])
        if feature is not None:
            return others
        # If the user has several events with the item, its other occurrences are masked, too.
        own = self.item_row[numbers]
        return np.where(others == own[:, None], 0, others)

    def of_user(self, numbers: np.ndarray) -> np.ndarray:
        """Returns the number of kept events of the events' users `[b]` int64."""
        user = self._user(numbers)
        return self.offsets[user + 1] - self.offsets[user]

    @property
    def item_row(self) -> np.ndarray:
        """Items of the kept events `[kept]` int32."""
        return self._column(None) if self.shard.longer_history is None else self._own_item_row

    @functools.cached_property
    def _own_item_row(self) -> np.ndarray:
        return np.delete(self.shard.item_row, self.held)

    def _column(self, feature: str | None) -> np.ndarray:
        """Returns a feature of the events of histories `[kept, …]`; None: their items."""
        if feature not in self._columns:
            column = self.shard.history.column(feature)
            column = np.delete(column, self.hidden, axis=0) if len(self.hidden) else column
            self._columns[feature] = column
        return self._columns[feature]

    @functools.cached_property
    def _columns(self) -> dict[str | None, np.ndarray]:
        return {}

    @functools.cached_property
    def offsets(self) -> np.ndarray:
        """Index of each user's first kept event, and the end `[users + 1]` int64."""
        return self.shard.offsets - np.searchsorted(self.held, self.shard.offsets)

    @functools.cached_property
    def _history_offsets(self) -> np.ndarray:
        """Index of each user's first event in `_column`, and the end `[users + 1]` int64."""
        offsets = self.shard.history.offsets
        return offsets - np.searchsorted(self.hidden, offsets)

    @functools.cached_property
    def _is_past_whole(self) -> bool:
        """Whether all events before any kept event of the same user are kept.

        This is so for a hold-out of the newest events. Then the column is read without a copy.
        """
        if len(self.hidden) > len(self.held):
            return False
        user = np.searchsorted(self.shard.offsets, self.held, side="right") - 1
        is_first = run_starts(user)
        user, first_held = user[is_first], self.held[is_first]
        last_kept = self.offsets[user + 1] - 1
        has_kept = last_kept >= self.offsets[user]
        newest, time = self.log_indices(last_kept[has_kept]), self.shard.timestamp
        return bool((time[newest] <= time[first_held[has_kept]]).all())

    def _user(self, numbers: np.ndarray) -> np.ndarray:
        return np.searchsorted(self.offsets, numbers, side="right") - 1


def _divided(places: np.ndarray, starts: np.ndarray) -> list[np.ndarray]:
    """Returns ascending indices by shard, relative to the shard's start."""
    borders = np.searchsorted(places, starts)
    return [places[a:b] - start for a, b, start in zip(borders, borders[1:], starts, strict=False)]


@dataclasses.dataclass(frozen=True, eq=False)
class KeptEvents(_Kept):
    """The kept events of a log.

    Attributes:
        log: All events.
        held: Indices of the held-back events `[h]` int64, ascending.
        draw: How they were chosen.
    """

    log: EventLog
    held: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(0, np.int64))
    draw: Draw = "newest"

    def __len__(self) -> int:
        return len(self.log) - len(self.held)

    @functools.cached_property
    def shards(self) -> tuple[KeptShard, ...]:
        """The kept events of each shard."""
        starts = self.log.item_row.starts
        held = hidden = _divided(self.held, starts)
        if self.log.has_others:
            hidden = _divided(self.hidden, self.log.history.item_row.starts)
        return tuple(map(KeptShard, self.log.shards, held, hidden))

    @functools.cached_property
    def hidden(self) -> np.ndarray:
        """Indices in `log.history` of the events left out of histories `[k]` int64, ascending.

        They are the held-back ones and, if held-back events aren't the newest, also other events of
        the same user and item, which would give them away.
        """
        log = self.log
        if not log.has_others:
            return self.held
        places = log.history.places(self.held)
        if self.draw not in ONE_QUERY_PER_USER or not len(places):
            return places
        item, offsets = np.asarray(log.history.item_row), log.history.offsets
        user = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
        pairs = user * (1 + int(item.max())) + item
        is_other = np.ones(len(pairs), bool)
        is_other[log.history.places(np.arange(len(log)))] = False
        is_hidden = is_other & np.isin(pairs, pairs[places])
        is_hidden[places] = True
        return np.flatnonzero(is_hidden)

    def history_numbers(self, places: np.ndarray) -> np.ndarray:
        """Returns how many events of histories are before indices of `log.history` `[b]` int64."""
        return places - np.searchsorted(self.hidden, places)

    def history_places(self, numbers: np.ndarray) -> np.ndarray:
        """Returns the indices in `log.history` of the events of histories `numbers` `[b]` int64."""
        before = self.hidden - np.arange(len(self.hidden))
        return numbers + np.searchsorted(before, numbers, side="right")

    def items(self, numbers: np.ndarray) -> np.ndarray:
        """Returns the items `[n]` int32 of the kept events `numbers` `[n]`, in any order."""
        order, items = np.argsort(numbers), np.empty(len(numbers), np.int32)
        items[order] = self.log.item_row.gather_sorted(self.log_indices(numbers[order]))
        return items

    def item_counts(self, n_rows: int) -> np.ndarray:
        """Returns the number of kept events of each item row `[n_rows]` int64."""
        return np.pad(self._item_counts, (0, n_rows - len(self._item_counts)))

    def user_counts(self, n_rows: int) -> np.ndarray:
        """Returns the number of kept events of each user row `[n_rows]` int64."""
        return self._counts(self.log.user_row, n_rows)

    @functools.cached_property
    def n_users(self) -> int:
        """Number of users with a kept event."""
        return sum(int((np.diff(part.offsets) > 0).sum()) for part in self.shards)

    @functools.cached_property
    def starts(self) -> np.ndarray:
        """Number of the first kept event of each shard, and the end `[shards + 1]` int64."""
        return np.cumsum([0, *(len(shard) for shard in self.shards)])

    @functools.cached_property
    def times(self) -> np.ndarray:
        """Times of kept events, int64 [seconds since 1970, UTC], ascending.

        With more than `_MOST_TIMES` events, a systematic sample.
        """
        stride = -(-len(self) // _MOST_TIMES)
        parts = [np.delete(part.shard.timestamp, part.held)[::stride] for part in self.shards]
        return np.sort(np.concatenate(parts))

    def newer_share(self, times: np.ndarray) -> np.ndarray:
        """Returns the share of kept events after each of `times` `[n]`, float64 [0..1]."""
        return 1.0 - np.searchsorted(self.times, times, side="right") / len(self.times)

    @functools.cached_property
    def _item_counts(self) -> np.ndarray:
        return self._counts(self.log.item_row)

    def _counts(self, rows: ShardedColumn, n_rows: int = 0) -> np.ndarray:
        """Returns the number of kept events of each row `[max(n_rows, highest + 1)]`."""
        counts = rows.counts(n_rows)
        return counts - np.bincount(rows.gather_sorted(self.held), minlength=len(counts))
