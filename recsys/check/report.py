"""All that a look at files finds, from the dialect to the config."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa

from recsys.check.dialect import Understood, understand
from recsys.check.findings import Findings, try_rows
from recsys.check.lists import find_events
from recsys.check.overlaps import Looked, Overlap, find_overlap
from recsys.check.profile import Advance, Profile, profile
from recsys.check.roles import TIME_FORMAT, Role, Roles, find_roles, parse_map
from recsys.check.shown import shown
from recsys.check.sides import ROLE, Side, find_side, tried
from recsys.check.splits import Proposal, propose, timed
from recsys.config import InteractionColumns, InteractionsConfig, TimestampUnit
from recsys.data.sources.values import to_numbers

_SMALL_COUNT = 20


@dataclasses.dataclass(frozen=True)
class Report:
    """What was found.

    Attributes:
        understood: How the interactions are written.
        profiles: Their columns.
        roles: Which column is what.
        config: What reads them; `None` while a role is undecided.
        findings: What a run would do with the rows; `None` likewise.
        split: How the data can be split; `None` likewise.
        sides: The items and the users, where files of theirs were given.
        undecided: What is open: a sentence each.
        options: The words that would decide it.
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


def look(
    patterns: Sequence[str],
    side_patterns: Mapping[str, str],
    maps: Sequence[str],
    now: int,
    sample: int | None,
    advance: Advance,
) -> Report:
    """Looks at files.

    Args:
        patterns: Interactions: paths or globs.
        side_patterns: `items` and `users`, where there are files of theirs.
        maps: `ROLE=COLUMN` each.
        now: The time [seconds since 1970, UTC].
        sample: Rows to read of each; `None`: all.
        advance: Told of bytes that were read.

    Raises:
        RecsysError: Files can't be read or understood.
        UsageError: A map names what isn't there.
    """
    understood, profiles, given = _look_at_events(patterns, maps, now, sample, advance)
    looked = {
        what: (found := understand([pattern], what), profile(found, what, now, sample, advance)[0])
        for what, pattern in side_patterns.items()
    }
    overlaps = _overlaps(profiles, looked, given)
    roles = find_roles(profiles, given, _hints(understood, profiles, overlaps))
    sides: dict[str, Side] = {}
    for what, side in looked.items():
        names = [one.name for other in sides.values() for one in other.features]
        sides[what] = find_side(what, side, roles, overlaps[what], names)
    undecided = [*roles.undecided.values(), *_undecided_ids(sides, roles)]
    options = list(roles.options.values())
    config = findings = split = None
    if not undecided:
        sides = {what: tried(what, side, sample) for what, side in sides.items()}
        known = {what: side.ids for what, side in sides.items() if side.ids is not None}
        config = interactions_config(understood, profiles, roles)
        split = propose(config, profiles)
        config = config.model_copy(update=dict(split.changes))
        findings = try_rows(config, now, sample, advance, known)
        split = timed(split, findings.first, findings.last)
        undecided += _hopeless(findings)
    return Report(understood, profiles, roles, config, findings, split, sides, undecided, options)


def _look_at_events(
    patterns: Sequence[str], maps: Sequence[str], now: int, sample: int | None, advance: Advance
) -> tuple[Understood, dict[str, Profile], dict[str, str]]:
    """Returns how interactions are written, their columns, and the roles that were said."""
    understood = understand(patterns, "interactions")
    given = parse_map(maps, understood.columns)
    profiles, _ = profile(understood, "interactions", now, sample, advance)
    events = None if understood.source.explode else find_events(profiles, given)
    if events is not None:
        understood = understood.with_events(*events)
        profiles, _ = profile(understood, "interactions", now, sample, advance)
    for one in profiles.values():
        if given.get(TIME_FORMAT) in one.time_formats or (
            TIME_FORMAT in given and one.name == given.get("timestamp")
        ):
            one.time_formats = (given[TIME_FORMAT],)
    return understood, profiles, given


def _overlaps(
    profiles: Mapping[str, Profile], looked: Mapping[str, Looked], given: Mapping[str, str]
) -> dict[str, Overlap | None]:
    """Returns the columns that hold the ids of each catalogue, where that is clear."""
    found: dict[str, Overlap | None] = {}
    taken = dict(given)
    for what, side in looked.items():
        one = find_overlap(ROLE[what], profiles, side, what, taken)
        found[what] = one
        if one is not None:
            taken[ROLE[what]] = one.column
    return found


def _hints(
    understood: Understood,
    profiles: Mapping[str, Profile],
    overlaps: Mapping[str, Overlap | None],
) -> dict[str, Role]:
    """Returns the columns that lists of events and values of catalogues speak for, by role."""
    events = understood.source.explode
    hints: dict[str, Role] = {}
    if events is not None and events.column in profiles:
        # Of objects a field is the item; a list of none of them is seen as a plain one.
        has_fields = any(name.startswith(f"{events.column}.") for name in profiles)
        if not has_fields:
            hints["item"] = Role(events.column, "its lists hold the events")
    return hints | {
        ROLE[what]: Role(one.column, f"{one.share:.0%} of its values are in the {what}' file")
        for what, one in overlaps.items()
        if one is not None
    }


def _undecided_ids(sides: Mapping[str, Side], roles: Roles) -> Iterator[str]:
    for what, side in sides.items():
        role = roles.found.get(ROLE[what])
        if side.id is None and role is not None:
            name = shown(role.column)
            yield f"{what}: no column is clearly their id: rename it to {name}"


def _hopeless(findings: Findings) -> list[str]:
    """Returns why a run with the config would come to nothing, if it would."""
    if not findings.n_good:
        most = max(findings.rejected, key=findings.rejected.__getitem__, default="no row")
        return [f"a run would reject every row, most often for: {most}; map other columns"]
    return [] if findings.n_positive else ["no row would be a positive; map other columns"]


def interactions_config(
    understood: Understood, profiles: Mapping[str, Profile], roles: Roles
) -> InteractionsConfig:
    """Returns the config that reads interactions whose roles are known."""
    found = {role: one.column for role, one in roles.found.items()}
    source = understood.source
    rating, time, weight = (
        profiles[found[role]] if role in found else None
        for role in ("rating", "timestamp", "weight")
    )
    return InteractionsConfig(
        files=source.files,
        format=source.format,
        csv=source.csv,
        explode=source.explode,
        columns=InteractionColumns(**found),
        timestamp_unit=_unit(time),
        timestamp_format=time.time_formats[0] if time and time.time_formats else None,
        weight_scale="log" if weight is not None and _is_count(weight) else "linear",
        positive_at_least=None if rating is None else _threshold(rating),
    )


def _is_count(weight: Profile) -> bool:
    """Returns whether weights are counts of which the largest would drown the others."""
    return weight.kind == "whole number" and (weight.highest or 0) > _SMALL_COUNT


def _unit(time: Profile | None) -> TimestampUnit:
    return "seconds" if time is None else time.unit or "seconds"


def _threshold(rating: Profile) -> float | None:
    """Returns the least rating in the upper third of the scale; `None` where all are one."""
    low, high = rating.lowest, rating.highest
    if low is None or high is None or low == high:
        return None
    least = low + 0.7 * (high - low)
    values = pa.array(list(rating.values), pa.string())
    found = to_numbers(values, rating.decimal).drop_null().to_pylist()
    numbers = sorted(float(f"{number:g}") for number in found)  # As the config writes them.
    return next((number for number in numbers if number >= least - 1e-9), round(least, 3))
