"""Proposes how to split interactions, and detects whether their rows are ordered."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePath

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from recsys.data.config import InteractionsConfig, Split
from recsys.data.hashes import fingerprints
from recsys.data.inspect.names import shown, words_of
from recsys.data.inspect.profile import Profile
from recsys.data.sources.pieces import read_all
from recsys.data.sources.source_files import patterns, span_pattern
from recsys.data.sources.values import to_ids
from recsys.data.split import DAY_S

_TRAINED = {"train", "training", "learn"}
_TRIED = {"valid", "validation", "val", "dev"}
_HELD = {"test", "testing", "eval", "evaluation", "probe", "heldout", "holdout"}
_PART_WORDS = {"part", "split", "set", "subset", "fold", "partition"}
_ROWS, _COLUMNS = 200_000, 50
_MOST_NAMED_FILES = 100
_LEAST_CHANGES, _MOST_REVERSALS = 0.05, 0.01
"""Shares of a user's consecutive rows that differ, and that contradict the order of a column."""
_LEAST_DESCENTS = 0.2
"""Share of a user's consecutive rows with descending item ids, above which the rows are not sorted
by item; in random order it is one half."""


@dataclasses.dataclass(frozen=True)
class Proposal:
    """A way to split.

    Attributes:
        split: Proposed value of `data.split`.
        reason: Reason for the proposal.
        changes: Its changes to the interactions' config.
        part: The column of the parts, if there is one.
    """

    split: Split
    reason: str
    changes: Mapping[str, object] = dataclasses.field(default_factory=dict)
    part: str | None = None


def propose(
    config: InteractionsConfig, profiles: Mapping[str, Profile], paths: Sequence[str]
) -> Proposal:
    """Proposes a split of interactions, before rows are read.

    Args:
        config: Config of the interactions, without parts or an order.
        profiles: Profiles of their columns.
        paths: Their files.
    """
    has_spans = any(span_pattern(pattern) is not None for pattern in patterns(config.files))
    by_name = None if has_spans else _named_parts(config, profiles) or _named_files(config, paths)
    has_times = config.columns.timestamp is not None
    if by_name is not None and has_times:
        how = "columns.part" if by_name.part else "eval_files, with all files in files"
        reason = f"{by_name.reason}; for one split in time instead: split: time, without {how}"
        return dataclasses.replace(by_name, reason=reason)
    if by_name is not None:
        return by_name
    if has_times:
        return Proposal("time", "there are times")
    has_scores = config.columns.rating is not None or config.columns.weight is not None
    stands_together, sorted_by = _order_of_rows(config, profiles)
    if stands_together and sorted_by is not None:
        return Proposal(
            "random",
            f"no times; rows of a user are sorted by {shown(sorted_by)}, which explains their"
            " order; if it is that of time: last_out, with interactions.order file",
        )
    if stands_together and not has_scores:
        return Proposal(
            "last_out",
            "no times; rows of a user stand together and are not sorted by any column, so they"
            " seem to stand in their order; if they don't: random, without order",
            {"order": "file"},
        )
    return Proposal(
        "random",
        "no times and no sign of an order; if rows stand in the order of time: last_out, with"
        " interactions.order file",
    )


def timed(proposal: Proposal, first: int | None, last: int | None) -> Proposal:
    """Replaces a split by time if all times are on one day, so that no midnight divides them.

    Args:
        proposal: The proposed split.
        first: Earliest valid time [seconds since 1970, UTC]; None without times.
        last: Latest valid time [seconds since 1970, UTC].
    """
    is_short = first is not None and last is not None and first // DAY_S == last // DAY_S
    if proposal.split != "time" or not is_short:
        return proposal
    if first == last:
        return Proposal("random", "all times are one moment, so nothing comes before another")
    return Proposal("last_out", "all times lie on one day, which no midnight splits")


def _named_parts(config: InteractionsConfig, profiles: Mapping[str, Profile]) -> Proposal | None:
    """Returns the split by a column whose values are the names of parts."""
    for profile in profiles.values():
        if not profile.has_all_values:
            continue
        values = {str(value): str(value).strip().lower() for value in profile.values or ()}
        held = [value for value, word in values.items() if word in _HELD]
        validated = [value for value, word in values.items() if word in _TRIED]
        trained = [value for value, word in values.items() if word in _TRAINED]
        is_part = set(words_of(profile.name)) & _PART_WORDS or len(values) > 1
        known = [*held, *validated, *trained]
        if not (is_part and trained and (held or validated) and len(known) == len(values)):
            continue
        columns = config.columns.model_copy(update={"part": profile.name})
        parts = {"train_parts": tuple(trained), "eval_parts": tuple(held or validated)}
        parts |= {"valid_parts": tuple(validated)} if held and validated else {}
        return Proposal(
            "given", "a column names the parts", {"columns": columns, **parts}, profile.name
        )
    return None


def _named_files(config: InteractionsConfig, paths: Sequence[str]) -> Proposal | None:
    """Returns the split by files whose names, or whose folders' names, contain their part."""
    parts = (_parts_of(files) for files in (patterns(config.files), paths))
    return next((proposal for proposal in parts if proposal is not None), None)


def _parts_of(files: Sequence[str]) -> Proposal | None:
    for at in (-1, -2):
        words = {file: set(words_of(PurePath("x", "x", file).parts[at])) for file in files}
        held = [file for file in files if words[file] & _HELD]
        trained = [file for file in files if words[file] & _TRAINED]
        if not held or not trained or set(held) & set(trained) or len(files) > _MOST_NAMED_FILES:
            continue
        tried = [f for f in files if words[f] & _TRIED and f not in (*held, *trained)]
        rest = tuple(file for file in files if file not in (*held, *tried))
        reason = "names of files say which are held out"
        more = {"valid_files": tuple(tried)} if tried else {}
        return Proposal("given", reason, {"files": rest, "eval_files": tuple(held), **more})
    return None


def _order_of_rows(
    config: InteractionsConfig, profiles: Mapping[str, Profile]
) -> tuple[bool, str | None]:
    """Returns whether rows are grouped by user, and the column that they are sorted by."""
    user, item = config.columns.user, config.columns.item
    kinds = ("whole number", "number", "text", "time")
    names = [profile.name for profile in profiles.values() if profile.kind in kinds]
    names = list(dict.fromkeys([user, item, *names]))[:_COLUMNS]
    batches = [
        pa.record_batch({name: to_ids(batch.columns.column(name)) for name in names})
        for _, batch in read_all(config, "interactions", names, _ROWS)
    ]
    table = pa.Table.from_batches(batches)
    table = table.filter(table[user].is_valid()).combine_chunks()
    users = fingerprints(table[user].combine_chunks())
    is_same = users[1:] == users[:-1]
    n_runs = 1 + int((~is_same).sum())
    if n_runs > 1.01 * len(np.unique(users)) or not is_same.any():
        return False, None
    others = [name for name in names if name not in (user, item)]
    orders = (name for name in others if _sorts(table[name].combine_chunks(), is_same))
    return True, item if _sorts_items(table[item].combine_chunks(), is_same) else next(orders, None)


def _sorts_items(items: pa.Array, is_same: np.ndarray) -> bool:
    """Returns whether the items of users are sorted, as text or, if all are numbers, as numbers."""
    falls = (rank[1:] < rank[:-1] for rank in _ranks(items))
    return min(fall[is_same].mean() for fall in falls) < _LEAST_DESCENTS


def _sorts(values: pa.Array, is_same: np.ndarray) -> bool:
    """Returns whether a column is monotone within users; row numbers of a file don't count."""
    steps = np.diff(next(_ranks(values)))
    fewer, more = sorted([(steps[is_same] < 0).mean(), (steps[is_same] > 0).mean()])
    is_place = (steps == 1).mean() >= 1 - _MOST_REVERSALS
    return bool(fewer <= _MOST_REVERSALS and more >= _LEAST_CHANGES and not is_place)


def _ranks(values: pa.Array) -> Iterator[np.ndarray]:
    """Yields values as numbers, if all are numbers, and their ranks as text `[n]`; NaN for null."""
    is_null = values.is_null().to_numpy(zero_copy_only=False)
    with contextlib.suppress(pa.ArrowInvalid):
        yield pc.cast(values, pa.float64()).to_numpy(zero_copy_only=False)
    yield np.where(is_null, np.nan, pc.rank(values, tiebreaker="dense").to_numpy())
