"""Maps ids to rows, and grows these maps; the only module that does.

An *id* identifies a user, an item or another entity outside of the model (text); a *row* is its
int32 index in a table. The rows of a vocabulary:

    0            out-of-vocabulary ids, if there are no hash rows
    1 … H        hash rows: an out-of-vocabulary id has the row of its hash
    H + 1 …      one row for each id, or free rows

Ids without their own row share row 0 or a hash row. The file has one line per row.

When a vocabulary grows, known ids keep their rows, and new ids get new rows. So an earlier table
still fits: a row has the same id, unless its `generation` increased. Then the row of an id that had
not been seen for a long time was given to another id.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from recsys.data.config import VocabularyConfig
from recsys.data.hashes import fingerprints, hash_buckets, text_bounds
from recsys.data.split import BY_TIME, DAY_S, SplitRule
from recsys.errors import RecsysError
from recsys.strict import canonical_json
from recsys.system.files import DAMAGE

UNKNOWN_ROW = 0

_COLUMNS = {"id": pa.large_string(), "count": pa.int64(), "last_seen": pa.int64()}
_COLUMNS["generation"] = pa.int32()
_TRIES = 1 << 16
"""Ids that are hashed at a time, to find some for hash rows."""


class Vocabulary:
    """The ids of one kind, and their rows.

    Args:
        ids: Ids with their own row `[n]`, text, unique; the id at index `i` has row
            `first_own_row + i`. Null for a free row.
        counts: Number of training positives of each id `[n]`, int64.
        config: Config that it was built with, including the number of hash rows.
        cut: End of its training data [seconds since 1970, UTC].
        shared_counts: Number of training positives of row 0 and of each hash row
            `[1 + hash rows]` int64; None: zeros.
        last_seen: Time of each id's newest training event `[n]` int64 [seconds since 1970,
            UTC], before the cut; or the cut for members of the catalogue; None: the cut.
        generation: Number of earlier ids of each row `[n]` int32; None: zeros.
        split: How its training data were split from the held-out data.
    """

    def __init__(
        self,
        ids: pa.Array,
        counts: np.ndarray,
        *,
        config: VocabularyConfig | None = None,
        cut: int = 0,
        shared_counts: np.ndarray | None = None,
        last_seen: np.ndarray | None = None,
        generation: np.ndarray | None = None,
        split: SplitRule = BY_TIME,
    ) -> None:
        self.config = VocabularyConfig() if config is None else config
        self.cut, self.split = cut, split
        n_own, n_shared = len(ids), self.first_own_row
        self.own_ids: pa.Array = ids.cast(pa.large_string())
        shared = np.zeros(n_shared, np.int64) if shared_counts is None else shared_counts
        seen = np.full(n_own, cut) if last_seen is None else last_seen
        generations = np.zeros(n_own) if generation is None else generation
        self.row_counts = np.concatenate([shared, counts]).astype(np.int64)
        self.last_seen = seen.astype(np.int64)
        self.generation = generations.astype(np.int32)

    @property
    def n_rows(self) -> int:
        """Number of rows of the table for this vocabulary, row 0 included."""
        return self.first_own_row + len(self.own_ids)

    @property
    def first_own_row(self) -> int:
        """First row that belongs to a single id; those before it are shared."""
        return 1 + self.config.hash_buckets

    @functools.cached_property
    def ids_of_rows(self) -> pa.Array:
        """Id of each row `[n_rows]` large_string; null for shared and for free rows."""
        shared = pa.nulls(self.first_own_row, pa.large_string())
        return pa.concat_arrays([shared, self.own_ids])

    def names_of_rows(self) -> list[str]:
        """Returns the id of each row `[n_rows]`; empty for shared and free rows."""
        return self.ids_of_rows.fill_null("").to_pylist()

    def has_id(self) -> np.ndarray:
        """Returns which rows belong to a single id `[n_rows]` bool."""
        # Doesn't use `ids_of_rows`, which is a copy.
        own = self.own_ids.is_valid().to_numpy(zero_copy_only=False)
        return np.concatenate([np.zeros(self.first_own_row, bool), own])

    def is_current(self) -> np.ndarray:
        """Returns which rows belong to an id that is in the data `[n_rows]` bool.

        Such an id has a training event, or is in the catalogue. Other ids keep their row in
        case they come back, but are no candidates.
        """
        own = slice(self.first_own_row, None)
        is_current = self.has_id()
        is_current[own] &= (self.row_counts[own] > 0) | (self.last_seen >= self.cut)
        return is_current

    def rows(self, ids: pa.Array | pa.ChunkedArray | Sequence[str]) -> np.ndarray:
        """Returns the rows `[n]` int32 of `ids` `[n]`.

        An id without its own row has the hash row
        `1 + tf.strings.to_hash_bucket_fast(id, H)`, or row 0 if there are no hash rows. Null
        always has row 0.
        """
        texts = as_texts(ids)
        place = self.index.find(texts)
        rows = place + self.first_own_row
        is_unknown = place < 0
        if is_unknown.any():
            rows[is_unknown] = self.shared_rows(texts.filter(pa.array(is_unknown)))
        return rows.astype(np.int32)

    def shared_rows(self, ids: pa.Array) -> np.ndarray:
        """Returns the shared row `[n]` int64 that each id `[n]` has if it has no own row."""
        if not self.config.hash_buckets:
            return np.full(len(ids), UNKNOWN_ROW, np.int64)
        rows = 1 + hash_buckets(ids, self.config.hash_buckets)
        rows[ids.is_null().to_numpy(zero_copy_only=False)] = UNKNOWN_ROW
        return rows

    @functools.cached_property
    def index(self) -> IdIndex:
        """Index of `own_ids`."""
        return IdIndex(self.own_ids)

    def fingerprint(self) -> str:
        """Returns the sha256 of the ids in the order of their rows, in hex."""
        offsets, data = text_bounds(self.own_ids)
        lengths = np.diff(offsets)
        lengths[self.own_ids.is_null().to_numpy(zero_copy_only=False)] = -1
        digest = hashlib.sha256(self.config.hash_buckets.to_bytes(8, "little"))
        digest.update(lengths.astype("<i8").data)
        digest.update(np.ascontiguousarray(data[offsets[0] : offsets[-1]]).data)
        return digest.hexdigest()

    def save(self, path: Path) -> None:
        """Writes the vocabulary to the Parquet file `path`."""
        unused = np.zeros(self.first_own_row, np.int64)
        columns = [
            self.ids_of_rows,
            self.row_counts,
            np.concatenate([unused, self.last_seen]),
            np.concatenate([unused, self.generation]).astype(np.int32),
        ]
        facts = {"cut": str(self.cut), "config": canonical_json(self.config)}
        if self.split != BY_TIME:
            facts["split"] = self.split.text
        schema = pa.schema(list(_COLUMNS.items()), facts)
        pq.write_table(pa.Table.from_arrays([pa.array(c) for c in columns], schema=schema), path)

    @classmethod
    def load(cls, path: Path) -> Vocabulary:
        """Reads the vocabulary that `save` wrote to `path`.

        Raises:
            RecsysError: The file can't be read, is damaged, or is not a vocabulary.
        """
        try:
            table = pq.read_table(path)
            if table.schema.names != list(_COLUMNS):
                raise ValueError(f"columns {table.schema.names}")
            facts = table.schema.metadata
            cut, config = int(facts[b"cut"]), VocabularyConfig.model_validate_json(facts[b"config"])
        except (*DAMAGE, pa.ArrowException) as error:
            raise RecsysError(
                "R212",
                f"{str(path)!r} must be a vocabulary: a line for each row of the table.",
                "Name one that VocabularyGen wrote, or build it again: recsys run.",
                f"{type(error).__name__}: {error}",
            ) from None
        first = 1 + config.hash_buckets
        count, last_seen, generation = (
            table[name].to_numpy() for name in ("count", "last_seen", "generation")
        )
        return cls(
            table["id"].slice(first).combine_chunks(),
            count[first:],
            config=config,
            cut=cut,
            shared_counts=count[:first],
            last_seen=last_seen[first:],
            generation=generation[first:],
            split=SplitRule.from_text(facts.get(b"split")),
        )


def as_texts(ids: pa.Array | pa.ChunkedArray | Sequence[str]) -> pa.Array:
    """Returns ids as one array of `large_string`."""
    if isinstance(ids, pa.ChunkedArray):
        ids = ids.combine_chunks()
    values = ids if isinstance(ids, pa.Array) else pa.array(ids, pa.large_string())
    return values.cast(pa.large_string())


_NOWHERE = -1


class IdIndex:
    """Finds ids in a list.

    Args:
        ids: The list `[n]`, `large_string`, unique; null is never found.
    """

    def __init__(self, ids: pa.Array) -> None:
        self._ids = ids
        hashes = fingerprints(ids)
        order = np.argsort(hashes)
        if ids.null_count:
            order = order[ids.is_valid().to_numpy(zero_copy_only=False)[order]]
        self._place = order.astype(np.int32)
        # A sentinel, not less than any fingerprint, ends each search.
        self._hashes = np.append(hashes[order], np.uint64(2**64 - 1))
        bits = max(1, len(order).bit_length())
        self._shift = np.uint64(64 - bits)
        prefixes = np.arange(1 << bits, dtype=np.uint64) << self._shift
        self._starts = np.searchsorted(self._hashes[:-1], prefixes).astype(np.int32)

    def find(self, ids: pa.Array) -> np.ndarray:
        """Returns the index `[n]` int64 of each id `[n]` `large_string`; -1 if not found."""
        places = np.full(len(ids), _NOWHERE, np.int64)
        if len(self._place) == 0:
            return places
        hashes = fingerprints(ids)
        at = self._first_not_below(hashes)
        inside = np.minimum(at, len(self._place) - 1)
        is_alike = (self._hashes[inside] == hashes) & ids.is_valid().to_numpy(zero_copy_only=False)
        alike = np.flatnonzero(is_alike)
        candidates = self._place[inside[alike]]
        places[alike] = candidates
        compared = ids if len(alike) == len(ids) else ids.take(pa.array(alike))
        differs = pc.not_equal(compared, self._ids.take(pa.array(candidates)))
        twins = alike[differs.to_numpy(zero_copy_only=False)]
        if len(twins):
            places[twins] = self._search(ids.take(pa.array(twins)))
        return places

    def _first_not_below(self, hashes: np.ndarray) -> np.ndarray:
        at = self._starts[hashes >> self._shift]
        behind = np.flatnonzero(self._hashes[at] < hashes)
        while len(behind):
            at[behind] += 1
            behind = behind[self._hashes[at[behind]] < hashes[behind]]
        return at

    def _search(self, ids: pa.Array) -> np.ndarray:
        places = pc.index_in(ids, value_set=self._ids, skip_nulls=True)
        return pc.fill_null(places, _NOWHERE).to_numpy(zero_copy_only=False)


COUNTS_SCHEMA = pa.schema({"id": pa.large_string(), "count": pa.int64(), "last_seen": pa.int64()})
"""Columns of a table of counted ids, which are unique."""


def count_codes(
    ids: pa.Array, codes: np.ndarray, time: np.ndarray, is_positive: np.ndarray | None = None
) -> pa.Table:
    """Counts the ids of events.

    Args:
        ids: Unique ids `[ids]`, large_string.
        codes: Index of each event's id `[n]`.
        time: Time of each event `[n]` int64 [seconds since 1970, UTC].
        is_positive: Which events are positives `[n]` bool; None: all.

    Returns:
        The ids with events, with their `count` and `last_seen`; and `events` if not all events are
        positives.
    """
    last_seen = np.full(len(ids), np.iinfo(np.int64).min)
    np.maximum.at(last_seen, codes, time)
    n_events = np.bincount(codes, minlength=len(ids))
    columns = {"id": ids, "count": n_events, "last_seen": last_seen}
    if is_positive is not None:
        n_positives = np.bincount(codes[is_positive], minlength=len(ids))
        columns |= {"count": n_positives, "events": n_events}
    return pa.table(columns).filter(pa.array(n_events > 0))


def merge_counts(tables: Sequence[pa.Table]) -> pa.Table:
    """Returns the sum of tables of counted ids, in any order."""
    table = pa.concat_tables([*tables, COUNTS_SCHEMA.empty_table()], promote_options="default")
    ids = as_texts(table["id"])
    hashes = fingerprints(ids)
    order = np.argsort(hashes)
    is_same = np.diff(hashes[order]) == 0
    if not is_same.any():
        return table
    twins = np.flatnonzero(is_same)
    if pc.any(pc.not_equal(*(ids.take(pa.array(order[twins + n])) for n in (0, 1)))).as_py():
        return _grouped(table)
    # A hash table of the ids would be several times as large as they are.
    starts = np.flatnonzero(np.append(True, ~is_same))
    columns = {"id": ids.take(pa.array(order[starts]))}
    for name in table.column_names[1:]:
        merge = np.maximum if name == "last_seen" else np.add
        columns[name] = merge.reduceat(table[name].to_numpy()[order], starts)
    return pa.table(columns)


def _grouped(table: pa.Table) -> pa.Table:
    """Returns the sum of counted ids, of which different ones have the same hash."""
    sums = [(name, "max" if name == "last_seen" else "sum") for name in table.column_names[1:]]
    merged = table.group_by("id").aggregate(sums)
    return pa.table({"id": merged["id"], **{n: merged[f"{n}_{way}"] for n, way in sums}})


def stand_ins(vocabulary: Vocabulary, rows: np.ndarray) -> np.ndarray:
    """Returns an id `[n_rows]` for each of `rows` `[...]`; other rows have none.

    A row that unknown ids share gets one of them, found by trial.
    """
    ids = np.full(vocabulary.n_rows, "", object)
    rows = np.unique(rows)
    # Few rows of a large table are needed: no Python object for each of its rows.
    n_shared = vocabulary.first_own_row
    own = rows[rows >= n_shared]
    ids[own] = vocabulary.own_ids.take(pa.array(own - n_shared)).fill_null("").to_pylist()
    wanted = rows[(rows > 0) & (rows < n_shared)]
    tried = 0
    while len(wanted):
        tries = [f"?{number}" for number in range(tried, tried + _TRIES)]
        rows_of_tries, first = np.unique(vocabulary.rows(tries), return_index=True)
        hit = np.isin(rows_of_tries, wanted)
        ids[rows_of_tries[hit]] = np.asarray(tries, object)[first[hit]]
        wanted = np.setdiff1d(wanted, rows_of_tries)
        tried += _TRIES
    return ids


# --- growth

_EXAMPLES = 5
_NEVER = np.iinfo(np.int64).min


def grow(
    previous: Vocabulary | None,
    counted: pa.Table,
    config: VocabularyConfig,
    cut: int,
    keep: pa.Array | pa.ChunkedArray | None = None,
    held_out: Iterable[pa.Table] | None = None,
) -> tuple[Vocabulary, dict[str, Any]]:
    """Returns the vocabulary of new training data, and the changes.

    An id keeps its row until it is evicted. Ids with at least `min_count` events, and the
    ids in `keep`, get a row: first free rows in ascending order, then new ones at the end. The
    most frequent id is first; ties are in the order of ids.

    Args:
        previous: The previous vocabulary; None for the first one.
        counted: Unique ids of the training events, as `merge_counts` returns them.
        config: Rules for getting and losing a row.
        cut: End of the training data [seconds since 1970, UTC].
        keep: Ids of the catalogue, which always have a row.
        held_out: Tables of the ids of evaluation events, only for the statistics of the changes.

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
    ids, counts, n_events, seen, is_kept = _counted(counted, keep, cut)
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
    is_often = n_events >= config.min_count
    admitted = ~lives & (is_kept | (is_often & (seen >= oldest)))
    new = _most_frequent(ids, n_events, np.flatnonzero(admitted))
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

    is_seldom = ~has_row & ~is_often & (n_events > 0)
    is_out_of_date = ~has_row & is_often & (n_events > 0)
    n_kept, n_evicted = int((had_id & ~is_evicted).sum()), int(is_evicted.sum())
    evicted_ids = before.own_ids.take(pa.array(np.flatnonzero(is_evicted)[:_EXAMPLES]))
    examples = {
        "new": new,
        "below_min_count": _most_frequent(ids, n_events, np.flatnonzero(is_seldom), _EXAMPLES),
        "out_of_date": _most_frequent(ids, n_events, np.flatnonzero(is_out_of_date), _EXAMPLES),
    }
    return grown, {
        "new": len(new),
        "kept": n_kept,
        "evicted": n_evicted,
        "recycled": len(recycled),
        "below_min_count": int(is_seldom.sum()),
        "below_min_count_events": int(n_events[is_seldom].sum()),
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
) -> tuple[pa.Array, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Returns all counted or kept ids: id, positives, events, time last seen, and if it is kept."""
    ids = as_texts(counted["id"])
    kept = pc.unique(as_texts([] if keep is None else keep)).drop_null()
    place = IdIndex(ids).find(kept) if len(kept) else np.zeros(0, np.int64)
    unseen = kept.filter(pa.array(place < 0))
    n_all = len(ids) + len(unseen)
    is_kept = np.arange(n_all) >= len(ids)
    is_kept[place[place >= 0]] = True
    none = np.zeros(len(unseen), np.int64)
    counts = np.concatenate([counted["count"].to_numpy(), none])
    n_events = counts
    if "events" in counted.column_names:
        n_events = np.concatenate([counted["events"].to_numpy(), none])
    seen = np.concatenate([counted["last_seen"].to_numpy(), none])
    seen[is_kept] = np.maximum(seen[is_kept], cut)
    return pa.concat_arrays([ids, unseen]), counts, n_events, seen, is_kept


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


def _unknown_share(vocabulary: Vocabulary, tables: Iterable[pa.Table]) -> float:
    n_unknown = n_all = 0
    for counted in tables:
        counts = counted["count"].to_numpy()
        n_unknown += counts[vocabulary.rows(counted["id"]) < vocabulary.first_own_row].sum()
        n_all += counts.sum()
    return float(n_unknown / max(n_all, 1))
