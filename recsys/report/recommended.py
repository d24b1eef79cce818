"""Recommendations: for example users, neighbours of items, and exposure by popularity."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from recsys.formats import ABSENT, count, counted, is_number, score, share
from recsys.report.artifacts import Artifacts, MissingError, read_table
from recsys.report.charts import Picture, draw_cloud
from recsys.report.evaluated import system_name

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


_POPULAR_ITEMS = 6
_NEIGHBOURS = 5
_LOOKED_AT = 60
_BLOCK_ROWS = 65_536


@dataclasses.dataclass(frozen=True)
class Neighbourhood:
    """A popular item and the items whose embeddings are nearest."""

    title: str
    events: str
    nearest: list[tuple[str, str]]


def read_neighbours(artifacts: Artifacts) -> list[Neighbourhood]:
    """Returns popular items, unlike each other, and what lies nearest to them."""
    try:
        embeddings = np.load(artifacts.model / "candidates.npy", mmap_mode="r")
    except (OSError, ValueError, EOFError) as error:
        raise MissingError(f"The item embeddings can't be read: {error}.") from None
    folder = artifacts.model
    vocabulary = read_table(folder / "vocabulary" / "items.parquet", "The item vocabulary")
    titles = read_table(folder / "catalogue" / "titles.parquet", "The catalogue")
    n_rows = min(len(embeddings), vocabulary.num_rows)
    if embeddings.ndim != 2 or n_rows < 2:
        raise MissingError("The model has too few items for neighbours.")
    # Rows that are shared, or free, are no items.
    is_item = np.asarray(vocabulary["id"].is_valid())[:n_rows]
    counts = np.where(is_item, vocabulary["count"].to_numpy()[:n_rows], 0)
    popular = np.argsort(-counts, kind="stable")[:_LOOKED_AT]
    popular = popular[counts[popular] > 0]
    if len(popular) == 0:
        raise MissingError("No item has training events, so none is popular.")
    nearest, scores = _nearest(embeddings[:n_rows], popular, is_item)
    shown: list[Neighbourhood] = []
    used: set[int] = set()
    for i, row in enumerate(popular.tolist()):
        if row in used or len(shown) == _POPULAR_ITEMS:
            continue
        # An item beside its own neighbours would say the same again.
        used.update([row, *nearest[i].tolist()])
        names = _titles_of_rows([row, *nearest[i].tolist()], vocabulary, titles)
        cosines = [score(float(cosine)) for cosine in scores[i]]
        events = counted(int(counts[row]), "event", "events")
        shown.append(Neighbourhood(names[0], events, list(zip(names[1:], cosines, strict=True))))
    return shown


def _nearest(
    embeddings: np.ndarray, rows: np.ndarray, is_item: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the rows `[n, k]` of the highest cosines with `rows` `[n]`, and the cosines.

    The embeddings are read in blocks; rows that are no items, and the rows themselves,
    are left out.
    """
    queries = _unit(embeddings[rows])
    best_rows = np.zeros((len(rows), 0), np.int64)
    best = np.zeros((len(rows), 0), np.float32)
    for start in range(1, len(embeddings), _BLOCK_ROWS):
        block = np.arange(start, min(start + _BLOCK_ROWS, len(embeddings)))
        cosines = queries @ _unit(embeddings[block[0] : block[-1] + 1]).T
        cosines[(rows[:, None] == block) | ~is_item[block]] = -np.inf
        best = np.concatenate([best, cosines], axis=1)
        best_rows = np.concatenate([best_rows, np.broadcast_to(block, cosines.shape)], axis=1)
        kept = min(_NEIGHBOURS, best.shape[1])
        order = np.argpartition(-best, kept - 1, axis=1)[:, :kept]
        best = np.take_along_axis(best, order, axis=1)
        best_rows = np.take_along_axis(best_rows, order, axis=1)
    order = np.argsort(-best, axis=1, kind="stable")
    best = np.take_along_axis(best, order, axis=1)
    best_rows = np.take_along_axis(best_rows, order, axis=1)
    # With few items the last places hold the item itself.
    n_others = min(_NEIGHBOURS, int(is_item.sum()) - 1)
    return best_rows[:, :n_others], best[:, :n_others]


def _unit(vectors: np.ndarray) -> np.ndarray:
    vectors = np.nan_to_num(np.asarray(vectors, np.float32), posinf=0.0, neginf=0.0)
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)


def _titles_of_rows(rows: list[int], vocabulary: pa.Table, titles: pa.Table) -> list[str]:
    """Returns the titles of item `rows`; the id where the catalogue has none."""
    ids = vocabulary["id"].take(pa.array(rows))
    wanted = ids.cast(titles["id"].type).combine_chunks()
    known = titles.filter(pc.is_in(titles["id"], value_set=wanted))
    by_id = dict(zip(known["id"].to_pylist(), known["title"].to_pylist(), strict=True))
    return [str(by_id.get(id_) or id_) for id_ in ids.to_pylist()]


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
        bars: Their share of the training events and of each system's recommendations.
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
        bins=[_bin(bin_, keys) for bin_ in bins],
        names=[_bar_name(key) for key in keys],
    )


def _picture(
    points: Sequence[tuple[float, float]], bins: Sequence[Mapping[str, Any]], k: str
) -> Picture:
    n_items = sum(bin_.get("items") or 0 for bin_ in bins)
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
        events, lists = (sum(axis) for axis in zip(*points, strict=True))
        slope = lists / events if events > 0 and lists > 0 else None
    if slope:
        caption += " On the dashed line items would be recommended as often as they are chosen."
    names = ("training events", "lists that it is in")
    wide, narrow = (draw_cloud(points, size, names, caption, slope) for size in (_WIDE, _NARROW))
    return Picture("", wide, narrow, caption)


def _keys(bins: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns the names of the shares: of training, of the model, then of the others."""
    share_keys = {key for bin_ in bins for key in bin_ if key.endswith(_SHARES)}
    first = [key for key in (_TRAINING, _RECOMMENDED) if key in share_keys]
    return first + sorted(share_keys - set(first))


def _bar_name(key: str) -> str:
    if key == _TRAINING:
        return "of the training events"
    if key == _RECOMMENDED:
        return "of the model's lists"
    return f"of the lists of {system_name(key.removesuffix(_SHARES))}"


def _bin(bin_: Mapping[str, Any], keys: Sequence[str]) -> Bin:
    shares = [bin_.get(key) for key in keys]
    return Bin(
        name=_range(bin_.get("from"), bin_.get("to")),
        items=counted(bin_.get("items"), "item", "items"),
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
