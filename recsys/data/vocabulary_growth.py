"""Grows a vocabulary: known ids keep their rows, new ids get new rows.

So a table trained before still fits: row r means the same id, but where `generation`
went up, where another id was given the row of one that had not been seen for long.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from recsys.config import VocabularyConfig
from recsys.data.vocabulary import IdIndex, Vocabulary, as_texts
from recsys.errors import RecsysError

_SECONDS_OF_A_DAY = 86_400
_EXAMPLES = 5


@dataclasses.dataclass(frozen=True)
class VocabularyDiff:
    """Differences between two successive vocabularies.

    Attributes:
        new: Ids that got a row.
        kept: Ids that kept theirs.
        evicted: Ids that lost theirs, not seen for `evict_after_days`.
        recycled: New ids in rows that other ids had before.
        below_min_count: Ids seen in training too seldom for a row.
        below_min_count_events: Their training events.
        out_of_date: Ids seen often enough, but not for `evict_after_days`.
        rows_before: Rows of the table before.
        rows_after: Rows of the table now.
        unknown_train_share: Share of training events whose id shares a row [0..1].
        unknown_eval_share: The same of evaluation events; None: not counted.
        examples: A few ids of each kind, the most frequent first.
    """

    new: int
    kept: int
    evicted: int
    recycled: int
    below_min_count: int
    below_min_count_events: int
    out_of_date: int
    rows_before: int
    rows_after: int
    unknown_train_share: float
    unknown_eval_share: float | None
    examples: dict[str, list[str]]

    def to_json(self) -> dict[str, Any]:
        """Returns the diff as plain JSON."""
        return dataclasses.asdict(self)


def grow(
    previous: Vocabulary | None,
    counted: pa.Table,
    config: VocabularyConfig,
    cut: int,
    keep: pa.Array | None = None,
    held_out: pa.Table | None = None,
) -> tuple[Vocabulary, VocabularyDiff]:
    """Returns the vocabulary of new training data, and what changed.

    An id keeps its row as long as it lives. Ids seen `min_count` times, and those of
    `keep`, get a row: first the free ones, the smallest first, then new ones at the
    end; the most frequent id first, and of equally frequent ones the smaller.

    Args:
        previous: The vocabulary before; None for the first one.
        counted: Ids of the training positives, each once, as `merge_counts` gives them.
        config: Who gets a row, and who loses it.
        cut: The moment that the training data end [seconds since 1970, UTC].
        keep: Ids that have a row whether seen or not: those of the catalogue.
        held_out: Ids of the evaluation positives, for the diff alone.

    Raises:
        RecsysError: `previous` has another number of hash rows, so that rows would
            move; or an id was counted twice.
    """
    before = Vocabulary(pa.array([], pa.large_string()), np.zeros(0), config=config)
    before = previous or before
    _refuse_other_hash_rows(before, config)
    kept_ids = pc.unique(as_texts(keep if keep is not None else [])).drop_null()
    plan = _Growth(before, counted, config, cut, kept_ids)
    grown = plan.vocabulary()
    return grown, plan.diff(grown, held_out)


def rows_to_reset(old: Vocabulary, new: Vocabulary) -> np.ndarray:
    """Returns the rows `[n]` int32 of `old` that belong to another id in `new`.

    What a table learned for the earlier id must not be used for the new one.

    Raises:
        RecsysError: `new` didn't grow from `old`.
    """
    n = len(old.own_ids)
    is_reset = new.generation[:n] > old.generation[: len(new.generation)]
    _refuse_strangers(old, new, is_reset)
    return (np.flatnonzero(is_reset) + old.first_own_row).astype(np.int32)


class _Growth:
    """What becomes of each row of the vocabulary before, and of each id counted now.

    Args:
        before: The vocabulary before.
        counted: Every id counted now or kept, once.
        config: Who gets a row, and who loses it.
        cut: The moment that the training data end.
        kept_ids: Ids that have a row in any case.
    """

    def __init__(
        self,
        before: Vocabulary,
        counted: pa.Table,
        config: VocabularyConfig,
        cut: int,
        kept_ids: pa.Array,
    ) -> None:
        self._before, self._config, self._cut = before, config, cut
        self._take(counted, kept_ids)
        self._place = before.index.find(self._ids)
        self._evict()
        self._admit()

    def _take(self, counted: pa.Table, kept_ids: pa.Array) -> None:
        """Reads the counts; ids that are kept and weren't counted join with a count of 0."""
        ids = as_texts(counted["id"])
        _refuse_doubles(ids)
        place = IdIndex(ids).find(kept_ids) if len(kept_ids) else np.zeros(0, np.int64)
        unseen = kept_ids.filter(pa.array(place < 0))
        self._ids = pa.concat_arrays([ids, unseen]) if len(unseen) else ids
        none = np.zeros(len(unseen), np.int64)
        self._counts = np.concatenate([counted["count"].to_numpy(), none])
        self._seen = np.concatenate([counted["last_seen"].to_numpy(), none])
        self._is_kept = np.zeros(len(self._ids), bool)
        self._is_kept[place[place >= 0]] = True
        self._is_kept[len(ids) :] = True
        self._seen[self._is_kept] = np.maximum(self._seen[self._is_kept], self._cut)

    def _evict(self) -> None:
        known = self._place >= 0
        last_seen = self._before.last_seen.copy()
        last_seen[self._place[known]] = np.maximum(last_seen[self._place[known]], self._seen[known])
        self._last_seen = last_seen
        has_id = self._before.own_ids.is_valid().to_numpy(zero_copy_only=False)
        self._is_evicted = has_id & (last_seen < self._oldest)
        self._is_free = self._is_evicted | ~has_id
        self._lives = known.copy()
        self._lives[known] = ~self._is_evicted[self._place[known]]

    def _admit(self) -> None:
        is_fresh = self._seen >= self._oldest
        is_often = self._counts >= self._config.min_count
        admitted = np.flatnonzero(~self._lives & (self._is_kept | (is_often & is_fresh)))
        self._new = admitted[self._order(admitted)]
        free = np.flatnonzero(self._is_free)[: len(self._new)]
        n = len(self._is_free)
        self._recycled = free
        appended = n + np.arange(len(self._new) - len(free))
        self._new_place = np.concatenate([free, appended])
        self._place = np.where(self._lives, self._place, -1)
        self._place[self._new] = self._new_place
        self._n_own = n + len(appended)
        self._is_seldom = (self._place < 0) & ~is_often & (self._counts > 0)
        self._is_out_of_date = (self._place < 0) & is_often & (self._counts > 0)

    @property
    def _oldest(self) -> int:
        """The moment that an id must have been seen at or after."""
        days = self._config.evict_after_days
        return np.iinfo(np.int64).min if days is None else self._cut - days * _SECONDS_OF_A_DAY

    def _order(self, chosen: np.ndarray) -> np.ndarray:
        """Returns the order of ids: the most frequent first, then by id."""
        table = pa.table({"count": self._counts[chosen], "id": self._ids.take(pa.array(chosen))})
        keys = [("count", "descending"), ("id", "ascending")]
        return pc.sort_indices(table, keys).to_numpy()

    def vocabulary(self) -> Vocabulary:
        """Returns the vocabulary now."""
        n_before, has_row = len(self._is_free), self._place >= 0
        counts = np.zeros(self._n_own, np.int64)
        counts[self._place[has_row]] = self._counts[has_row]
        last_seen = np.zeros(self._n_own, np.int64)
        last_seen[:n_before] = np.where(self._is_free, 0, self._last_seen)
        last_seen[self._new_place] = self._seen[self._new]
        generation = np.zeros(self._n_own, np.int32)
        generation[:n_before] = self._before.generation
        generation[self._recycled] += 1
        grown = Vocabulary(
            self._own_ids(), counts, config=self._config, cut=self._cut,
            last_seen=last_seen, generation=generation,
        )  # fmt: skip
        without = ~has_row
        rows = grown.shared_rows(self._ids.filter(pa.array(without)))
        # Float64 counts whole numbers up to 2^53.
        shared = np.bincount(rows, self._counts[without], minlength=grown.first_own_row)
        grown.row_counts[: grown.first_own_row] = shared.astype(np.int64)
        return grown

    def _own_ids(self) -> pa.Array:
        source = np.full(self._n_own, -1, np.int64)
        source[: len(self._is_free)] = np.where(self._is_free, -1, np.arange(len(self._is_free)))
        source[self._new_place] = len(self._is_free) + self._new
        places = pa.array(source, mask=source < 0)
        return pa.concat_arrays([self._before.own_ids, self._ids]).take(places)

    def diff(self, grown: Vocabulary, held_out: pa.Table | None) -> VocabularyDiff:
        """Returns what changed."""
        n_new, n_evicted = len(self._new), int(self._is_evicted.sum())
        has_id_before = len(self._before.own_ids) - self._before.own_ids.null_count
        n_events = int(self._counts.sum())
        unknown = int(grown.row_counts[: grown.first_own_row].sum())
        return VocabularyDiff(
            new=n_new,
            kept=has_id_before - n_evicted,
            evicted=n_evicted,
            recycled=len(self._recycled),
            below_min_count=int(self._is_seldom.sum()),
            below_min_count_events=int(self._counts[self._is_seldom].sum()),
            out_of_date=int(self._is_out_of_date.sum()),
            rows_before=self._before.n_rows if has_id_before else 0,
            rows_after=grown.n_rows,
            unknown_train_share=unknown / n_events if n_events else 0.0,
            unknown_eval_share=None if held_out is None else _unknown_share(grown, held_out),
            examples={
                "new": self._ids.take(pa.array(self._new[:_EXAMPLES])).to_pylist(),
                "evicted": _first(self._before.own_ids, self._is_evicted),
                "below_min_count": self._most_frequent(self._is_seldom),
                "out_of_date": self._most_frequent(self._is_out_of_date),
            },
        )

    def _most_frequent(self, which: np.ndarray) -> list[str]:
        chosen = np.flatnonzero(which)
        counts = self._counts[chosen]
        if len(chosen) > _EXAMPLES:
            least = np.partition(counts, -_EXAMPLES)[-_EXAMPLES]
            chosen = chosen[counts >= least]
        best = chosen[self._order(chosen)[:_EXAMPLES]]
        return self._ids.take(pa.array(best)).to_pylist()


def _first(ids: pa.Array, which: np.ndarray) -> list[str]:
    return ids.take(pa.array(np.flatnonzero(which)[:_EXAMPLES])).to_pylist()


def _unknown_share(vocabulary: Vocabulary, counted: pa.Table) -> float:
    counts = counted["count"].to_numpy()
    is_unknown = vocabulary.rows(counted["id"]) < vocabulary.first_own_row
    return float(counts[is_unknown].sum() / counts.sum()) if counts.sum() else 0.0


def _refuse_other_hash_rows(before: Vocabulary, config: VocabularyConfig) -> None:
    if before.config.hash_buckets != config.hash_buckets:
        raise RecsysError(
            "R211",
            f"A vocabulary keeps its {before.config.hash_buckets} hash rows for good: with"
            " another number every id would move to another row.",
            f"Set hash_buckets to {before.config.hash_buckets} again, or start anew in"
            " another root.",
            {"hash_buckets": config.hash_buckets},
        )


def _refuse_doubles(ids: pa.Array) -> None:
    n_distinct = pc.count_distinct(ids, mode="only_valid").as_py()
    if n_distinct != len(ids):
        raise RecsysError(
            "R214",
            "Counted ids must stand in their table once, and none may be null.",
            "Sum the parts with merge_counts; if a run says this, report it as a bug.",
            {"rows": len(ids), "ids": n_distinct},
        )


def _refuse_strangers(old: Vocabulary, new: Vocabulary, is_reset: np.ndarray) -> None:
    n = len(old.own_ids)
    same_size = len(new.own_ids) >= n and new.first_own_row == old.first_own_row
    moved = 0
    if same_size:
        differs = pc.fill_null(pc.not_equal(old.own_ids, new.own_ids.slice(0, n)), False)
        moved = int((differs.to_numpy(zero_copy_only=False) & ~is_reset).sum())
    if not same_size or moved:
        raise RecsysError(
            "R213",
            "A table is carried over to a vocabulary that grew from its own.",
            "Train from the start, or give the vocabulary of the same lineage.",
            {"rows": (old.n_rows, new.n_rows), "moved ids": moved},
        )
