"""Example users: what they did, and what the model and the one before recommend."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from recsys.formats import ABSENT, count, counted, score
from recsys.report.artifacts import Artifacts, MissingError

_SHOWN_HISTORY = 10
_SHOWN_RECOMMENDED = 10


@dataclasses.dataclass(frozen=True)
class Recommended:
    """One recommendation.

    Attributes:
        title: Title of the item.
        id: Its id.
        score: Its score; empty where none is given.
        is_held_out: Whether the user chose it later.
        is_new: Whether the other model's list lacks it; False where there is no other.
    """

    title: str
    id: str
    score: str
    is_held_out: bool
    is_new: bool


@dataclasses.dataclass(frozen=True)
class Listed:
    """What one model recommends to a user.

    Attributes:
        items: The recommendations, the best first.
        hits: How many of them came true, in words; `no hit` for none.
        has_hits: Whether any did.
    """

    items: list[Recommended]
    hits: str
    has_hits: bool


@dataclasses.dataclass(frozen=True)
class Person:
    """One user: what they did, and what is recommended.

    Attributes:
        user_id: The user's id.
        history: Title and id of what the user did, the newest first.
        earlier: That there is more; empty where there isn't.
        now: What the model recommends.
        before: What the last blessed model recommends; None where there is none.
        alike: How much of the two is the same; empty where there is one alone.
    """

    user_id: str
    history: list[tuple[str, str]]
    earlier: str
    now: Listed
    before: Listed | None
    alike: str


def read_people(artifacts: Artifacts) -> list[Person]:
    """Returns the example users."""
    examples = artifacts.evaluated().get("examples")
    if not examples:
        raise MissingError("The evaluation holds no example users.")
    return [_person(example) for example in examples]


def read_unknown_people(artifacts: Artifacts) -> list[str]:
    """Returns the users that the config names and the evaluation could not show."""
    return [str(user_id) for user_id in artifacts.evaluated().get("unknown_report_users") or []]


def _person(example: Mapping[str, Any]) -> Person:
    history = example.get("history") or []
    now = (example.get("recommended") or [])[:_SHOWN_RECOMMENDED]
    before = example.get("blessed_recommended")
    before = before[:_SHOWN_RECOMMENDED] if isinstance(before, list) else None
    n_same = len(_ids(now) & _ids(before or []))
    more = len(history) - _SHOWN_HISTORY
    return Person(
        user_id=str(example.get("user_id")),
        history=[(_title(item), str(item.get("id"))) for item in history[:_SHOWN_HISTORY]],
        earlier=f"and {count(more)} earlier" if more > 0 else "",
        now=_listed(now, before),
        before=None if before is None else _listed(before, None),
        alike="" if before is None else f"{n_same} of {len(now)} as before",
    )


def _listed(
    items: Iterable[Mapping[str, Any]], other: Iterable[Mapping[str, Any]] | None
) -> Listed:
    known = None if other is None else _ids(other)
    shown = [
        Recommended(
            title=_title(item),
            id=str(item.get("id")),
            score=score(item.get("score")).replace(ABSENT, ""),
            is_held_out=bool(item.get("held_out")),
            is_new=known is not None and item.get("id") not in known,
        )
        for item in items
    ]
    n_hits = sum(item.is_held_out for item in shown)
    hits = f"{counted(n_hits, 'hit', 'hits')} of {len(shown)}" if n_hits else "no hit"
    return Listed(shown, hits, n_hits > 0)


def _ids(items: Iterable[Mapping[str, Any]]) -> set[Any]:
    return {item.get("id") for item in items}


def _title(item: Mapping[str, Any]) -> str:
    return str(item.get("title") or item.get("id"))
