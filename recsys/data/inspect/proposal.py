"""Inspects files, from the layout to the proposed config; tries hints for undecided roles."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from recsys.data.config import InteractionColumns, InteractionsConfig, Split, write_feature
from recsys.data.entities import LEAST_JOIN
from recsys.data.hashes import fingerprints
from recsys.data.inspect.findings import (
    Advance,
    Findings,
    check_entities,
    check_rows,
    remarks_on,
)
from recsys.data.inspect.layout import Layout, find_layout
from recsys.data.inspect.profile import Profile, profile_column
from recsys.data.inspect.roles import (
    NO_COLUMN,
    RULES,
    TIME_FORMAT,
    Role,
    Roles,
    find_events,
    find_roles,
    is_nameless,
    name_score,
    parse_map,
    parts_of,
    words_of,
)
from recsys.data.inspect.sides import ROLE, Overlap, Side, find_overlap, find_side
from recsys.data.sources.pieces import plan_pieces, read_piece
from recsys.data.sources.source_files import patterns as patterns_of
from recsys.data.sources.source_files import span_pattern
from recsys.data.sources.values import to_ids, written_times
from recsys.data.split import DAY_S
from recsys.errors import RecsysError, UsageError, shown

_MOST_ROWS, _MOST_BYTES = 1 << 20, 256 << 20
"""Size of the sample that profiles are made from; findings are of all rows."""
_PIECE_BYTES, _WHOLE_FILES, _MOST_PIECES = 64 << 20, 1 << 62, 256
_SAMPLED = "columns are described by a sample of the rows"
_TRIED_ROWS, _TRIED_FILES, _MOST_TRIES = 20_000, 8, 6
_MOST_REJECTED, _LEAST_KNOWN = 0.1, 0.5
"""A hint works if at most this share of rows is rejected, and at least this share of their ids is
in a catalogue."""


@dataclasses.dataclass(frozen=True)
class Inspection:
    """The result of an inspection.

    Attributes:
        layout: Format and layout of the interactions.
        profiles: Profiles of their columns.
        roles: The column of each role.
        sides: The items and the users, if there are files of them.
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
    sides: dict[str, Side]
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
        return {
            "files": [file.path for file in layout.files],
            "format": layout.format,
            "compression": layout.compression or None,
            "csv": csv.model_dump(mode="json") if layout.format == "csv" else None,
            "evidence": layout.evidence,
            "columns": [profile.to_json() for profile in self.profiles.values()],
            "roles": {role: vars(decided) for role, decided in self.roles.decided.items()},
            "explode": explode and explode.model_dump(),
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
    looks = {}
    for what, names in {"interactions": patterns, **side_patterns}.items():
        layout = find_layout([names] if isinstance(names, str) else names, what)
        # The overlap of ids can't be estimated from a small sample of the items.
        n_rows = sample if what == "interactions" else None
        looks[what] = layout, _profiles(layout, what, now, n_rows, advance)
    report = _judged(_decided(looks, maps, now, sample, advance), now, sample, advance)
    undecided, options = report.roles.undecided, report.roles.options
    if not undecided or undecided.keys() - options.keys():
        return report
    layout, profiles = looks["interactions"]
    if len(layout.files) > _TRIED_FILES and not _globs_of_spans(layout):
        files = tuple(file.path for file in layout.files[:_TRIED_FILES])
        source = layout.source.model_copy(update={"files": files})
        looks["interactions"] = dataclasses.replace(layout, source=source), profiles
    n_rows = min(sample or _TRIED_ROWS, _TRIED_ROWS)
    for words in itertools.islice(itertools.product(*options.values()), _MOST_TRIES):
        with contextlib.suppress(RecsysError):
            tried = _decided(looks, [*maps, *words], now, n_rows, lambda n_bytes: None)
            tried = _judged(tried, now, n_rows, lambda n_bytes: None)
            if tried.undecided:
                continue
            found = tried.findings["interactions"]
            is_known = all(found.share_known(what) >= _LEAST_KNOWN for what in found.n_known)
            if is_known and found.n_rejected <= _MOST_REJECTED * found.n_read:
                return dataclasses.replace(report, options=list(words))
    return report


_Look = tuple[Layout, dict[str, Profile]]
"""What is seen in the files of a source."""


def _profiles(
    layout: Layout, what: str, now: int, sample: int | None, advance: Advance
) -> dict[str, Profile]:
    """Returns the profiles of a source's columns in a sample of its rows, by name.

    The sample has the first rows of many pieces, since labels or kinds of events may be sorted.
    """
    # To cut a file into pieces may take reading it.
    size = _PIECE_BYTES if sample is None else _WHOLE_FILES
    pieces = plan_pieces(layout.source, what, layout.columns, size)
    is_sampled = len(pieces) > _MOST_PIECES
    pieces = pieces[:: -(-len(pieces) // _MOST_PIECES)]
    batches: list[pa.RecordBatch] = []
    for piece in pieces:
        n_rows = -(-min(sample or _MOST_ROWS, _MOST_ROWS) // len(pieces))
        n_bytes = _MOST_BYTES // len(pieces)
        for batch in read_piece(piece):
            batches.append(batch.columns.slice(0, n_rows))
            n_rows, n_bytes = n_rows - batch.columns.num_rows, n_bytes - batch.columns.nbytes
            advance(batch.columns.nbytes)
            if n_rows <= 0 or n_bytes <= 0:
                is_sampled = True
                break
    if is_sampled and _SAMPLED not in layout.evidence:
        layout.evidence.append(_SAMPLED)
    profiles = {}
    for name in layout.columns:
        parts = [batch.column(name) for batch in batches]
        if len({part.type for part in parts}) > 1:  # Of JSON, or of several files.
            parts = [to_ids(part) for part in parts]
        profiles[name] = profile_column(
            name,
            pa.concat_arrays(parts or [pa.nulls(0, pa.string())]),
            now,
            layout.source.csv.decimal,
            may_be_days=name_score(name, "timestamp") > 0,
            is_folder=name in layout.folders,
        )
    return profiles


def _decided(
    looks: Mapping[str, _Look], maps: Sequence[str], now: int, sample: int | None, advance: Advance
) -> Inspection:
    """Returns the roles of all columns, as far as names, values and `--map` say them."""
    layout, profiles = looks["interactions"]
    mapped = parse_map(maps, layout.columns)
    events = layout.source.explode
    if events is None and (found := find_events(profiles, mapped)):
        events, why = found
        source = layout.source.model_copy(update={"explode": events})
        layout = dataclasses.replace(layout, source=source, evidence=[*layout.evidence, why])
        profiles = _profiles(layout, "interactions", now, sample, advance)
    if TIME_FORMAT in mapped:
        profiles = _with_format(profiles, mapped)
    if _globs_of_spans(layout):  # They are split by time.
        mapped.setdefault("part", NO_COLUMN)
    hints: dict[str, Role] = {}
    # In lists of objects the item is a field.
    is_object = events and any(name.startswith(f"{events.column}.") for name in profiles)
    if events and events.column in profiles and not is_object:
        hints["item"] = Role(events.column, "its lists hold the events")
    overlaps: dict[str, Overlap | None] = {}
    taken = dict(mapped)
    for what, (_, columns) in looks.items():
        if what != "interactions" and (same := find_overlap(ROLE[what], profiles, columns, taken)):
            overlaps[what], taken[ROLE[what]] = same, same.column
            why = f"{same.share:.0%} of its values are in the {what}' file"
            hints[ROLE[what]] = Role(same.column, why)
    roles = find_roles(profiles, mapped, hints, layout.repeated)
    undecided = list(roles.undecided.values())
    sides: dict[str, Side] = {}
    for what, look in looks.items():
        if what == "interactions":
            continue
        names = [feature.name for side in sides.values() for feature in side.features]
        theirs = roles.decided.get(ROLE[what])
        side = sides[what] = find_side(what, *look, theirs, overlaps.get(what), names)
        if side.id is None and theirs is not None:
            undecided.append(_no_id(ROLE[what], side, profiles[theirs.column]))
    doubts = [doubt for look in looks.values() for doubt in look[0].doubts]
    for role in ("user", "item"):
        ids = profiles.get(roles.decided[role].column) if role in roles.decided else None
        if ids and ids.had_point_zero:
            id_ = ids.examples[0]
            doubts.append(f"{shown(ids.name)}: ids are written as {id_}.0 and read as {id_}.")
    return Inspection(layout, profiles, roles, sides, undecided=undecided, remarks=doubts)


def _judged(report: Inspection, now: int, sample: int | None, advance: Advance) -> Inspection:
    """Returns a report with the config and what a run would do with all rows, if it is decided."""
    layout, profiles, roles, sides = report.layout, report.profiles, report.roles, report.sides
    if report.undecided:
        return report
    columns = {role: decided.column for role, decided in roles.decided.items()}
    keys = {
        key: value
        for role, column in columns.items()
        for key, (value, _) in RULES[role].keys(profiles[column]).items()
    }
    source = layout.source.model_dump()
    config = InteractionsConfig(**source, columns=InteractionColumns(**columns), **keys)
    config, split, why = _split(config, profiles, layout)
    findings = {
        what: check_entities(what, side_config, sample)
        for what, side in sides.items()
        if (side_config := side.config(what))
    }
    events_found = check_rows(config, now, sample, advance, findings)
    findings = {"interactions": events_found, **findings}
    first, last = events_found.first, events_found.last
    if split == "time" and first is not None and first == last:
        split, why = "random", "all times are one moment, so nothing comes before another"
    elif split == "time" and first is not None and first // DAY_S == (last or 0) // DAY_S:
        split, why = "last_out", "all times lie on one day, which no midnight splits"
    undecided: list[str] = []
    if not events_found.n_good:
        most = next(iter(events_found.rejected.most_common(1)), ("no row",))[0]
        undecided = [f"a run would reject every row, most often for: {most}; map other columns"]
    elif not events_found.n_positive:
        undecided = ["no row would be a positive; map other columns"]
    elif sample is None:
        undecided = [
            _unmatched(what, side, profiles[roles.decided[ROLE[what]].column], share)
            for what, side in sides.items()
            if what in findings and (share := events_found.share_known(what)) < LEAST_JOIN
        ]
    if not undecided and split != "time" and (globs := _globs_of_spans(layout)):
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


def _globs_of_spans(layout: Layout) -> list[str]:
    """Returns the globs of patterns that have spans."""
    spans = map(span_pattern, patterns_of(layout.source.files))
    return [span.as_glob for span in spans if span is not None]


def _with_format(profiles: Mapping[str, Profile], mapped: dict[str, str]) -> dict[str, Profile]:
    """Returns the profiles with the format of times given by `--map`.

    If a single column has it, that becomes the timestamp.

    Raises:
        UsageError: The format fits no column.
    """
    format_, column = mapped[TIME_FORMAT], mapped.get("timestamp")
    fitting = [] if column is None or column not in profiles else [column]
    for name, profile in profiles.items() if column is None else ():
        texts = pa.array(profile.sample, pa.string())
        if written_times(texts, format_).null_count < 0.1 * len(texts):
            fitting.append(name)
    if not fitting:
        raise UsageError(
            "R258",
            "--map timestamp_format must fit the values of a column.",
            "Correct it, or name the column too: --map timestamp=COLUMN,timestamp_format=….",
            format_,
        )
    if len(fitting) == 1:
        mapped["timestamp"] = fitting[0]
    changes: dict[str, Any] = {"kind": "time", "time_formats": (format_,)}
    return {
        name: dataclasses.replace(profile, **changes) if name in fitting else profile
        for name, profile in profiles.items()
    }


def _no_id(role: str, side: Side, theirs: Profile) -> str:
    """Returns why a catalogue has no id, and advice."""
    name = f"{role}_id" if is_nameless(theirs) else shown(theirs.name)
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


# --- the split

_ROWS, _COLUMNS = 200_000, 50
_MOST_NAMED_FILES = 100
_LEAST_CHANGES, _MOST_REVERSALS = 0.05, 0.01
"""Shares of a user's consecutive rows that differ, and that contradict the order of a column."""
_LEAST_DESCENTS = 0.2
"""Share of a user's consecutive rows with descending item ids, above which the rows are not sorted
by item; in random order it is one half."""


def _split(
    config: InteractionsConfig, profiles: Mapping[str, Profile], layout: Layout
) -> tuple[InteractionsConfig, Split, str]:
    """Returns the config with the parts or the order of a split, the split, and the reason."""
    files = {} if _globs_of_spans(layout) else _named_files(layout)
    has_times = config.columns.timestamp is not None
    if config.columns.part is not None or files:
        reason = "names of files say which are held out" if files else "a column names the parts"
        how = "eval_files, with all files in files" if files else "columns.part"
        instead = f"; for one split in time instead: split: time, without {how}"
        return config.model_copy(update=files), "given", reason + instead * has_times
    if has_times:
        return config, "time", "there are times"
    stands_together, sorted_by = _order_of_rows(config, profiles)
    if stands_together and sorted_by is not None:
        reason = (
            f"no times; rows of a user are sorted by {shown(sorted_by)}, which explains their"
            " order; if it is that of time: last_out, with interactions.order file"
        )
        return config, "random", reason
    if stands_together and config.columns.rating is None and config.columns.weight is None:
        reason = (
            "no times; rows of a user stand together and are not sorted by any column, so they"
            " seem to stand in their order; if they don't: random, without order"
        )
        return config.model_copy(update={"order": "file"}), "last_out", reason
    reason = (
        "no times and no sign of an order; if rows stand in the order of time: last_out, with"
        " interactions.order file"
    )
    return config, "random", reason


def _named_files(layout: Layout) -> dict[str, tuple[str, ...]]:
    """Returns the files of each part if their names, or those of their folders, say it."""
    listed = patterns_of(layout.source.files), [file.path for file in layout.files]
    for files, at in itertools.product(listed, (-1, -2)):
        parts = parts_of({file: words_of(PurePath("x", "x", file).parts[at]) for file in files})
        is_clear = parts and not set(parts["eval"]) & set(parts["train"])
        if is_clear and len(files) <= _MOST_NAMED_FILES:
            valid = tuple(f for f in parts["valid"] if f not in parts["eval"] + parts["train"])
            rest = tuple(file for file in files if file not in parts["eval"] + valid)
            return {"files": rest, "eval_files": parts["eval"], "valid_files": valid}
    return {}


def _order_of_rows(
    config: InteractionsConfig, profiles: Mapping[str, Profile]
) -> tuple[bool, str | None]:
    """Returns whether rows are grouped by user, and the column that they are sorted by."""
    user, item = config.columns.user, config.columns.item
    plain = [name for name, profile in profiles.items() if profile.kind not in ("empty", "list")]
    texts = {name: profiles[name].texts.slice(0, _ROWS) for name in (user, item, *plain[:_COLUMNS])}
    is_known = texts[user].is_valid()
    users = fingerprints(texts.pop(user).filter(is_known))
    is_same = users[1:] == users[:-1]
    n_runs = 1 + int((~is_same).sum())
    if n_runs > 1.01 * len(np.unique(users)) or not is_same.any():
        return False, None
    # Items may be sorted as text or, if all are numbers, as numbers.
    falls = [rank[1:] < rank[:-1] for rank in _ranks(texts.pop(item).filter(is_known))]
    if min(fall[is_same].mean() for fall in falls) < _LEAST_DESCENTS:
        return True, item
    for name, values in texts.items():
        steps = np.diff(next(_ranks(values.filter(is_known))))
        fewer, more = sorted([(steps[is_same] < 0).mean(), (steps[is_same] > 0).mean()])
        is_row_number = (steps == 1).mean() >= 1 - _MOST_REVERSALS
        if fewer <= _MOST_REVERSALS and more >= _LEAST_CHANGES and not is_row_number:
            return True, name
    return True, None


def _ranks(values: pa.Array) -> Iterator[np.ndarray]:
    """Yields values as numbers, if all are numbers, and their ranks as text `[n]`; NaN for null."""
    with contextlib.suppress(pa.ArrowInvalid):
        yield pc.cast(values, pa.float64()).to_numpy(zero_copy_only=False)
    is_null = values.is_null().to_numpy(zero_copy_only=False)
    yield np.where(is_null, np.nan, pc.rank(values, tiebreaker="dense").to_numpy())
