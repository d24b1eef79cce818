"""Inspects files of items or users: id, title, features, and the rows that a run rejects."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import numpy as np
import pyarrow as pa

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
from recsys.data.hashes import fingerprints
from recsys.data.inspect.dialect import Understood
from recsys.data.inspect.findings import Findings, check_entities
from recsys.data.inspect.names import name_score, words_of
from recsys.data.inspect.profile import Profile, has_words
from recsys.data.inspect.roles import Role, Roles
from recsys.data.sources.written_lists import is_nested

ROLE = {"items": "item", "users": "user"}
"""Role of each side's id in the interactions."""


@dataclasses.dataclass(frozen=True)
class Side:
    """Files of items or of users.

    Attributes:
        understood: Format and layout.
        profiles: Profiles of the columns.
        id: The id column; `None` if undecided.
        title: The column of the display name, if there is one.
        features: The features that the columns provide.
        left_out: Columns that are not used as features, and the reasons.
        config: Config that reads the files; `None` if the id is undecided or nothing is used.
        findings: Predicted result of a run; `None` if there is no config.
        ids: Hashes of the ids of the good rows.
    """

    understood: Understood
    profiles: dict[str, Profile]
    id: Role | None
    title: Role | None
    features: list[Feature]
    left_out: dict[str, str]
    config: EntityConfig | None = None
    findings: Findings | None = None
    ids: np.ndarray | None = None

    def notes(self) -> dict[str, str]:
        """Returns a description of each column."""
        notes = {column: f"left out: {why}" for column, why in self.left_out.items()}
        notes |= {feature.column: f"feature: {feature.kind}" for feature in self.features}
        for name, role in (("title", self.title), ("id", self.id)):
            if role is not None:
                also = f"; {notes[role.column]}" if role.column in notes else ""
                notes[role.column] = f"{name}: {role.reason}{also}"
        return notes


def find_side(
    what: str,
    understood: Understood,
    profiles: dict[str, Profile],
    roles: Roles,
    overlap: Overlap | None,
    taken: Iterable[str],
) -> Side:
    """Returns the roles of the columns in files of items or users.

    Args:
        what: `items` or `users`.
        understood: Format and layout.
        profiles: Profiles of the columns.
        roles: The column of each role in the interactions.
        overlap: The columns with the same ids, if certain.
        taken: Names of features of the other side.
    """
    theirs = roles.decided.get(ROLE[what])
    id_: Role | None = None
    if overlap is not None and theirs is not None and overlap.column == theirs.column:
        id_ = Role(overlap.id, f"has {overlap.share:.0%} of the interactions' ids")
    elif understood.has_header:
        id_ = _named_id(ROLE[what], profiles, theirs)
    title = _title(profiles, id_) if what == "items" else None
    used = [] if id_ is None else [id_.column]
    features, left_out = find_features(profiles, used, understood.types, taken)
    return Side(understood, profiles, id_, title, features, left_out)


def with_findings(what: str, side: Side, sample: int | None) -> Side:
    """Returns a side with the predicted result of a run, if the run reads it."""
    if side.id is None or (what == "users" and not side.features):
        return side
    source = side.understood.source
    read = {name: getattr(source, name) for name in ("files", "format", "csv")}
    read["features"] = tuple(side.features)
    config: EntityConfig
    if what == "items":
        title = None if side.title is None else side.title.column
        config = ItemsConfig(columns=ItemColumns(item=side.id.column, title=title), **read)
    else:
        config = UsersConfig(columns=UserColumns(user=side.id.column), **read)
    findings, ids = check_entities(what, config, sample)
    return dataclasses.replace(side, config=config, findings=findings, ids=ids)


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
    free = [profile for profile in profiles.values() if id_ is None or profile.name != id_.column]
    texts = [profile for profile in free if profile.kind == "text" and not profile.is_url]
    for profile in texts:
        if name_score(profile.name, "title") >= 3:
            return Role(profile.name, "its name says title")
    unique = unique_columns({profile.name: profile for profile in texts})
    return Role(unique[0], "a text of its own in each row") if len(unique) == 1 else None


_Kind = Literal["category", "categories", "words", "number", "date"]

_MOST_CATEGORIES = 10_000
_MOST_NUMBERS = 20


def find_features(
    profiles: Mapping[str, Profile],
    used: Iterable[str],
    types: Mapping[str, str],
    taken: Iterable[str] = (),
) -> tuple[list[Feature], dict[str, str]]:
    """Returns the features that columns can provide, and why other columns can't.

    Args:
        profiles: Profiles of the columns.
        used: Columns to skip: the id.
        types: Types of columns in the header, as in RecBole's files.
        taken: Names of other features.
    """
    features: list[Feature] = []
    left_out: dict[str, str] = {}
    names = {*RESERVED_FEATURE_NAMES, *taken}
    for profile in profiles.values():
        if profile.name in used:
            continue
        type_ = types.get(profile.name, "")
        separator = _separator(profile, type_)
        kind = _kind(profile, separator, type_)
        why_not = _why_not(profile, kind, type_)
        if why_not:
            left_out[profile.name] = why_not
            continue
        name = _free_name(profile.name, names)
        names.add(name)
        options: dict[str, str] = {}
        if kind == "categories":
            options["separator"] = separator or "|"
        if kind == "date" and profile.time_formats:
            options["format"] = profile.time_formats[0]
        elif kind == "date" and all(re.fullmatch(r"\d{8}", text) for text in profile.sample):
            options["format"] = "%Y%m%d"  # As a number it would be ambiguous.
        features.append(
            read_feature({"name": name, "column": profile.name, "kind": kind, **options})
        )
    return features, left_out


def _why_not(profile: Profile, kind: _Kind, type_: str) -> str:
    """Returns why a column is no feature; empty if it is one."""
    n, n_distinct = profile.n_values, len(profile.distinct)
    if profile.is_url:
        return "web addresses"
    if profile.kind == "text" and any(map(is_nested, profile.examples)):
        return "objects as text: write their names as a list"
    if type_ == "float_seq":
        return "lists of numbers"
    if len(profile.time_formats) > 1:
        return "dates that may be " + " or ".join(profile.time_formats[:2])
    if profile.kind == "empty" or n_distinct < 2:
        return "one value at most"
    if profile.is_number:
        is_id = name_score(profile.name, "id") > 0 and n_distinct > n // 2
        return "a number for each row" if is_id and not _is_year(profile) else ""
    is_many = n_distinct > max(20, n // 2) or n_distinct > _MOST_CATEGORIES
    return "nearly as many values as rows" if kind == "category" and is_many else ""


def _kind(profile: Profile, separator: str, type_: str) -> _Kind:
    """Returns the feature type of a column."""
    if name_score(profile.name, "title") >= 3 and profile.kind == "text":
        return "categories" if separator in ("|", ";") else "words"
    if profile.kind == "list" or separator:
        return "categories"
    if type_ == "token" and not _is_year(profile):
        return "category"
    if profile.kind == "time" or _is_year(profile) or _is_epoch(profile):
        return "date"
    if profile.is_number:
        return "number" if len(profile.distinct) > _MOST_NUMBERS else "category"
    if has_words(profile):
        return "words"
    return "category"


def _is_year(profile: Profile) -> bool:
    is_span = (profile.lowest or 0) >= 1000 and (profile.highest or 0) <= 3000
    return profile.kind == "whole number" and is_span and "year" in profile.name.lower()


def _is_epoch(profile: Profile) -> bool:
    """Returns whether values are seconds since 1970 that a `date` feature can read."""
    return (
        profile.kind == "whole number"
        and profile.unit == "seconds"
        and (profile.lowest or 0) >= EARLIEST_DATE
    )


def _separator(profile: Profile, type_: str) -> str:
    """Returns the separator if values are lists, or an empty text."""
    if type_ == "token_seq":
        return " "
    return find_separator(profile.sample) if profile.kind == "text" and not profile.is_url else ""


def _free_name(column: str, taken: set[str]) -> str:
    name = re.sub(r"[^a-z0-9_]+", "_", column.lower()).strip("_")[:50]
    name = name if re.match(r"[a-z]", name) else f"feature_{name}".rstrip("_")
    candidates = [name, *(f"{name}_{number}" for number in range(2, len(taken) + 3))]
    return next(candidate for candidate in candidates if candidate not in taken)


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
    if len(values) < _LEAST_VALUES:
        return ""
    return next((sign for sign in _SIGNS if _separates(sign, values)), "")


def _separates(sign: str, values: Sequence[str]) -> bool:
    lists = [[part.strip() for part in value.split(sign)] for value in values]
    parts = [part for elements in lists for part in elements if part]
    n_several = sum(len(elements) > 1 for elements in lists)
    n_different = len(set(parts))
    if sign in "|;":
        return n_several >= 0.1 * len(values)
    return (
        n_several >= 0.3 * len(values)
        and max(map(len, lists)) <= _MOST_PARTS
        and 1.5 * n_different <= len(values)
        and len(parts) >= 4 * n_different
    )


_NEARLY_ALL = 0.9
_MOST_SCALE = 21


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
        columns = [profiles[taken[role]]] if taken[role] in profiles else []
    else:
        free = [profile for profile in profiles.values() if profile.name not in taken.values()]
        columns = [profile for profile in free if _may_be_id(profile)]
    overlaps = [
        _overlap(profile, side[name]) for profile in columns for name in unique_columns(side)
    ]
    return _clear([overlap for overlap in overlaps if overlap.share >= _NEARLY_ALL], role)


def unique_columns(profiles: Mapping[str, Profile]) -> list[str]:
    """Returns the columns whose values are nearly all distinct."""
    return [
        profile.name
        for profile in profiles.values()
        if profile.kind in ("whole number", "text")
        and not profile.is_url
        and len(profile.distinct) >= _NEARLY_ALL * max(2, profile.n_rows)
    ]


def _may_be_id(profile: Profile) -> bool:
    is_id = profile.kind in ("whole number", "text") and not profile.is_url
    is_time = profile.unit is not None and name_score(profile.name, "timestamp") > 0
    return is_id and not is_time and len(profile.distinct) > _MOST_SCALE


def _overlap(profile: Profile, ids: Profile) -> Overlap:
    share = ids.distinct.share_of(fingerprints(pa.array(profile.sample, pa.string())))
    coverage = min(1.0, share * len(profile.distinct) / max(1, len(ids.distinct)))
    return Overlap(profile.name, ids.name, share, coverage)


def _clear(overlaps: Sequence[Overlap], role: str) -> Overlap | None:
    """Returns the overlap that is clearly the best, or `None`."""
    most = max((overlap.share for overlap in overlaps), default=0.0)
    best = [overlap for overlap in overlaps if overlap.share >= most - 0.01]
    named = [overlap for overlap in best if name_score(overlap.column, role) >= 2]
    best = sorted(named or best, key=lambda overlap: -overlap.coverage)
    if len(best) > 1 and best[0].coverage < 1.5 * best[1].coverage:
        return None
    return best[0] if best else None
