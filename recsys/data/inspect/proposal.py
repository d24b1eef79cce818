"""Inspects files, from the layout to the proposed config; tries hints for undecided roles."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from recsys.data.config import (
    RESERVED_FEATURE_NAMES,
    InteractionColumns,
    InteractionsConfig,
    ListOfEvents,
    Split,
    read_event_feature,
    write_event_feature,
    write_feature,
)
from recsys.data.entities import LEAST_JOIN
from recsys.data.event_features import EventFeature
from recsys.data.inspect.features import event_feature_of
from recsys.data.inspect.findings import Findings, remarks_on
from recsys.data.inspect.labels import Labels, find_labels, plain_name
from recsys.data.inspect.layout import Layout, find_layout
from recsys.data.inspect.order import globs_of_spans, propose_split
from recsys.data.inspect.profile import MOST_ROWS, Advance, Profile, Sample
from recsys.data.inspect.roles import (
    NO_COLUMN,
    POSITIVE,
    RULES,
    SHOWN,
    TIME_FORMAT,
    Mapped,
    Role,
    Roles,
    find_roles,
    parse_map,
)
from recsys.data.inspect.shapes import Lists, find_events, why_no_item, with_wide_rows
from recsys.data.inspect.sides import ROLE, Overlap, Side, find_overlap, find_side
from recsys.data.sources.values import written_times
from recsys.data.split import DAY_S
from recsys.errors import RecsysError, UsageError, shown

_SAMPLED = "all of this describes a sample of the rows"
_MOST_TRIES, _MOST_REJECTED, _LEAST_KNOWN = 6, 0.1, 0.5
"""A hint works if at most this share of rows is rejected, and at least this share of their ids is
in a catalogue."""


@dataclasses.dataclass(frozen=True)
class Inspection:
    """The result of an inspection.

    Attributes:
        layout: Format and layout of the interactions.
        profiles: Profiles of their columns.
        roles: The column of each role.
        labels: The labels of the interactions.
        features: The features of the interactions.
        sides: The items and the users, if there are files of them.
        samples: The rows that were read, by `interactions`, `items` and `users`.
        config: Config that reads the interactions; `None` if a role is undecided.
        findings: Predicted results of a run, by `interactions`, `items` and `users`; none if a
            role is undecided.
        split: Proposed split of the data, and the reason; `None` if a role is undecided.
        undecided: Undecided roles, a sentence each.
        options: `--map` options that were tried and decide these roles; empty if unknown.
        remarks: Remarkable facts, a sentence each.
    """

    layout: Layout
    profiles: dict[str, Profile]
    roles: Roles
    labels: Labels
    features: tuple[EventFeature, ...]
    sides: dict[str, Side]
    samples: dict[str, Sample]
    config: InteractionsConfig | None = None
    findings: dict[str, Findings] = dataclasses.field(default_factory=dict)
    split: tuple[Split, str] | None = None
    undecided: list[str] = dataclasses.field(default_factory=list)
    options: list[str] = dataclasses.field(default_factory=list)
    remarks: list[str] = dataclasses.field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Returns the output of `recsys check --json`, without the config that it wrote."""
        layout, config, csv = self.layout, self.config, self.layout.source.csv
        events, explode = self.findings.get("interactions"), layout.source.explode
        split, reason = self.split or (None, None)
        counts = {
            what: found.to_json() if found else dict.fromkeys(Findings().to_json())
            for what in ("interactions", *self.sides)
            for found in [self.findings.get(what)]
        }
        sides = {
            what: {
                "id": side.id and side.id.column,
                "title": side.title and side.title.column,
                "features": [write_feature(feature) for feature in side.features],
                "left_out": side.left_out,
                "conflicts": self.findings[what].n_conflicts if what in self.findings else None,
                **counts[what],
                "interactions_known": events and events.n_known[what],
            }
            for what, side in self.sides.items()
        }
        labels = {name: one.model_dump(mode="json") for name, one in self.labels.labels.items()}
        return {
            "files": [file.path for file in layout.files],
            "format": layout.format,
            "compression": layout.compression or None,
            "csv": csv.model_dump(mode="json") if layout.format == "csv" else None,
            "evidence": layout.evidence,
            "columns": [profile.to_json() for profile in self.profiles.values()],
            "roles": {role: vars(decided) for role, decided in self.roles.decided.items()},
            "labels": labels,
            "positive": self.labels.positive,
            "features": [write_event_feature(feature) for feature in self.features],
            "explode": explode and _told(explode),
            "timestamp_unit": config and config.timestamp_unit,
            "timestamp_format": config and config.timestamp_format,
            "split": split,
            "split_reason": reason,
            "order": config and config.ordered_by,
            **counts["interactions"],
            **sides,
            "remarks": self.remarks,
            "undecided": self.undecided,
        }


def _told(explode: ListOfEvents) -> dict[str, Any]:
    """Returns `explode` for `to_json`, with its options that aren't defaults."""
    told = {"column": explode.column, "separator": explode.separator}
    return told | explode.model_dump(mode="json", exclude_defaults=True)


class Look(NamedTuple):
    """What is seen in the files of a source."""

    layout: Layout
    sample: Sample
    profiles: dict[str, Profile]


def inspect_files(
    patterns: Sequence[str],
    side_patterns: Mapping[str, str],
    maps: Sequence[str],
    now: int,
    n_rows: int,
    advance: Advance,
) -> Inspection:
    """Inspects raw files.

    Args:
        patterns: Interactions: paths or globs.
        side_patterns: Paths or globs of `items` and `users`, if there are files of them.
        maps: `ROLE=COLUMN` options.
        now: The current time [seconds since 1970, UTC].
        n_rows: Number of rows to read of each source.
        advance: Called with the number of bytes read.

    Raises:
        RecsysError: Files can't be read, or their format isn't recognised.
        UsageError: A map names a column that doesn't exist.
    """
    looks = {}
    for what, names in {"interactions": patterns, **side_patterns}.items():
        layout = find_layout([names] if isinstance(names, str) else names, what)
        # The overlap of ids can't be estimated from a small sample of the items.
        most = n_rows if what == "interactions" else MOST_ROWS
        rows = Sample.of(layout, what, most, advance)
        if not rows.is_whole:
            layout.evidence.append(_SAMPLED)
        looks[what] = Look(layout, rows, rows.profiles(layout, now))
    report = _judged(_decided(looks, maps, now, advance), now)
    options = report.roles.options
    if report.labels.undecided:
        options = {**options, POSITIVE: report.labels.options}
    if not options or report.roles.undecided.keys() - options.keys():
        return report
    for words in itertools.islice(itertools.product(*options.values()), _MOST_TRIES):
        with contextlib.suppress(RecsysError, UsageError):
            tried = _judged(_decided(looks, [*maps, *words], now, lambda n_bytes: None), now)
            if tried.undecided:
                continue
            found = tried.findings["interactions"]
            is_known = all(found.share_known(what) >= _LEAST_KNOWN for what in found.n_known)
            if is_known and found.rejected.total() <= _MOST_REJECTED * found.n_read:
                return dataclasses.replace(report, options=list(words))
    return report


def _decided(
    looks: Mapping[str, Look], maps: Sequence[str], now: int, advance: Advance
) -> Inspection:
    """Returns the roles of all columns, as far as names, values and `--map` say them."""
    layout, sample, profiles = looks["interactions"]
    mapped = parse_map(maps, layout.columns)
    doubts = [doubt for look in looks.values() for doubt in look.layout.doubts]
    hints: dict[str, tuple[Role, ...]] = {}
    if layout.source.explode is not None:
        hints["item"] = (Role(layout.source.explode.column, "its lists hold the events"),)
    elif lists := find_events(profiles, mapped):
        hints, doubts = {**lists.hints}, [*doubts, *lists.doubts]
        layout = _exploded(layout, lists)
        sample = Sample.of(layout, "interactions", sample.n_wanted, advance)
        profiles = sample.profiles(layout, now)
        if mapped.get("item") and mapped["item"][0] not in profiles:
            del mapped["item"]  # It is the list, of which a field is the item.
    if TIME_FORMAT in mapped:
        profiles = _with_format(profiles, mapped)
    if globs_of_spans(layout):  # They are split by time.
        mapped.setdefault("part", (NO_COLUMN,))
    overlaps: dict[str, Overlap | None] = {}
    taken, catalogues = {**mapped}, {what: looks[what] for what in ROLE if what in looks}
    for what, look in catalogues.items():
        if same := find_overlap(ROLE[what], profiles, look.profiles, taken):
            overlaps[what], taken[ROLE[what]] = same, (same.column,)
            why = f"{same.share:.0%} of its values are in the {what}' file"
            hints[ROLE[what]] = (Role(same.column, why),)
    roles = find_roles(profiles, mapped, hints, layout.repeated, why_no_item(profiles))
    roles = with_wide_rows(roles, profiles)
    labels = find_labels(roles, profiles, mapped)
    features = _event_features(roles, profiles, labels)
    undecided = [*roles.undecided.values(), *[labels.undecided] * bool(labels.undecided)]
    sides: dict[str, Side] = {}
    names = [feature.name for feature in features]
    for what, look in catalogues.items():
        ids = roles.decided.get(ROLE[what]), overlaps.get(what)
        side = sides[what] = find_side(what, look.layout, look.profiles, *ids, names)
        names += [feature.name for feature in side.features]
        theirs = ids[0]
        if side.id is None and theirs is not None:
            undecided.append(_no_id(ROLE[what], side, profiles[theirs.column]))
    samples = {"interactions": sample, **{w: look.sample for w, look in catalogues.items()}}
    found = layout, profiles, roles, labels, features, sides, samples
    return Inspection(*found, undecided=undecided, remarks=doubts)


def _exploded(layout: Layout, found: Lists) -> Layout:
    """Returns the layout with a row for each event of a list."""
    events = found.events
    names = [] if events.fields is None else events.fields.names
    fields = [f"{events.column}.{name}" for name in names]
    columns = [name for name in layout.columns if not fields or name != events.column]
    source = layout.source.model_copy(update={"explode": events})
    evidence = [*layout.evidence, found.reason]
    return dataclasses.replace(
        layout, source=source, columns=[*columns, *fields], evidence=evidence
    )


def _event_features(
    roles: Roles, profiles: Mapping[str, Profile], labels: Labels
) -> tuple[EventFeature, ...]:
    """Returns the features of events: context, and outcomes."""
    columns = {
        role.column: name == "outcome"
        for name in ("context", "outcome")
        for role in roles.several.get(name, ())
    }
    # What an event led to isn't known when the model is asked.
    results = {label.column for label in labels.labels.values()}
    results |= {roles.decided["rating"].column} if "rating" in roles.decided else set()
    columns |= dict.fromkeys(results.intersection(columns), True)
    if labels.kinds:
        columns[roles.decided["event"].column] = True
    features: list[EventFeature] = []
    names = {*RESERVED_FEATURE_NAMES}
    for column, is_outcome in columns.items():
        options = event_feature_of(profiles[column])
        if isinstance(options, str):
            continue
        name = plain_name(column, names)
        names.add(name)
        more = {"outcome": True} if is_outcome else {}
        features.append(read_event_feature({"name": name, "column": column, **options, **more}))
    return tuple(features)


def _judged(report: Inspection, now: int) -> Inspection:
    """Returns a report with the config and what a run would do, if it is decided."""
    if report.undecided:
        return report
    layout, profiles, roles, sides = report.layout, report.profiles, report.roles, report.sides
    config, split, why = propose_split(_config(report), profiles, layout)
    findings = {
        what: Findings.of_entities(side_config, report.samples[what])
        for what, side in sides.items()
        if (side_config := side.config(what))
    }
    events = Findings.of_events(config, report.samples["interactions"], now, findings)
    findings = {"interactions": events, **findings}
    first, last = events.times
    if split == "time" and first is not None and last is not None:
        if first == last:
            split, why = "random", "all times are one moment, so nothing comes before another"
        elif first // DAY_S == last // DAY_S:
            split, why = "last_out", "all times lie on one day, which no midnight splits"
    undecided: list[str] = []
    if not events.rows.num_rows:
        most = next(iter(events.rejected.most_common(1)), ("no row",))[0]
        undecided = [f"a run would reject every row, most often for: {most}; map other columns"]
    elif not events.positives.num_rows:
        undecided = ["no row would be a positive; map other columns"]
    else:
        undecided = [
            _unmatched(what, side, profiles[roles.decided[ROLE[what]].column], share)
            for what, side in sides.items()
            if what in findings
            and report.samples[what].is_whole
            and (share := events.share_known(what)) < LEAST_JOIN
        ]
    if not undecided and split != "time" and (globs := globs_of_spans(layout)):
        undecided = [
            f"files with spans are split by time, and these can't be: {why}; name them by a glob:"
            f" {shown(globs[0], 100)}"
        ]
    remarks = [] if undecided else remarks_on(config, profiles, findings, sides)
    return dataclasses.replace(
        report,
        config=config,
        findings=findings,
        split=(split, why),
        undecided=undecided,
        remarks=[*report.remarks, *remarks],
    )


def _config(report: Inspection) -> InteractionsConfig:
    """Returns the config of the interactions, without what the split adds."""
    labels = report.labels
    columns = {role: decided.column for role, decided in report.roles.decided.items()}
    keys = {
        key: value
        for role, column in columns.items()
        for key, (value, _) in RULES[role].keys(report.profiles[column]).items()
    }
    columns = {r: c for r, c in columns.items() if labels.labels or r not in SHOWN}
    return InteractionsConfig(
        **report.layout.source.model_dump(),
        columns=InteractionColumns(**columns),
        labels=labels.labels,
        positive=labels.positive,
        features=report.features,
        **keys,
    )


def _with_format(profiles: Mapping[str, Profile], mapped: Mapped) -> dict[str, Profile]:
    """Returns the profiles with the format of times given by `--map`.

    If a single column has it, that becomes the timestamp.

    Raises:
        UsageError: The format fits no column.
    """
    format_ = mapped[TIME_FORMAT][0]
    fits = {
        name: written_times(pa.array(p.sample, pa.string()), format_).null_count
        < 0.1 * len(p.sample)
        for name, p in profiles.items()
    }
    fitting = [name for name in mapped.get("timestamp", filter(fits.get, fits)) if name in fits]
    if not fitting:
        raise UsageError(
            "R258",
            "--map timestamp_format must fit the values of a column.",
            "Correct it, or name the column too: --map timestamp=COLUMN,timestamp_format=….",
            format_,
        )
    if len(fitting) == 1:
        mapped["timestamp"] = (fitting[0],)
    changes: dict[str, Any] = {"kind": "time", "time_formats": (format_,)}
    changed = {name: dataclasses.replace(profiles[name], **changes) for name in fitting}
    return {**profiles, **changed}


def _no_id(role: str, side: Side, theirs: Profile) -> str:
    """Returns why a catalogue has no id, and advice."""
    name = f"{role}_id" if theirs.is_nameless else shown(theirs.name)
    cure = f"rename it to {name}"
    if not side.layout.has_header:
        cure = f"give the file a first line with names, {role}_id for the id"
    return (
        f"{role}s: no column is clearly their id, with the values of {shown(theirs.name)} in the"
        f" interactions: {cure}"
    )


def _unmatched(what: str, side: Side, theirs: Profile, share: float) -> str:
    """Returns why a file of items or users without any id of the interactions is refused."""
    ids = [] if side.id is None else side.profiles[side.id.column].examples
    return (
        f"{what}: their file has {share:.2%} of the interactions' {what}: ids there are"
        f" {', '.join(map(shown, ids))}, here {', '.join(map(shown, theirs.examples))}; map another"
        f" column with --map {ROLE[what]}=COLUMN, write ids alike, or leave --{what} out"
    )
