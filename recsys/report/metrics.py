"""Figures of the model beside those of the baselines."""

from __future__ import annotations

import dataclasses
from typing import Any

from recsys.formats import ABSENT, count, counted, figure, is_number, ratio, share
from recsys.report.artifacts import Artifacts, MissingError

SMALL_SLICE_USERS = 50

_PROTOCOLS = {
    "each_moment": (
        "each moment",
        "every held-out event is predicted from all that its user did before it",
    ),
    "at_cut": (
        "at the cut",
        "one query a user, from what the user did before the split; all that follows counts",
    ),
}


@dataclasses.dataclass(frozen=True)
class Comparison:
    """One metric of the model and of what it is compared with, as text.

    Attributes:
        name: Name of the metric.
        model: The model's figure.
        popularity: The popularity baseline's.
        times: The ratio of the two.
        blessed: The last blessed model's.
        bar: The model's share of the largest of the family, for a bar [%].
        popularity_bar: The baseline's [%].
        decides: Whether the blessing rests on this figure.
        is_worse: Whether the baseline does better.
    """

    name: str
    model: str
    popularity: str
    times: str
    blessed: str
    bar: float
    popularity_bar: float
    decides: bool
    is_worse: bool


@dataclasses.dataclass(frozen=True)
class Measured:
    """The metrics under one protocol.

    Attributes:
        title: Name of the protocol.
        meaning: What it asks.
        basis: Users, queries and candidates, in words.
        rows: The metrics.
        has_blessed: Whether there was an earlier blessed model.
        note: What is to be said of the baselines.
    """

    title: str
    meaning: str
    basis: str
    rows: list[Comparison]
    has_blessed: bool
    note: str


@dataclasses.dataclass(frozen=True)
class Tile:
    """One headline figure."""

    name: str
    value: str
    beside: str
    times: str


@dataclasses.dataclass(frozen=True)
class Slice:
    """The deciding metric on some of the users."""

    name: str
    users: str
    queries: str
    model: str
    popularity: str
    times: str
    is_small: bool
    is_worse: bool


@dataclasses.dataclass(frozen=True)
class Slices:
    """All slices, under one metric."""

    metric: str
    rows: list[Slice]
    has_small: bool
    limit: int = SMALL_SLICE_USERS


def read_tiles(artifacts: Artifacts) -> list[Tile]:
    """Returns the headline figures, the deciding one first."""
    evaluation = artifacts.evaluated()
    metrics, popularity = _metrics(evaluation), _popularity(evaluation)
    first = _deciding(artifacts, metrics)
    k = first.partition("@")[2] or "10"
    names = dict.fromkeys([first, f"recall@{k}", f"ndcg@{k}", "mrr"])
    tiles = [
        Tile(
            name,
            figure(metrics[name]),
            f"popularity {figure(popularity.get(name))}"
            if is_number(popularity.get(name))
            else "no baseline",
            ratio(metrics[name], popularity.get(name)),
        )
        for name in names
        if name in metrics
    ]
    coverage = {key: value for key, value in evaluation.items() if key.startswith("coverage@")}
    for name, value in coverage.items():
        k = name.partition("@")[2]
        beside = f"of the catalogue is in someone's first {k}"
        tiles.append(Tile(name, share(value), beside, ABSENT))
    return tiles


def read_metrics(artifacts: Artifacts) -> Measured:
    """Returns the metrics under the protocol that the config chose."""
    evaluation = artifacts.evaluated()
    protocol = str(evaluation.get("query", "each_moment"))
    return _measured(artifacts, evaluation, protocol, is_chosen=True)


def read_other_protocol(artifacts: Artifacts) -> Measured:
    """Returns the metrics under the protocol that the config did not choose."""
    evaluation = artifacts.evaluated()
    chosen = evaluation.get("query", "each_moment")
    other = "at_cut" if chosen == "each_moment" else "each_moment"
    part = evaluation.get("at_cut") or evaluation.get(other)
    if not isinstance(part, dict):
        raise MissingError("The evaluation holds one protocol only.")
    return _measured(artifacts, part, other, is_chosen=False)


def read_slices(artifacts: Artifacts) -> Slices:
    """Returns the deciding metric on each slice."""
    evaluation = artifacts.evaluated()
    slices = evaluation.get("slices")
    if not slices:
        raise MissingError("The evaluation holds no slices.")
    name = _deciding(artifacts, _metrics(evaluation))
    rows = [_slice(part, name) for part in slices]
    return Slices(name, rows, any(row.is_small for row in rows))


def _slice(part: dict[str, Any], name: str) -> Slice:
    model = (part.get("metrics") or {}).get(name)
    popularity = _popularity(part).get(name)
    users = part.get("users")
    return Slice(
        name=str(part["name"]),
        users=count(users),
        queries=count(part.get("queries")),
        model=figure(model),
        popularity=figure(popularity),
        times=ratio(model, popularity),
        is_worse=_is_worse(model, popularity),
        is_small=is_number(users) and users < SMALL_SLICE_USERS,
    )


def _measured(
    artifacts: Artifacts, part: dict[str, Any], protocol: str, *, is_chosen: bool
) -> Measured:
    metrics, popularity = _metrics(part), _popularity(part)
    blessed = part.get("blessed_model")
    blessed = blessed if isinstance(blessed, dict) else {}
    title, meaning = _PROTOCOLS.get(protocol, (protocol, "a protocol of the evaluation"))
    basis = [
        _users(part),
        counted(part.get("queries"), "query", "queries"),
    ]
    if is_number(part.get("positives")):
        basis.append(counted(part["positives"], "held-out event", "held-out events"))
    if is_chosen and is_number(part.get("candidates")):
        basis.append(counted(part["candidates"], "candidate", "candidates"))
    # The verdict rests on the protocol that the config chose.
    deciding = _deciding(artifacts, metrics) if is_chosen else ""
    notes = []
    if not popularity:
        notes.append("No popularity baseline was measured.")
    if is_chosen and not blessed:
        notes.append("There is no earlier blessed model to compare with.")
    return Measured(
        title=title,
        meaning=meaning,
        basis=", ".join(basis),
        rows=_comparisons(metrics, popularity, blessed, deciding),
        has_blessed=bool(blessed),
        note=" ".join(notes),
    )


def _users(part: dict[str, Any]) -> str:
    users, held_out = part.get("users"), part.get("users_held_out")
    text = counted(users, "user", "users")
    if users is None or held_out is None:
        return text
    if is_number(users) and is_number(held_out) and held_out > users:
        return f"{text} (chosen at random of {count(held_out)})"
    return text


def _comparisons(
    metrics: dict[str, Any], popularity: dict[str, Any], blessed: dict[str, Any], deciding: str
) -> list[Comparison]:
    largest: dict[str, float] = {}
    for figures in (metrics, popularity):
        for name, value in figures.items():
            if is_number(value):
                family = name.partition("@")[0]
                largest[family] = max(largest.get(family, 0.0), value)

    def bar(name: str, value: Any) -> float:
        top = largest.get(name.partition("@")[0], 0.0)
        return round(100 * max(0.0, value) / top, 1) if is_number(value) and top > 0 else 0.0

    return [
        Comparison(
            name=name,
            model=figure(value),
            popularity=figure(popularity.get(name)),
            times=ratio(value, popularity.get(name)),
            blessed=figure(blessed.get(name)),
            bar=bar(name, value),
            popularity_bar=bar(name, popularity.get(name)),
            decides=name == deciding,
            is_worse=_is_worse(value, popularity.get(name)),
        )
        for name, value in metrics.items()
    ]


def _is_worse(value: Any, other: Any) -> bool:
    """Returns whether the ratio reads less than `1.00 ×`."""
    return bool(is_number(value) and is_number(other) and value < 0.995 * other)


def _metrics(part: dict[str, Any]) -> dict[str, Any]:
    metrics = part.get("metrics")
    if not isinstance(metrics, dict) or not metrics:
        raise MissingError("The evaluation holds no metrics.")
    return metrics


def _popularity(part: dict[str, Any]) -> dict[str, Any]:
    popularity = (part.get("baselines") or {}).get("popularity")
    return popularity if isinstance(popularity, dict) else {}


def _deciding(artifacts: Artifacts, metrics: dict[str, Any]) -> str:
    """Returns the metric that the blessing rests on, or else the first one."""
    name = artifacts.bless().get("metric")
    return name if name in metrics else next(iter(metrics))
