"""Which columns describe items or users, and how the model may read them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from recsys.check.names import name_score
from recsys.check.profile import Profile, has_words
from recsys.config import RESERVED_FEATURE_NAMES, Feature

_MOST_CATEGORIES = 10_000


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
        kind = _kind(one)
        if kind in ("category", "categories", "words", "number", "date"):
            name = _free_name(one.name, names)
            names.add(name)
            separator = _separator(one) or "|"
            features.append(Feature(name=name, column=one.name, kind=kind, separator=separator))
        else:
            left_out[one.name] = kind
    return features, left_out


def _kind(one: Profile) -> str:
    """Returns the kind of feature, or why there is none."""
    n, n_distinct = one.n_values, len(one.distinct)
    if one.kind == "empty" or n_distinct < 2:
        return "one value at most"
    if one.kind == "list" or _separator(one):
        return "categories"
    if one.kind == "time" or _is_year(one):
        return "date"
    if one.is_number:
        if name_score(one.name, "id") and n_distinct > n // 2:
            return "a number for each row"
        return "number" if n_distinct > 20 else "category"
    if has_words(one) or name_score(one.name, "title") >= 3:
        return "words"
    if n_distinct > max(20, n // 2) or n_distinct > _MOST_CATEGORIES:
        return "nearly as many values as rows"
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
