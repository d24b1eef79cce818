"""Which training positives validation holds back: drawn as the test part was.

If validation is drawn differently from the test part, early stopping and tuning optimise a
different task. The draws here see only training positives.

newest_share   those after a moment, as a split by time
last_events    the last of each user, as `last_out`
random_share   a share of each user's, evenly or tilted to popular items
given_part     those that the data name
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from recsys.data.config import ValidationConfig
from recsys.data.event_log import EventLog, EventShard
from recsys.data.event_times import mix
from recsys.data.shuffle import Permutation
from recsys.data.split import SplitRule
from recsys.errors import RecsysError, UsageError
from recsys.ragged import ranges

Draw = Literal["newest", "last", "random", "popular", "given"]
"""How events were chosen, as `train.validation.like` has it."""
AT_ONCE: tuple[Draw, ...] = ("random", "popular", "given")
"""Draws whose events aren't newer than the kept ones: one query a user, for all of them."""

_SEED = (0, 2)
_SALT = np.uint64(2)
_STEEPEST, _HALVINGS = 8.0, 40
_MOST = 0.75


def draw_of(events: EventLog, config: ValidationConfig, split: SplitRule) -> Draw:
    """Returns how validation draws: as the config says, or as the test part was drawn.

    Args:
        events: The training positives.
        config: How they are to be drawn.
        split: How the positives were split, and what orders them.

    Raises:
        UsageError: The draw needs what the data don't have.
    """
    if config.like is None:
        draws: dict[str, Draw] = {"last_out": "last", "random": "random"}
        return "given" if events.valid is not None else draws.get(split.split, "newest")
    if config.like == "last" and split.order == "none":
        raise UsageError(
            "R337",
            "train.validation.like: last needs events that have an order.",
            "Set train.validation.like to random or popular, or leave it out.",
            split.text,
        )
    is_estimated = config.like == "popular" and config.popularity is None
    if (config.like == "given" or is_estimated) and events.valid is None:
        raise UsageError(
            "R337",
            f"train.validation.like: {config.like} needs a part that the data name for validation.",
            "Name it by data.interactions.valid_parts or valid_files, and ingest again;"
            " or set train.validation.like to another draw"
            + (", or train.validation.popularity to a power." if is_estimated else "."),
            split.text,
        )
    return config.like


def is_asked_at_once(events: EventLog, config: ValidationConfig | None, split: SplitRule) -> bool:
    """Returns whether the events held back aren't newer than the events that queries know.

    Args:
        events: The training positives.
        config: How validation draws; None: without validation, the split decides.
        split: How the positives were split, and what orders them.

    Raises:
        UsageError: See `draw_of`.
    """
    draw = draw_of(events, config or ValidationConfig(), split)
    return draw in AT_ONCE and not (draw == "given" and _come_last(events, given_part(events)))


def _come_last(events: EventLog, held: np.ndarray) -> bool:
    """Returns whether events [places] are the newest of most users who have others too."""
    lengths, user = np.diff(events.offsets), events.user_index(held)
    n_held = np.bincount(user, minlength=len(lengths))
    place = np.bincount(user, held - events.offsets[user], len(lengths))
    has_both = (n_held > 0) & (n_held < lengths)
    n, n_held, place = lengths[has_both], n_held[has_both], place[has_both]
    # Of a random draw the mean place is above that of the others for half of the users.
    is_last = place / n_held > (n * (n - 1) / 2 - place) / (n - n_held)
    return is_last.mean() > _MOST if len(is_last) else True


def held_back(events: EventLog, config: ValidationConfig, draw: Draw) -> np.ndarray:
    """Returns the places of the events that validation holds back.

    The same in every process and every run: a function of the events and the config.

    Args:
        events: The training positives.
        config: How many, and how they are drawn.
        draw: The draw, as `draw_of` returned it.

    Returns:
        Places in the log `[h]` int64, ascending; not all.

    Raises:
        RecsysError: There are fewer than two events, or the data name all for validation.
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
    if draw == "given":
        return given_part(events)
    power = config.popularity or 0.0
    if draw == "popular" and config.popularity is None:
        power = popularity_power(events, given_part(events))
    return random_share(events, config.share, power)


# --- the newest


def newest_share(events: EventLog, share: float) -> np.ndarray:
    """Returns the places of the newest share (0..1) of two or more events: some, and not all."""
    n = len(events)
    return newest_events(events, min(max(round(share * n), 1), n - 1))


def newest_events(events: EventLog, most: int) -> np.ndarray:
    """Returns the places of the newest events `[n]` int64, ascending, `most` or all.

    Of events in the second that the border falls into, as many as are needed are chosen
    at random, the same ones each time: data without an order are divided at random.
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


def _newest_times(events: EventLog, most: int) -> np.ndarray:
    """Returns the `most` newest times, in any order; no more than those and a shard are held."""
    newest = np.zeros(0, np.int64)
    for shard in events.shards:
        newest = np.concatenate([newest, shard.timestamp])
        if len(newest) > most:
            newest = np.partition(newest, len(newest) - most)[len(newest) - most :]
    return newest


def _some(ties: list[np.ndarray], n: int) -> list[np.ndarray]:
    """Returns `n` of the places `ties`, which are those of each shard."""
    ends = np.cumsum([0, *(len(part) for part in ties)])
    chosen = np.sort(Permutation(int(ends[-1]), _SEED)[np.arange(n)])
    borders = np.searchsorted(chosen, ends)
    return [part[chosen[borders[i] : borders[i + 1]] - ends[i]] for i, part in enumerate(ties)]


# --- of each user


def last_events(events: EventLog, n: int = 1) -> np.ndarray:
    """Returns the places of each user's last `n` events `[h]` int64; the first is always kept."""
    offsets = events.offsets
    n_held = np.clip(np.diff(offsets) - 1, 0, n)
    return ranges(offsets[1:] - n_held, n_held)


def random_share(events: EventLog, share: float, power: float = 0.0) -> np.ndarray:
    """Returns the places of a random share of each user's events.

    An event of a user with n events is held back with probability `share · n · w / Σ w`,
    at most 1, where w = c^`power` for an item with c events and Σ is over the user's: at
    power 0 all alike, above it rather the popular ones. Whether it is depends on a hash of
    user and item, so that events of one item go together. Each user keeps one or more.

    Args:
        events: The training positives.
        share: Share of a user's events that is held back, in the mean (0..1).
        power: Power of popularity; items that share a row count as one.

    Returns:
        Places in the log `[h]` int64, ascending.
    """
    weights = np.maximum(events.item_row.counts(), 1.0) ** power if power else None
    parts = [np.zeros(0, np.int64)]
    first_user = 0
    for shard, start in zip(events.shards, events.item_row.starts, strict=False):
        is_held = _drawn_of_users(shard, first_user, share, weights)
        parts.append(np.flatnonzero(is_held) + start)
        first_user += len(shard.offsets) - 1
    return np.concatenate(parts)


def _drawn_of_users(
    shard: EventShard, first_user: int, share: float, weights: np.ndarray | None
) -> np.ndarray:
    """Returns which events of a shard `[n]` bool are drawn.

    Args:
        shard: The events.
        first_user: Place of its first user in the log.
        share: Share of a user's events.
        weights: Weight of each item row `[item rows]`; None: all alike.
    """
    lengths = np.diff(shard.offsets)
    user = np.repeat(np.arange(len(lengths)), lengths)
    mixed = mix(mix(_SALT + (user + first_user).astype(np.uint64)) ^ shard.item_row.view(np.uint32))
    draw = mixed / 2.0**64
    if weights is not None:
        weight = weights[shard.item_row]
        totals = np.bincount(user, weight, len(lengths))
        draw /= weight * (lengths / np.maximum(totals, 1e-300))[user]
    is_held = draw < share
    # Of a user who would have none left, what was the nearest to being kept is.
    is_whole = (np.bincount(user[is_held], minlength=len(lengths)) == lengths)[user]
    highest = np.zeros(len(lengths))
    np.maximum.at(highest, user[is_whole], draw[is_whole])
    is_held[is_whole & (draw == highest[user])] = False
    return is_held


def popularity_power(events: EventLog, held: np.ndarray) -> float:
    """Returns the power of popularity that a part of the training positives was drawn with.

    The power at which a draw of `random_share` has, in the mean, the same sum of log counts
    as the part. That sum grows with the power, so it is found by bisection. The part must be
    one that may be looked at: what the data name for validation, never the test part.

    Args:
        events: The training positives.
        held: Places of the part `[h]`, ascending.

    Returns:
        The power, between -8 and 8; about 0 for a part that was drawn evenly.
    """
    log_count = np.log(np.maximum(events.item_row.counts(), 1))
    x, offsets = log_count[np.asarray(events.item_row)], events.offsets
    lengths = np.diff(offsets)
    user = np.repeat(np.arange(len(lengths)), lengths)
    n_held, sum_held = np.bincount(user[held], minlength=len(lengths)), x[held].sum()
    low, high = -_STEEPEST, _STEEPEST
    for _ in range(_HALVINGS):
        power = (low + high) / 2
        weight = np.exp(power * (x - log_count.max()))
        totals, sums = (np.bincount(user, w, len(lengths)) for w in (weight, weight * x))
        is_drawn = n_held > 0
        if (n_held * sums)[is_drawn] @ (1 / totals[is_drawn]) < sum_held:
            low = power
        else:
            high = power
    return round((low + high) / 2, 6)


# --- what the data name


def given_part(events: EventLog) -> np.ndarray:
    """Returns the places of the events that the data name for validation `[h]` int64.

    Raises:
        RecsysError: They name all.
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
