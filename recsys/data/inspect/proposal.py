"""Inspects files, from the dialect to the proposed config; tries hints for undecided roles."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from recsys.data.config import InteractionColumns, InteractionsConfig, write_feature
from recsys.data.entities import LEAST_JOIN
from recsys.data.inspect.dialect import Understood, understand
from recsys.data.inspect.findings import Findings, check_rows
from recsys.data.inspect.names import name_score, shown
from recsys.data.inspect.profile import Advance, Profile, fits_format, profile_columns
from recsys.data.inspect.remarks import remarks_on
from recsys.data.inspect.roles import (
    MOST_RATINGS,
    NEEDED,
    TIME_FORMAT,
    Role,
    Roles,
    find_events,
    find_roles,
    is_heavy_tailed,
    is_nameless,
    parse_map,
    yes_of,
)
from recsys.data.inspect.sides import ROLE, Overlap, Side, find_overlap, find_side, with_findings
from recsys.data.inspect.split_proposal import Proposal, propose, timed
from recsys.data.sources.source_files import span_pattern
from recsys.errors import RecsysError, UsageError

_SMALL_COUNT, _IDS_COMPARED = 20, 2_000_000
_TRIED_ROWS, _TRIED_FILES, _MOST_TRIES = 20_000, 8, 6
_MOST_REJECTED, _LEAST_KNOWN = 0.1, 0.5
"""A hint works if at most this share of rows is rejected, and at least this share of their ids is
in a catalogue."""
_UPPER, _FEW = 0.7, 0.05
"""Quantile at which positives begin on a scale; and their share below which it is no scale."""


@dataclasses.dataclass(frozen=True)
class Inspection:
    """The result of an inspection.

    Attributes:
        understood: Format and layout of the interactions.
        profiles: Profiles of their columns.
        roles: The column of each role.
        config: Config that reads them; `None` if a role is undecided.
        findings: Predicted result of a run; `None` if a role is undecided.
        split: Proposed split of the data; `None` if a role is undecided.
        sides: The items and the users, if there are files of them.
        undecided: Undecided roles, a sentence each.
        options: `--map` options that were tried and decide these roles; empty if unknown.
        remarks: Remarkable facts, a sentence each.
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
    remarks: list[str]

    def to_json(self) -> dict[str, Any]:
        """Returns the output of `recsys check --json`, without the config that it wrote."""
        understood, config, csv = self.understood, self.config, self.understood.source.csv
        explode = understood.source.explode
        unknown = dict.fromkeys(Findings().to_json())
        sides = {
            what: {
                "id": side.id and side.id.column,
                "title": side.title and side.title.column,
                "features": [write_feature(feature) for feature in side.features],
                "left_out": side.left_out,
                "conflicts": side.findings and side.findings.n_conflicts,
                **(side.findings.to_json() if side.findings else unknown),
                "interactions_known": self.findings and self.findings.n_known.get(what),
            }
            for what, side in self.sides.items()
        }
        return {
            "files": [file.path for file in understood.files],
            "format": understood.format,
            "compression": understood.compression or None,
            "csv": csv.model_dump(mode="json") if understood.format == "csv" else None,
            "evidence": understood.evidence,
            "columns": [profile.to_json() for profile in self.profiles.values()],
            "roles": {role: vars(decided) for role, decided in self.roles.decided.items()},
            "explode": explode and explode.model_dump(),
            "timestamp_unit": config and config.timestamp_unit,
            "timestamp_format": config and config.timestamp_format,
            "split": self.split and self.split.split,
            "split_reason": self.split and self.split.reason,
            "order": config and config.ordered_by,
            **(self.findings.to_json() if self.findings else unknown),
            **sides,
            "remarks": self.remarks,
            "undecided": self.undecided,
        }


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
        side_patterns: Paths or globs of `items` and `users`, if there are files of them.
        maps: `ROLE=COLUMN` options.
        now: The current time [seconds since 1970, UTC].
        sample: Number of rows to read of each source; `None`: all.
        advance: Called with the number of bytes read.

    Raises:
        RecsysError: Files can't be read, or their format isn't recognised.
        UsageError: A map names a column that doesn't exist.
    """
    report = _inspect(patterns, side_patterns, maps, now, sample, advance)
    roles = report.roles
    if not roles.undecided or roles.undecided.keys() - roles.options.keys():
        return report
    n_rows = min(sample or _TRIED_ROWS, _TRIED_ROWS)
    files = [file.path for file in report.understood.files]
    if len(files) > _TRIED_FILES and not _globs_of_spans(patterns):
        patterns = files[:_TRIED_FILES]
    for options in itertools.islice(itertools.product(*roles.options.values()), _MOST_TRIES):
        try:
            tried = _inspect(
                patterns, side_patterns, [*maps, *options], now, n_rows, lambda n_bytes: None
            )
        except RecsysError:
            continue
        if _is_usable(tried):
            return dataclasses.replace(report, options=list(options))
    return report


def _is_usable(report: Inspection) -> bool:
    """Returns whether a run could use most rows, and most of their ids are in a catalogue."""
    findings = report.findings
    if report.undecided or findings is None:
        return False
    known = findings.n_known.values()
    is_known = all(n >= _LEAST_KNOWN * findings.keys.n_added for n in known)
    return is_known and findings.n_rejected <= _MOST_REJECTED * findings.n_read


def _inspect(
    patterns: Sequence[str],
    side_patterns: Mapping[str, str],
    maps: Sequence[str],
    now: int,
    sample: int | None,
    advance: Advance,
) -> Inspection:
    """Inspects raw files once, without trying options."""
    understood, profiles, mapped = _profile_events(patterns, maps, now, sample, advance)
    overlaps: dict[str, Overlap | None] = {}
    inspected: dict[str, tuple[Understood, dict[str, Profile]]] = {}
    taken = dict(mapped)
    # The overlap of ids can't be estimated from a small sample.
    n_ids = None if sample is None else max(sample, _IDS_COMPARED)
    for what, pattern in side_patterns.items():
        side = understand([pattern], what)
        inspected[what] = side, profile_columns(side, what, now, n_ids, advance)
        overlap = find_overlap(ROLE[what], profiles, inspected[what][1], taken)
        overlaps[what] = overlap
        taken |= {} if overlap is None else {ROLE[what]: overlap.column}
    roles = find_roles(profiles, mapped, _hints(understood, profiles, overlaps))
    sides: dict[str, Side] = {}
    for what, files in inspected.items():
        names = [feature.name for other in sides.values() for feature in other.features]
        sides[what] = find_side(what, *files, roles, overlaps[what], names)
    for role in (role for role in NEEDED if role not in (*roles.decided, *mapped)):
        named = [name for name in understood.repeated if name_score(name, role) >= 2]
        if named:
            roles.undecided[role] = (
                f"{role}: several columns are called {shown(named[0])}: give each a name of its own"
            )
            roles.options.pop(role, None)
    undecided = list(roles.undecided.values())
    for what, side_ in sides.items():
        if side_.id is None and ROLE[what] in roles.decided:
            undecided.append(_no_id(what, side_, profiles[roles.decided[ROLE[what]].column]))
    remarks: list[str] = []
    config = findings = split = None
    if not undecided:
        sides = {what: with_findings(what, side, sample) for what, side in sides.items()}
        known = {what: side.ids for what, side in sides.items() if side.ids is not None}
        config = interactions_config(understood, profiles, roles)
        split = propose(config, profiles, [file.path for file in understood.files])
        config = config.model_copy(update=dict(split.changes))
        findings = check_rows(config, now, sample, advance, known)
        split = timed(split, findings.first, findings.last)
        if not findings.n_good:
            most = max(findings.rejected, key=findings.rejected.__getitem__, default="no row")
            undecided = [f"a run would reject every row, most often for: {most}; map other columns"]
        elif not findings.n_positive:
            undecided = ["no row would be a positive; map other columns"]
        elif sample is None and (strange := _unmatched_sides(roles, profiles, sides, findings)):
            undecided = strange
        elif split.split != "time" and (globs := _globs_of_spans(patterns)):
            undecided = [
                f"files with spans are split by time, and these can't be: {split.reason}; name"
                f" them by a glob: {shown(globs[0], 100)}"
            ]
        else:
            remarks = remarks_on(config, profiles, roles, findings, sides, split.part)
    read = [understood, *(side.understood for side in sides.values())]
    ids = [
        profiles[roles.decided[role].column] for role in ("user", "item") if role in roles.decided
    ]
    floats = [
        f"{shown(p.name)}: ids are written as {p.examples[0]}.0 and read as {p.examples[0]}."
        for p in ids
        if 0 < p.n_point_zero == p.n_values
    ]
    remarks = [*(doubt for files in read for doubt in files.doubts), *floats, *remarks]
    return Inspection(
        understood, profiles, roles, config, findings, split, sides, undecided, [], remarks
    )


def _unmatched_sides(
    roles: Roles, profiles: Mapping[str, Profile], sides: Mapping[str, Side], findings: Findings
) -> list[str]:
    """Returns a sentence on each file of items or users without any id of the interactions."""
    sentences = []
    for what, side in sides.items():
        if side.id is None or side.findings is None:
            continue
        share = findings.n_known.get(what, 0) / max(1, findings.keys.n_added)
        if share < LEAST_JOIN:
            theirs = profiles[roles.decided[ROLE[what]].column].examples
            ids = side.profiles[side.id.column].examples
            sentences.append(
                f"{what}: their file has {share:.2%} of the interactions' {what}: ids there are"
                f" {', '.join(map(shown, ids))}, here {', '.join(map(shown, theirs))}; map another"
                f" column with --map {ROLE[what]}=COLUMN, write ids alike, or leave --{what} out"
            )
    return sentences


def _globs_of_spans(names: Sequence[str]) -> list[str]:
    return [spans.as_glob for name in names if (spans := span_pattern(name)) is not None]


def _no_id(what: str, side: Side, theirs: Profile) -> str:
    """Returns why a catalogue has no id, and advice."""
    name = f"{ROLE[what]}_id" if is_nameless(theirs) else shown(theirs.name)
    cure = f"rename it to {name}"
    if not side.understood.has_header:
        cure = f"give the file a first line with names, {ROLE[what]}_id for the id"
    return (
        f"{what}: no column is clearly their id, with the values of {shown(theirs.name)} in the"
        f" interactions: {cure}"
    )


def _profile_events(
    patterns: Sequence[str], maps: Sequence[str], now: int, sample: int | None, advance: Advance
) -> tuple[Understood, dict[str, Profile], dict[str, str]]:
    """Returns the layout of interactions, their profiles, and the columns given by `--map`."""
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
    """Sets the format of times given by `--map`; returns the timestamp, if it is certain.

    Args:
        profiles: Profiles of the columns.
        format_: The format.
        column: The column given by `--map`, too; None: the columns that the format fits.

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
    """Returns the columns suggested by lists of events and by values of catalogues, by role."""
    events = understood.source.explode
    hints: dict[str, Role] = {}
    # In lists of objects the item is a field.
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
    """Returns the config for reading interactions with these roles."""
    columns = {role: decided.column for role, decided in roles.decided.items()}
    source = understood.source
    rating, time, weight, event = (
        profiles[columns[role]] if role in columns else None
        for role in ("rating", "timestamp", "weight", "event")
    )
    # The largest counts and durations would dominate the others.
    is_count = weight and weight.kind == "whole number" and (weight.highest or 0) > _SMALL_COUNT
    is_log = is_count or (weight and weight.kind == "number" and is_heavy_tailed(weight))
    yes = None if event is None else yes_of(event)
    return InteractionsConfig(
        files=source.files,
        format=source.format,
        csv=source.csv,
        explode=source.explode,
        columns=InteractionColumns(**columns),
        timestamp_unit=(time and time.unit) or "seconds",
        timestamp_format=time.time_formats[0] if time and time.time_formats else None,
        weight_scale="log" if is_log else "linear",
        positive_events=() if yes is None else (yes,),
        positive_at_least=None if rating is None else _threshold(rating),
    )


def _threshold(rating: Profile) -> float | None:
    """Returns the lowest rating of a positive; `None` if all ratings are equal.

    It is the lowest rating in the upper third of a scale. For other numbers, whose range
    depends on outliers, it is the lowest of the top third.
    """
    low, high = rating.lowest, rating.highest
    if low is None or high is None or low == high:
        return None
    least = low + _UPPER * (high - low)
    distinct = rating.numbers.distinct()
    gap = max((after - before for before, after in itertools.pairwise(distinct)), default=0.0)
    is_scale = len(distinct) <= 2 or (len(distinct) <= MOST_RATINGS and gap <= 0.5 * (high - low))
    if not is_scale and rating.numbers.share_from(least) < _FEW:
        least = max(rating.numbers.quantile(_UPPER), next(iter(distinct[1:]), high))
        return float(f"{least:.3g}")
    few = distinct if rating.has_all_values else []  # With the digits that the config shows.
    return next((number for number in few if number >= least - 1e-9), round(least, 3))
