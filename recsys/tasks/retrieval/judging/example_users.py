"""Recommendations for a few users, and the exposure of items by popularity."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from recsys.data.catalogue import Catalogue
from recsys.data.catalogue import of_history as history_input
from recsys.data.dataset import Data
from recsys.data.event_features import values_at
from recsys.data.store import InteractionStore
from recsys.kernels.rank_jobs import RankResults
from recsys.ragged import RaggedRows, ranges
from recsys.tasks.retrieval.judging.queries import Queries
from recsys.tasks.retrieval.judging.systems import System

_CHOSEN_USERS = 3
_ITEMS = 10


def example_users(
    wanted: Sequence[str],
    data: Data,
    model: System,
    blessed: System | None = None,
    *,
    mask_seen: bool = True,
) -> tuple[list[dict[str, Any]], list[str]]:
    """Returns recommendations at the time of the cut, with the history before it.

    Args:
        wanted: Ids of users; empty: the three users known to training with the
            most held-out events.
        data: The data folder.
        model: The model.
        blessed: The last blessed model, if there is one.
        mask_seen: Whether items of the user's history are excluded.

    Returns:
        The users with `history`, `recommended`, the recommended items that are held out
        (`held_out`), the list of the first stage, if there are two (`retrieved`), and the last
        blessed model's recommendations (`blessed_recommended`); and the wanted ids that are not in
        the data.
    """
    store = data.store
    ids = list(wanted) or _busiest(store)
    held_out = _held_out(store, ids)
    trained = store.train_users.find(pa.array(ids, pa.large_string()))
    has_row = data.users.rows(ids) >= data.users.first_own_row
    there = [i for i in range(len(ids)) if has_row[i] or trained[i] >= 0 or len(held_out[i])]
    chosen = [ids[i] for i in there]
    queries = _queries_at_cut(data, chosen, trained[there], [held_out[i] for i in there])
    first, lists = _lists(model, chosen, queries, mask_seen)
    retrieved = None if model.reranker is None else first
    of_blessed = None if blessed is None else _lists(blessed, chosen, queries, mask_seen)[1]
    histories, catalogue = queries.histories(_ITEMS), data.catalogue
    examples = [
        {
            "user_id": id_,
            "history": [_item(catalogue, row) for row in histories[i] if catalogue.is_item[row]],
            "recommended": _recommended(catalogue, lists, i, queries),
            "retrieved": retrieved and _recommended(catalogue, retrieved, i, queries),
            "blessed_recommended": of_blessed and _recommended(catalogue, of_blessed, i, queries),
        }
        for i, id_ in enumerate(chosen)
    ]
    return examples, [id_ for i, id_ in enumerate(ids) if i not in there]


def _lists(
    system: System, ids: Sequence[str], queries: Queries, mask_seen: bool
) -> tuple[RankResults, RankResults]:
    """Returns the lists of the first stage, and those of the whole system."""
    masked = queries.seen if mask_seen else RaggedRows.empty(len(queries))
    return system.lists(pa.array(ids, pa.large_string()), queries, masked, _ITEMS)


def _recommended(
    catalogue: Catalogue, lists: RankResults, query: int, queries: Queries
) -> list[dict[str, Any]]:
    offsets = queries.positives.offsets
    right = set(queries.positives.rows[offsets[query] : offsets[query + 1]].tolist())
    return [
        {**_item(catalogue, row), "score": round(float(score), 4), "held_out": int(row) in right}
        for row, score in zip(lists.top[query], lists.top_scores[query], strict=True)
        if np.isfinite(score)
    ]


def _held_out(store: InteractionStore, ids: Sequence[str]) -> list[np.ndarray]:
    """Returns the unique held-out item rows of each of `ids`."""
    places = store.eval_users.find(pa.array(ids, pa.large_string()))
    offsets, rows = store.eval.offsets, store.eval.item_row
    return [
        np.unique(rows[offsets[place] : offsets[place + 1]])
        if place >= 0
        else np.zeros(0, np.int32)
        for place in places.tolist()
    ]


def _busiest(store: InteractionStore) -> list[str]:
    """Returns the users known to training with the most held-out events."""
    n_events = np.where(store.trained_user >= 0, np.diff(store.eval.offsets), 0)
    least = np.sort(n_events)[::-1][:_CHOSEN_USERS].min(initial=n_events.max(initial=0))
    places = np.flatnonzero((n_events >= least) & (n_events > 0))
    ids = store.eval_users.ids.take(pa.array(places)).to_pylist()
    order = sorted(zip((-n_events[places]).tolist(), ids, strict=True))
    return [id_ for _, id_ in order[:_CHOSEN_USERS]]


def _queries_at_cut(
    data: Data, ids: Sequence[str], trained: np.ndarray, held_out: Sequence[np.ndarray]
) -> Queries:
    """Returns a query for each user at the cut, with the context of the first held-out event."""
    store, n = data.store, len(ids)
    past = store.train.history
    starts, ends = past.slices(trained)
    places, offsets = ranges(starts, ends - starts), np.cumsum([0, *(ends - starts)])
    own, own_ends = store.train.slices(trained)
    seen = store.train.item_row[ranges(own, own_ends - own)]
    of_history, of_query = {}, {}
    now = np.full(n, store.cut)
    if store.split.order == "time":
        times = past.timestamp
        newest = times[np.maximum(ends - 1, 0)] if len(times) else now
        idle_s = np.where(ends > starts, now - newest, -1)
    asked = store.eval_users.find(pa.array(ids, pa.large_string()))
    first = np.where(asked >= 0, store.eval.offsets[asked], 0)
    for one in (x for x in data.event_features if x.feature.side == "event"):
        if len(past):
            attribute = RaggedRows(past.features[one.name][places], offsets)
            of_history[history_input(one.name)] = attribute
        if one.feature.value in ("time", "gap") and store.split.has_cut:
            of_query[one.name] = one.encode(values_at(one.feature.value, now, idle_s))
        elif len(store.eval):
            found = store.eval.features[one.name][first]
            of_query[one.name] = np.where(asked[:, None] >= 0, found, np.zeros_like(found))
    return Queries(
        np.arange(n),
        np.zeros(n, np.int32),
        RaggedRows(seen, np.cumsum([0, *(own_ends - own)])),
        RaggedRows.of(held_out),
        of_history=of_history,
        of_query=of_query,
        history=RaggedRows(past.item_row[places], offsets),
    )


def _item(catalogue: Catalogue, row: int) -> dict[str, str]:
    return {"id": catalogue.ids[row], "title": catalogue.titles[row]}


def exposure(times_shown: np.ndarray, counts: np.ndarray, k: int) -> dict[str, Any]:
    """Returns how often items are recommended, by their popularity.

    Args:
        times_shown: Number of lists that contain each item of the catalogue `[items]`.
        counts: Number of training positives of each item `[items]`.
        k: Cut-off of the lists.

    Returns:
        `k`; `items`, and how many of them are in no list, `never`; `bins`: items with 0, 1, 2 to
        3, 4 to 7, … training positives, with their shares of the training positives and of the
        positions in lists.
    """
    never = int(np.count_nonzero(times_shown == 0))
    bins = _bins(times_shown, counts)
    return {"k": k, "items": len(counts), "never": never, "bins": bins}


def _bins(times_shown: np.ndarray, counts: np.ndarray) -> list[dict[str, Any]]:
    number = np.where(counts > 0, 1 + np.floor(np.log2(np.maximum(counts, 1))), 0).astype(np.int64)
    n_bins = int(number.max(initial=0)) + 1
    items, events, lists = (
        np.bincount(number, weights, n_bins) for weights in (None, counts, times_shown)
    )
    return [
        {
            "from": 2 ** (i - 1) if i else 0,
            "to": 2**i - 1 if i else 0,
            "items": int(items[i]),
            "training_share": float(events[i] / max(1.0, events.sum())),
            "recommended_share": float(lists[i] / max(1.0, lists.sum())),
        }
        for i in range(n_bins)
        if items[i]
    ]
