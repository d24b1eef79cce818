"""Recommendations for a few users, for people to look at."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from recsys.data.catalogue import Catalogue
from recsys.data.store import InteractionStore
from recsys.evaluation.queries import Queries, make_queries, train_slices
from recsys.evaluation.ranking import rank
from recsys.model import SavedModel
from recsys.model.inference import embed_queries
from recsys.ragged import Ragged

_CHOSEN_USERS = 3
_ITEMS = 10


def example_users(
    wanted: Sequence[str], store: InteractionStore, saved: SavedModel, candidates: np.ndarray
) -> tuple[list[dict[str, Any]], list[str]]:
    """Returns recommendations as of the cut, beside the history before it.

    Args:
        wanted: Ids of users; empty: the three users known to training with the
            most held-out events.
        store: The positives, split at the cut.
        saved: The model.
        candidates: Item embeddings `[item rows, dim]`.

    Returns:
        The users with `history`, `recommended` and, of the latter, what turned out
        to be right (`held_out`); and the wanted ids that the data don't know.
    """
    held_out = _held_out(store)
    ids = list(wanted) or _busiest(store, held_out)
    rows = saved.users.rows(ids)
    trained = store.train_users.find(pa.array(ids, pa.large_string()))
    has_row = rows >= saved.users.first_own_row
    known = [i for i, id_ in enumerate(ids) if has_row[i] or trained[i] >= 0 or id_ in held_out]
    none = np.zeros(0, np.int32)
    wanted_items = [held_out.get(ids[i], none) for i in known]
    queries = _queries_at_cut(store, trained[known], rows[known], wanted_items)
    embedded = embed_queries(
        saved.model, queries.user_row, queries.histories(saved.stage.model.history), saved.inputs
    )
    ranking = rank(
        lambda block: embedded[block] @ candidates.T,
        queries.positives,
        queries.seen,
        saved.catalogue.is_item,
        _ITEMS,
    )
    histories = queries.histories(_ITEMS)
    examples = []
    for i, place in enumerate(known):
        right = set(wanted_items[i].tolist())
        recommended = [
            {
                **_item(saved.catalogue, row),
                "score": round(float(score), 4),
                "held_out": int(row) in right,
            }
            for row, score in zip(ranking.top[i], ranking.top_scores[i], strict=True)
            if np.isfinite(score)
        ]
        history = [
            _item(saved.catalogue, row) for row in histories[i] if saved.catalogue.is_item[row]
        ]
        examples.append({"user_id": ids[place], "history": history, "recommended": recommended})
    return examples, [id_ for i, id_ in enumerate(ids) if i not in known]


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
    store: InteractionStore,
    trained: np.ndarray,
    rows: np.ndarray,
    held_out: Sequence[np.ndarray],
) -> Queries:
    starts, ends = train_slices(store, trained)
    seen = [store.train.item_row[start:end] for start, end in zip(starts, ends, strict=True)]
    return Queries(np.arange(len(rows)), rows, Ragged.of(seen), Ragged.of(held_out))


def _item(catalogue: Catalogue, row: int) -> dict[str, str]:
    return {"id": catalogue.ids[row], "title": catalogue.titles[row]}
