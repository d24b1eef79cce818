"""Grows a vocabulary: known ids keep their rows, new ids get new rows.

So an earlier table still fits: a row has the same id, unless its `generation` increased. Then
the row of an id that had not been seen for a long time was given to another id.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from recsys.data.config import VocabularyConfig
from recsys.data.split import DAY_S
from recsys.data.vocabulary import IdIndex, Vocabulary, as_texts
from recsys.errors import RecsysError

_EXAMPLES = 5
_NEVER = np.iinfo(np.int64).min


def grow(
    previous: Vocabulary | None,
    counted: pa.Table,
    config: VocabularyConfig,
    cut: int,
    keep: pa.Array | pa.ChunkedArray | None = None,
    held_out: pa.Table | None = None,
) -> tuple[Vocabulary, dict[str, Any]]:
    """Returns the vocabulary of new training data, and the changes.

    An id keeps its row until it is evicted. Ids with at least `min_count` positives, and the
    ids in `keep`, get a row: first free rows in ascending order, then new ones at the end. The
    most frequent id is first; ties are in the order of ids.

    Args:
        previous: The previous vocabulary; None for the first one.
        counted: Unique ids of the training positives, as `merge_counts` returns them.
        config: Rules for getting and losing a row.
        cut: End of the training data [seconds since 1970, UTC].
        keep: Ids that always have a row: those of the catalogue.
        held_out: Ids of the evaluation positives, only for the statistics of the changes.

    Returns:
        The vocabulary; and the changes, as docs/store.md describes `diff.json`.

    Raises:
        RecsysError: `previous` has another number of hash rows, so rows would move.
    """
    before = previous or Vocabulary(pa.array([], pa.large_string()), np.zeros(0), config=config)
    if before.config.hash_buckets != config.hash_buckets:
        raise RecsysError(
            "R211",
            f"A vocabulary keeps its {before.config.hash_buckets} hash rows permanently: with"
            " another number every id would move to another row.",
            f"Set hash_buckets to {before.config.hash_buckets} again, or start in another root.",
            {"hash_buckets": config.hash_buckets},
        )
    ids, counts, seen, is_kept = _counted(counted, keep, cut)
    days = config.evict_after_days
    oldest = _NEVER if days is None else cut - days * DAY_S

    # Ids with a row: which ones lose it?
    place = before.index.find(ids)
    known = place >= 0
    last_seen = before.last_seen.copy()
    last_seen[place[known]] = np.maximum(last_seen[place[known]], seen[known])
    # `last_seen` of members is the cut, so that an id that has left is older at the same cut.
    is_gone = np.ones(len(last_seen), bool)
    is_gone[place[known]] = False
    last_seen[is_gone] = np.minimum(last_seen[is_gone], cut - 1)
    had_id = before.own_ids.is_valid().to_numpy(zero_copy_only=False)
    is_evicted = had_id & (last_seen < oldest)
    is_free = is_evicted | ~had_id
    lives = known.copy()
    lives[known] = ~is_evicted[place[known]]

    # Ids without a row: which ones get one, and which row?
    is_often = counts >= config.min_count
    admitted = ~lives & (is_kept | (is_often & (seen >= oldest)))
    new = _most_frequent(ids, counts, np.flatnonzero(admitted))
    recycled = np.flatnonzero(is_free)[: len(new)]
    n_before = len(is_free)
    n_own = n_before + len(new) - len(recycled)
    new_place = np.concatenate([recycled, np.arange(n_before, n_own)])
    place = np.where(lives, place, -1)
    place[new] = new_place
    has_row = place >= 0

    own_counts, own_seen = np.zeros((2, n_own), np.int64)
    generation, source = np.zeros(n_own, np.int32), np.full(n_own, -1, np.int64)
    own_counts[place[has_row]] = counts[has_row]
    own_seen[:n_before] = np.where(is_free, 0, last_seen)
    own_seen[new_place] = seen[new]
    generation[:n_before] = before.generation
    generation[recycled] += 1
    source[:n_before] = np.where(is_free, -1, np.arange(n_before))
    source[new_place] = n_before + new
    own_ids = pa.concat_arrays([before.own_ids, ids]).take(pa.array(source, mask=source < 0))
    grown = Vocabulary(
        own_ids, own_counts, config=config, cut=cut, last_seen=own_seen, generation=generation
    )
    rows = grown.shared_rows(ids.filter(pa.array(~has_row)))
    # Float64 represents integers up to 2^53 exactly.
    shared = np.bincount(rows, counts[~has_row], minlength=grown.first_own_row)
    grown.row_counts[: grown.first_own_row] = shared.astype(np.int64)

    is_seldom = ~has_row & ~is_often & (counts > 0)
    is_out_of_date = ~has_row & is_often & (counts > 0)
    n_kept, n_evicted = int((had_id & ~is_evicted).sum()), int(is_evicted.sum())
    evicted_ids = before.own_ids.take(pa.array(np.flatnonzero(is_evicted)[:_EXAMPLES]))
    examples = {
        "new": new,
        "below_min_count": _most_frequent(ids, counts, np.flatnonzero(is_seldom), _EXAMPLES),
        "out_of_date": _most_frequent(ids, counts, np.flatnonzero(is_out_of_date), _EXAMPLES),
    }
    return grown, {
        "new": len(new),
        "kept": n_kept,
        "evicted": n_evicted,
        "recycled": len(recycled),
        "below_min_count": int(is_seldom.sum()),
        "below_min_count_events": int(counts[is_seldom].sum()),
        "out_of_date": int(is_out_of_date.sum()),
        "rows_before": before.n_rows if n_kept + n_evicted else 0,
        "rows_after": grown.n_rows,
        "unknown_train_share": int(shared.sum()) / max(int(counts.sum()), 1),
        "unknown_eval_share": None if held_out is None else _unknown_share(grown, held_out),
        "examples": {
            "evicted": evicted_ids.to_pylist(),
            **{
                k: ids.take(pa.array(which[:_EXAMPLES])).to_pylist()
                for k, which in examples.items()
            },
        },
    }


def _counted(
    counted: pa.Table, keep: pa.Array | pa.ChunkedArray | None, cut: int
) -> tuple[pa.Array, np.ndarray, np.ndarray, np.ndarray]:
    """Returns all counted or kept ids: id, count, time last seen, and whether it is kept."""
    ids = as_texts(counted["id"])
    kept = pc.unique(as_texts([] if keep is None else keep)).drop_null()
    place = IdIndex(ids).find(kept)
    unseen = kept.filter(pa.array(place < 0))
    n_all = len(ids) + len(unseen)
    is_kept = np.arange(n_all) >= len(ids)
    is_kept[place[place >= 0]] = True
    none = np.zeros(len(unseen), np.int64)
    counts = np.concatenate([counted["count"].to_numpy(), none])
    seen = np.concatenate([counted["last_seen"].to_numpy(), none])
    seen[is_kept] = np.maximum(seen[is_kept], cut)
    return pa.concat_arrays([ids, unseen]), counts, seen, is_kept


def _most_frequent(
    ids: pa.Array, counts: np.ndarray, chosen: np.ndarray, n: int | None = None
) -> np.ndarray:
    """Returns the indices `chosen`, all or the first n: the most frequent first, then by id."""
    if not len(chosen):
        return chosen
    table = pa.table({"count": counts[chosen], "id": ids.take(pa.array(chosen))})
    keys = [("count", "descending"), ("id", "ascending")]
    order = pc.sort_indices(table, keys) if n is None else pc.select_k_unstable(table, n, keys)
    return chosen[order.to_numpy()]


def _unknown_share(vocabulary: Vocabulary, counted: pa.Table) -> float:
    counts = counted["count"].to_numpy()
    is_unknown = vocabulary.rows(counted["id"]) < vocabulary.first_own_row
    return float(counts[is_unknown].sum() / max(counts.sum(), 1))
