"""Maps ids to rows.

An *id* identifies a user, an item or another entity outside of the model (text); a *row* is its
int32 index in a table. The rows of a vocabulary:

    0            out-of-vocabulary ids, if there are no hash rows
    1 … H        hash rows: an out-of-vocabulary id has the row of its hash
    H + 1 …      one row for each id, or free rows

Ids without their own row share row 0 or a hash row. The file has one line per row.

When a vocabulary grows (`recsys.data.ingest.growth`), known ids keep their rows, and new ids get
new rows. So an earlier table still fits: a row has the same id, unless its `generation` increased.
Then the row of an id that had not been seen for a long time was given to another id.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from recsys.data.config import VocabularyConfig
from recsys.data.hashes import fingerprints, hash_buckets, text_bounds
from recsys.data.split import BY_TIME, SplitRule
from recsys.errors import RecsysError
from recsys.strict import canonical_json
from recsys.system.files import undamaged

UNKNOWN_ROW = 0

_TYPES = {"id": pa.large_string(), "count": pa.int64(), "last_seen": pa.int64()}
_TYPES["generation"] = pa.int32()
COLUMNS = list(_TYPES)
"""Columns of the file."""
GROUP_ROWS = 1 << 20
"""Lines of a row group of the file."""
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

    def lines(self) -> Iterator[pa.Table]:
        """Yields the lines of the file that `save` writes, by row group."""
        unused = np.zeros(self.first_own_row, np.int64)
        columns = [
            self.ids_of_rows,
            self.row_counts,
            np.concatenate([unused, self.last_seen]),
            np.concatenate([unused, self.generation]).astype(np.int32),
        ]
        schema = vocabulary_schema(self.cut, self.config, self.split)
        table = pa.Table.from_arrays([pa.array(c) for c in columns], schema=schema)
        for first in range(0, self.n_rows, GROUP_ROWS):
            yield table.slice(first, GROUP_ROWS)

    def save(self, path: Path) -> None:
        """Writes the vocabulary to the Parquet file `path`."""
        pq.write_table(pa.concat_tables(self.lines()), path, row_group_size=GROUP_ROWS)

    @classmethod
    def load(cls, path: Path) -> Vocabulary:
        """Reads the vocabulary that `save` wrote to `path`.

        Raises:
            RecsysError: The file can't be read, is damaged, or is not a vocabulary.
        """
        file = open_vocabulary(path)
        first = 1 + file.config.hash_buckets
        with _reading(path):
            table = pa.concat_tables(file.lines())
        count, last_seen, generation = (table[name].to_numpy() for name in COLUMNS[1:])
        return cls(
            table["id"].slice(first).combine_chunks(),
            count[first:],
            config=file.config,
            cut=file.cut,
            shared_counts=count[:first],
            last_seen=last_seen[first:],
            generation=generation[first:],
            split=file.split,
        )


@dataclasses.dataclass(frozen=True)
class VocabularyFile:
    """A vocabulary on disk, of which not all rows are held in memory.

    Attributes:
        path: Its file.
        n_rows: Number of rows.
        config: See `Vocabulary`, as the others.
        cut: End of its training data.
        split: How its training data were split.
    """

    path: Path
    n_rows: int
    config: VocabularyConfig
    cut: int
    split: SplitRule

    def lines(self, columns: Sequence[str] = COLUMNS) -> Iterator[pa.Table]:
        """Yields the lines of the file, or some of their columns, by row group."""
        with _reading(self.path), pq.ParquetFile(self.path) as file:
            for group in range(file.num_row_groups):
                yield file.read_row_group(group, columns)


def open_vocabulary(path: Path) -> VocabularyFile:
    """Opens the vocabulary that `Vocabulary.save` wrote to `path`.

    Raises:
        RecsysError: The file can't be read, is damaged, or is not a vocabulary.
    """
    with _reading(path), pq.ParquetFile(path) as file:
        if file.schema_arrow.names != COLUMNS:
            raise ValueError(f"columns {file.schema_arrow.names}")
        facts = file.schema_arrow.metadata
        return VocabularyFile(
            path,
            file.metadata.num_rows,
            VocabularyConfig.model_validate_json(facts[b"config"]),
            int(facts[b"cut"]),
            SplitRule.from_text(facts.get(b"split")),
        )


def reading_data(
    path: Path,
    what: str,
    code: str = "R230",
    cure: str = "Name the folder that the InteractionEncoder wrote, or run again.",
) -> AbstractContextManager[None]:
    """Replaces errors inside the context by one that says what a damaged file must hold."""
    rule = f"{str(path)!r} must hold {what}."
    return undamaged(functools.partial(RecsysError, code, rule, cure))


def _reading(path: Path) -> AbstractContextManager[None]:
    cure = "Name one that VocabularyGen wrote, or build it again: recsys run."
    return reading_data(path, "a vocabulary: a line for each row of the table", "R212", cure)


def vocabulary_schema(cut: int, config: VocabularyConfig, split: SplitRule) -> pa.Schema:
    """Returns the schema of the file, which has these facts."""
    facts = {"cut": str(cut), "config": canonical_json(config)}
    if split != BY_TIME:
        facts["split"] = split.text
    return pa.schema(list(_TYPES.items()), facts)


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
