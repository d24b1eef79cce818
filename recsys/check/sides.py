"""Files of items or of users: their id, title and features, and what a run does with their rows."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping

from recsys.check.dialect import Understood
from recsys.check.features import find_features
from recsys.check.findings import Findings, Ids, try_entities
from recsys.check.names import name_score, words_of
from recsys.check.overlaps import Looked, Overlap, unique_columns
from recsys.check.profile import Profile
from recsys.check.roles import Role, Roles
from recsys.config import ItemColumns, ItemsConfig, UserColumns, UsersConfig
from recsys.data.entities import EntityConfig
from recsys.data.features import Feature

ROLE = {"items": "item", "users": "user"}
"""The role in the interactions of each side's id."""


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
        findings: What a run would do with the rows; `None` while the id is undecided.
        ids: The ids of the good rows.
    """

    understood: Understood
    profiles: dict[str, Profile]
    id: Role | None
    title: Role | None
    features: list[Feature]
    left_out: dict[str, str]
    findings: Findings | None = None
    ids: Ids | None = None


def find_side(
    what: str, looked: Looked, roles: Roles, overlap: Overlap | None, taken: Iterable[str]
) -> Side:
    """Returns what files of items or of users hold.

    Args:
        what: `items` or `users`.
        looked: How they are written, and their columns.
        roles: Which column of the interactions is what.
        overlap: The columns with the same ids, where that is clear.
        taken: Names that features of the other side have.
    """
    understood, profiles = looked
    theirs = roles.found.get(ROLE[what])
    id_: Role | None = None
    if overlap is not None and theirs is not None and overlap.column == theirs.column:
        id_ = Role(overlap.id, f"has {overlap.share:.0%} of the interactions' ids")
    elif understood.has_header:
        id_ = _named_id(ROLE[what], profiles, theirs)
    title = _title(profiles, id_) if what == "items" else None
    used = [] if id_ is None else [id_.column]
    features, left_out = find_features(profiles, used, understood.types, taken)
    return Side(understood, profiles, id_, title, features, left_out)


def tried(what: str, side: Side, sample: int | None) -> Side:
    """Returns a side with what a run would do with its rows."""
    config = _config(what, side)
    if config is None:
        return side
    findings, ids = try_entities(what, config, sample)
    return dataclasses.replace(side, findings=findings, ids=ids)


def _config(what: str, side: Side) -> EntityConfig | None:
    """Returns what reads a side; `None` where a run would read nothing of it."""
    if side.id is None:
        return None
    source, features = side.understood.source, tuple(side.features)
    files, format_, csv = source.files, source.format, source.csv
    if what == "items":
        title = None if side.title is None else side.title.column
        columns = ItemColumns(item=side.id.column, title=title)
        return ItemsConfig(files=files, format=format_, csv=csv, columns=columns, features=features)
    if not features:
        return None
    user = UserColumns(user=side.id.column)
    return UsersConfig(files=files, format=format_, csv=csv, columns=user, features=features)


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


def _title(profiles: Mapping[str, Profile], id_: Role | None) -> Role | None:
    free = [one for one in profiles.values() if id_ is None or one.name != id_.column]
    texts = [one for one in free if one.kind == "text" and not one.is_url]
    for one in texts:
        if name_score(one.name, "title") >= 3:
            return Role(one.name, "its name says title")
    unique = unique_columns({one.name: one for one in texts})
    return Role(unique[0], "a text of its own in each row") if len(unique) == 1 else None
