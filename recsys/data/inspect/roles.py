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

from recsys.data.inspect.names import funnel_step, name_score
from recsys.data.inspect.profile import Profile
from recsys.data.time_format import time_pattern
from recsys.errors import UsageError, shown

# --- values

_MOST_GRADES, _MOST_KINDS, _MANY_GRADES, _MOST_ALONE = 21, 50, 200, 12
_NEARLY_ALL = 0.9
_SMALL_COUNT, _HEAVY_TAIL, _MOST_PLACES = 20, 5.0, 10_000
_UPPER, _FEW = 0.7, 0.05
"""Quantile at which positives begin on a scale; and their share below which it is no scale."""
_YES, _NO = {"true", "yes", "y", "t"}, {"false", "no", "n", "f"}
_ASIN = r"^(B0[0-9A-Z]{8}|[0-9]{9}[0-9X])$"
"""Amazon's product ids, and ISBNs."""
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


def yes_of(profile: Profile) -> str | None:
    """Returns the value that means yes, such as `True` of `True` and `False`; else None."""
    values = {value.lower(): value for value in profile.values}
    is_both = len(values) == 2 and values.keys() & _YES and values.keys() & _NO
    return next(values[word] for word in values if word in _YES) if is_both else None


def _is_heavy_tailed(profile: Profile) -> bool:
    """Returns whether a few numbers are many times the median."""
    middle, high = np.quantile(profile.numbers, (0.5, 0.99))
    return len(profile.distinct) > _MOST_GRADES and bool(high > _HEAVY_TAIL * middle)


def threshold(rating: Profile) -> float | None:
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

TIME_FORMAT, POSITIVE = "timestamp_format", "positive"
"""Words of `--map` that name no role: the format of times, and the label of positives."""
NO_COLUMN = "none"
"""Column name in `--map` for a role without a column, for example if times are unusable."""
_CHOSEN = 2
"""Lowest score of a column that has a role unless it is the only one that may have it."""

Keys = dict[str, tuple[Any, str]]
"""Values of keys of `data.interactions`, each with a comment; may be empty."""


def _time(profile: Profile) -> int | None:
    named = name_score(profile.name, "timestamp")
    is_id = any(name_score(profile.name, role) for role in ("user", "item", "id"))
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
        return named + 1
    is_stars = profile.is_nameless and is_scale(profile) and len(profile.distinct) > 2
    return 0 if is_stars else None


def _rating_keys(profile: Profile) -> Keys:
    least = threshold(profile)
    if least is None:
        return {}
    share = (profile.numbers >= least).mean()
    why = (
        f"Ratings go from {profile.lowest:g} to {profile.highest:g}, {share:.1%} are at least so"
        f" high: say what likes are. To keep the other rows too, write instead: labels: {{like:"
        f" {{column: {shown(profile.name)}, at_least: {least:g}}}}}"
    )
    return {"positive_at_least": (least, why)}


def _label(profile: Profile) -> int | None:
    is_first = profile.name == "c1" and profile.values.keys() == {"0", "1"}
    if not (has_few_numbers(profile) or yes_of(profile) is not None):
        return None
    return max(name_score(profile.name, "label"), _CHOSEN * is_first)


def _weight(profile: Profile) -> int | None:
    if not profile.is_number or profile.is_nameless or (profile.lowest or 0.0) < 0.0:
        return None
    named = name_score(profile.name, "weight")
    if named < _CHOSEN and name_score(profile.name, "duration"):
        return _CHOSEN * _is_heavy_tailed(profile)
    return named


def _weight_keys(profile: Profile) -> Keys:
    # The largest counts and durations would dominate the others.
    is_count = profile.kind == "whole number" and (profile.highest or 0) > _SMALL_COUNT
    if not is_count and (profile.kind != "number" or not _is_heavy_tailed(profile)):
        return {}
    return {"weight_scale": ("log", "A few are so large that they would drown the others.")}


def _event(profile: Profile) -> int | None:
    if profile.kind != "text" or len(profile.distinct) > _MOST_KINDS:
        return None
    steps = {funnel_step(kind) for kind in profile.values}
    return max(name_score(profile.name, "event"), _CHOSEN * (len(steps - {-1}) > 1))


def _id(role: str, profile: Profile) -> int | None:
    named = name_score(profile.name, role)
    is_called_time = name_score(profile.name, "timestamp") > 0
    is_time = profile.kind == "time" or (profile.unit is not None and is_called_time)
    is_other = len(profile.distinct) < 2 or profile.separator != ""  # One value, or lists.
    if profile.kind == "number" or is_time or (is_other and not named):
        return None
    is_asin = profile.is_nameless and role == "item" and profile.share_of(_ASIN) >= _NEARLY_ALL
    return 4 if is_asin else named


def _part_keys(profile: Profile) -> Keys:
    parts = parts_of({value: {value.lower()} for value in profile.values})
    is_all = sum(map(len, parts.values())) == len(profile.values)
    return {f"{part}_parts": (values, "") for part, values in parts.items() if values and is_all}


def _is_place(profile: Profile) -> bool:
    is_small = profile.kind == "whole number" and profile.unit is None
    return is_small and (profile.lowest or 0) >= 0 and (profile.highest or 0) < _MOST_PLACES


def _by_name(
    role: str, fits: Callable[[Profile], bool] = lambda profile: True
) -> Callable[[Profile], int | None]:
    """Returns the score of a role that only a name suggests, of columns that fit."""
    return lambda profile: name_score(profile.name, role) if fits(profile) else None


def _context(profile: Profile) -> int | None:
    return _CHOSEN if profile.kind == "vector" else name_score(profile.name, "context")


def _outcome(profile: Profile) -> int | None:
    is_duration = profile.is_number and name_score(profile.name, "duration") > 0
    return max(name_score(profile.name, "outcome"), _CHOSEN * is_duration)


@dataclasses.dataclass(frozen=True)
class Rule:
    """How the column of a role is found, and what the config then says.

    Attributes:
        score: Returns how strongly a column suggests the role; None: it can't have it. Columns
            that are empty or hold lists aren't asked.
        keys: Returns the keys that the values of the column call for.
        alone: Whether the only column that may have the role has it, whatever its score.
        many: Whether all columns that suggest the role have it.
        unless: Roles beside which the role isn't looked for.
    """

    score: Callable[[Profile], int | None]
    keys: Callable[[Profile], Keys] = lambda profile: {}
    alone: bool = False
    many: bool = False
    unless: tuple[str, ...] = ()


RULES = {
    "part": Rule(lambda profile: 4 if _part_keys(profile) else None, _part_keys),
    "timestamp": Rule(_time, _time_keys, alone=True),
    "rating": Rule(_rating, _rating_keys, alone=True),
    "label": Rule(_label, many=True, unless=("rating",)),
    "weight": Rule(_weight, _weight_keys),
    "event": Rule(_event),
    "item": Rule(functools.partial(_id, "item")),
    "user": Rule(functools.partial(_id, "user")),
    "impression": Rule(_by_name("impression")),
    "position": Rule(_by_name("position", _is_place)),
    "context": Rule(_context, many=True),
    "outcome": Rule(_outcome, many=True),
}
"""The roles, in the order in which they take their columns."""
NEEDED = ("user", "item", "timestamp")
_MAPPED = (*NEEDED, *(role for role in RULES if role not in NEEDED))
"""The roles as `--map` and messages list them."""
SHOWN = ("impression", "position")
"""Roles that only matter where all rows are kept."""


@dataclasses.dataclass(frozen=True)
class Role:
    """The column of a role.

    Attributes:
        column: Name of the column.
        reason: Reason for the choice.
    """

    column: str
    reason: str


Mapped = dict[str, tuple[str, ...]]
"""Columns given by `--map`, by role."""


@dataclasses.dataclass(frozen=True)
class Roles:
    """Decided and undecided roles.

    Attributes:
        decided: The column of each role.
        several: The columns of the roles that several columns may have.
        undecided: A sentence for each required role without a column.
        options: `--map` options that may decide each of these roles, the likeliest first.
    """

    decided: dict[str, Role]
    several: dict[str, tuple[Role, ...]]
    undecided: dict[str, str]
    options: dict[str, list[str]]

    def reasons(self) -> dict[str, str]:
        """Returns the role and its reason by column."""
        pairs = [*self.decided.items(), *((n, r) for n, rs in self.several.items() for r in rs)]
        return {role.column: f"{name}: {role.reason}" for name, role in pairs}


def parse_map(words: Sequence[str], columns: Sequence[str]) -> Mapped:
    """Returns the columns in `--map user=a,item=b` by role.

    Only a comma before `ROLE=` separates entries, since names of columns and formats may contain
    commas.

    Raises:
        UsageError: A word has another form, or names no role or no column.
    """
    mapped: Mapped = {}
    cure = f"Columns: {', '.join(shown(name) for name in columns[:30])}."
    next_role = f",(?=(?:{'|'.join((*_MAPPED, TIME_FORMAT, POSITIVE))})=)"
    for word in [part for text in words for part in re.split(next_role, text)]:
        role, _, column = word.partition("=")
        if column.isdecimal() and column not in columns and 1 <= int(column) <= len(columns):
            column = columns[int(column) - 1]
        is_none = column == NO_COLUMN and role not in ("user", "item")
        if role == TIME_FORMAT:
            try:
                time_pattern(column)
            except ValueError as error:
                directives = "Directives are those of Python's strptime: %d/%m/%Y %H:%M."
                raise UsageError("R258", f"--map: {error}.", directives) from None
        is_column = column in columns or column.rpartition(".")[0] in columns
        if role not in (TIME_FORMAT, POSITIVE) and (
            role not in RULES or not (is_none or is_column)
        ):
            rule = f"--map must read ROLE=COLUMN, with a role among {', '.join(_MAPPED)}."
            raise UsageError("R258", rule, cure, word)
        many = role in RULES and RULES[role].many
        mapped[role] = (*mapped.get(role, ()), column) if many else (column,)
    if "user" in mapped and mapped["user"] == mapped.get("item"):
        rule = "--map must name two columns for user and item."
        raise UsageError("R258", rule, cure, mapped["user"][0])
    return mapped


def find_roles(
    profiles: Mapping[str, Profile],
    mapped: Mapped,
    hints: Mapping[str, tuple[Role, ...]],
    repeated: Sequence[str],
    no_item: str | None,
) -> Roles:
    """Returns the columns of interactions by role.

    Args:
        profiles: Profiles of the columns.
        mapped: Columns given by `--map`, by role.
        hints: Columns suggested by lists of events and the ids of catalogues, by role.
        repeated: Names of several columns, which can't be used.
        no_item: Why no column can be the item; None: one may be.
    """
    known = {
        role: tuple(Role(name, "as said by --map") for name in names if name in profiles)
        for role, names in mapped.items()
        if role in RULES
    }
    taken = {own[0].column for own in known.values() if own}
    for role, hint in hints.items():
        if role not in mapped and taken.isdisjoint(one.column for one in hint):
            known[role] = hint
    several = {role: own for role, own in known.items() if RULES[role].many}
    decided = {role: own[0] for role, own in known.items() if own and role not in several}
    undecided = {"item": no_item} if no_item and "item" not in decided else {}
    options: dict[str, list[str]] = {}
    candidates: dict[str, Sequence[Profile]] = {}
    for role, rule in RULES.items():
        if role in known or role in decided or role in undecided:
            continue
        named = [shown(name) for name in repeated if name_score(name, role) >= _CHOSEN]
        if role in NEEDED and named:
            why = f"several columns are called {named[0]}: give each a name of its own"
            undecided[role] = f"{role}: {why}"
            continue
        taken = {role.column for role in (*decided.values(), *itertools.chain(*several.values()))}
        free = [profile for profile in profiles.values() if profile.name not in taken]
        if role in ("weight", "event") and ("rating" in decided or several.get("label")):
            free = [p for p in free if name_score(p.name, role)]  # These determine the positives.
        odd = ("empty", "list", *["vector"] * (not rule.many))
        fitting = [p for p in free if p.kind not in odd and rule.score(p) is not None]
        if rule.many:
            is_asked = not any(other in decided for other in rule.unless)
            chosen = [p for p in fitting if is_asked and (rule.score(p) or 0) >= _CHOSEN]
            several[role] = tuple(Role(p.name, _reason(p.name, role)) for p in chosen)
            continue
        # A time is more precise than the day in a folder's name.
        fitting = [profile for profile in fitting if not profile.is_folder] or fitting
        # In a wide file without header no column is one's only because no other may be.
        is_wide = len(profiles) > _MOST_ALONE and bool(fitting) and fitting[0].is_nameless
        best = _best(fitting, rule, alone=not is_wide)
        is_id = role in ("item", "user") and not is_wide
        if is_id and not best and (user := _user_of_blocks(fitting)):
            decided["user"] = user
            rest = [profile for profile in fitting if profile.name != user.column]
            best = rest if role == "item" and len(rest) == 1 else []
        if len(best) == 1:
            decided[role] = Role(best[0].name, _reason(best[0].name, role))
            # Times with AM and PM are mostly American, the month first.
            formats = sorted(best[0].time_formats, key=lambda f: "%p" in f and f[:2] != "%m")
            if role == "timestamp" and len(formats) > 1:
                may_be = f"{shown(best[0].name)} may be {' or '.join(formats)}"
                undecided[role] = f"timestamp: {may_be}: no value tells which"
                options[role] = [f"{TIME_FORMAT}={format_}" for format_ in formats]
        elif role == "timestamp" and not fitting and not _names_a_time(free):
            continue
        elif role in NEEDED and role not in decided:
            undecided[role] = _open(role, best, fitting)
            candidates[role] = best or fitting
    options |= _suggested(candidates, {role.column for role in decided.values()})
    ordered = {role: decided[role] for role in _MAPPED if role in decided}
    return Roles(ordered, {r: own for r, own in several.items() if own}, undecided, options)


def _best(fitting: Sequence[Profile], rule: Rule, *, alone: bool) -> Sequence[Profile]:
    """Returns the best columns for a role; a single one is the choice."""
    if alone and len(fitting) == 1 and (rule.alone or fitting[0].is_nameless):
        return fitting
    scores = [rule.score(profile) or 0 for profile in fitting]
    best = [p for p, score in zip(fitting, scores, strict=True) if score == max(scores)]
    return best if max(scores, default=0) >= _CHOSEN else []


def _reason(name: str, role: str) -> str:
    also = {"weight": "duration", "outcome": "duration"}
    words = [word for word in (role, also.get(role)) if word and name_score(name, word)]
    return f"its name says {words[0]}" if words else "its values fit"


def _user_of_blocks(fitting: Sequence[Profile]) -> Role | None:
    """Returns the user column of files without a header that are grouped by user."""
    is_first = bool(fitting) and all(profile.is_nameless for profile in fitting)
    if is_first and [profile for profile in fitting if profile.is_grouped] == [fitting[0]]:
        return Role(fitting[0].name, "the first column; its equal values stand together")
    return None


def _names_a_time(profiles: Sequence[Profile]) -> bool:
    """Returns whether a column's name suggests a time, whatever its values."""
    names = [p.name for p in profiles if p.kind != "empty" and not name_score(p.name, "duration")]
    return any(name_score(name, "timestamp") >= _CHOSEN for name in names)


def _open(role: str, best: Sequence[Profile], fitting: Sequence[Profile]) -> str:
    """Returns why a role is undecided."""
    names = ", ".join(shown(profile.name) for profile in (best or fitting)[:6])
    if len(best) > 1:
        return f"{role}: {names.replace(', ', ' and ')} are equally likely"
    if fitting:
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
