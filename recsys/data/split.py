"""The order of events, and the split of positives into training and held-out ones.

Histories, hold-outs and newest events are all based on the times of events. For rows in file
order, the position among the rows of the same user serves as the time. Rows without any order
get a random number each, a function of user and item: which events are "newest" is then a
random but reproducible choice, and the order of a history means nothing.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from recsys.data.config import Order, Split
from recsys.data.hashes import pair_hashes
from recsys.errors import RecsysError

TIME = pa.field("timestamp", pa.int64())
"""Time of an event [seconds since 1970, UTC]."""
PLACE = pa.field("place", pa.int64())
"""Position of a row among its user's, counted from the end: 0 is the last, -1 the one before."""

COLUMN: dict[Order, pa.Field | None] = {"time": TIME, "file": PLACE, "none": None}
"""Column of the examples that defines their order."""

_FILE_BITS, _EVENT_BITS = 46, 20
"""Bits for the index of a file, and for the index of an event in its row's list."""
_MOST_FILES, _MOST_LISTS = 1 << (63 - _FILE_BITS), 1 << (_FILE_BITS - _EVENT_BITS)
_SHORT = np.uint64(33)
"""Leaves 31 bits, so that user and time are sorted as one number."""


def file_positions(
    file_index: int, line: np.ndarray, element: np.ndarray | None = None
) -> pa.Array:
    """Returns the positions among the rows of all files `[n]` int64 of rows of one file.

    Args:
        file_index: Index of the file.
        line: Line of each row `[n]`, from 1 on.
        element: Index of each event in its row's list `[n]`; `None`: a row is an event.

    Raises:
        RecsysError: There are too many files, or too many rows with lists, for distinct positions.
    """
    if element is not None and line.max(initial=0) >= _MOST_LISTS:
        raise RecsysError(
            "R266",
            f"The events in lists can be ordered if a file has at most {_MOST_LISTS:,} rows.",
            "Split the file into files that are read in their order.",
            f"row {line.max():,}",
        )
    if file_index >= _MOST_FILES:
        raise RecsysError(
            "R266",
            f"The places in at most {_MOST_FILES:,} files can order the events.",
            "Join the files, in their order; or split at random, without an order.",
            f"file {file_index + 1:,}",
        )
    place = line if element is None else (line << _EVENT_BITS) + element
    return pa.array((file_index << _FILE_BITS) + place, PLACE.type)


def positions_of_users(table: pa.Table) -> pa.Table:
    """Replaces the positions among all files by the positions among the user's rows (`PLACE`).

    Only positions of the same user can be compared: files may hold one user after the other,
    so a later row isn't newer than another user's.

    Args:
        table: All rows of their users, with `user_id` and `place`.
    """
    at = table.column_names.index(PLACE.name)
    codes = codes_of(table["user_id"])
    order = np.lexsort((table[PLACE.name].to_numpy(), codes))
    n_of_users = np.bincount(codes)
    ends = np.cumsum(n_of_users)
    back = np.empty(len(codes), np.int64)
    back[order] = np.arange(len(codes)) + 1 - np.repeat(ends, n_of_users)
    return table.set_column(at, PLACE, pa.array(back))


def codes_of(column: pa.ChunkedArray) -> np.ndarray:
    """Returns a code `[n]` for each value `[n]`, from 0 on; equal values have equal codes."""
    values = column.combine_chunks()
    if not pa.types.is_dictionary(values.type):
        values = values.dictionary_encode("encode")
    return values.indices.to_numpy()


def event_times(examples: pa.Table) -> pa.Array:
    """Returns the times `[n]` int64 of examples, or the numbers that replace them."""
    for field in (TIME, PLACE):
        if field.name in examples.column_names:
            return examples[field.name].combine_chunks()
    draws = pair_hashes(examples["user_id"], examples["item_id"], salt=1) >> _SHORT
    return pa.array(draws.astype(np.int64))


DAY_S = 86_400
MIN_DAYS = 2
"""Minimum number of UTC days with positives for a split by time."""
Part = Literal["train", "valid", "eval"]
PART = pa.field("part", pa.string())
"""Part of a row, a `Part`. After the split, the column is only kept for rows of `train`, and only
if some are `valid`."""


@dataclasses.dataclass(frozen=True)
class SplitRule:
    """How positives were split.

    Attributes:
        split: Which positives are held out, as in `data.split`.
        order: Order of the events.
        eval_share: Share that is held out at random [0..1]; None for other splits.
    """

    split: Split = "time"
    order: Order = "time"
    eval_share: float | None = None

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> SplitRule:
        """Returns the rule from the fields of `to_json`; missing fields get the defaults."""
        names = [field.name for field in dataclasses.fields(cls)]
        return cls(**{name: fields[name] for name in names if name in fields})

    def to_json(self) -> dict[str, Any]:
        """Returns the rule as plain JSON."""
        return dataclasses.asdict(self)

    @classmethod
    def from_text(cls, text: str | bytes | None) -> SplitRule:
        """Returns the rule in a JSON text; by time if it is empty or None."""
        return cls.from_json(json.loads(text)) if text else cls()

    @property
    def has_cut(self) -> bool:
        """Whether the held-out events come after a time, the cut."""
        return self.order == "time" and self.split not in ("random", "given")

    @property
    def text(self) -> str:
        """The rule as JSON."""
        return json.dumps(self.to_json())


BY_TIME = SplitRule()


def count_days(table: pa.Table) -> list[list[int]]:
    """Returns `[day, rows, positives]` of each UTC day [days since 1970], ascending.

    It is empty without times.
    """
    if TIME.name not in table.column_names or not table.num_rows:
        return []
    day = table[TIME.name].to_numpy() // DAY_S
    first = int(day.min())
    rows = np.bincount(day - first)
    positives = np.bincount(day[table["label"].to_numpy() == 1] - first, minlength=len(rows))
    used = np.flatnonzero(rows)
    return np.stack([first + used, rows[used], positives[used]], axis=1).tolist()


def choose_cut(positives_of_day: Mapping[int, int], eval_share: float) -> int:
    """Returns the UTC midnight that holds out about `eval_share` of the positives.

    Args:
        positives_of_day: Number of positives of each day [days since 1970].
        eval_share: Intended share of positives at or after the cut [0..1].

    Returns:
        The midnight with the closest share, the earlier of two; both sides of it have
        positives [seconds since 1970, UTC].

    Raises:
        RecsysError: The positives are on fewer than two days.
    """
    days = np.array(sorted(positives_of_day), np.int64)
    if not len(days):
        raise RecsysError(
            "R207",
            "Some good row must be a positive.",
            "Lower data.interactions.positive_at_least, name other positive_events or another"
            " positive, or look whether all weights are 0.",
            "0 positives",
        )
    if len(days) < MIN_DAYS:
        raise RecsysError(
            "R207",
            f"The positives must span at least {MIN_DAYS} UTC days to be split by time.",
            "Add data, lower data.interactions.positive_at_least, or set data.split to"
            " last_out or random.",
            f"{sum(positives_of_day.values())} positives on {len(days)} days",
        )
    counts = np.array([positives_of_day[day] for day in days.tolist()], np.int64)
    from_day_on = np.cumsum(counts[::-1])[::-1]
    closest = 1 + int(np.argmin(np.abs(from_day_on[1:] - eval_share * counts.sum())))
    return int(days[closest]) * DAY_S


def remark_on_share(positives_of_day: Mapping[int, int], cut: int, wanted: float) -> str | None:
    """Returns a sentence if a cut holds out far more or less than intended; else None.

    Args:
        positives_of_day: Number of positives by day since 1970, without days that have none.
        cut: The cut that `choose_cut` returned [seconds since 1970, UTC].
        wanted: `data.eval_share` [0..1].
    """
    held_out = sum(n for day, n in positives_of_day.items() if day * DAY_S >= cut)
    share = held_out / sum(positives_of_day.values())
    if wanted / 2 <= share <= wanted * 2:
        return None
    return (
        f"{share:.1%} of the positives are held out, where data.eval_share is {wanted:.1%}: they"
        " are split at a UTC midnight, and no other one is closer."
    )


def split_rows(table: pa.Table, split: Split, eval_share: float) -> dict[str, pa.Table]:
    """Returns rows as `train` and `eval`, for all splits except by time.

    Rows that aren't positives are in `train`, except with `given`, or if they are kept: then
    `last_out` holds out those that aren't before the held-out positive of their user, and `random`
    draws them like positives.

    Args:
        table: Interactions in the order of the files; all rows of their users.
        split: `last_out`: holds out the last positive of each user with two or more.
            `random`: holds out positives by a hash of user and item, the same in every run,
            but leaves each user one. `given`: the column `part` decides; `valid` rows are in
            `train`.
        eval_share: Share of the positives that `random` holds out [0..1].
    """
    if split == "given":
        part = table[PART.name]
        is_held = pc.equal(part, "eval").to_numpy()
        if not pc.any(pc.equal(part, "valid")).as_py():
            table = table.drop_columns([PART.name])
        held_out = table.filter(is_held)
        names = [name for name in held_out.column_names if name != PART.name]
        return {"train": table.filter(~is_held), "eval": held_out.select(names)}
    is_held = np.zeros(table.num_rows, bool)
    positives = np.flatnonzero(table["label"].to_numpy() == 1)
    chosen = table.take(positives)
    is_last = split == "last_out"
    is_held[positives] = _last_of_users(chosen) if is_last else _any(chosen, eval_share)
    if any(name.startswith("label:") or name == "history" for name in table.column_names):
        others = np.flatnonzero(table["label"].to_numpy() != 1)
        is_held[others] = (
            _not_before(table, np.flatnonzero(is_held))[others]
            if is_last
            else _draws(table.take(others)) < np.uint64(eval_share * 2.0**64)
        )
    return {"train": table.filter(~is_held), "eval": table.filter(is_held)}


def _last_of_users(positives: pa.Table) -> np.ndarray:
    """Returns which positives `[n]` bool are the last of users with two or more."""
    user = codes_of(positives["user_id"])
    order = np.lexsort((event_times(positives).to_numpy(), user))
    return _is_last(user, order) & (np.bincount(user)[user] > 1)


def _any(positives: pa.Table, share: float) -> np.ndarray:
    """Returns which positives `[n]` bool are chosen by hash; each user keeps at least one."""
    hashes = _draws(positives)
    user = codes_of(positives["user_id"])
    is_last = _is_last(user, np.lexsort((hashes, user)))
    return (hashes < np.uint64(share * 2.0**64)) & ~is_last


def _draws(rows: pa.Table) -> np.ndarray:
    return pair_hashes(rows["user_id"], rows["item_id"], salt=2)


def _not_before(rows: pa.Table, held: np.ndarray) -> np.ndarray:
    """Returns which rows `[n]` bool are not before a row of their user at one of indices `held`."""
    user, time = codes_of(rows["user_id"]), event_times(rows).to_numpy()
    border = np.full(len(user), np.iinfo(np.int64).max)
    border[user[held]] = time[held]
    is_late: np.ndarray = time >= border[user]
    return is_late


def _is_last(user: np.ndarray, order: np.ndarray) -> np.ndarray:
    """Returns which rows `[n]` bool are the last of their users, for an order by user."""
    ordered = user[order]
    is_last = np.ones(len(user), bool)
    is_last[order[:-1]] = ordered[1:] != ordered[:-1]
    return is_last


def one_sided_error(split: Split, train: int, held_out: int) -> RecsysError:
    """Returns the error for a split that leaves a part without positives."""
    cures = {
        "last_out": "Add data: users need at least two positives.",
        "random": "Add data, or change data.eval_share.",
        "given": "Correct data.interactions.train_parts and eval_parts, or eval_files.",
    }
    return RecsysError(
        "R265",
        f"A split must leave positives to train on and to evaluate; {split} doesn't.",
        cures.get(split, "Add data."),
        {"train": train, "eval": held_out},
    )
