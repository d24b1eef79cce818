"""All that a look at files finds, from the dialect to the config."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from recsys.check.dialect import Understood, understand
from recsys.check.features import find_features
from recsys.check.findings import Findings, try_rows
from recsys.check.names import name_score, words_of
from recsys.check.profile import Advance, Profile, profile
from recsys.check.roles import Role, Roles, find_roles, parse_map
from recsys.check.shown import shown
from recsys.check.splits import Proposal, propose, timed
from recsys.config import Feature, InteractionColumns, InteractionsConfig, TimestampUnit
from recsys.data.sources.pieces import plan_pieces, read_piece
from recsys.data.sources.values import to_ids, to_numbers

_IDS_COMPARED = 2_000_000
_NEARLY_ALL = 0.9
_MOST_SCALE = 21


@dataclasses.dataclass(frozen=True)
class Side:
    """Files of items or of users.

    Attributes:
        understood: How they are written.
        profiles: Their columns.
        id: The column of the id; `None` while undecided.
        title: The column of the name that people see, if there is one.
        features: The features that columns make.
        left_out: Columns that make none, and why.
    """

    understood: Understood
    profiles: dict[str, Profile]
    id: Role | None
    title: Role | None
    features: list[Feature]
    left_out: dict[str, str]


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
    understood = understand(patterns, "interactions")
    given = parse_map(maps, understood.columns)
    profiles, _ = profile(understood, "interactions", now, sample, advance)
    looked = {
        what: (found := understand([pattern], what), profile(found, what, now, sample, advance)[0])
        for what, pattern in side_patterns.items()
    }
    hint = _item_hint(understood, profiles, looked.get("items"), given)
    roles = find_roles(profiles, given, hint)
    sides = {what: _side(what, parts, understood, roles) for what, parts in looked.items()}
    undecided = list(roles.undecided.values())
    options = list(roles.options.values())
    for what, side in sides.items():
        role = roles.found.get("item" if what == "items" else "user")
        if side.id is None and role is not None:
            name = shown(role.column)
            undecided.append(f"{what}: no column is clearly their id: rename it to {name}")
    config = findings = split = None
    if not undecided:
        config = interactions_config(understood, profiles, roles)
        split = propose(config, profiles)
        config = config.model_copy(update=dict(split.changes))
        findings = try_rows(config, now, sample, advance)
        split = timed(split, findings.first, findings.last)
        undecided += _hopeless(findings)
    return Report(understood, profiles, roles, config, findings, split, sides, undecided, options)


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
    rating = profiles.get(found.get("rating", ""))
    return InteractionsConfig(
        files=source.files,
        format=source.format,
        csv=source.csv,
        columns=InteractionColumns(**found),
        timestamp_unit=_unit(profiles.get(found.get("timestamp", ""))),
        positive_at_least=None if rating is None else _threshold(rating),
    )


def _unit(time: Profile | None) -> TimestampUnit:
    return "seconds" if time is None else time.unit or "seconds"


def _threshold(rating: Profile) -> float | None:
    """Returns the least rating in the upper third of the scale; `None` where all are one."""
    low, high = rating.lowest, rating.highest
    if low is None or high is None or low == high:
        return None
    least = low + 0.7 * (high - low)
    found = to_numbers(pa.array(list(rating.values), pa.string())).drop_null().to_pylist()
    numbers = sorted(float(f"{number:g}") for number in found)  # As the config writes them.
    return next((number for number in numbers if number >= least - 1e-9), round(least, 3))


# --- items and users


_Looked = tuple[Understood, dict[str, Profile]]


def _side(what: str, looked: _Looked, events: Understood, roles: Roles) -> Side:
    understood, profiles = looked
    id_ = _id_column(what, looked, events, roles)
    title = _title(profiles, id_) if what == "items" else None
    used = [] if id_ is None else [id_.column]
    features, left_out = find_features(profiles, used)
    return Side(understood, profiles, id_, title, features, left_out)


def _id_column(what: str, looked: _Looked, events: Understood, roles: Roles) -> Role | None:
    """Returns the id of items or users: as the interactions have it in name or values."""
    understood, profiles = looked
    kind = "item" if what == "items" else "user"
    theirs = roles.found.get(kind)
    if understood.has_header:
        named = _named_id(kind, profiles, theirs)
        if named is not None:
            return named
    unique = _unique_columns(profiles)
    if theirs is None:
        return None
    asked = _values(events, "interactions", theirs.column)
    shares = {name: _share_in(asked, _values(understood, what, name)) for name in unique}
    fitting = [name for name, share in shares.items() if share >= _NEARLY_ALL]
    if len(fitting) != 1:
        return None
    return Role(fitting[0], f"has {shares[fitting[0]]:.0%} of the interactions' ids")


def _named_id(kind: str, profiles: Mapping[str, Profile], theirs: Role | None) -> Role | None:
    if theirs is not None:
        if theirs.column in profiles:
            return Role(theirs.column, "as in the interactions")
        words = words_of(theirs.column)
        same = [name for name in profiles if (own := words_of(name)) and own == words[-len(own) :]]
        if len(same) == 1:
            return Role(same[0], "named as in the interactions")
    scores = {name: name_score(name, kind) for name in profiles}
    best = [name for name, score in scores.items() if score == max(scores.values())]
    is_clear = len(best) == 1 and scores[best[0]] >= 2
    return Role(best[0], f"its name says {kind}") if is_clear else None


def _unique_columns(profiles: Mapping[str, Profile]) -> list[str]:
    """Returns the columns that have another value in nearly every row."""
    return [
        one.name
        for one in profiles.values()
        if one.kind in ("whole number", "text")
        and len(one.distinct) >= _NEARLY_ALL * max(2, one.n_rows)
    ]


def _share_in(values: pa.Array, known: pa.Array) -> float:
    """Returns the share of values that are known [0..1]."""
    n_found = pc.sum(pc.is_in(values, value_set=known)).as_py() or 0
    return n_found / max(1, len(values))


def _title(profiles: Mapping[str, Profile], id_: Role | None) -> Role | None:
    free = [one for one in profiles.values() if id_ is None or one.name != id_.column]
    texts = [one for one in free if one.kind == "text"]
    for one in texts:
        if name_score(one.name, "title") >= 3:
            return Role(one.name, "its name says title")
    unique = _unique_columns({one.name: one for one in texts})
    return Role(unique[0], "a text of its own in each row") if len(unique) == 1 else None


def _item_hint(
    events: Understood,
    profiles: Mapping[str, Profile],
    items: _Looked | None,
    given: Mapping[str, str],
) -> dict[str, str]:
    """Returns the column whose values are nearly all ids of the catalogue, if it is one alone."""
    if items is None or "item" in given:
        return {}
    catalogues = [_values(items[0], "items", name) for name in _unique_columns(items[1])]
    shares = {}
    for one in profiles.values():
        is_id = one.kind in ("whole number", "text") and one.unit is None
        if one.name not in given.values() and is_id and len(one.distinct) > _MOST_SCALE:
            values = _values(events, "interactions", one.name)
            shares[one.name] = max((_share_in(values, ids) for ids in catalogues), default=0.0)
    fitting = [name for name, share in shares.items() if share >= _NEARLY_ALL]
    if len(fitting) != 1:
        return {}
    return {fitting[0]: f"{shares[fitting[0]]:.0%} of its values are in the catalogue"}


def _values(understood: Understood, what: str, column: str) -> pa.Array:
    """Returns different values of a column, of a part of very many."""
    parts: list[pa.Array] = []
    for piece in plan_pieces(understood.source, what, [column]):
        for batch in read_piece(piece):
            parts.append(pc.unique(to_ids(batch.columns.column(0)).drop_null()))
            if sum(map(len, parts)) > _IDS_COMPARED:
                break
    return pc.unique(pa.chunked_array(parts, pa.string()))
