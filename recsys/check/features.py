"""Which columns describe items or users, and how the model may read them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Literal

from recsys.check.names import name_score
from recsys.check.profile import Profile, has_words
from recsys.check.separators import find_separator
from recsys.config import RESERVED_FEATURE_NAMES, read_feature
from recsys.data.features import Feature

_Kind = Literal["category", "categories", "words", "number", "date"]

_MOST_CATEGORIES = 10_000
_MOST_NUMBERS = 20


def find_features(
    profiles: Mapping[str, Profile],
    used: Iterable[str],
    types: Mapping[str, str],
    taken: Iterable[str] = (),
) -> tuple[list[Feature], dict[str, str]]:
    """Returns the features that columns make, and why others make none.

    Args:
        profiles: The columns.
        used: Columns that aren't asked: the id's.
        types: Types that the header tells, by column, as RecBole writes them.
        taken: Names that other features have.
    """
    features: list[Feature] = []
    left_out: dict[str, str] = {}
    names = {*RESERVED_FEATURE_NAMES, *taken}
    for one in profiles.values():
        if one.name in used:
            continue
        type_ = types.get(one.name, "")
        separator = _separator(one, type_)
        kind = _kind(one, separator, type_)
        why_not = _why_not(one, kind, type_)
        if why_not:
            left_out[one.name] = why_not
            continue
        name = _free_name(one.name, names)
        names.add(name)
        options: dict[str, str] = {}
        if kind == "categories":
            options["separator"] = separator or "|"
        if kind == "date" and one.time_formats:
            options["format"] = one.time_formats[0]
        features.append(read_feature({"name": name, "column": one.name, "kind": kind, **options}))
    return features, left_out


def _why_not(one: Profile, kind: _Kind, type_: str) -> str:
    """Returns why a column makes no feature; nothing if it does."""
    n, n_distinct = one.n_values, len(one.distinct)
    if one.is_url:
        return "web addresses"
    if type_ == "float_seq":
        return "lists of numbers"
    if len(one.time_formats) > 1:
        return "dates that may be " + " or ".join(one.time_formats[:2])
    if one.kind == "empty" or n_distinct < 2:
        return "one value at most"
    if one.is_number:
        is_id = name_score(one.name, "id") > 0 and n_distinct > n // 2
        return "a number for each row" if is_id and not _is_year(one) else ""
    is_many = n_distinct > max(20, n // 2) or n_distinct > _MOST_CATEGORIES
    return "nearly as many values as rows" if kind == "category" and is_many else ""


def _kind(one: Profile, separator: str, type_: str) -> _Kind:
    """Returns how the model may read a column."""
    if name_score(one.name, "title") >= 3 and one.kind == "text":
        return "categories" if separator in ("|", ";") else "words"
    if one.kind == "list" or separator:
        return "categories"
    if type_ == "token" and not _is_year(one):
        return "category"
    if one.kind == "time" or _is_year(one):
        return "date"
    if one.is_number:
        return "number" if len(one.distinct) > _MOST_NUMBERS else "category"
    if has_words(one):
        return "words"
    return "category"


def _is_year(one: Profile) -> bool:
    low, high = one.lowest or 0, one.highest or 0
    return (
        one.kind == "whole number" and low >= 1000 and high <= 3000 and "year" in one.name.lower()
    )


def _separator(one: Profile, type_: str) -> str:
    """Returns what stands between the parts of values that are lists; empty: they are none."""
    if type_ == "token_seq":
        return " "
    return find_separator(one.sample) if one.kind == "text" and not one.is_url else ""


def _free_name(column: str, taken: set[str]) -> str:
    name = re.sub(r"[^a-z0-9_]+", "_", column.lower()).strip("_")[:50]
    name = name if re.match(r"[a-z]", name) else f"feature_{name}".rstrip("_")
    candidates = [name, *(f"{name}_{number}" for number in range(2, len(taken) + 3))]
    return next(candidate for candidate in candidates if candidate not in taken)
