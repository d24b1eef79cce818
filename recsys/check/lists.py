"""Whether a row holds a list of events, and in which column."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from recsys.check.names import name_score
from recsys.check.profile import Profile
from recsys.check.shown import shown
from recsys.config import ListOfEvents

_SIGNS = ("|", ";", ",", " ")
_ID = re.compile(r"\s*[\w.:-]{1,64}\s*")
_MOSTLY = 0.5


def find_events(
    profiles: Mapping[str, Profile], given: Mapping[str, str]
) -> tuple[ListOfEvents, str] | None:
    """Returns the column with the lists of events, and why; `None` where a row is an event.

    Lists beside a column that is the item, as of pictures or genres, are no events.

    Args:
        profiles: The columns.
        given: Columns that were said, by role.
    """
    plain = [one for one in profiles.values() if one.kind != "list"]
    lists = {one.name: None for one in profiles.values() if one.kind == "list"}
    if "item" in given:
        held = {given["item"]: lists.get(given["item"], _sign(profiles[given["item"]]))}
        held = {name: sign for name, sign in held.items() if sign or name in lists}
    elif any(name_score(one.name, "item") >= 2 and not _sign(one) for one in plain):
        return None
    else:
        texts = {one.name: sign for one in plain if (sign := _sign(one))}
        held = _most_likely({**lists, **texts})
    if not held:
        return None
    ((name, separator),) = held.items()
    column = _whole(name, profiles)
    reason = f"lists of events in {shown(column)}: no other column is the item"
    return ListOfEvents(column=column, separator=separator), reason


def _sign(one: Profile) -> str:
    """Returns what stands between the ids in most values of a text; empty: it is no list."""
    if one.kind != "text" or not one.sample:
        return ""
    return next((sign for sign in _SIGNS if _share(sign, one.sample) >= _MOSTLY), "")


def _share(sign: str, values: Sequence[str]) -> float:
    """Returns the share of values that are several ids, or 0 if one is something else."""
    lists = [[part for part in value.split(sign) if part] for value in values]
    if not all(
        _ID.fullmatch(part) and any(map(str.isdigit, part)) for one in lists for part in one
    ):
        return 0.0
    return sum(len(one) > 1 for one in lists) / len(lists)


def _most_likely(held: Mapping[str, str | None]) -> dict[str, str | None]:
    """Returns the one column whose name says item, or the only one; nothing if there are more."""
    named = [name for name in held if name_score(name, "item") >= 2]
    names = named or list(held)
    return {names[0]: held[names[0]]} if len(names) == 1 else {}


def _whole(name: str, profiles: Mapping[str, Profile]) -> str:
    """Returns the column of the objects that hold a field, where all their fields are lists."""
    whole = name.rpartition(".")[0]
    fields = [one for one in profiles.values() if one.name.startswith(f"{whole}.")]
    return whole if whole and all(one.kind == "list" for one in fields) else name
