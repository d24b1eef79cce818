"""Assigns columns to roles (user, item, time, …) with reasons; never guesses silently.

Evidence for a role are the names of columns and their values: ids of a catalogue, and
lists of events.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence

import pyarrow as pa

from recsys.config import ListOfEvents
from recsys.config.time_format import time_pattern
from recsys.data.farmhash import fingerprints
from recsys.data.inspect.names import name_score, role_words, shown
from recsys.data.inspect.profile import Profile
from recsys.errors import UsageError

NEEDED = ("user", "item", "timestamp")
OPTIONAL = ("rating", "weight", "event")
TIME_FORMAT = "timestamp_format"
"""What `--map` names the format of the times by, where several fit."""
NO_COLUMN = "none"
"""What `--map timestamp=` names where there are no usable times."""
_NEXT_ROLE = re.compile(f",(?=(?:{'|'.join((*NEEDED, *OPTIONAL, TIME_FORMAT))})=)")
_MOST_RATINGS = 21
_MOST_KINDS = 50


@dataclasses.dataclass(frozen=True)
class Role:
    """The column of a role.

    Attributes:
        column: Its name.
        reason: Why it was chosen.
    """

    column: str
    reason: str


@dataclasses.dataclass(frozen=True)
class Roles:
    """Decided and undecided roles.

    Attributes:
        decided: The column of each role.
        undecided: A sentence for each required role without a column.
        options: The `--map` options that would decide them.
    """

    decided: dict[str, Role]
    undecided: dict[str, str]
    options: dict[str, str]


def parse_map(words: Sequence[str], columns: Sequence[str]) -> dict[str, str]:
    """Returns the columns that `--map user=a,item=b` gives, by role.

    Only a comma before `ROLE=` begins another one: names of columns, and formats, may have
    commas.

    Raises:
        UsageError: A word isn't of this form, or names no role or no column.
    """
    mapped = {}
    cure = f"Columns: {', '.join(shown(name) for name in columns[:30])}."
    for word in [part for text in words for part in _NEXT_ROLE.split(text)]:
        role, _, column = word.partition("=")
        is_format = role == TIME_FORMAT and "%" in column
        is_none = (role, column) == ("timestamp", NO_COLUMN) and NO_COLUMN not in columns
        if column.isdecimal() and column not in columns and 1 <= int(column) <= len(columns):
            column = columns[int(column) - 1]
        is_role = role in (*NEEDED, *OPTIONAL) and column in columns
        if not (is_format or is_none or is_role):
            roles = ", ".join((*NEEDED, *OPTIONAL))
            rule = f"--map must read ROLE=COLUMN, with a role among {roles}."
            raise UsageError("R258", rule, cure, word)
        if is_format:
            _check_format(column)
        mapped[role] = column
    if "user" in mapped and mapped["user"] == mapped.get("item"):
        rule = "--map must name two columns for user and item."
        raise UsageError("R258", rule, cure, mapped["user"])
    return mapped


def _check_format(format_: str) -> None:
    try:
        time_pattern(format_)
    except ValueError as error:
        cure = "Directives are those of Python's strptime: %d/%m/%Y %H:%M."
        raise UsageError("R258", f"--map: {error}.", cure) from None


def find_roles(
    profiles: Mapping[str, Profile], mapped: Mapping[str, str], hints: Mapping[str, Role]
) -> Roles:
    """Returns the columns of interactions by role.

    Args:
        profiles: The columns.
        mapped: Columns that `--map` names, by role.
        hints: Columns of the ids that catalogues speak for, by role.
    """
    decided = {
        role: Role(column, "as said by --map")
        for role, column in mapped.items()
        if column in profiles
    }
    taken = {decided[role].column for role in NEEDED if role in decided}
    decided |= {
        role: hint
        for role, hint in hints.items()
        if role not in mapped and hint.column not in taken
    }
    undecided: dict[str, str] = {}
    options: dict[str, str] = {}
    candidates: dict[str, Sequence[Profile]] = {}
    for role in ("timestamp", "rating", "weight", "event", "item", "user"):
        if role in decided or role in mapped:
            continue
        taken = {role.column for role in decided.values()}
        free = [profile for profile in profiles.values() if profile.name not in taken]
        fitting = [profile for profile in free if _fits(profile, role)]
        if role == "timestamp":  # A time tells more than the day of a folder.
            fitting = [profile for profile in fitting if not profile.is_folder] or fitting
        best = _best(fitting, role)
        blocks = _user_of_blocks(fitting) if role in ("item", "user") and not best else None
        if blocks is not None:
            decided["user"] = blocks
            rest = [profile for profile in fitting if profile.name != blocks.column]
            best = rest if role == "item" and len(rest) == 1 else []
        if len(best) == 1:
            decided[role] = Role(best[0].name, _reason(best[0], role))
            formats = best[0].time_formats
            if role == "timestamp" and len(formats) > 1:
                may_be = f"{shown(best[0].name)} may be {' or '.join(formats)}"
                undecided[role] = f"timestamp: {may_be}: no value tells which"
                options[role] = f"{TIME_FORMAT}={formats[0]}"
        elif role == "timestamp" and not fitting and not _names_a_time(free):
            continue
        elif role in NEEDED and role not in decided:
            undecided[role] = _open(role, best, fitting)
            candidates[role] = best or fitting
    options |= _suggested(candidates, {role.column for role in decided.values()})
    in_order = {role: decided[role] for role in (*NEEDED, *OPTIONAL) if role in decided}
    return Roles(in_order, undecided, options)


def _suggested(candidates: Mapping[str, Sequence[Profile]], taken: set[str]) -> dict[str, str]:
    """Returns a `--map` option for each role that has no clear column.

    Ids of users and items occur more than once and are many, unlike the numbers of rows and
    the few values of a scale. Of equals, users stand before items.
    """
    options, taken = {}, set(taken)
    for role in sorted(candidates, key=["timestamp", "user", "item"].index):
        free = [profile for profile in candidates[role] if profile.name not in taken]
        likely = sorted(free, key=lambda profile: not _repeats_many(profile))
        none = NO_COLUMN if role == "timestamp" else "COLUMN"
        column = likely[0].name if likely else none
        taken.add(column)
        options[role] = f"{role}={column}"
    return options


def _repeats_many(profile: Profile) -> bool:
    return _MOST_SCALE < len(profile.distinct) < _NEARLY_ALL * profile.n_rows


def _names_a_time(profiles: Sequence[Profile]) -> bool:
    """Returns whether a column is called a time, whatever it holds."""
    filled = [profile for profile in profiles if profile.kind != "empty"]
    return any(name_score(profile.name, "timestamp") >= 2 for profile in filled)


def _user_of_blocks(fitting: Sequence[Profile]) -> Role | None:
    """Returns the user of files without names that go through one user after the other."""
    is_first = bool(fitting) and all(_is_nameless(profile) for profile in fitting)
    if is_first and [profile for profile in fitting if profile.is_grouped] == [fitting[0]]:
        return Role(fitting[0].name, "the first column; its equal values stand together")
    return None


def _fits(profile: Profile, role: str) -> bool:
    """Returns whether the values of a column may have a role."""
    if profile.kind in ("empty", "list"):
        return False
    is_named, is_nameless = name_score(profile.name, role) > 0, _is_nameless(profile)
    n_distinct = len(profile.distinct)
    if role == "timestamp":
        is_id = role_words(profile.name) & {"user", "item"}
        is_likely = is_named or (profile.is_recent and not is_id)
        return bool(profile.time_formats) or (profile.unit is not None and is_likely)
    if role == "rating":
        return profile.is_number and (is_named or (is_nameless and _is_scale(profile)))
    if role == "weight":
        return profile.is_number and not is_nameless and (profile.lowest or 0.0) >= 0.0
    if role == "event":
        return profile.kind == "text" and not is_nameless and 1 <= n_distinct <= _MOST_KINDS
    is_called_time = name_score(profile.name, "timestamp") > 0
    is_time = profile.kind == "time" or (profile.unit is not None and is_called_time)
    return profile.kind != "number" and not is_time and (n_distinct >= 2 or is_named)


def _is_scale(profile: Profile) -> bool:
    low, high = profile.lowest, profile.highest
    is_few = len(profile.distinct) <= _MOST_RATINGS
    return is_few and low is not None and high is not None and 0.0 <= low <= high <= 10.0


def _is_nameless(profile: Profile) -> bool:
    return profile.name[:1] == "c" and profile.name[1:].isdecimal()


def _best(fitting: Sequence[Profile], role: str) -> list[Profile]:
    """Returns the columns that speak most for a role; one alone is it."""
    if len(fitting) == 1 and (role in ("timestamp", "rating") or _is_nameless(fitting[0])):
        return list(fitting)
    products = [profile for profile in fitting if _is_nameless(profile) and profile.is_asin]
    if role == "item" and len(products) == 1:
        return products
    scores = [name_score(profile.name, role) for profile in fitting]
    top = max(scores, default=0)
    if top < (1 if role in ("timestamp", "rating") else 2):
        return []
    return [profile for profile, score in zip(fitting, scores, strict=True) if score == top]


def _reason(profile: Profile, role: str) -> str:
    named = (
        f"its name says {role}" if name_score(profile.name, role) else "the only column that fits"
    )
    if role == "item" and _is_nameless(profile) and profile.is_asin:
        return "its values are ASINs or ISBNs"
    if role == "timestamp":
        what = "times" if profile.kind == "time" else f"times in {profile.unit}"
        what = f"times as {profile.time_formats[0]}" if profile.time_formats else what
        return f"{named}; its values are {what}"
    if role == "rating":
        return f"{named}; {len(profile.distinct)} different numbers"
    if role == "event":
        return f"{named}; {len(profile.distinct)} kinds"
    return named


def _open(role: str, best: Sequence[Profile], fitting: Sequence[Profile]) -> str:
    """Returns why no column is sure to have a role."""
    if len(best) > 1:
        names = " and ".join(shown(profile.name) for profile in best[:4])
        return f"{role}: {names} are equally likely"
    if fitting:
        names = ", ".join(shown(profile.name) for profile in fitting[:6])
        return f"{role}: no name tells; it may be {names}"
    if role != "timestamp":
        return f"{role}: there is no column"
    why = "no column holds times from 1971 to now, though one is called so"
    return (
        f"timestamp: {why}; --map {TIME_FORMAT}=… tells how they are written, as %d/%m/%Y %H:%M"
        f" or %Y-%m-%d %H:%M:%S %Z; --map timestamp={NO_COLUMN} goes without"
    )


_SIGNS = ("|", ";", ",", " ")
_ID = re.compile(r"\s*[\w.:-]{1,64}\s*")
_MOSTLY = 0.5


def find_events(
    profiles: Mapping[str, Profile], mapped: Mapping[str, str]
) -> tuple[ListOfEvents, str] | None:
    """Returns the column with the lists of events, and why; `None` where a row is an event.

    Lists beside a column that is the item, as of pictures or genres, are no events.

    Args:
        profiles: The columns.
        mapped: Columns that `--map` names, by role.
    """
    plain = [profile for profile in profiles.values() if profile.kind != "list"]
    lists = {profile.name: None for profile in profiles.values() if profile.kind == "list"}
    if "item" in mapped:
        held = {mapped["item"]: lists.get(mapped["item"], _sign(profiles[mapped["item"]]))}
        held = {name: sign for name, sign in held.items() if sign or name in lists}
    elif any(name_score(profile.name, "item") >= 2 and not _sign(profile) for profile in plain):
        return None
    else:
        texts = {profile.name: sign for profile in plain if (sign := _sign(profile))}
        held = _most_likely({**lists, **texts})
    if not held:
        return None
    ((name, separator),) = held.items()
    column = _whole(name, profiles)
    reason = f"lists of events in {shown(column)}: no other column is the item"
    return ListOfEvents(column=column, separator=separator), reason


def _sign(profile: Profile) -> str:
    """Returns what stands between the ids in most values of a text; empty: it is no list."""
    if profile.kind != "text" or not profile.sample:
        return ""
    return next((sign for sign in _SIGNS if _share(sign, profile.sample) >= _MOSTLY), "")


def _share(sign: str, values: Sequence[str]) -> float:
    """Returns the share of values that are several ids, or 0 if one is something else."""
    lists = [[part for part in value.split(sign) if part] for value in values]
    if not all(
        _ID.fullmatch(part) and any(map(str.isdigit, part)) for parts in lists for part in parts
    ):
        return 0.0
    return sum(len(parts) > 1 for parts in lists) / len(lists)


def _most_likely(held: Mapping[str, str | None]) -> dict[str, str | None]:
    """Returns the one column whose name suggests items, or the one that there is, if any."""
    named = [name for name in held if name_score(name, "item") >= 2]
    names = named or list(held)
    return {names[0]: held[names[0]]} if len(names) == 1 else {}


def _whole(name: str, profiles: Mapping[str, Profile]) -> str:
    """Returns the column of the objects that hold a field, where all their fields are lists."""
    whole = name.rpartition(".")[0]
    fields = [profile for profile in profiles.values() if profile.name.startswith(f"{whole}.")]
    return whole if whole and all(profile.kind == "list" for profile in fields) else name


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
    """Returns the columns that hold the same ids; `None` if none do, or it is not clear which.

    The column that the catalogue has most of wins, then the one whose name says the role,
    then the one that covers more of the catalogue: counts from 1 to 300 are all ids of a
    catalogue of whole numbers too, but they don't cover it.

    Args:
        role: `item` or `user`.
        profiles: The columns of the interactions.
        side: The columns of the catalogue.
        taken: Columns that are decided, by role.
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
    """Returns the columns that have another value in nearly every row."""
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
    """Returns the one overlap that is clearly the best; `None` if there is none."""
    most = max((overlap.share for overlap in overlaps), default=0.0)
    best = [overlap for overlap in overlaps if overlap.share >= most - 0.01]
    named = [overlap for overlap in best if name_score(overlap.column, role) >= 2]
    best = sorted(named or best, key=lambda overlap: -overlap.coverage)
    if len(best) > 1 and best[0].coverage < 1.5 * best[1].coverage:
        return None
    return best[0] if best else None
