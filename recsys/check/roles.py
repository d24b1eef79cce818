"""Which column is the user, the item, the time …, with the reason; never a silent guess."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from recsys.check.names import name_score, role_words
from recsys.check.profile import Profile
from recsys.check.shown import shown
from recsys.errors import UsageError

NEEDED = ("user", "item", "timestamp")
OPTIONAL = ("rating", "weight", "event")
TIME_FORMAT = "timestamp_format"
"""What `--map` names the format of the times by, where several fit."""
NO_COLUMN = "none"
"""What `--map timestamp=` names where there are no usable times."""
_MOST_RATINGS = 21
_MOST_KINDS = 50


@dataclasses.dataclass(frozen=True)
class Role:
    """A column that was found for a role.

    Attributes:
        column: Its name.
        reason: Why it is the one.
    """

    column: str
    reason: str


@dataclasses.dataclass(frozen=True)
class Roles:
    """What was decided, and what wasn't.

    Attributes:
        found: The column of each role.
        undecided: What is open about each needed role that has none: a sentence.
        options: The `--map` words that would decide it.
    """

    found: dict[str, Role]
    undecided: dict[str, str]
    options: dict[str, str]


def parse_map(words: Sequence[str], columns: Sequence[str]) -> dict[str, str]:
    """Returns the columns that `--map user=a,item=b` gives, by role.

    Raises:
        UsageError: A word isn't of this form, or names no role or no column.
    """
    given = {}
    for word in [part for text in words for part in text.split(",") if part]:
        role, _, column = word.partition("=")
        if role == TIME_FORMAT and "%" in column:
            given[role] = column
            continue
        if (role, column) == ("timestamp", NO_COLUMN) and NO_COLUMN not in columns:
            given[role] = NO_COLUMN
            continue
        if column.isdecimal() and column not in columns and 1 <= int(column) <= len(columns):
            column = columns[int(column) - 1]
        if role not in (*NEEDED, *OPTIONAL) or column not in columns:
            raise UsageError(
                "R258",
                "--map must read ROLE=COLUMN, with a role among "
                f"{', '.join((*NEEDED, *OPTIONAL))}.",
                f"Columns: {', '.join(shown(name) for name in columns[:30])}.",
                word,
            )
        given[role] = column
    if "user" in given and given["user"] == given.get("item"):
        raise UsageError(
            "R258",
            "--map must name two columns for user and item.",
            f"Columns: {', '.join(shown(name) for name in columns[:30])}.",
            given["user"],
        )
    return given


def find_roles(
    profiles: Mapping[str, Profile], given: Mapping[str, str], hints: Mapping[str, Role]
) -> Roles:
    """Returns the columns of interactions by role.

    Args:
        profiles: The columns.
        given: Roles that were said.
        hints: Columns of the ids that catalogues speak for, by role.
    """
    found = {
        role: Role(column, "as said by --map")
        for role, column in given.items()
        if column in profiles
    }
    taken = {found[role].column for role in NEEDED if role in found}
    found |= {
        role: hint for role, hint in hints.items() if role not in given and hint.column not in taken
    }
    undecided: dict[str, str] = {}
    options: dict[str, str] = {}
    for role in ("timestamp", "rating", "weight", "event", "item", "user"):
        if role in found or role in given:
            continue
        free = [one for one in profiles.values() if one.name not in _taken(found)]
        fitting = [one for one in free if _fits(one, role)]
        best = _best(fitting, role)
        blocks = _user_of_blocks(fitting) if role in ("item", "user") and not best else None
        if blocks is not None:
            found["user"] = blocks
            rest = [one for one in fitting if one.name != blocks.column]
            best = rest if role == "item" and len(rest) == 1 else []
        if len(best) == 1:
            found[role] = Role(best[0].name, _reason(best[0], role))
            _tell_formats(best[0], role, undecided, options)
        elif role == "timestamp" and not fitting and not _names_a_time(free):
            continue
        elif role in NEEDED and role not in found:
            undecided[role] = _open(role, best, fitting)
            names = [one.name for one in best or fitting] or ["COLUMN"]
            options[role] = f"{role}={names[-1 if role == 'item' else 0]}"
    in_order = {role: found[role] for role in (*NEEDED, *OPTIONAL) if role in found}
    return Roles(in_order, undecided, options)


def _tell_formats(
    one: Profile, role: str, undecided: dict[str, str], options: dict[str, str]
) -> None:
    """Says where several formats fit the times equally well."""
    if role == "timestamp" and len(one.time_formats) > 1:
        formats = " or ".join(one.time_formats)
        undecided[role] = f"timestamp: {shown(one.name)} may be {formats}: no value tells which"
        options[role] = f"'{TIME_FORMAT}={one.time_formats[0]}'"


def _names_a_time(profiles: Sequence[Profile]) -> bool:
    """Returns whether a column is called a time, whatever it holds."""
    filled = [one for one in profiles if one.kind != "empty"]
    return any(name_score(one.name, "timestamp") >= 2 for one in filled)


def _user_of_blocks(fitting: Sequence[Profile]) -> Role | None:
    """Returns the user of files without names that go through one user after the other."""
    is_first = bool(fitting) and all(_is_nameless(one) for one in fitting)
    if is_first and [one for one in fitting if one.is_grouped] == [fitting[0]]:
        return Role(fitting[0].name, "the first column; its equal values stand together")
    return None


def _taken(found: Mapping[str, Role]) -> set[str]:
    return {role.column for role in found.values()}


def _fits(one: Profile, role: str) -> bool:
    """Returns whether the values of a column may have a role."""
    if one.kind in ("empty", "list"):
        return False
    if role == "timestamp":
        speaks = name_score(one.name, "timestamp") > 0
        is_id = role_words(one.name) & {"user", "item"}
        if one.time_formats:
            return True
        return one.unit is not None and (speaks or (one.is_recent and not is_id))
    if role == "rating":
        return one.is_number and (
            name_score(one.name, "rating") > 0 or (_is_nameless(one) and _is_scale(one))
        )
    if role == "weight":
        return one.is_number and not _is_nameless(one) and (one.lowest or 0.0) >= 0.0
    if role == "event":
        return (
            one.kind == "text" and not _is_nameless(one) and 1 <= len(one.distinct) <= _MOST_KINDS
        )
    is_time = one.kind == "time" or (one.unit is not None and name_score(one.name, "timestamp"))
    is_constant = len(one.distinct) < 2 and name_score(one.name, role) == 0
    return one.kind != "number" and not is_time and not is_constant


def _is_scale(one: Profile) -> bool:
    low, high = one.lowest, one.highest
    return (
        low is not None
        and high is not None
        and low >= 0.0
        and high <= 10.0
        and len(one.distinct) <= _MOST_RATINGS
    )


def _is_nameless(one: Profile) -> bool:
    return one.name[:1] == "c" and one.name[1:].isdecimal()


def _best(fitting: Sequence[Profile], role: str) -> list[Profile]:
    """Returns the columns that speak most for a role; one alone is it."""
    if len(fitting) == 1 and (role in ("timestamp", "rating") or _is_nameless(fitting[0])):
        return list(fitting)
    products = [one for one in fitting if _is_nameless(one) and one.is_asin]
    if role == "item" and len(products) == 1:
        return products
    scores = [name_score(one.name, role) for one in fitting]
    top = max(scores, default=0)
    if top < (1 if role in ("timestamp", "rating") else 2):
        return []
    return [one for one, score in zip(fitting, scores, strict=True) if score == top]


def _reason(one: Profile, role: str) -> str:
    named = f"its name says {role}" if name_score(one.name, role) else "the only column that fits"
    if role == "item" and _is_nameless(one) and one.is_asin:
        return "its values are ASINs or ISBNs"
    if role == "timestamp":
        what = "times" if one.kind == "time" else f"times in {one.unit}"
        what = f"times as {one.time_formats[0]}" if one.time_formats else what
        return f"{named}; its values are {what}"
    if role == "rating":
        return f"{named}; {len(one.distinct)} different numbers"
    if role == "event":
        return f"{named}; {len(one.distinct)} kinds"
    return named


def _open(role: str, best: Sequence[Profile], fitting: Sequence[Profile]) -> str:
    if len(best) > 1:
        names = " and ".join(shown(one.name) for one in best[:4])
        return f"{role}: {names} are equally likely"
    if not fitting:
        if role == "timestamp":
            return (
                "timestamp: no column holds times from 1971 to now, though one is called so;"
                f" --map timestamp={NO_COLUMN} goes without"
            )
        return f"{role}: there is no column"
    names = ", ".join(shown(one.name) for one in fitting[:6])
    return f"{role}: no name tells; it may be {names}"
