"""Segments → vocabularies, whose rows are stable, and the interaction store.

Users are sorted into the order of the store. The events of a user are sorted within each segment,
and no two segments share a second, so they are concatenated. Only events of the same user and
second are sorted again, by item row. Only one shard of the store is held in memory.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from recsys.data import event_log
from recsys.data.config import VocabulariesConfig, VocabularyConfig
from recsys.data.entities import LEAST_JOIN
from recsys.data.event_log import MOST_KINDS, OPTIONAL, EventShard
from recsys.data.example_files import read_split
from recsys.data.ingest.segment_parts import (
    COLUMNS,
    ITEMS,
    KINDS,
    USERS,
    SegmentPart,
    counts_of,
    read_parts,
)
from recsys.data.split import BY_TIME, SplitRule
from recsys.data.store import (
    EVENTS_OF_A_SHARD,
    PARTS,
    ShardInfo,
    commit_shard,
    count_tied,
    order_users,
    settle,
    write_manifest,
)
from recsys.data.vocabulary import Vocabulary, grow
from recsys.errors import RecsysError
from recsys.ragged import ranges
from recsys.system.events import emit

_FREQUENT = 10_000


def make_vocabularies(
    interactions: Path,
    cut: int,
    entities: dict[str, Path],
    previous: Path | None,
    out: Path,
    config: VocabulariesConfig,
    split: SplitRule = BY_TIME,
) -> None:
    """Grows the vocabularies of users, items and kinds by the ids counted in the segments.

    Args:
        interactions: Folder that InteractionGen or `ingest` wrote.
        cut: End of the training data [seconds since 1970, UTC].
        entities: Folders of the examples of `users` and `items`; all of their ids get a row.
        previous: Folder of the previous vocabularies.
        out: Folder to write.
        config: Rules that select the ids with a row.
        split: How the examples were split.

    Raises:
        RecsysError: No item gets a row, previous rows would move, or the files of items or
            users have no id of the interactions.
    """
    diffs = {}
    for name, column in (("users", "user_id"), ("items", "item_id")):
        file, rules = f"{name}.parquet", getattr(config, name)
        tables = read_split(entities[name], [column]) if name in entities else ()
        ids = pa.chunked_array([c for table in tables for c in table[column].chunks], pa.string())
        counted = counts_of(interactions, "train", file)
        if name in entities:
            _check_join(name, counted, ids)
        vocabulary, diffs[name] = grow(
            None if previous is None else Vocabulary.load(previous / file),
            counted,
            rules,
            cut,
            keep=ids,
            held_out=counts_of(interactions, "eval", file),
        )
        if name == "items" and not vocabulary.has_id().any():
            raise RecsysError(
                "R215",
                "At least one item must have a row.",
                "Lower data.vocabulary.items.min_count, or name a catalogue in data.items.",
                {"data.vocabulary.items.min_count": rules.min_count},
            )
        vocabulary.split = split
        vocabulary.save(out / file)
    if changed := _make_kinds(interactions, cut, previous, out):
        diffs["kinds"] = changed
    (out / "diff.json").write_text(json.dumps(diffs, indent=1) + "\n")


def _check_join(what: str, counted: pa.Table, ids: pa.ChunkedArray) -> None:
    """Raises an error if the files of `items` or `users` contain none of the frequent ids.

    Args:
        what: `items` or `users`.
        counted: Ids of the training positives, as `counts_of` returns them.
        ids: Ids of the files.
    """
    n_frequent = min(_FREQUENT, counted.num_rows)
    order = pc.select_k_unstable(counted, n_frequent, [("count", "descending")])
    frequent, counts = counted["id"].take(order).cast(ids.type), counted["count"].take(order)
    in_files = ids.filter(pc.is_in(ids, value_set=frequent.combine_chunks()))
    is_known = pc.is_in(frequent, value_set=in_files.combine_chunks())
    n_known, n_all = (pc.sum(part).as_py() or 0 for part in (counts.filter(is_known), counts))
    if n_known >= LEAST_JOIN * n_all:
        return
    raise RecsysError(
        "R270",
        f"The files of data.{what} must have the ids of the interactions.",
        f"Correct the columns or the files: both must write an id alike. Or leave data.{what} out.",
        {
            "share of events": round(n_known / n_all, 4),
            "ids of the interactions": frequent[:3].to_pylist(),
            "ids of the files": ids[:3].to_pylist(),
        },
    )


def _make_kinds(
    interactions: Path, cut: int, previous: Path | None, out: Path
) -> dict[str, Any] | None:
    """Writes the vocabulary of the kinds of events, if the data have or had any.

    Kinds keep their rows forever; only the first `MOST_KINDS` have rows.

    Returns:
        The changes, as `grow` returns them; None without kinds.
    """
    before = previous and previous / KINDS
    earlier = Vocabulary.load(before) if before and before.exists() else None
    counted = counts_of(interactions, "train", KINDS)
    if earlier is None and not counted.num_rows:
        return None
    held_out = counts_of(interactions, "eval", KINDS)
    grown, changed = grow(earlier, counted, VocabularyConfig(), cut, held_out=held_out)
    if (n := len(grown.own_ids)) > MOST_KINDS:
        text = f"of {n} kinds of events {MOST_KINDS} get a row; the others count as unknown"
        emit("note", step="VocabularyGen", text=text)
    kinds = Vocabulary(
        grown.own_ids[:MOST_KINDS], grown.row_counts[1 : 1 + MOST_KINDS], cut=cut,
        last_seen=grown.last_seen[:MOST_KINDS],
    )  # fmt: skip
    kinds.save(out / KINDS)
    new = len(kinds.own_ids) - changed["kept"]
    return {**changed, "new": new, "rows_after": kinds.n_rows}


def build_store(
    examples: Path,
    vocabularies: Path,
    cut: int,
    store: Path,
    split: SplitRule = BY_TIME,
    most: int = EVENTS_OF_A_SHARD,
) -> None:
    """Writes the store of a run.

    Args:
        examples: Folder that InteractionGen or `ingest` wrote.
        vocabularies: Folder of the vocabularies.
        cut: End of the training data [seconds since 1970, UTC].
        store: Folder to write.
        split: How the examples were split.
        most: Approximate number of events per shard; more if a single user has more.
    """
    known = {
        name: Vocabulary.load(vocabularies / name)
        for name in (USERS, ITEMS, KINDS)
        if (vocabularies / name).exists()
    }
    infos: dict[str, list[ShardInfo]] = {}
    for done, name in enumerate(PARTS):
        parts = read_parts(examples, name)
        infos[name] = list(_write_part(store, name, parts, known, most))
        text = f"{name} events written"
        emit("progress", step="InteractionEncoder", done=done + 1, total=len(PARTS), text=text)
    write_manifest(store, cut, infos, split)


def _write_part(
    store: Path,
    name: str,
    parts: Sequence[SegmentPart],
    known: Mapping[str, Vocabulary],
    most: int,
) -> Iterator[ShardInfo]:
    """Writes the shards of a part of the store."""
    ids = [part.ids(USERS).take(pa.array(part.users)) for part in parts]
    every = pa.chunked_array(ids, pa.large_string()).combine_chunks().dictionary_encode()
    rows = known[USERS].rows(every.dictionary)
    place, table = order_users(every.dictionary, rows, name == "train")
    codes, ends = every.indices.to_numpy(), np.cumsum([0, *map(len, ids)])
    sources = [
        _Source(part, place[codes[first:end]], known)
        for part, (first, end) in zip(parts, itertools.pairwise(ends), strict=True)
    ]
    n_events = np.zeros(table.num_rows, np.int64)
    for source in sources:
        n_events[source.place] += source.ends - source.starts
    user_rows = table["user_row"].to_numpy()
    borders = _borders(n_events, most)
    for index, (first, end) in enumerate(itertools.pairwise(borders)):
        shard = _shard(sources, user_rows, n_events, first, end)
        yield commit_shard(store, name, index, shard, table.slice(first, end - first))


class _Source:
    """The events of a bucket of a segment.

    Args:
        part: Their files; columns are memory-mapped.
        place: Index of each of its users among the users of the log `[users]` int32.
        known: The vocabularies by file.
    """

    def __init__(
        self, part: SegmentPart, place: np.ndarray, known: Mapping[str, Vocabulary]
    ) -> None:
        self.columns: dict[str, np.ndarray] = {
            name: part.column(name) for name in COLUMNS if (part.folder / f"{name}.npy").exists()
        }
        self.starts, self.ends = (bound[part.users] for bound in part.bounds)
        self._rows = {"item": known[ITEMS].rows(part.ids(ITEMS))}
        if "kind" in self.columns:
            self._rows["kind"] = known[KINDS].rows(part.ids(KINDS))
        self.place, self.order = place, np.argsort(place, kind="stable")
        """The indices of the users, and the order that sorts them."""

    def read(self, name: str, places: np.ndarray) -> np.ndarray:
        """Returns a column at indices `[n]`, with items and kinds as vocabulary rows."""
        values = self.columns[name][places]
        return self._rows[name][values] if name in self._rows else values


def _borders(n_events: np.ndarray, most: int) -> list[int]:
    """Returns the index of each shard's first user, and the end."""
    if not len(n_events):
        return []
    ends = np.cumsum(n_events)
    n = max(1, -(-int(ends[-1]) // most))
    shares = np.arange(1, n) * (ends[-1] / n)
    inside = np.unique(np.searchsorted(ends, shares, side="left") + 1)
    return [0, *inside[inside < len(ends)].tolist(), len(ends)]


def _shard(
    sources: Sequence[_Source],
    user_rows: np.ndarray,
    n_events: np.ndarray,
    first: int,
    end: int,
) -> EventShard:
    """Returns the events of the users `first` … `end` - 1."""
    counts = n_events[first:end]
    offsets = np.concatenate([[0], np.cumsum(counts)])
    n = int(offsets[-1])
    item_row, time = np.empty(n, np.int32), np.empty(n, np.int64)
    optional: dict[str, Any] = {
        name: np.zeros(n, event_log.COLUMNS[name])
        for name in OPTIONAL
        if any(name in source.columns for source in sources)
    }
    free = offsets[:-1].copy()
    for source in sources:
        low, high = np.searchsorted(source.place, [first, end], sorter=source.order)
        users = source.order[low:high]
        to, start = source.place[users] - first, source.starts[users]
        length = source.ends[users] - start
        here, there = ranges(free[to], length), ranges(start, length)
        item_row[here] = source.read("item", there)
        time[here] = source.read("timestamp", there)
        for name, column in optional.items():
            if name in source.columns:
                column[here] = source.read(name, there)
        free[to] += length
    user = np.repeat(np.arange(end - first, dtype=np.int32), counts)
    tied, every = count_tied(user, time), np.arange(n)
    order = settle(every, every - tied, [item_row, *optional.values()])
    optional = {name: column[order] for name, column in optional.items()}
    return EventShard(user_rows[first:end][user], item_row[order], time, tied, offsets, **optional)
