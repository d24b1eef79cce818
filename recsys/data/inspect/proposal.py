"""Inspects files: from the dialect to the proposed config, and ways to split the data."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import PurePath

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from recsys.config import InteractionColumns, InteractionsConfig, Split
from recsys.data.farmhash import fingerprints
from recsys.data.inspect.dialect import Understood, understand
from recsys.data.inspect.findings import Findings, check_rows
from recsys.data.inspect.names import shown, words_of
from recsys.data.inspect.profile import Advance, Profile, fits_format, profile_columns
from recsys.data.inspect.roles import (
    TIME_FORMAT,
    Overlap,
    Role,
    Roles,
    find_events,
    find_overlap,
    find_roles,
    parse_map,
)
from recsys.data.inspect.sides import ROLE, Side, find_side, with_findings
from recsys.data.interactions import interaction_columns
from recsys.data.sources.pieces import read_all
from recsys.data.sources.source_files import span_pattern
from recsys.data.sources.values import to_ids, to_numbers
from recsys.data.split import DAY_S
from recsys.errors import UsageError

_SMALL_COUNT, _IDS_COMPARED = 20, 2_000_000


@dataclasses.dataclass(frozen=True)
class Inspection:
    """The result of an inspection.

    Attributes:
        understood: How the interactions are written.
        profiles: Their columns.
        roles: Which column is what.
        config: What reads them; `None` while a role is undecided.
        findings: What a run would do with the rows; `None` likewise.
        split: How the data can be split; `None` likewise.
        sides: The items and the users, where files of theirs were given.
        undecided: Undecided roles, a sentence each.
        options: The `--map` options that would decide them.
    """

    understood: Understood
    profiles: dict[str, Profile]
    roles: Roles
    config: InteractionsConfig | None
    findings: Findings | None
    split: Proposal | None
    sides: dict[str, Side]
    undecided: list[str]
    options: list[str]


def inspect_files(
    patterns: Sequence[str],
    side_patterns: Mapping[str, str],
    maps: Sequence[str],
    now: int,
    sample: int | None,
    advance: Advance,
) -> Inspection:
    """Inspects raw files.

    Args:
        patterns: Interactions: paths or globs.
        side_patterns: `items` and `users`, where there are files of theirs.
        maps: `ROLE=COLUMN` each.
        now: The time [seconds since 1970, UTC].
        sample: Rows to read of each; `None`: all.
        advance: Called with the bytes that were read.

    Raises:
        RecsysError: Files can't be read or understood.
        UsageError: A map names what isn't there.
    """
    understood, profiles, mapped = _look_at_events(patterns, maps, now, sample, advance)
    overlaps: dict[str, Overlap | None] = {}
    looked: dict[str, tuple[Understood, dict[str, Profile]]] = {}
    taken = dict(mapped)
    # Of ids that are compared a small sample says little.
    n_ids = None if sample is None else max(sample, _IDS_COMPARED)
    for what, pattern in side_patterns.items():
        side = understand([pattern], what)
        looked[what] = side, profile_columns(side, what, now, n_ids, advance)
        overlap = find_overlap(ROLE[what], profiles, looked[what][1], taken)
        overlaps[what] = overlap
        taken |= {} if overlap is None else {ROLE[what]: overlap.column}
    roles = find_roles(profiles, mapped, _hints(understood, profiles, overlaps))
    sides: dict[str, Side] = {}
    for what, files in looked.items():
        names = [feature.name for other in sides.values() for feature in other.features]
        sides[what] = find_side(what, *files, roles, overlaps[what], names)
    undecided = list(roles.undecided.values())
    for what, side_ in sides.items():
        if side_.id is None and ROLE[what] in roles.decided:
            name = shown(roles.decided[ROLE[what]].column)
            undecided.append(f"{what}: no column is clearly their id: rename it to {name}")
    options = list(roles.options.values())
    if options:  # What else was said, which isn't the column of a role.
        said = {TIME_FORMAT: mapped.get(TIME_FORMAT), "timestamp": mapped.get("timestamp")}
        options += [
            f"{role}={word}"
            for role, word in said.items()
            if word and role not in (*roles.decided, *(o.partition("=")[0] for o in options))
        ]
    config = findings = split = None
    if not undecided:
        sides = {what: with_findings(what, side, sample) for what, side in sides.items()}
        known = {what: side.ids for what, side in sides.items() if side.ids is not None}
        config = interactions_config(understood, profiles, roles)
        split = propose(config, profiles)
        config = config.model_copy(update=dict(split.changes))
        findings = check_rows(config, now, sample, advance, known)
        split = timed(split, findings.first, findings.last)
        if not findings.n_good:
            most = max(findings.rejected, key=findings.rejected.__getitem__, default="no row")
            undecided = [f"a run would reject every row, most often for: {most}; map other columns"]
        elif not findings.n_positive:
            undecided = ["no row would be a positive; map other columns"]
        elif split.split != "time" and (globs := _globs_of_spans(patterns)):
            undecided = [
                f"files with spans are split by time, and these can't be: {split.reason}; name"
                f" them by a glob: {shown(globs[0], 100)}"
            ]
    return Inspection(
        understood, profiles, roles, config, findings, split, sides, undecided, options
    )


def _globs_of_spans(names: Sequence[str]) -> list[str]:
    return [spans.as_glob for name in names if (spans := span_pattern(name)) is not None]


def _look_at_events(
    patterns: Sequence[str], maps: Sequence[str], now: int, sample: int | None, advance: Advance
) -> tuple[Understood, dict[str, Profile], dict[str, str]]:
    """Returns how interactions are written, their columns, and those that `--map` names."""
    understood = understand(patterns, "interactions")
    mapped = parse_map(maps, understood.columns)
    profiles = profile_columns(understood, "interactions", now, sample, advance)
    events = None if understood.source.explode else find_events(profiles, mapped)
    if events is not None:
        understood = understood.with_events(*events)
        profiles = profile_columns(understood, "interactions", now, sample, advance)
    if TIME_FORMAT in mapped:
        mapped |= _set_format(profiles, mapped[TIME_FORMAT], mapped.get("timestamp"))
    return understood, profiles, mapped


def _set_format(
    profiles: Mapping[str, Profile], format_: str, column: str | None
) -> dict[str, str]:
    """Sets the format of times that `--map` names; returns the timestamp, where it is clear.

    Args:
        profiles: The columns.
        format_: The format.
        column: The column that `--map` names too; None: those that the format fits.

    Raises:
        UsageError: It fits no column.
    """
    fitting = [
        profile
        for profile in profiles.values()
        if profile.name == column or (column is None and fits_format(profile, format_))
    ]
    if not fitting:
        raise UsageError(
            "R258",
            "--map timestamp_format must fit the values of a column.",
            "Correct it, or name the column too: --map timestamp=COLUMN,timestamp_format=….",
            format_,
        )
    for profile in fitting:
        profile.kind, profile.time_formats = "time", (format_,)
    return {"timestamp": fitting[0].name} if len(fitting) == 1 else {}


def _hints(
    understood: Understood,
    profiles: Mapping[str, Profile],
    overlaps: Mapping[str, Overlap | None],
) -> dict[str, Role]:
    """Returns the columns that lists of events and values of catalogues speak for, by role."""
    events = understood.source.explode
    hints: dict[str, Role] = {}
    # Of objects a field is the item; a list of none of them is seen as a plain one.
    if (
        events is not None
        and events.column in profiles
        and not any(name.startswith(f"{events.column}.") for name in profiles)
    ):
        hints["item"] = Role(events.column, "its lists hold the events")
    for what, overlap in overlaps.items():
        if overlap is not None:
            reason = f"{overlap.share:.0%} of its values are in the {what}' file"
            hints[ROLE[what]] = Role(overlap.column, reason)
    return hints


def interactions_config(
    understood: Understood, profiles: Mapping[str, Profile], roles: Roles
) -> InteractionsConfig:
    """Returns the config that reads interactions with these roles."""
    columns = {role: decided.column for role, decided in roles.decided.items()}
    source = understood.source
    rating, time, weight = (
        profiles[columns[role]] if role in columns else None
        for role in ("rating", "timestamp", "weight")
    )
    # Of counts the largest would dominate the others.
    is_count = weight and weight.kind == "whole number" and (weight.highest or 0) > _SMALL_COUNT
    return InteractionsConfig(
        files=source.files,
        format=source.format,
        csv=source.csv,
        explode=source.explode,
        columns=InteractionColumns(**columns),
        timestamp_unit=(time and time.unit) or "seconds",
        timestamp_format=time.time_formats[0] if time and time.time_formats else None,
        weight_scale="log" if is_count else "linear",
        positive_at_least=None if rating is None else _threshold(rating),
    )


def _threshold(rating: Profile) -> float | None:
    """Returns the least rating in the upper third of the scale; `None` where all are one."""
    low, high = rating.lowest, rating.highest
    if low is None or high is None or low == high:
        return None
    least = low + 0.7 * (high - low)
    values = pa.array(list(rating.values), pa.string())
    values = to_numbers(values, rating.decimal).drop_null().to_pylist()
    numbers = sorted(float(f"{number:g}") for number in values)  # As the config writes them.
    return next((number for number in numbers if number >= least - 1e-9), round(least, 3))


_TRAINED = {"train", "training", "learn"}
_TRIED = {"valid", "validation", "val", "dev"}
_HELD = {"test", "testing", "eval", "evaluation", "probe", "heldout", "holdout"}
_PART_WORDS = {"part", "split", "set", "subset", "fold", "partition"}
_ROWS = 200_000
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
    """Returns how interactions may be split, before rows are tried.

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
    is_short = first is not None and last is not None and first // DAY_S == last // DAY_S
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


def _named_files(config: InteractionsConfig) -> Proposal | None:
    """Returns the split by files whose names contain their part."""
    files = (config.files,) if isinstance(config.files, str) else config.files
    held = [file for file in files if _says(file, _HELD)]
    trained = [file for file in files if _says(file, _TRAINED)]
    if not held or not trained or set(held) & set(trained):
        return None
    tried = [file for file in files if _says(file, _TRIED) and file not in (*held, *trained)]
    rest = tuple(file for file in files if file not in (*held, *tried))
    reason = "names of files say which are held out"
    more = {"valid_files": tuple(tried)} if tried else {}
    return Proposal("given", reason, {"files": rest, "eval_files": tuple(held), **more})


def _says(file: str, words: set[str]) -> bool:
    return bool(set(words_of(PurePath(file).stem)) & words)


def _stands_in_order(config: InteractionsConfig) -> bool:
    """Returns whether rows of a user stand together, and not in the order of the items."""
    users, items = _first_ids(config)
    user = fingerprints(users)
    is_same = user[1:] == user[:-1]
    n_runs = 1 + int((~is_same).sum())
    if n_runs > 1.01 * len(np.unique(user)) or not is_same.any():
        return False
    # Ids may be sorted as texts, and as numbers where all are.
    ranks = [pc.rank(items, tiebreaker="dense").to_numpy()]
    with contextlib.suppress(pa.ArrowInvalid):
        ranks.append(pc.cast(items, pa.float64()).to_numpy())
    return min((rank[1:] < rank[:-1])[is_same].mean() for rank in ranks) >= _LEAST_DESCENTS


def _first_ids(config: InteractionsConfig) -> tuple[pa.Array, pa.Array]:
    """Returns users and items of the first rows."""
    names = {"user": config.columns.user, "item": config.columns.item}
    columns = interaction_columns(config)
    batches = [
        pa.record_batch({name: to_ids(batch.columns.column(raw)) for name, raw in names.items()})
        for _, batch in read_all(config, "interactions", columns, _ROWS)
    ]
    table = pa.Table.from_batches(batches).drop_null().combine_chunks()
    return table["user"].combine_chunks(), table["item"].combine_chunks()
