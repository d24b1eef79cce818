"""Recommendations for a few users, for people to look at."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from recsys.data.catalogue import Catalogue
from recsys.data.store import InteractionStore
from recsys.evaluation.queries import Queries, make_queries, train_slices
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
) -> tuple[list[dict[str, Any]], list[str]]:
    """Returns recommendations as of the cut, beside the history before it.

    Args:
        wanted: Ids of users; empty: the three users known to training with the
            most held-out events.
        store: The positives, split at the cut.
        known: What the data tell of users and items.
        model: The model.
        blessed: The last blessed model, if there is one.

    Returns:
        The users with `history`, `recommended`, of the latter what turned out to be right
        (`held_out`), and what the last blessed model recommends (`blessed_recommended`);
        and the wanted ids that the data don't know.
    """
    held_out = _held_out(store)
    ids = list(wanted) or _busiest(store, held_out)
    trained = store.train_users.find(pa.array(ids, pa.large_string()))
    has_row = known.users.rows(ids) >= known.users.first_own_row
    there = [i for i, id_ in enumerate(ids) if has_row[i] or trained[i] >= 0 or id_ in held_out]
    chosen = [ids[i] for i in there]
    queries = _queries_at_cut(store, trained[there], [held_out.get(id_, _NONE) for id_ in chosen])
    lists = _lists(model, chosen, queries)
    of_blessed = None if blessed is None else _lists(blessed, chosen, queries)
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


def _lists(subject: Subject, ids: Sequence[str], queries: Queries) -> Ranking:
    history = queries.histories(subject.history)
    embedded = subject.embed(pa.array(ids, pa.large_string()), history)
    scorer = DotProducts(embedded, subject.candidates)
    return rank(scorer, queries.positives, queries.seen, subject.is_candidate, _ITEMS)


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


def _held_out(store: InteractionStore) -> dict[str, np.ndarray]:
    """Returns the held-out item rows of each evaluation user, by id."""
    queries = make_queries(store, "at_cut")
    offsets = queries.positives.offsets
    ids = store.eval_users.ids.take(pa.array(queries.user)).to_pylist()
    return {id_: queries.positives.rows[offsets[i] : offsets[i + 1]] for i, id_ in enumerate(ids)}


def _busiest(store: InteractionStore, held_out: dict[str, np.ndarray]) -> list[str]:
    known = store.eval_users.ids.filter(pa.array(store.trained_user >= 0)).to_pylist()
    return sorted(known, key=lambda id_: (-len(held_out[id_]), id_))[:_CHOSEN_USERS]


def _queries_at_cut(
    store: InteractionStore, trained: np.ndarray, held_out: Sequence[np.ndarray]
) -> Queries:
    starts, ends = train_slices(store, trained)
    seen = [store.train.item_row[start:end] for start, end in zip(starts, ends, strict=True)]
    n = len(held_out)
    return Queries(np.arange(n), np.zeros(n, np.int32), Ragged.of(seen), Ragged.of(held_out))


def _item(catalogue: Catalogue, row: int) -> dict[str, str]:
    return {"id": catalogue.ids[row], "title": catalogue.titles[row]}
