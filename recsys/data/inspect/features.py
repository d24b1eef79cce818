"""The features that columns provide: of items and users, and of events."""

from __future__ import annotations

import re
from collections.abc import Sequence

from recsys.data.entities import EARLIEST_DATE
from recsys.data.inspect.names import RECBOLE_TYPE, name_score
from recsys.data.inspect.profile import Profile
from recsys.data.sources.values import is_nested

_MOST_CATEGORIES, _MOST_NUMBERS = 10_000, 20
_URL = r"^\s*(https?://|www\.)\S+$"


def is_url(profile: Profile) -> bool:
    """Returns whether most values are URLs."""
    return profile.kind in ("text", "list") and profile.share_of(_URL) > 0.5


def feature_of(profile: Profile) -> dict[str, str | int] | str:
    """Returns the options of an item's or a user's feature, or why the column provides none."""
    n_distinct = len(profile.distinct)
    is_text, is_whole = profile.kind == "text", profile.kind == "whole number"
    match = RECBOLE_TYPE.search(profile.name)
    type_ = match[1] if match else ""
    low, high = profile.lowest or 0, profile.highest or 0
    is_year = is_whole and low >= 1000 and high <= 3000 and "year" in profile.name.lower()
    is_epoch = is_whole and profile.unit == "seconds" and low >= EARLIEST_DATE
    separator = " " if type_ == "token_seq" else find_separator(profile.sample) if is_text else ""
    if profile.kind == "vector":
        return {"kind": "vector", "width": profile.width}
    if why := _no_feature(profile, type_, is_year=is_year):
        return why
    if is_text and name_score(profile.name, "title") >= 3 and separator not in ("|", ";"):
        return {"kind": "words"}
    if profile.kind == "list" or separator:
        return {"kind": "categories", "separator": separator or "|"}
    if is_year or (type_ != "token" and (profile.kind == "time" or is_epoch)):
        # Eight digits would be ambiguous as a number.
        is_day = all(re.fullmatch(r"\d{8}", text) for text in profile.sample)
        formats = [*profile.time_formats, *["%Y%m%d"] * is_day]
        return {"kind": "date", **({"format": formats[0]} if formats else {})}
    if profile.all_numbers and type_ != "token":
        return {"kind": "number" if n_distinct > _MOST_NUMBERS else "category"}
    if profile.has_words and type_ != "token":
        return {"kind": "words"}
    is_many = n_distinct > max(20, profile.n_values // 2) or n_distinct > _MOST_CATEGORIES
    if is_many and not profile.all_numbers:
        return "nearly as many values as rows"
    return {"kind": "category"}


def event_feature_of(profile: Profile) -> dict[str, str | int] | str:
    """Returns the options of a feature of events, or why the column provides none."""
    if profile.kind == "vector":
        return {"kind": "vector", "width": profile.width}
    if why := _no_feature(profile, "", is_year=False):
        return why
    if profile.kind in ("list", "time") or profile.has_words:
        return "no values of one kind"
    if profile.all_numbers and len(profile.distinct) > _MOST_NUMBERS:
        is_price = name_score(profile.name, "amount") > 0 and (profile.lowest or 0) >= 0
        return {"kind": "price" if is_price else "number"}
    if len(profile.distinct) > _MOST_CATEGORIES:
        return {"kind": "category", "hash_buckets": _MOST_CATEGORIES}
    return {"kind": "category"}


def _no_feature(profile: Profile, type_: str, *, is_year: bool) -> str:
    """Returns why a column provides no feature; empty: it may."""
    if is_url(profile):
        return "web addresses"
    if profile.kind == "text" and any(map(is_nested, profile.examples)):
        return "objects as text: write their names as a list"
    if type_ == "float_seq":
        return "lists of numbers"
    if len(profile.time_formats) > 1:
        return "dates that may be " + " or ".join(profile.time_formats[:2])
    if len(profile.distinct) < 2:
        return "one value at most"
    is_id = name_score(profile.name, "id") > 0 and len(profile.distinct) > profile.n_values // 2
    return "a number for each row" if profile.is_number and is_id and not is_year else ""


_SIGNS = ("|", ";", ",", " ")
_LEAST_VALUES, _MOST_PARTS = 5, 30


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
