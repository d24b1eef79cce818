"""The roles of columns in interactions (user, item, time …), decided with reasons.

`RULES` is the table of roles. A role that is added there is found by names and values, taken by
`--map`, and written with the keys of `data.interactions` that its values call for.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np

from recsys.data.config import ListOfEvents
from recsys.data.inspect.profile import Profile
from recsys.data.time_format import time_pattern
from recsys.errors import UsageError, shown

# --- names

_WORDS = {
    "user": "session sessionid sid user users uid userid customer customers client visitor "
    "account member reviewer buyer shopper subscriber viewer listener reader person "
    "customerid visitorid clientid",
    "item": "item items iid itemid aid product products movie movies film song track article asin "
    "sku isbn book video listing content offer game app artist business recipe productid movieid "
    "movieid articleid anime show post hotel restaurant place venue",
    "timestamp": "timestamp time ts dt ds date datetime day created at when unixtime unix moment",
    "rating": "rating ratings score stars star overall grade",
    "label": "label labels target click clicked like liked purchase purchased bought "
    "buy converted conversion favorite favorited favourite favourited positive relevance relevant",
    "weight": "weight quantity qty plays playcount listens listencount count counts",
    "duration": "hours minutes playtime playtimes playduration watchtime watchduration listentime "
    "viewtime dwell dwelltime readtime timespent",
    "event": "event action behavior behaviour type interaction",
    "part": "part split set subset fold partition",
    "id": "id key code no number",
    "title": "title name label",
}
_KNOWN = {role: frozenset(words.split()) for role, words in _WORDS.items()}
RECBOLE_TYPE = re.compile(r":(token|token_seq|float|float_seq)$")
"""The suffixes of column names in RecBole's atomic files."""
_SESSION = {"session", "sessionid", "sid"}
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+|[^\W\d_A-Za-z]+")


def words_of(name: str) -> list[str]:
    """Returns the words of a name: `event.userId` → event, user, id."""
    return [word.lower() for word in _WORD.findall(RECBOLE_TYPE.sub("", name))]


def name_score(name: str, role: str) -> int:
    """Returns how strongly a name suggests a role, from 0 (not at all) to 4."""
    words, known = words_of(name), _KNOWN[role]
    if not words:
        return 0
    if role == "user" and _SESSION & {words[0], "".join(words)}:
        return 3  # If there is also a user column, a session is not the user.
    if "".join(words) in known or (
        words[-1] in _KNOWN["id"] and words[-2:-1] and words[-2] in known
    ):
        return 4
    if words[-1] in known:
        return 3 if role not in ("user", "item") else 2
    return 1 if known.intersection(words) else 0


def is_name(text: str) -> bool:
    """Returns whether a text is a column name, and not a value such as `user6`."""
    return any(name_score(text, role) >= 2 for role in _WORDS)


def is_nameless(profile: Profile) -> bool:
    """Returns whether a column's name was generated because its file has no header."""
    return profile.name[:1] == "c" and profile.name[1:].isdecimal()


# --- values

_MOST_GRADES, _MOST_KINDS = 21, 50
_MANY_GRADES = 200
_NEARLY_ALL = 0.9
_SMALL_COUNT, _HEAVY_TAIL = 20, 5.0
_UPPER, _FEW = 0.7, 0.05
"""Quantile at which positives begin on a scale; and their share below which it is no scale."""
_YES = {"true", "yes", "y", "t"}
_NO = {"false", "no", "n", "f"}
_PARTS = {
    "train": {"train", "training", "learn"},
    "valid": {"valid", "validation", "val", "dev"},
    "eval": {"test", "testing", "eval", "evaluation", "probe", "heldout", "holdout"},
}


def is_scale(profile: Profile, lowest: float = 0.0) -> bool:
    """Returns whether there are a few different numbers, from `lowest` to at most 10."""
    numbers = profile.numbers
    is_few = profile.is_number and len(numbers) > 0 and len(profile.distinct) <= _MOST_GRADES
    return bool(is_few and lowest <= numbers.min() and numbers.max() <= 10.0)


def has_few_numbers(profile: Profile) -> bool:
    """Returns whether the values are a few small integers, such as 0 and 1."""
    is_whole = profile.kind == "whole number" and profile.unit is None
    return is_whole and profile.lowest != profile.highest and is_scale(profile, -1.0)


def _yes_of(profile: Profile) -> str | None:
    """Returns the value that means yes, such as `True` of `True` and `False`; else None."""
    values = {value.lower(): value for value in profile.values}
    is_both = len(values) == 2 and values.keys() & _YES and values.keys() & _NO
    return next(values[word] for word in values if word in _YES) if is_both else None


def _is_label(profile: Profile) -> bool:
    """Returns whether a column is named a label and has few small numbers, or yes and no."""
    is_few = has_few_numbers(profile) or _yes_of(profile) is not None
    return name_score(profile.name, "label") >= 2 and is_few


def _is_heavy_tailed(profile: Profile) -> bool:
    """Returns whether a few numbers are many times the median."""
    middle, high = np.quantile(profile.numbers, (0.5, 0.99))
    return len(profile.distinct) > _MOST_GRADES and bool(high > _HEAVY_TAIL * middle)


def _threshold(rating: Profile) -> float | None:
    """Returns the lowest rating of a positive; `None` if all ratings are equal.

    It is the lowest rating in the upper third of a scale. For other numbers, whose range
    depends on outliers, it is the lowest of the top third.
    """
    low, high = rating.lowest, rating.highest
    if low is None or high is None or low == high:
        return None
    least = low + _UPPER * (high - low)
    lowest = np.unique(rating.numbers)[:_MANY_GRADES]
    distinct = sorted({float(f"{number:g}") for number in lowest})  # As the config shows them.
    gap = max((after - before for before, after in itertools.pairwise(distinct)), default=0.0)
    is_even = len(distinct) <= _MOST_GRADES and gap <= 0.5 * (high - low)
    if len(distinct) > 2 and not is_even and (rating.numbers >= least).mean() < _FEW:
        return float(f"{max(np.quantile(rating.numbers, _UPPER), distinct[1]):.3g}")
    return next((number for number in distinct if number >= least - 1e-9), round(least, 3))


def parts_of(words: Mapping[str, Collection[str]]) -> dict[str, tuple[str, ...]]:
    """Returns the values or files of each part, `train`, `valid` and `eval`, by their words.

    Without any for `eval`, those of `valid` are. Empty: there is nothing to train on, or nothing
    is held out.
    """
    parts = {
        part: tuple(name for name, own in words.items() if known.intersection(own))
        for part, known in _PARTS.items()
    }
    if not parts["eval"]:
        parts = {"train": parts["train"], "eval": parts["valid"], "valid": ()}
    return parts if parts["train"] and parts["eval"] else {}


# --- the table of roles

NEEDED = ("user", "item", "timestamp")
TIME_FORMAT = "timestamp_format"
"""Name of the format of times in `--map`, if several fit."""
NO_COLUMN = "none"
"""Column name in `--map` for a role without a column, for example if times are unusable."""
_CHOSEN = 2
"""Lowest score of a column that has a role unless it is the only one that may have it."""

Keys = dict[str, tuple[Any, str]]
"""Values of keys of `data.interactions`, each with a comment; may be empty."""


def _time(profile: Profile) -> int | None:
    named = name_score(profile.name, "timestamp")
    is_id = name_score(profile.name, "user") or name_score(profile.name, "item")
    is_likely = named or (profile.is_recent and not is_id)
    if not profile.time_formats and (profile.unit is None or not is_likely):
        return None
    # A number of seconds is unambiguous; a text without an offset may be in any time zone.
    return 2 * named + profile.is_number


def _time_keys(profile: Profile) -> Keys:
    unit, format_ = profile.unit or "seconds", next(iter(profile.time_formats), None)
    return {"timestamp_unit": (unit, ""), TIME_FORMAT: (format_, "")}


def _rating(profile: Profile) -> int | None:
    named = name_score(profile.name, "rating")
    if profile.is_number and named:
        return named + 4  # Ranks above all labels.
    if profile.is_number and _is_label(profile):
        return name_score(profile.name, "label")
    return 0 if is_nameless(profile) and is_scale(profile) else None


def _rating_keys(profile: Profile) -> Keys:
    least = _threshold(profile)
    if least is None:
        return {}
    scale = f"Ratings go from {profile.lowest:g} to {profile.highest:g}"
    share = (profile.numbers >= least).mean()
    why = f"{scale}, {share:.1%} are at least so high: say what likes are."
    return {"positive_at_least": (least, why)}


def _weight(profile: Profile) -> int | None:
    if not profile.is_number or is_nameless(profile) or (profile.lowest or 0.0) < 0.0:
        return None
    named = name_score(profile.name, "weight")
    if named < 2 and name_score(profile.name, "duration"):
        return 2 * _is_heavy_tailed(profile)
    return named


def _weight_keys(profile: Profile) -> Keys:
    # The largest counts and durations would dominate the others.
    is_count = profile.kind == "whole number" and (profile.highest or 0) > _SMALL_COUNT
    if not is_count and (profile.kind != "number" or not _is_heavy_tailed(profile)):
        return {}
    return {"weight_scale": ("log", "A few are so large that they would drown the others.")}


def _event(profile: Profile) -> int | None:
    if profile.kind != "text" or is_nameless(profile) or len(profile.distinct) > _MOST_KINDS:
        return None
    return max(name_score(profile.name, "event"), 2 * _is_label(profile))


def _event_keys(profile: Profile) -> Keys:
    kinds = [f"{shown(kind)} ({n:,})" for kind, n in profile.values.items()]
    why = f"Kinds: {', '.join(kinds[:20])}." if kinds else ""
    yes = _yes_of(profile)
    return {"positive_events": (() if yes is None else (yes,), why)}


def _id(role: str, profile: Profile) -> int | None:
    named = name_score(profile.name, role)
    is_called_time = name_score(profile.name, "timestamp") > 0
    is_time = profile.kind == "time" or (profile.unit is not None and is_called_time)
    if profile.kind == "number" or is_time or (len(profile.distinct) < 2 and not named):
        return None
    return 4 if role == "item" and is_nameless(profile) and profile.is_asin else named


def _part_keys(profile: Profile) -> Keys:
    parts = parts_of({value: {value.lower()} for value in profile.values})
    is_all = sum(map(len, parts.values())) == len(profile.values)
    return {f"{part}_parts": (values, "") for part, values in parts.items() if values and is_all}


@dataclasses.dataclass(frozen=True)
class Rule:
    """How the column of a role is found, and what the config then says.

    Attributes:
        score: Returns how strongly a column suggests the role; None: it can't have it. Columns
            that are empty or hold lists aren't asked.
        keys: Returns the keys that the values of the column call for.
        alone: Whether the only column that may have the role has it, whatever its score.
    """

    score: Callable[[Profile], int | None]
    keys: Callable[[Profile], Keys] = lambda profile: {}
    alone: bool = False


RULES = {
    "part": Rule(lambda profile: 4 if _part_keys(profile) else None, _part_keys),
    "timestamp": Rule(_time, _time_keys, alone=True),
    "rating": Rule(_rating, _rating_keys, alone=True),
    "weight": Rule(_weight, _weight_keys),
    "event": Rule(_event, _event_keys),
    "item": Rule(functools.partial(_id, "item")),
    "user": Rule(functools.partial(_id, "user")),
}
"""The roles, in the order in which they take their columns."""
_MAPPED = (*NEEDED, *(role for role in RULES if role not in NEEDED))
"""The roles as `--map` and messages list them."""


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
    mapped: dict[str, str] = {}
    cure = f"Columns: {', '.join(shown(name) for name in columns[:30])}."
    next_role = f",(?=(?:{'|'.join((*_MAPPED, TIME_FORMAT))})=)"
    for word in [part for text in words for part in re.split(next_role, text)]:
        role, _, column = word.partition("=")
        if column.isdecimal() and column not in columns and 1 <= int(column) <= len(columns):
            column = columns[int(column) - 1]
        is_none = column == NO_COLUMN and role not in ("user", "item")
        if role == TIME_FORMAT and "%" in column:
            try:
                time_pattern(column)
            except ValueError as error:
                directives = "Directives are those of Python's strptime: %d/%m/%Y %H:%M."
                raise UsageError("R258", f"--map: {error}.", directives) from None
        elif role not in RULES or not (is_none or column in columns):
            rule = f"--map must read ROLE=COLUMN, with a role among {', '.join(_MAPPED)}."
            raise UsageError("R258", rule, cure, word)
        mapped[role] = column
    if "user" in mapped and mapped["user"] == mapped.get("item"):
        rule = "--map must name two columns for user and item."
        raise UsageError("R258", rule, cure, mapped["user"])
    return mapped


def find_roles(
    profiles: Mapping[str, Profile],
    mapped: Mapping[str, str],
    hints: Mapping[str, Role],
    repeated: Sequence[str],
) -> Roles:
    """Returns the columns of interactions by role.

    Args:
        profiles: Profiles of the columns.
        mapped: Columns given by `--map`, by role.
        hints: Columns suggested by the ids of catalogues, by role.
        repeated: Names of several columns, which can't be used.
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
    for role, rule in RULES.items():
        if role in decided or role in mapped or role in undecided:
            continue
        named = [shown(name) for name in repeated if name_score(name, role) >= 2]
        if role in NEEDED and named:
            why = f"several columns are called {named[0]}: give each a name of its own"
            undecided[role] = f"{role}: {why}"
            continue
        taken = {role.column for role in decided.values()}
        free = [profile for profile in profiles.values() if profile.name not in taken]
        if "rating" in decided and role in ("weight", "event"):  # It determines the positives.
            free = [profile for profile in free if name_score(profile.name, role)]
        fitting = [p for p in free if p.kind not in ("empty", "list") and rule.score(p) is not None]
        # A time is more precise than the day in a folder's name.
        fitting = [profile for profile in fitting if not profile.is_folder] or fitting
        best = _best(fitting, rule)
        is_id = role in ("item", "user")
        if is_id and not best and (user := _user_of_blocks(fitting)):
            decided["user"] = user
            rest = [profile for profile in fitting if profile.name != user.column]
            best = rest if role == "item" and len(rest) == 1 else []
        if len(best) == 1:
            decided[role] = Role(best[0].name, _reason(best[0].name, role))
            formats = best[0].time_formats
            if role == "timestamp" and len(formats) > 1:
                may_be = f"{shown(best[0].name)} may be {' or '.join(formats)}"
                undecided[role] = f"timestamp: {may_be}: no value tells which"
                options[role] = [f"{TIME_FORMAT}={format_}" for format_ in formats]
        elif role == "timestamp" and not fitting and not _names_a_time(free):
            continue
        elif len(best) > 1 and all(map(_is_label, best)):
            names = " and ".join(shown(profile.name) for profile in best[:4])
            undecided[role] = f"{role}: {names} are equally likely to say which rows are positives"
            options[role] = [f"{role}={profile.name}" for profile in best]
        elif role in NEEDED and role not in decided:
            undecided[role] = _open(role, best, fitting)
            candidates[role] = best or fitting
    options |= _suggested(candidates, {role.column for role in decided.values()})
    return Roles({role: decided[role] for role in _MAPPED if role in decided}, undecided, options)


def _best(fitting: Sequence[Profile], rule: Rule) -> Sequence[Profile]:
    """Returns the best columns for a role; a single one is the choice."""
    if len(fitting) == 1 and (rule.alone or is_nameless(fitting[0])):
        return fitting
    scores = [rule.score(profile) or 0 for profile in fitting]
    best = [p for p, score in zip(fitting, scores, strict=True) if score == max(scores)]
    return best if max(scores, default=0) >= _CHOSEN else []


def _reason(name: str, role: str) -> str:
    also = {"rating": "label", "event": "label", "weight": "duration"}
    words = [word for word in (role, also.get(role)) if word and name_score(name, word)]
    return f"its name says {words[0]}" if words else "its values fit"


def _user_of_blocks(fitting: Sequence[Profile]) -> Role | None:
    """Returns the user column of files without a header that are grouped by user."""
    is_first = bool(fitting) and all(map(is_nameless, fitting))
    if is_first and [profile for profile in fitting if profile.is_grouped] == [fitting[0]]:
        return Role(fitting[0].name, "the first column; its equal values stand together")
    return None


def _names_a_time(profiles: Sequence[Profile]) -> bool:
    """Returns whether a column's name suggests a time, whatever its values."""
    names = [p.name for p in profiles if p.kind != "empty" and not name_score(p.name, "duration")]
    return any(name_score(name, "timestamp") >= 2 for name in names)


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


def _suggested(
    candidates: Mapping[str, Sequence[Profile]], taken: set[str]
) -> dict[str, list[str]]:
    """Returns `--map` options for each undecided role.

    Unlike row numbers and the few values of a scale, ids of users and items are numerous and
    repeated. Ties go to the user.
    """
    options = {}
    for role in ("timestamp", "user", "item"):
        free = [profile for profile in candidates.get(role, ()) if profile.name not in taken]
        free.sort(key=lambda p: not _MOST_GRADES < len(p.distinct) < _NEARLY_ALL * p.n_rows)
        columns = [profile.name for profile in free] + [NO_COLUMN] * (role == "timestamp")
        taken.update(columns[:1])
        if role in candidates:
            options[role] = [f"{role}={column}" for column in columns]
    return options


# --- layouts of rows

_MANY_COLUMNS = 20
_IMPRESSION = re.compile(r"\S+-[01]")
_SIGNS = ("|", ";", ",", " ")
_ID = re.compile(r"\s*[\w.:-]{1,64}\s*")
_MOSTLY = 0.5


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
    n_numbers = sum(profile.is_number for profile in profiles.values())
    is_wide = n_numbers >= max(_MANY_COLUMNS, 0.8 * len(profiles))
    if is_wide and not any(name_score(name, "item") >= 4 for name in profiles):
        return (
            f"item: {n_numbers} of {len(profiles)} columns are numbers, which looks like a"
            " matrix with a column for each item: write a row of user, item and value for each of"
            " its cells, as pandas.melt does"
        )
    return None


def find_events(
    profiles: Mapping[str, Profile], mapped: Mapping[str, str]
) -> tuple[ListOfEvents, str] | None:
    """Returns the column with the lists of events and the reason; `None` if a row is an event.

    If another column is the item, lists (of images or genres, for example) are no events.

    Args:
        profiles: Profiles of the columns.
        mapped: Columns given by `--map`, by role.
    """
    separators = {name: _separator(profile) for name, profile in profiles.items()}
    lists = {name: separator for name, separator in separators.items() if separator != ""}
    if "item" in mapped:
        names = [name for name in lists if name == mapped["item"]]
    elif (items := {name for name in profiles if name_score(name, "item") >= 2}) - lists.keys():
        return None
    else:
        names = list(items or lists)
    if len(names) != 1:
        return None
    whole = names[0].rpartition(".")[0]
    fields = [p for p in profiles.values() if whole and p.name.startswith(f"{whole}.")]
    is_object = bool(fields) and all(profile.kind == "list" for profile in fields)
    column = whole if is_object else names[0]  # A list of objects, of which this is a field.
    events = ListOfEvents(column=column, separator=lists[names[0]])
    return events, f"lists of events in {shown(column)}: no other column is the item"


def _separator(profile: Profile) -> str | None:
    """Returns the separator of ids in most values of a text; None: lists; empty: single values."""
    if profile.kind == "list":
        return None
    for sign in _SIGNS if profile.kind == "text" else ():
        lists = [[part for part in value.split(sign) if part] for value in profile.sample]
        parts = [part for parts in lists for part in parts]
        are_ids = all(_ID.fullmatch(part) and any(map(str.isdigit, part)) for part in parts)
        if are_ids and sum(len(parts) > 1 for parts in lists) >= _MOSTLY * len(lists):
            return sign
    return ""
