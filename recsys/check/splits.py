"""How data can be split, and what orders its rows: proposed, with the reason."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import PurePath

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from recsys.check.names import words_of
from recsys.check.profile import Profile
from recsys.config import InteractionsConfig, Split
from recsys.data.farmhash import fingerprints
from recsys.data.interactions import interaction_columns
from recsys.data.sources.pieces import plan_pieces, read_piece
from recsys.data.sources.values import to_ids

_TRAINED = {"train", "training", "learn"}
_TRIED = {"valid", "validation", "val", "dev"}
_HELD = {"test", "testing", "eval", "evaluation", "probe", "heldout", "holdout"}
_PART_WORDS = {"part", "split", "set", "subset", "fold", "partition"}
_ROWS = 200_000
_DAY_S = 86_400
_LEAST_DESCENTS = 0.2
"""Share of neighbours of one user whose second item comes before the first in the order of
ids, from which on the rows are not sorted by item; half are in any order at random."""


@dataclasses.dataclass(frozen=True)
class Proposal:
    """A way to split.

    Attributes:
        split: What `data.split` may be.
        reason: Why.
        changes: What it changes of the interactions' config.
        part: The column that names the parts, if one does.
    """

    split: Split
    reason: str
    changes: Mapping[str, object] = dataclasses.field(default_factory=dict)
    part: str | None = None


def propose(config: InteractionsConfig, profiles: Mapping[str, Profile]) -> Proposal:
    """Returns how interactions may be split, by what is known before rows are tried.

    Args:
        config: What reads them; without parts or an order.
        profiles: Their columns.
    """
    if config.columns.timestamp is not None:
        return Proposal("time", "there are times")
    by_name = _named_parts(config, profiles) or _named_files(config)
    if by_name is not None:
        return by_name
    if config.columns.rating is None and config.columns.weight is None and _stands_in_order(config):
        return Proposal(
            "last_out",
            "no times; rows of a user stand together and are not sorted by item, so they seem to"
            " stand in their order; if they don't: random, without order",
            {"order": "file"},
        )
    return Proposal(
        "random",
        "no times and no sign of an order; if rows stand in the order of time: last_out, with"
        " interactions.order file",
    )


def timed(proposal: Proposal, first: int | None, last: int | None) -> Proposal:
    """Returns a split for times that all lie on one day, where no midnight splits them.

    Args:
        proposal: What was proposed.
        first: Earliest good time [seconds since 1970, UTC]; None without times.
        last: Latest good time.
    """
    is_short = first is not None and last is not None and first // _DAY_S == last // _DAY_S
    if proposal.split != "time" or not is_short:
        return proposal
    if first == last:
        return Proposal("random", "all times are one moment, so nothing comes before another")
    return Proposal("last_out", "all times lie on one day, which no midnight splits")


def _named_parts(config: InteractionsConfig, profiles: Mapping[str, Profile]) -> Proposal | None:
    """Returns the split by a column whose values are names of parts."""
    for profile in profiles.values():
        if not profile.has_all_values:
            continue
        values = {str(value): str(value).strip().lower() for value in profile.values or ()}
        held = [value for value, word in values.items() if word in _HELD]
        tried = [value for value, word in values.items() if word in _TRIED]
        trained = [value for value, word in values.items() if word in _TRAINED]
        is_part = set(words_of(profile.name)) & _PART_WORDS or len(values) > 1
        known = [*held, *tried, *trained]
        if not (is_part and trained and (held or tried) and len(known) == len(values)):
            continue
        trained += tried if held else []
        columns = config.columns.model_copy(update={"part": profile.name})
        parts = {"train_parts": tuple(trained), "eval_parts": tuple(held or tried)}
        return Proposal(
            "given", "a column names the parts", {"columns": columns, **parts}, profile.name
        )
    return None


def _named_files(config: InteractionsConfig) -> Proposal | None:
    """Returns the split by files whose names say which part they are."""
    files = (config.files,) if isinstance(config.files, str) else config.files
    held = [file for file in files if _says(file, _HELD)]
    trained = [file for file in files if _says(file, _TRAINED)]
    if not held or not trained or set(held) & set(trained):
        return None
    rest = tuple(file for file in files if file not in held)
    reason = "names of files say which are held out"
    return Proposal("given", reason, {"files": rest, "eval_files": tuple(held)})


def _says(file: str, words: set[str]) -> bool:
    return bool(set(words_of(PurePath(file).stem)) & words)


def _stands_in_order(config: InteractionsConfig) -> bool:
    """Returns whether rows of a user stand together, and not in the order of the items."""
    users, items = _first_ids(config)
    if not len(users):
        return False
    user = fingerprints(users)
    is_same = user[1:] == user[:-1]
    n_runs = 1 + int((~is_same).sum())
    if n_runs > 1.01 * len(np.unique(user)) or not is_same.any():
        return False
    return min(_descents(ranks, is_same) for ranks in _sortable(items)) >= _LEAST_DESCENTS


def _first_ids(config: InteractionsConfig) -> tuple[pa.Array, pa.Array]:
    """Returns users and items of the first rows."""
    batches, n_rows = [], 0
    for piece in plan_pieces(config, "interactions", interaction_columns(config)):
        for batch in read_piece(piece):
            columns = (config.columns.user, config.columns.item)
            users, items = (to_ids(batch.columns.column(name)) for name in columns)
            batches.append(pa.record_batch({"user": users, "item": items}))
            n_rows += len(users)
            if n_rows >= _ROWS:
                break
        if n_rows >= _ROWS:
            break
    table = pa.Table.from_batches(batches).drop_null().combine_chunks()
    return table["user"].combine_chunks(), table["item"].combine_chunks()


def _sortable(items: pa.Array) -> Sequence[np.ndarray]:
    """Returns the ranks of ids as texts, and as numbers where all are."""
    ranks = [pc.rank(items, tiebreaker="dense").to_numpy()]
    try:
        return [*ranks, pc.cast(items, pa.float64()).to_numpy()]
    except pa.ArrowInvalid:
        return ranks


def _descents(ranks: np.ndarray, is_same: np.ndarray) -> float:
    """Returns the share of neighbours of one user [0..1] of which the second is the lesser."""
    return float((ranks[1:] < ranks[:-1])[is_same].mean())
