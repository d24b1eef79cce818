"""Which columns describe items or users, and how the model may read them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Literal

from recsys.check.names import name_score
from recsys.check.profile import Profile, has_words
from recsys.config import RESERVED_FEATURE_NAMES, Feature

_Kind = Literal["category", "categories", "words", "number", "date"]

_MOST_CATEGORIES = 10_000
_MOST_NUMBERS = 20


def find_features(
    profiles: Mapping[str, Profile], used: Iterable[str]
) -> tuple[list[Feature], dict[str, str]]:
    """Returns the features that columns make, and why others make none.

    Args:
        profiles: The columns.
        used: Columns that aren't asked: the id's.
    """
    features: list[Feature] = []
    left_out: dict[str, str] = {}
    names = set(RESERVED_FEATURE_NAMES)
    for one in profiles.values():
        if one.name in used:
            continue
        why_not = _why_not(one)
        if why_not:
            left_out[one.name] = why_not
            continue
        name = _free_name(one.name, names)
        names.add(name)
        separator = _separator(one) or "|"
        features.append(Feature(name=name, column=one.name, kind=_kind(one), separator=separator))
    return features, left_out


def _why_not(one: Profile) -> str:
    """Returns why a column makes no feature; nothing if it does."""
    n, n_distinct = one.n_values, len(one.distinct)
    if one.kind == "empty" or n_distinct < 2:
        return "one value at most"
    if one.is_number:
        is_id = name_score(one.name, "id") > 0 and n_distinct > n // 2
        return "a number for each row" if is_id and not _is_year(one) else ""
    is_many = n_distinct > max(20, n // 2) or n_distinct > _MOST_CATEGORIES
    return "nearly as many values as rows" if _kind(one) == "category" and is_many else ""


def _kind(one: Profile) -> _Kind:
    """Returns how the model may read a column."""
    if one.kind == "list" or _separator(one):
        return "categories"
    if one.kind == "time" or _is_year(one):
        return "date"
    if one.is_number:
        return "number" if len(one.distinct) > _MOST_NUMBERS else "category"
    if has_words(one) or name_score(one.name, "title") >= 3:
        return "words"
    return "category"


def _is_year(one: Profile) -> bool:
    low, high = one.lowest or 0, one.highest or 0
    return (
        one.kind == "whole number" and low >= 1000 and high <= 3000 and "year" in one.name.lower()
    )


def _separator(one: Profile) -> str:
    """Returns what stands between the parts of values that are lists; empty: they are none."""
    if one.kind != "text" or not one.n_values:
        return ""
    signs = [sign for sign in "|;" if one.separators[sign] >= 0.1 * one.n_values]
    return signs[0] if signs else ""


def _free_name(column: str, taken: set[str]) -> str:
    name = re.sub(r"[^a-z0-9_]+", "_", column.lower()).strip("_")[:50]
    name = name if re.match(r"[a-z]", name) else f"feature_{name}".rstrip("_")
    candidates = [name, *(f"{name}_{number}" for number in range(2, len(taken) + 3))]
    return next(candidate for candidate in candidates if candidate not in taken)
