"""Recommendations for a few users, for people to look at."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from recsys.data.catalogue import Catalogue
from recsys.data.store import InteractionStore
from recsys.evaluation.queries import Queries, train_slices
from recsys.evaluation.ranking import DotProducts, Ranking, rank
from recsys.evaluation.subjects import Subject
from recsys.model.tower_inputs import TowerInputs
from recsys.ragged import Ragged

_CHOSEN_USERS = 3
_ITEMS = 10


def example_users(
    wanted: Sequence[str],
    store: InteractionStore,
    known: TowerInputs,
    model: Subject,
    blessed: Subject | None = None,
    *,
    mask_seen: bool = True,
) -> tuple[list[dict[str, Any]], list[str]]:
    """Returns recommendations as of the cut, beside the history before it.

    Args:
        wanted: Ids of users; empty: the three users known to training with the
            most held-out events.
        store: The positives, split at the cut.
        known: What the data tell of users and items.
        model: The model.
        blessed: The last blessed model, if there is one.
        mask_seen: Whether what a user did before is left out.

    Returns:
        The users with `history`, `recommended`, of the latter what turned out to be right
        (`held_out`), and what the last blessed model recommends (`blessed_recommended`);
        and the wanted ids that the data don't know.
    """
    ids = list(wanted) or _busiest(store)
    held_out = _held_out(store, ids)
    trained = store.train_users.find(pa.array(ids, pa.large_string()))
    has_row = known.users.rows(ids) >= known.users.first_own_row
    there = [i for i in range(len(ids)) if has_row[i] or trained[i] >= 0 or len(held_out[i])]
    chosen = [ids[i] for i in there]
    queries = _queries_at_cut(store, trained[there], [held_out[i] for i in there])
    lists = _lists(model, chosen, queries, mask_seen)
    of_blessed = None if blessed is None else _lists(blessed, chosen, queries, mask_seen)
    histories, catalogue = queries.histories(_ITEMS), known.catalogue
    examples = [
        {
            "user_id": id_,
            "history": [_item(catalogue, row) for row in histories[i] if catalogue.is_item[row]],
            "recommended": _recommended(catalogue, lists, i, queries),
            "blessed_recommended": of_blessed and _recommended(catalogue, of_blessed, i, queries),
        }
        for i, id_ in enumerate(chosen)
    ]
    return examples, [id_ for i, id_ in enumerate(ids) if i not in there]


_NONE = np.zeros(0, np.int32)


def _lists(subject: Subject, ids: Sequence[str], queries: Queries, mask_seen: bool) -> Ranking:
    history = queries.histories(subject.history)
    embedded = subject.embed(pa.array(ids, pa.large_string()), history)
    scorer = DotProducts(embedded, subject.candidates)
    masked = queries.seen if mask_seen else Ragged.empty(len(queries))
    return rank(scorer, queries.positives, masked, subject.is_candidate, _ITEMS)


def _recommended(
    catalogue: Catalogue, lists: Ranking, query: int, queries: Queries
) -> list[dict[str, Any]]:
    offsets = queries.positives.offsets
    right = set(queries.positives.rows[offsets[query] : offsets[query + 1]].tolist())
    return [
        {
            **_item(catalogue, row),
            "score": round(float(score), 4),
            "held_out": int(row) in right,
        }
        for row, score in zip(lists.top[query], lists.top_scores[query], strict=True)
        if np.isfinite(score)
    ]


def _held_out(store: InteractionStore, ids: Sequence[str]) -> list[np.ndarray]:
    """Returns the held-out item rows of each of `ids`, each row once."""
    places = store.eval_users.find(pa.array(ids, pa.large_string()))
    offsets, rows = store.eval.offsets, store.eval.item_row
    return [
        np.unique(rows[offsets[place] : offsets[place + 1]]) if place >= 0 else _NONE
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
    store: InteractionStore, trained: np.ndarray, held_out: Sequence[np.ndarray]
) -> Queries:
    starts, ends = train_slices(store, trained)
    seen = [store.train.item_row[start:end] for start, end in zip(starts, ends, strict=True)]
    n = len(held_out)
    return Queries(np.arange(n), np.zeros(n, np.int32), Ragged.of(seen), Ragged.of(held_out))


def _item(catalogue: Catalogue, row: int) -> dict[str, str]:
    return {"id": catalogue.ids[row], "title": catalogue.titles[row]}
