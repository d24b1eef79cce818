"""Parts of the queries, and of the held-out events, that figures are given for.

A slice of queries takes some queries whole. A slice of positives takes some held-out
events: their ranks are those in the whole list, and the others count as no answers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

import numpy as np

from recsys.data.catalogue import Catalogue, FeatureBags
from recsys.evaluation.queries import Queries
from recsys.formats import counted

REPEATS, AGAIN = "repeats", "again"
_HOUR_S = 3600
_DAY_S = 24 * _HOUR_S
_ACTIVITY = (0, 1, 6, 21, 101)
_IDLE_S = (0, _HOUR_S, _DAY_S, 7 * _DAY_S, 30 * _DAY_S)
_IDLE_NAMES = (
    "back within an hour",
    "back within a day",
    "back within a week",
    "back within 30 days",
    "back after more than 30 days",
)
_MOST_VALUES = 12


@dataclasses.dataclass(frozen=True)
class Slice:
    """Some of the queries, or of the positives.

    Attributes:
        kind: What it was cut by.
        name: Its name, under which a rule of the config finds it.
        of: What `which` chooses of.
        which: The chosen ones `[queries]` or `[positives]` bool.
        note: More about it, for people.
    """

    kind: str
    name: str
    of: Literal["queries", "positives"]
    which: np.ndarray
    note: str = ""


@dataclasses.dataclass(frozen=True)
class Known:
    """Properties of users and items that slices are made by.

    Attributes:
        is_trained: Whether each query's user has training events `[queries]` bool.
        counts: Training positives of each item row `[item rows]`.
        catalogue: The items.
        user_features: Features of the users, by user row.
        names: Features whose values are slices.
        is_repeated: Whether each positive is of an item that its user had seen
            `[positives]` bool; None: none is.
    """

    is_trained: np.ndarray
    counts: np.ndarray
    catalogue: Catalogue
    user_features: Sequence[FeatureBags] = ()
    names: Sequence[str] = ()
    is_repeated: np.ndarray | None = None


def make_slices(queries: Queries, known: Known) -> list[Slice]:
    """Returns the slices that are not empty, those of one kind next to each other."""
    parts = [
        *_users(known.is_trained),
        *_activity(np.diff(queries.seen.offsets)),
        *_recency(queries.idle_s),
        *_popularity(queries.positives.rows, known),
        *_repeats(known.is_repeated),
        *_features(queries, known),
    ]
    return [part for part in parts if part.which.any()]


def _users(is_trained: np.ndarray) -> Iterator[Slice]:
    yield Slice("users", "users known to training", "queries", is_trained)
    yield Slice("users", "cold users", "queries", ~is_trained, "no event that training saw")


def _activity(n_events: np.ndarray) -> Iterator[Slice]:
    """By how much the user did before the query."""
    for low, high in zip(_ACTIVITY, (*_ACTIVITY[1:], None), strict=True):
        is_in = (n_events >= low) & (n_events < (high or np.inf))
        if low == 0:
            name = "no history"
        elif high is None:
            name = f"more than {low - 1} events before"
        else:
            name = f"{low} to {high - 1} events before"
        yield Slice("user activity", name, "queries", is_in)


def _recency(idle_s: np.ndarray | None) -> Iterator[Slice]:
    """By how long ago the user's last event was."""
    if idle_s is None:
        return
    for name, low, high in zip(_IDLE_NAMES, _IDLE_S, (*_IDLE_S[1:], None), strict=True):
        is_in = (idle_s >= low) & (idle_s < (high or np.inf))
        yield Slice("recency", name, "queries", is_in)


def _popularity(rows: np.ndarray, known: Known) -> Iterator[Slice]:
    """By the thirds of the training positives, the most popular items first; cold ones apart."""
    counts = np.where(known.catalogue.is_item, known.counts, 0)
    order = np.argsort(-counts, kind="stable")
    before = np.cumsum(counts[order]) - counts[order]
    third = np.empty(len(counts), np.int64)
    third[order] = np.minimum(3 * before // max(1, counts.sum()), 2)
    for place, name in enumerate(("head", "torso", "tail")):
        items = (third == place) & (counts > 0)
        yield Slice("item popularity", name, "positives", items[rows], _range(counts[items]))
    cold = known.catalogue.is_item & (counts == 0)
    yield Slice("item popularity", "cold items", "positives", cold[rows], "no training event")


def _range(counts: np.ndarray) -> str:
    if not len(counts):
        return ""
    items = counted(len(counts), "item", "items")
    return f"{items} with {counts.min():,} to {counts.max():,} training events"


def _repeats(is_repeated: np.ndarray | None) -> Iterator[Slice]:
    """By whether the user had seen the item before; nothing where nothing is repeated."""
    if is_repeated is None or not is_repeated.any():
        return
    yield Slice(REPEATS, "first time", "positives", ~is_repeated, "new to their user")
    yield Slice(REPEATS, AGAIN, "positives", is_repeated, "their user had seen the item before")


def _features(queries: Queries, known: Known) -> Iterator[Slice]:
    """By the most frequent values of the features that the config names."""
    of_items = {feature.name: feature for feature in known.catalogue.features}
    of_users = {feature.name: feature for feature in known.user_features}
    for name in known.names:
        if name in of_items:
            yield from _values(of_items[name], queries.positives.rows, "positives")
        if name in of_users:
            yield from _values(of_users[name], queries.user_row, "queries")


def _values(
    feature: FeatureBags, rows: np.ndarray, of: Literal["queries", "positives"]
) -> Iterator[Slice]:
    bags = np.asarray(feature.bags[rows])
    tokens, counts = np.unique(bags[bags > 0], return_counts=True)
    chosen = tokens[np.argsort(-counts, kind="stable")][:_MOST_VALUES]
    for token, name in zip(chosen.tolist(), _names(feature, chosen), strict=True):
        which = (bags == token).any(axis=1)
        yield Slice(feature.name, f"{feature.name}: {name}", of, which)


def _names(feature: FeatureBags, tokens: Iterable[int]) -> list[str]:
    names = feature.tokens
    return [f"value {token}" if names is None else names[token] for token in tokens]
