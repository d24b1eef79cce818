"""Assigns columns to roles (user, item, time, …) with reasons; never guesses silently.

Evidence for a role comes from column names and values: the ids of a catalogue, and lists of
events.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence

from recsys.data.config import ListOfEvents
from recsys.data.inspect.names import name_score, role_words, shown
from recsys.data.inspect.profile import Profile
from recsys.data.time_format import time_pattern
from recsys.errors import UsageError

NEEDED = ("user", "item", "timestamp")
OPTIONAL = ("rating", "weight", "event")
TIME_FORMAT = "timestamp_format"
"""Name of the format of times in `--map`, if several fit."""
NO_COLUMN = "none"
"""Column name in `--map` for a role without a column, for example if times are unusable."""
_NEXT_ROLE = re.compile(f",(?=(?:{'|'.join((*NEEDED, *OPTIONAL, TIME_FORMAT))})=)")
MOST_RATINGS = 21
_NEARLY_ALL = 0.9
_MOST_KINDS = 50
_MANY_COLUMNS = 20
_HEAVY_TAIL = 5.0
_IMPRESSION = re.compile(r"\S+-[01]")
_ALSO = {"rating": ["label"], "event": ["label"], "weight": ["duration"]}
"""Further words that suggest a column of a role."""
_YES = {"true", "yes", "y", "t"}
_NO = {"false", "no", "n", "f"}


@dataclasses.dataclass(frozen=True)
class Role:
    """The column of a role.

    Attributes:
        column: Name of the column.
        reason: Reason for the choice.
    """

    column: str
    reason: str


@dataclasses.dataclass(frozen=True)
class Roles:
    """Decided and undecided roles.

    Attributes:
        decided: The column of each role.
        undecided: A sentence for each required role without a column.
        options: `--map` options that may decide each of these roles, the likeliest first.
    """

    decided: dict[str, Role]
    undecided: dict[str, str]
    options: dict[str, list[str]]


def parse_map(words: Sequence[str], columns: Sequence[str]) -> dict[str, str]:
    """Returns the columns in `--map user=a,item=b` by role.

    Only a comma before `ROLE=` separates entries, since names of columns and formats may contain
    commas.

    Raises:
        UsageError: A word has another form, or names no role or no column.
    """
    mapped = {}
    cure = f"Columns: {', '.join(shown(name) for name in columns[:30])}."
    for word in [part for text in words for part in _NEXT_ROLE.split(text)]:
        role, _, column = word.partition("=")
        is_format = role == TIME_FORMAT and "%" in column
        is_optional = role in (*OPTIONAL, "timestamp")
        is_none = is_optional and column == NO_COLUMN and NO_COLUMN not in columns
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
        profiles: Profiles of the columns.
        mapped: Columns given by `--map`, by role.
        hints: Columns suggested by the ids of catalogues, by role.
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
    options: dict[str, list[str]] = {}
    candidates: dict[str, Sequence[Profile]] = {}
    if "item" not in decided and (no_item := _no_item(profiles)):
        undecided["item"] = no_item
    for role in ("timestamp", "rating", "weight", "event", "item", "user"):
        if role in decided or role in mapped or role in undecided:
            continue
        taken = {role.column for role in decided.values()}
        free = [profile for profile in profiles.values() if profile.name not in taken]
        fitting = [profile for profile in free if _fits(profile, role)]
        if role == "timestamp":  # A time is more precise than the day in a folder's name.
            fitting = [profile for profile in fitting if not profile.is_folder] or fitting
        if role == "event" and "rating" in decided:  # The rating determines the positives.
            fitting = [profile for profile in fitting if yes_of(profile) is None]
        if role == "weight" and "rating" in decided:
            fitting = [profile for profile in fitting if name_score(profile.name, "weight")]
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
                options[role] = [f"{TIME_FORMAT}={format_}" for format_ in formats]
        elif role == "timestamp" and not fitting and not _names_a_time(free):
            continue
        elif len(best) > 1 and all(_is_label(profile) for profile in best):
            names = " and ".join(shown(profile.name) for profile in best[:4])
            undecided[role] = f"{role}: {names} are equally likely to say which rows are positives"
            options[role] = [f"{role}={profile.name}" for profile in best]
        elif role in NEEDED and role not in decided:
            undecided[role] = _open(role, best, fitting)
            candidates[role] = best or fitting
    options |= _suggested(candidates, {role.column for role in decided.values()})
    in_order = {role: decided[role] for role in (*NEEDED, *OPTIONAL) if role in decided}
    return Roles(in_order, undecided, options)


def _suggested(
    candidates: Mapping[str, Sequence[Profile]], taken: set[str]
) -> dict[str, list[str]]:
    """Returns `--map` options for each undecided role.

    Unlike row numbers and the few values of a scale, ids of users and items are numerous and
    repeated. Ties go to the user.
    """
    options, taken = {}, set(taken)
    for role in sorted(candidates, key=["timestamp", "user", "item"].index):
        free = [profile for profile in candidates[role] if profile.name not in taken]
        likely = sorted(free, key=lambda profile: not _repeats_many(profile))
        columns = [profile.name for profile in likely]
        columns += [NO_COLUMN] if role == "timestamp" else []
        taken.update(columns[:1])
        options[role] = [f"{role}={column}" for column in columns]
    return options


def _no_item(profiles: Mapping[str, Profile]) -> str | None:
    """Returns why no column can be the item, if known."""
    for profile in profiles.values():
        lists = [value.split() for value in profile.sample]
        is_list = profile.kind == "text" and 2 * sum(len(one) > 1 for one in lists) > len(lists)
        if is_list and all(_IMPRESSION.fullmatch(part) for parts in lists for part in parts):
            return (
                f"item: {shown(profile.name)} holds impressions, ITEM-1 for a click and ITEM-0 for"
                " none, which can't be read: write a row of user, item, time and label for each"
            )
    numbers = [profile for profile in profiles.values() if profile.is_number]
    is_wide = len(numbers) >= max(_MANY_COLUMNS, 0.8 * len(profiles))
    if is_wide and not any(name_score(name, "item") >= 4 for name in profiles):
        return (
            f"item: {len(numbers)} of {len(profiles)} columns are numbers, which looks like a"
            " matrix with a column for each item: write a row of user, item and value for each of"
            " its cells, as pandas.melt does"
        )
    return None


def _repeats_many(profile: Profile) -> bool:
    return MOST_RATINGS < len(profile.distinct) < _NEARLY_ALL * profile.n_rows


def _names_a_time(profiles: Sequence[Profile]) -> bool:
    """Returns whether a column's name suggests a time, whatever its values."""
    filled = [profile for profile in profiles if profile.kind != "empty"]
    names = [one.name for one in filled if not name_score(one.name, "duration")]
    return any(name_score(name, "timestamp") >= 2 for name in names)


def _user_of_blocks(fitting: Sequence[Profile]) -> Role | None:
    """Returns the user column of files without a header that are grouped by user."""
    is_first = bool(fitting) and all(is_nameless(profile) for profile in fitting)
    if is_first and [profile for profile in fitting if profile.is_grouped] == [fitting[0]]:
        return Role(fitting[0].name, "the first column; its equal values stand together")
    return None


def _fits(profile: Profile, role: str) -> bool:
    """Returns whether the values of a column fit a role."""
    if profile.kind in ("empty", "list"):
        return False
    is_named, no_name = name_score(profile.name, role) > 0, is_nameless(profile)
    n_distinct = len(profile.distinct)
    if role == "timestamp":
        is_id = role_words(profile.name) & {"user", "item"}
        is_likely = is_named or (profile.is_recent and not is_id)
        return bool(profile.time_formats) or (profile.unit is not None and is_likely)
    if role == "rating":
        is_rating = is_named or _is_label(profile) or (no_name and _is_scale(profile))
        return profile.is_number and is_rating
    if role == "weight":
        return profile.is_number and not no_name and (profile.lowest or 0.0) >= 0.0
    if role == "event":
        return profile.kind == "text" and not no_name and 1 <= n_distinct <= _MOST_KINDS
    is_called_time = name_score(profile.name, "timestamp") > 0
    is_time = profile.kind == "time" or (profile.unit is not None and is_called_time)
    return profile.kind != "number" and not is_time and (n_distinct >= 2 or is_named)


def _is_scale(profile: Profile) -> bool:
    low, high = profile.lowest, profile.highest
    is_few = len(profile.distinct) <= MOST_RATINGS
    return is_few and low is not None and high is not None and 0.0 <= low <= high <= 10.0


def _is_label(profile: Profile) -> bool:
    """Returns whether a column is named a label and has few small numbers, or yes and no."""
    is_few = has_few_numbers(profile) or yes_of(profile) is not None
    return name_score(profile.name, "label") >= 2 and is_few


def has_few_numbers(profile: Profile) -> bool:
    """Returns whether the values are a few small integers, such as 0 and 1."""
    low, high = profile.lowest, profile.highest
    is_small = low is not None and high is not None and -1.0 <= low < high <= 10.0
    is_few = len(profile.distinct) <= MOST_RATINGS
    return profile.kind == "whole number" and profile.unit is None and is_few and is_small


def yes_of(profile: Profile) -> str | None:
    """Returns the value that means yes, such as `True` of `True` and `False`; else None."""
    values = {value.strip().lower(): value for value in profile.values}
    is_both = len(values) == 2 and values.keys() & _YES and values.keys() & _NO
    return next(values[word] for word in values if word in _YES) if is_both else None


def is_heavy_tailed(profile: Profile) -> bool:
    """Returns whether numbers are non-negative, and a few are many times the median."""
    is_positive = profile.is_number and (profile.lowest or 0.0) >= 0.0
    middle, high = (profile.numbers.quantile(share) for share in (0.5, 0.99))
    return is_positive and len(profile.distinct) > MOST_RATINGS and high > _HEAVY_TAIL * middle


def is_nameless(profile: Profile) -> bool:
    """Returns whether a column's name was generated because its file has no header."""
    return profile.name[:1] == "c" and profile.name[1:].isdecimal()


def _best(fitting: Sequence[Profile], role: str) -> list[Profile]:
    """Returns the best columns for a role; a single one is the choice."""
    if len(fitting) == 1 and (role in ("timestamp", "rating") or is_nameless(fitting[0])):
        return list(fitting)
    products = [profile for profile in fitting if is_nameless(profile) and profile.is_asin]
    if role == "item" and len(products) == 1:
        return products
    scores = [_score(profile, role) for profile in fitting]
    top = max(scores, default=0)
    if top < (1 if role in ("timestamp", "rating") else 2):
        return []
    best = [profile for profile, score in zip(fitting, scores, strict=True) if score == top]
    # A number of seconds is unambiguous; a text without an offset may be in any time zone.
    epochs = [profile for profile in best if profile.is_number]
    return epochs if role == "timestamp" and len(epochs) == 1 else best


def _score(profile: Profile, role: str) -> int:
    """Returns how strongly a column's name, and for some roles its values, suggest a role."""
    named = name_score(profile.name, role)
    if role == "rating" and named:
        return named + 4  # Ranks above all labels.
    if role in ("rating", "event") and named < 2 and _is_label(profile):
        return 2 if role == "event" else name_score(profile.name, "label")
    if role == "weight" and named < 2 and name_score(profile.name, "duration"):
        return 2 if is_heavy_tailed(profile) else 0
    return named


def _reason(profile: Profile, role: str) -> str:
    named = "the only column that fits"
    for word in (role, *_ALSO.get(role, ())):
        if name_score(profile.name, word):
            named = f"its name says {word}"
            break
    if role == "item" and is_nameless(profile) and profile.is_asin:
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
    """Returns why a role is undecided."""
    if len(best) > 1:
        names = " and ".join(shown(profile.name) for profile in best[:4])
        return f"{role}: {names} are equally likely"
    if fitting:
        names = ", ".join(shown(profile.name) for profile in fitting[:6])
        return f"{role}: no name tells; it may be {names}"
    if role != "timestamp":
        return f"{role}: there is no column"
    return (
        "timestamp: no column holds times from 1971 to now, though one is called so; if it does,"
        f" --map {TIME_FORMAT}=… tells how they are written, as %d/%m/%Y %H:%M or"
        " %Y-%m-%d %H:%M:%S %Z"
    )


_SIGNS = ("|", ";", ",", " ")
_ID = re.compile(r"\s*[\w.:-]{1,64}\s*")
_MOSTLY = 0.5


def find_events(
    profiles: Mapping[str, Profile], mapped: Mapping[str, str]
) -> tuple[ListOfEvents, str] | None:
    """Returns the column with the lists of events and the reason; `None` if a row is an event.

    If another column is the item, lists (of images or genres, for example) are no events.

    Args:
        profiles: Profiles of the columns.
        mapped: Columns given by `--map`, by role.
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
    """Returns the separator of ids in most values of a text; empty if it is no list."""
    if profile.kind != "text" or not profile.sample:
        return ""
    return next((sign for sign in _SIGNS if _share(sign, profile.sample) >= _MOSTLY), "")


def _share(sign: str, values: Sequence[str]) -> float:
    """Returns the share of values with several ids; 0 if any part isn't an id."""
    lists = [[part for part in value.split(sign) if part] for value in values]
    if not all(
        _ID.fullmatch(part) and any(map(str.isdigit, part)) for parts in lists for part in parts
    ):
        return 0.0
    return sum(len(parts) > 1 for parts in lists) / len(lists)


def _most_likely(held: Mapping[str, str | None]) -> dict[str, str | None]:
    """Returns the only column whose name suggests items, or else the only column, if any."""
    named = [name for name in held if name_score(name, "item") >= 2]
    names = named or list(held)
    return {names[0]: held[names[0]]} if len(names) == 1 else {}


def _whole(name: str, profiles: Mapping[str, Profile]) -> str:
    """Returns the column of the objects that contain a field, if all their fields are lists."""
    whole = name.rpartition(".")[0]
    fields = [profile for profile in profiles.values() if profile.name.startswith(f"{whole}.")]
    return whole if whole and all(profile.kind == "list" for profile in fields) else name
