"""The roles of columns in files of items or users: id, title and features."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from recsys.data.config import (
    RESERVED_FEATURE_NAMES,
    ItemColumns,
    ItemsConfig,
    UserColumns,
    UsersConfig,
    read_feature,
)
from recsys.data.entities import EntityConfig
from recsys.data.features import Feature
from recsys.data.inspect.features import feature_of, is_url
from recsys.data.inspect.labels import plain_name
from recsys.data.inspect.layout import Layout
from recsys.data.inspect.names import name_score, words_of
from recsys.data.inspect.profile import Profile
from recsys.data.inspect.roles import Mapped, Role

ROLE = {"items": "item", "users": "user"}
"""Role of each side's id in the interactions."""
_NEARLY_ALL, _MOST_SCALE = 0.9, 21


@dataclasses.dataclass(frozen=True)
class Side:
    """Files of items or of users.

    Attributes:
        layout: Format and layout.
        profiles: Profiles of the columns.
        id: The id column; `None` if undecided.
        title: The column of the display name, if there is one.
        features: The features that the columns provide.
        left_out: Columns that are not used as features, and the reasons.
    """

    layout: Layout
    profiles: dict[str, Profile]
    id: Role | None
    title: Role | None
    features: tuple[Feature, ...]
    left_out: dict[str, str]

    def notes(self) -> dict[str, str]:
        """Returns a description of each column."""
        notes = {column: f"left out: {why}" for column, why in self.left_out.items()}
        notes |= {f.column: f"feature: {f.kind}" for f in self.features if f.column is not None}
        for name, role in (("title", self.title), ("id", self.id)):
            if role is not None:
                also = f"; {notes[role.column]}" if role.column in notes else ""
                notes[role.column] = f"{name}: {role.reason}{also}"
        return notes

    def config(self, what: str) -> EntityConfig | None:
        """Returns the config that reads the files; `None` if nothing of them is used."""
        source = self.layout.source
        read = {name: getattr(source, name) for name in ("files", "format", "csv")}
        read["features"] = self.features
        if self.id is None or (what == "users" and not self.features):
            return None
        if what == "users":
            return UsersConfig(columns=UserColumns(user=self.id.column), **read)
        title = None if self.title is None else self.title.column
        return ItemsConfig(columns=ItemColumns(item=self.id.column, title=title), **read)


def find_side(
    what: str,
    layout: Layout,
    profiles: dict[str, Profile],
    theirs: Role | None,
    overlap: Overlap | None,
    taken: Collection[str],
) -> Side:
    """Returns the roles of the columns in files of items or users.

    Args:
        what: `items` or `users`.
        layout: Format and layout.
        profiles: Profiles of the columns.
        theirs: The column of the ids in the interactions.
        overlap: The columns with the same ids, if certain.
        taken: Names of features of the other side, and of the events.
    """
    id_, title = None, None
    if overlap is not None and theirs is not None and overlap.column == theirs.column:
        id_ = Role(overlap.id, f"has {overlap.share:.0%} of the interactions' ids")
    elif layout.has_header:
        id_ = _named_id(ROLE[what], profiles, theirs)
    others = [p for p in profiles.values() if id_ is None or p.name != id_.column]
    texts = [p for p in others if p.kind == "text" and not is_url(p) and what == "items"]
    unique = [profile.name for profile in texts if _is_unique(profile)]
    named = [profile.name for profile in texts if name_score(profile.name, "title") >= 3]
    if named:
        title = Role(named[0], "its name says title")
    elif len(unique) == 1:
        title = Role(unique[0], "a text of its own in each row")
    features: list[Feature] = []
    left_out: dict[str, str] = {}
    names = {*RESERVED_FEATURE_NAMES, *taken}
    for profile in others:
        options = feature_of(profile)
        if isinstance(options, str):
            left_out[profile.name] = options
            continue
        name = plain_name(profile.name, names)
        names.add(name)
        features.append(read_feature({"name": name, "column": profile.name, **options}))
    return Side(layout, profiles, id_, title, tuple(features), left_out)


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


# --- ids that interactions and catalogues have in common


class Overlap(NamedTuple):
    """A column of the interactions whose values are ids of a catalogue."""

    column: str
    id: str
    share: float
    coverage: float


def find_overlap(
    role: str, profiles: Mapping[str, Profile], side: Mapping[str, Profile], taken: Mapped
) -> Overlap | None:
    """Returns the columns that hold the same ids; `None` if there are none, or it is ambiguous.

    The best column has the largest share of values in the catalogue. Ties go to a name that
    suggests the role, then to the higher coverage of the catalogue: counts from 1 to 300 are all
    ids in a catalogue of integers, but they don't cover it.

    Args:
        role: `item` or `user`.
        profiles: Profiles of the interactions' columns.
        side: Profiles of the catalogue's columns.
        taken: Columns that are already decided, by role.
    """
    used = {column for columns in taken.values() for column in columns}
    free = [p for name, p in profiles.items() if name not in used and _may_be_id(p)]
    found = []
    for profile in [profiles[name] for name in taken[role]] if role in taken else free:
        values = pa.array(profile.sample, pa.string())
        for ids in filter(_is_unique, side.values() if len(values) else ()):
            share = float(np.mean(pc.is_in(values, value_set=ids.distinct)))
            coverage = min(1.0, share * len(profile.distinct) / len(ids.distinct))
            found += [Overlap(profile.name, ids.name, share, coverage)] * (share >= _NEARLY_ALL)
    best = [one for one in found if one.share >= max(one.share for one in found) - 0.01]
    best = [one for one in best if name_score(one.column, role) >= 2] or best
    best.sort(key=lambda one: -one.coverage)
    is_clear = len(best) == 1 or (best and best[0].coverage >= 1.5 * best[1].coverage)
    return best[0] if is_clear else None


def _is_key(profile: Profile) -> bool:
    return profile.kind in ("whole number", "text") and not is_url(profile)


def _is_unique(profile: Profile) -> bool:
    """Returns whether nearly all values are distinct."""
    return _is_key(profile) and len(profile.distinct) >= _NEARLY_ALL * max(2, profile.n_rows)


def _may_be_id(profile: Profile) -> bool:
    is_time = profile.unit is not None and name_score(profile.name, "timestamp") > 0
    return _is_key(profile) and not is_time and len(profile.distinct) > _MOST_SCALE
