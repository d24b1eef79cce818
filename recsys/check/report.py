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
from recsys.config import Feature, InteractionColumns, InteractionsConfig
from recsys.data.sources.pieces import plan_pieces, read_piece
from recsys.data.sources.values import to_ids

_IDS_COMPARED = 2_000_000


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
        sides: The items and the users, where files of theirs were given.
        undecided: What is open: a sentence each.
        options: The words that would decide it.
    """

    understood: Understood
    profiles: dict[str, Profile]
    roles: Roles
    config: InteractionsConfig | None
    findings: Findings | None
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
    sides = {what: _side(what, *parts, roles) for what, parts in looked.items()}
    undecided = list(roles.undecided.values())
    options = list(roles.options.values())
    for what, side in sides.items():
        if side.id is None:
            undecided.append(f"{what}: no column of these files is called as their id")
            undecided[-1] += f": rename one to {_wanted_id(what, roles)}"
    config = findings = None
    if not undecided:
        config = interactions_config(understood, profiles, roles)
        findings = try_rows(config, now, sample, advance)
    return Report(understood, profiles, roles, config, findings, sides, undecided, options)


def interactions_config(
    understood: Understood, profiles: Mapping[str, Profile], roles: Roles
) -> InteractionsConfig:
    """Returns the config that reads interactions whose roles are known."""
    found = {role: one.column for role, one in roles.found.items() if role != "title"}
    source = understood.source
    rating = profiles.get(found.get("rating", ""))
    return InteractionsConfig(
        files=source.files,
        format=source.format,
        csv=source.csv,
        columns=InteractionColumns(**found),
        timestamp_unit=profiles[found["timestamp"]].unit or "seconds",
        positive_at_least=None if rating is None else _threshold(rating),
    )


def _threshold(rating: Profile) -> float | None:
    """Returns the least rating in the upper third of the scale; `None` where all are one."""
    low, high = rating.lowest, rating.highest
    if low is None or high is None or low == high:
        return None
    least = low + 0.7 * (high - low)
    numbers = sorted(float(value) for value in rating.values)
    return next((number for number in numbers if number >= least - 1e-9), round(least, 3))


# --- items and users


def _side(what: str, understood: Understood, profiles: dict[str, Profile], roles: Roles) -> Side:
    id_ = _id_column(what, profiles, roles)
    title = _title(profiles, id_) if what == "items" else None
    used = [] if id_ is None else [id_.column]
    features, left_out = find_features(profiles, used)
    return Side(understood, profiles, id_, title, features, left_out)


def _wanted_id(what: str, roles: Roles) -> str:
    role = roles.found.get("item" if what == "items" else "user")
    return role.column if role else "id"


def _id_column(what: str, profiles: Mapping[str, Profile], roles: Roles) -> Role | None:
    """Returns the id of items or users: as in the interactions, or by its name."""
    kind = "item" if what == "items" else "user"
    theirs = roles.found.get(kind)
    if theirs is not None and theirs.column in profiles:
        return Role(theirs.column, "as in the interactions")
    leaf = words_of(theirs.column) if theirs is not None else []
    same = [name for name in profiles if words_of(name) == leaf[-len(words_of(name)) :]]
    if len(same) == 1 and same[0]:
        return Role(same[0], "named as in the interactions")
    scores = {name: name_score(name, kind) for name in profiles}
    best = [name for name, score in scores.items() if score == max(scores.values()) and score >= 2]
    if len(best) == 1:
        return Role(best[0], f"its name says {kind}")
    unique = [
        one.name
        for one in profiles.values()
        if one.n_null == 0 and one.kind in ("whole number", "text")
        and len(one.distinct) == one.n_rows
    ]  # fmt: skip
    named = [name for name in unique if words_of(name)[-1:] == ["id"] or name == "c1"]
    return Role(named[0], "each row has its own") if len(named) == 1 else None


def _title(profiles: Mapping[str, Profile], id_: Role | None) -> Role | None:
    for one in profiles.values():
        is_free = id_ is None or one.name != id_.column
        if is_free and one.kind == "text" and name_score(one.name, "title") >= 3:
            return Role(one.name, "its name says title")
    return None


def _item_hint(
    understood: Understood,
    profiles: Mapping[str, Profile],
    items: tuple[Understood, dict[str, Profile]] | None,
    given: Mapping[str, str],
) -> dict[str, str]:
    """Returns the column whose values are nearly all ids of the catalogue, if it is one alone."""
    if items is None or "item" in given:
        return {}
    id_ = _id_column("items", items[1], Roles({}, {}, {}))
    if id_ is None:
        return {}
    known = _values(items[0], "items", id_.column)
    taken = set(given.values())
    likely = [
        one.name
        for one in profiles.values()
        if one.name not in taken and one.kind in ("whole number", "text") and one.unit is None
    ]
    shares = {}
    for name in likely:
        values = _values(understood, "interactions", name)
        found = pc.sum(pc.is_in(values, value_set=known)).as_py() or 0
        shares[name] = found / max(1, len(values))
    fitting = [name for name, share in shares.items() if share >= 0.9]
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
