"""The roles of columns in files of items or users: id, title and features."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Mapping, Sequence

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
from recsys.data.entities import EARLIEST_DATE, EntityConfig
from recsys.data.features import Feature
from recsys.data.inspect.layout import Layout
from recsys.data.inspect.profile import Profile
from recsys.data.inspect.roles import RECBOLE_TYPE, Role, name_score, words_of
from recsys.data.sources.values import is_nested

ROLE = {"items": "item", "users": "user"}
"""Role of each side's id in the interactions."""
_NEARLY_ALL = 0.9
_MOST_SCALE = 21


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
        notes |= {feature.column: f"feature: {feature.kind}" for feature in self.features}
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
        taken: Names of features of the other side.
    """
    id_, title = None, None
    if overlap is not None and theirs is not None and overlap.column == theirs.column:
        id_ = Role(overlap.id, f"has {overlap.share:.0%} of the interactions' ids")
    elif layout.has_header:
        id_ = _named_id(ROLE[what], profiles, theirs)
    others = [p for p in profiles.values() if id_ is None or p.name != id_.column]
    texts = [profile for profile in others if profile.kind == "text" and not profile.is_url]
    if what == "items":
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
        options = _feature(profile)
        if isinstance(options, str):
            left_out[profile.name] = options
            continue
        name = re.sub(r"[^a-z0-9_]+", "_", profile.name.lower()).strip("_")[:50]
        name = name if re.match(r"[a-z]", name) else f"feature_{name}".rstrip("_")
        numbered = (name, *(f"{name}_{number}" for number in range(2, len(names) + 3)))
        name = next(name for name in numbered if name not in names)
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


# --- features

_MOST_CATEGORIES = 10_000
_MOST_NUMBERS = 20


def _feature(profile: Profile) -> dict[str, str] | str:
    """Returns the options of the feature that a column provides, or why it provides none."""
    n, n_distinct = profile.n_values, len(profile.distinct)
    is_text, is_whole = profile.kind == "text", profile.kind == "whole number"
    match = RECBOLE_TYPE.search(profile.name)
    type_ = match[1] if match else ""
    low, high = profile.lowest or 0, profile.highest or 0
    is_year = is_whole and low >= 1000 and high <= 3000 and "year" in profile.name.lower()
    is_epoch = is_whole and profile.unit == "seconds" and low >= EARLIEST_DATE
    separator = " " if type_ == "token_seq" else find_separator(profile.sample) if is_text else ""
    # Why it is none.
    if profile.is_url:
        return "web addresses"
    if is_text and any(map(is_nested, profile.examples)):
        return "objects as text: write their names as a list"
    if type_ == "float_seq":
        return "lists of numbers"
    if len(profile.time_formats) > 1:
        return "dates that may be " + " or ".join(profile.time_formats[:2])
    if n_distinct < 2:
        return "one value at most"
    is_id = name_score(profile.name, "id") > 0 and n_distinct > n // 2
    if profile.is_number and is_id and not is_year:
        return "a number for each row"
    # The kind of the feature.
    if is_text and name_score(profile.name, "title") >= 3 and separator not in ("|", ";"):
        return {"kind": "words"}
    if profile.kind == "list" or separator:
        return {"kind": "categories", "separator": separator or "|"}
    if is_year or (type_ != "token" and (profile.kind == "time" or is_epoch)):
        # Eight digits would be ambiguous as a number.
        is_day = all(re.fullmatch(r"\d{8}", text) for text in profile.sample)
        formats = [*profile.time_formats, *["%Y%m%d"] * is_day]
        return {"kind": "date"} | ({"format": formats[0]} if formats else {})
    if profile.is_number and type_ != "token":
        return {"kind": "number" if n_distinct > _MOST_NUMBERS else "category"}
    if profile.has_words and type_ != "token":
        return {"kind": "words"}
    is_many = n_distinct > max(20, n // 2) or n_distinct > _MOST_CATEGORIES
    if is_many and not profile.is_number:
        return "nearly as many values as rows"
    return {"kind": "category"}


_SIGNS = ("|", ";", ",", " ")
_LEAST_VALUES = 5
_MOST_PARTS = 30


def find_separator(values: Sequence[str]) -> str:
    """Returns the separator of lists; empty if values are no lists.

    The parts of lists recur in other values and combinations: there are fewer distinct parts
    than values, and each is short. This isn't true of the words of titles and sentences. The
    blank is the last candidate, because parts may contain blanks.

    Args:
        values: A sample of distinct values.
    """
    for sign in _SIGNS if len(values) >= _LEAST_VALUES else ():
        lists = [[part.strip() for part in value.split(sign)] for value in values]
        parts = [part for elements in lists for part in elements if part]
        n_several = sum(len(elements) > 1 for elements in lists)
        n_different = len(set(parts))
        do_recur = (
            n_several >= 0.3 * len(values)
            and max(map(len, lists)) <= _MOST_PARTS
            and 1.5 * n_different <= len(values)
            and len(parts) >= 4 * n_different
        )
        if do_recur or (sign in "|;" and n_several >= 0.1 * len(values)):
            return sign
    return ""


# --- ids that interactions and catalogues have in common


@dataclasses.dataclass(frozen=True)
class Overlap:
    """A column of the interactions whose values are ids of a catalogue.

    Attributes:
        column: The column of the interactions.
        id: The column of the catalogue.
        share: Share of the column's values that the catalogue has [0..1].
        coverage: Share of the catalogue's ids that the column may have [0..1].
    """

    column: str
    id: str
    share: float
    coverage: float


def find_overlap(
    role: str,
    profiles: Mapping[str, Profile],
    side: Mapping[str, Profile],
    taken: Mapping[str, str],
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
    if role in taken:
        columns = [profile for name, profile in profiles.items() if name == taken[role]]
    else:
        free = [profile for name, profile in profiles.items() if name not in taken.values()]
        columns = [profile for profile in free if _may_be_id(profile)]
    overlaps = []
    for profile in columns:
        values = pa.array(profile.sample, pa.string())
        for ids in filter(_is_unique, side.values()):
            share = float(np.mean(pc.is_in(values, value_set=ids.distinct))) if len(values) else 0.0
            coverage = min(1.0, share * len(profile.distinct) / max(1, len(ids.distinct)))
            if share >= _NEARLY_ALL:
                overlaps.append(Overlap(profile.name, ids.name, share, coverage))
    most = max((overlap.share for overlap in overlaps), default=0.0)
    best = [overlap for overlap in overlaps if overlap.share >= most - 0.01]
    named = [overlap for overlap in best if name_score(overlap.column, role) >= 2]
    best = sorted(named or best, key=lambda overlap: -overlap.coverage)
    if len(best) > 1 and best[0].coverage < 1.5 * best[1].coverage:
        return None
    return best[0] if best else None


def _is_key(profile: Profile) -> bool:
    return profile.kind in ("whole number", "text") and not profile.is_url


def _is_unique(profile: Profile) -> bool:
    """Returns whether nearly all values are distinct."""
    return _is_key(profile) and len(profile.distinct) >= _NEARLY_ALL * max(2, profile.n_rows)


def _may_be_id(profile: Profile) -> bool:
    is_time = profile.unit is not None and name_score(profile.name, "timestamp") > 0
    return _is_key(profile) and not is_time and len(profile.distinct) > _MOST_SCALE
