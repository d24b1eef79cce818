"""What a row is: an event, a list of events, what was shown at once, a matrix, or Criteo's."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping

import numpy as np

from recsys.data.config import ElementFields, ListOfEvents
from recsys.data.inspect.names import name_score
from recsys.data.inspect.profile import Profile
from recsys.data.inspect.roles import Mapped, Role, Roles
from recsys.errors import shown

_SHOWN = re.compile(r"[^\s:_-]+([:_-])[01]")
_MANY_COLUMNS = 20
_WIDE = 10
"""Number of columns without a role from which, beside a label, all of them are context."""
CLICK = "click"
"""Name of the field that says what was taken of what was shown."""


@dataclasses.dataclass(frozen=True)
class Lists:
    """A column that holds lists of events.

    Attributes:
        events: The column, and how its events are read.
        reason: Why it holds events.
        hints: Columns of roles that follow from it.
        doubts: Uncertainties, a sentence each.
    """

    events: ListOfEvents
    reason: str
    hints: Mapping[str, tuple[Role, ...]]
    doubts: tuple[str, ...] = ()


def find_events(profiles: Mapping[str, Profile], mapped: Mapped) -> Lists | None:
    """Returns the column with the lists of events; `None` if a row is an event.

    If another column is the item, lists (of images or genres, for example) are no events.

    Args:
        profiles: Profiles of the columns.
        mapped: Columns given by `--map`, by role.
    """
    said = mapped.get("item", ())
    for name, profile in profiles.items():
        sign = _shown_sign(profile)
        if sign and said in ((), (name,), (f"{name}.item",)):
            return _of_shown(name, sign, profiles)
    lists = {name: p.separator for name, p in profiles.items() if p.separator != ""}
    if said:
        names = [name for name in lists if name == said[0]]
    elif (items := {name for name in profiles if name_score(name, "item") >= 2}) - lists.keys():
        return None
    else:
        names = [name for name in items or lists if not _are_yes(profiles[name])]
    if len(names) != 1:
        return None
    whole = names[0].rpartition(".")[0]
    fields = [p for p in profiles.values() if whole and p.name.startswith(f"{whole}.")]
    if fields and all(profile.kind == "list" for profile in fields):
        events = ListOfEvents(column=whole)  # A list of objects, of which this is a field.
        return Lists(events, f"lists of events in {shown(whole)}: no other column is the item", {})
    main = profiles[names[0]]
    beside = tuple(profile.name for profile in profiles.values() if _are_labels(profile, main))
    beside = tuple(name for name in beside if mapped.get("label") in (None, (name,)))
    events = ListOfEvents(column=main.name, separator=lists[main.name], parallel=beside)
    why = f"lists of events in {shown(main.name)}: no other column is the item"
    why += f"; {', '.join(map(shown, beside))} beside it" * bool(beside)
    labels = tuple(Role(name, "a value for each item of a list") for name in beside)
    item = Role(main.name, "its lists hold the events")
    return Lists(events, why, {"item": (item,), "label": labels})


def _of_shown(name: str, sign: str, profiles: Mapping[str, Profile]) -> Lists:
    """Returns lists of what was shown, with the id of each list if a column without name has it."""
    fields = ElementFields(separator=sign, names=("item", CLICK))
    events = ListOfEvents(column=name, separator=" ", fields=fields)
    reason = "a field of what was shown"
    hints = {"item": (Role(f"{name}.item", reason),), "label": (Role(f"{name}.{CLICK}", reason),)}
    others = [profile for profile in profiles.values() if profile.name != name]
    ids = [p.name for p in others if p.is_nameless and len(p.distinct) == p.n_rows]
    ids = [name for name in ids if profiles[name].kind != "time" and not profiles[name].unit]
    if len(ids) == 1:
        hints["impression"] = (Role(ids[0], "a value of its own in each list"),)
    doubts = [
        f"{shown(p.name)} holds lists and isn't read: histories are made of the events."
        for p in others
        if p.separator != ""
    ]
    why = f"{shown(name)} holds what was shown, ITEM{sign}1 for a click"
    return Lists(events, why, hints, tuple(doubts))


def _shown_sign(profile: Profile) -> str:
    """Returns the sign before the 0 or 1 in lists such as `N1-1 N2-0`; empty for other values."""
    lists = [value.split() for value in profile.sample] if profile.kind == "text" else []
    found = [_SHOWN.fullmatch(part) for parts in lists for part in parts]
    signs = {match[1] if match else "" for match in found}
    is_list = 2 * sum(len(one) > 1 for one in lists) > len(lists)
    return signs.pop() if is_list and len(signs) == 1 else ""


def _are_yes(profile: Profile) -> bool:
    """Returns whether all values, or elements of lists, are yes or no."""
    return {value.lower() for value in profile.values} in ({"0", "1"}, {"false", "true"})


def _are_labels(profile: Profile, items: Profile) -> bool:
    """Returns whether a column has lists of yes and no, a value for each item of a list."""
    lengths = profile.lengths, items.lengths
    if profile is items or lengths[0] is None or lengths[1] is None or not _are_yes(profile):
        return False
    return np.array_equal(lengths[0], lengths[1])


def why_no_item(profiles: Mapping[str, Profile]) -> str | None:
    """Returns why no column can be the item, if known."""
    n_numbers = sum(profile.is_number for profile in profiles.values())
    is_wide = n_numbers >= max(_MANY_COLUMNS, 0.8 * len(profiles))
    if not is_wide or any(name_score(name, "item") >= 4 for name in profiles):
        return None
    return (
        f"item: {n_numbers} of {len(profiles)} columns are numbers, which looks like a"
        " matrix with a column for each item: write a row of user, item and value for each of"
        " its cells, as pandas.melt does"
    )


def with_wide_rows(roles: Roles, profiles: Mapping[str, Profile]) -> Roles:
    """Returns the roles of wide rows as Criteo's, of a label and many numbers and categories.

    Columns without a role are context. Without user or item, one sentence says what is missing.
    """
    labels, known = roles.several.get("label", ()), roles.reasons()
    rest = [p for p in profiles.values() if p.name not in known and p.kind != "empty"]
    if not labels or len(rest) < _WIDE:
        return roles
    missing = [role for role in ("user", "item") if role in roles.undecided]
    if not missing:
        context = tuple(Role(p.name, "wide rows: not known otherwise") for p in rest)
        several = {**roles.several, "context": (*roles.several.get("context", ()), *context)}
        return dataclasses.replace(roles, several=several)
    taken = {role.column for role in (*roles.decided.values(), *labels)}
    rest = [p for p in profiles.values() if p.name not in taken and p.kind != "empty"]
    numbers = [profile for profile in rest if profile.is_number]
    others = sorted((p for p in rest if not p.is_number), key=lambda p: -len(p.distinct))
    most = ", ".join(f"{shown(p.name)} ({len(p.distinct):,})" for p in (others or numbers)[:5])
    why = (
        f"{' and '.join(missing)}: no column is called so. The rows have a label"
        f" ({shown(labels[0].column)}), {len(numbers)} numbers and {len(others)} categories, as"
        " those of Criteo and Avazu. Retrieval learns which items users take: name the columns by"
        f" --map {','.join(f'{role}=COLUMN' for role in missing)}; the others become context. Most"
        f" values have: {most}"
    )
    undecided = {r: sentence for r, sentence in roles.undecided.items() if r not in missing}
    undecided = {**undecided, " and ".join(missing): why}
    return dataclasses.replace(roles, undecided=undecided, options={})
