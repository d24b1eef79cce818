"""What is popular against what is recommended."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from recsys.formats import count, counted, is_number, share
from recsys.report.artifacts import Artifacts, MissingError
from recsys.report.evaluated import subject_name
from recsys.report.pictures.cloud import draw_cloud
from recsys.report.pictures.picture import Picture

_WIDE, _NARROW = (990, 340), (330, 300)
_SHARES = "_share"
_TRAINING, _RECOMMENDED = "training_share", "recommended_share"


@dataclasses.dataclass(frozen=True)
class Bar:
    """One share of a class of items.

    Attributes:
        name: Share of what.
        text: The share.
        percent: The same, for a bar [%].
        style: Which of the bars it is, for its colour.
    """

    name: str
    text: str
    percent: float
    style: int


@dataclasses.dataclass(frozen=True)
class Bin:
    """Items of like popularity.

    Attributes:
        name: Their training events.
        items: How many items.
        bars: Their share of the training events and of each subject's recommendations.
    """

    name: str
    items: str
    bars: list[Bar]


@dataclasses.dataclass(frozen=True)
class Exposure:
    """How often items are recommended, by how popular they are.

    Attributes:
        k: Length of the lists.
        picture: Each item as a dot; None where there are no points.
        bins: Classes of items, the rarest first.
        names: What the bars are, in order.
    """

    k: str
    picture: Picture | None
    bins: list[Bin]
    names: list[str]


def read_exposure(artifacts: Artifacts) -> Exposure:
    """Returns how often items are recommended, by how popular they are."""
    exposure = artifacts.evaluated().get("exposure")
    if not isinstance(exposure, dict):
        raise MissingError("The evaluation doesn't say how often each item is recommended.")
    points = [
        (float(x), float(y))
        for x, y in exposure.get("points") or []
        if is_number(x) and is_number(y) and x >= 0 and y >= 0
    ]
    bins = exposure.get("bins") or []
    keys = _keys(bins)
    k = count(exposure.get("k"))
    return Exposure(
        k=k,
        picture=_picture(points, bins, k) if points else None,
        bins=[_bin(one, keys) for one in bins],
        names=[_bar_name(key) for key in keys],
    )


def _picture(
    points: Sequence[tuple[float, float]], bins: Sequence[Mapping[str, Any]], k: str
) -> Picture:
    n_items = sum(one.get("items") or 0 for one in bins)
    is_whole = len(points) >= n_items
    which = counted(len(points), "item", "items")
    if not is_whole:
        which = f"{count(len(points))} of {count(n_items)} items, the most shown and some others"
    caption = (
        f"{which}, each by its training events and by how many lists of {k} it is in; larger"
        " dots are several items."
    )
    slope = None
    if is_whole:
        never = sum(y == 0 for _, y in points)
        caption += f" {count(never)} ({share(never / len(points))}) are in none."
        events, lists = (sum(one) for one in zip(*points, strict=True))
        slope = lists / events if events > 0 and lists > 0 else None
    if slope:
        caption += " On the dashed line items would be recommended as often as they are chosen."
    names = ("training events", "lists that it is in")
    wide, narrow = (draw_cloud(points, size, names, caption, slope) for size in (_WIDE, _NARROW))
    return Picture("", wide, narrow, caption)


def _keys(bins: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns the names of the shares: of training, of the model, then of the others."""
    found = {key for one in bins for key in one if key.endswith(_SHARES)}
    first = [key for key in (_TRAINING, _RECOMMENDED) if key in found]
    return first + sorted(found - set(first))


def _bar_name(key: str) -> str:
    if key == _TRAINING:
        return "of the training events"
    if key == _RECOMMENDED:
        return "of the model's lists"
    return f"of the lists of {subject_name(key.removesuffix(_SHARES))}"


def _bin(one: Mapping[str, Any], keys: Sequence[str]) -> Bin:
    shares = [one.get(key) for key in keys]
    return Bin(
        name=_range(one.get("from"), one.get("to")),
        items=counted(one.get("items"), "item", "items"),
        bars=[
            Bar(
                name=_bar_name(key),
                text=share(value),
                percent=round(100 * value, 1) if is_number(value) and 0 <= value <= 1 else 0.0,
                style=style,
            )
            for style, (key, value) in enumerate(zip(keys, shares, strict=True))
        ],
    )


def _range(first: Any, last: Any) -> str:
    if first == last:
        return counted(first, "training event", "training events")
    if not is_number(last):
        return f"{count(first)} training events or more"
    return f"{count(first)} to {count(last)} training events"
