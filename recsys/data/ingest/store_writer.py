"""Segments → vocabularies, whose rows are stable, and the interaction store.

Users are sorted into the order of the store. The events of a user are sorted within each segment,
and no two segments share a second, so they are concatenated. Only events of the same user and
second are sorted again, by item row. Each thread holds one shard of the store in memory.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from recsys.data.config import VocabulariesConfig
from recsys.data.entities import LEAST_JOIN
from recsys.data.event_features import LearnedFeature
from recsys.data.event_log import OPTIONAL, EventShard
from recsys.data.example_files import read_split
from recsys.data.ingest.event_values import as_arrow, encoder, smallest
from recsys.data.ingest.growth import Growth
from recsys.data.ingest.moments import Moments, TrainedTimes, newest_time, numbered
from recsys.data.ingest.segment_parts import (
    ITEMS,
    MISSING,
    USERS,
    SegmentPart,
    read_parts,
)
from recsys.data.ingest.tasks import in_threads
from recsys.data.ingest.user_order import UserOrder
from recsys.data.row_log import RowShard
from recsys.data.split import BY_TIME, SplitRule
from recsys.data.store import (
    EVENTS_OF_A_SHARD,
    PARTS,
    ShardInfo,
    commit_shard,
    count_tied,
    positives_of,
    settle,
    write_manifest,
)
from recsys.data.vocabulary import Vocabulary
from recsys.errors import RecsysError
from recsys.ragged import ranges
from recsys.system.events import emit


def make_vocabularies(
    interactions: Path,
    cut: int,
    entities: dict[str, Path],
    previous: Path | None,
    out: Path,
    config: VocabulariesConfig,
    split: SplitRule = BY_TIME,
) -> None:
    """Grows the vocabularies of users and items by the ids counted in the segments.

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
    parts, held_out = (read_parts(interactions, name) for name in PARTS)
    for name, column in (("users", "user_id"), ("items", "item_id")):
        file, rules = f"{name}.parquet", getattr(config, name)
        before = None if previous is None else previous / file
        n_ids = sum(part.n_ids(file) for part in parts)
        with tempfile.TemporaryDirectory(prefix=".grow-", dir=out) as work:
            growth = Growth(before, rules, cut, Path(work), n_ids)
            in_threads(functools.partial(_count, growth, file, split), parts)
            in_threads(functools.partial(_hold_out, growth, file), held_out)
            examples: list[str] = []
            for table in read_split(entities[name], [column]) if name in entities else ():
                growth.keep(table[column])
                examples += table[column][: 3 - len(examples)].to_pylist()
            frequent = growth.decide()
            if name in entities:
                _check_join(name, frequent, examples)
            if name == "items" and not growth.n_with_row:
                raise RecsysError(
                    "R215",
                    "At least one item must have a row.",
                    "Lower data.vocabulary.items.min_count, or name a catalogue in data.items.",
                    {"data.vocabulary.items.min_count": rules.min_count},
                )
            diffs[name] = growth.write(out / file, split)
    (out / "diff.json").write_text(json.dumps(diffs, indent=1) + "\n")


def _count(growth: Growth, file: str, split: SplitRule, part: SegmentPart) -> None:
    counted = dataclasses.replace(part).counts(file)  # Its maps are closed afterwards.
    if split.order != "time":  # Positions and random numbers can't serve as `last_seen`.
        counted = counted.set_column(2, "last_seen", pa.array(np.zeros(len(counted), np.int64)))
    growth.count(counted)


def _hold_out(growth: Growth, file: str, part: SegmentPart) -> None:
    growth.hold_out(dataclasses.replace(part).counts(file))  # Its maps are closed afterwards.


def _check_join(what: str, frequent: pa.Table, examples: list[str]) -> None:
    """Raises an error if the files of `items` or `users` contain none of the frequent ids.

    Args:
        what: `items` or `users`.
        frequent: The most frequent ids of the training events, as `Growth.decide` returns them.
        examples: Ids of the files.
    """
    of_known = frequent["count"].filter(frequent["kept"])
    n_known, n_all = (pc.sum(counts).as_py() or 0 for counts in (of_known, frequent["count"]))
    if n_known >= LEAST_JOIN * n_all:
        return
    raise RecsysError(
        "R270",
        f"The files of data.{what} must have the ids of the interactions.",
        f"Correct the columns or the files: both must write an id alike. Or leave data.{what} out.",
        {
            "share of events": round(n_known / n_all, 4),
            "ids of the interactions": frequent["id"][:3].to_pylist(),
            "ids of the files": examples,
        },
    )


def build_store(
    examples: Path,
    vocabularies: Path,
    cut: int,
    store: Path,
    split: SplitRule = BY_TIME,
    features: Sequence[LearnedFeature] = (),
    label_after_s: int = 0,
    most: int = EVENTS_OF_A_SHARD,
) -> None:
    """Writes the store of a run.

    Args:
        examples: Folder that InteractionGen or `ingest` wrote.
        vocabularies: Folder of the vocabularies.
        cut: End of the training data [seconds since 1970, UTC].
        store: Folder to write.
        split: How the examples were split.
        features: Features of the events.
        label_after_s: Age from which labels are known, at the cut or at the newest event [s].
        most: Approximate number of events per shard; more if a single user has more.
    """
    known = {name: Vocabulary.load(vocabularies / name) for name in (USERS, ITEMS)}
    infos: dict[str, list[ShardInfo]] = {}
    trained: TrainedTimes | None = None
    for done, name in enumerate(PARTS):
        parts = read_parts(examples, name)
        end = cut if name == "train" else newest_time(parts)
        writer = _PartWriter(store, name, parts, known, features, end - label_after_s, trained)
        infos[name] = writer.write(most)
        if any(one.feature.value == "gap" for one in features):
            trained = TrainedTimes(store / name, infos[name], writer.users)
        text = f"{name} events written"
        emit("progress", step="InteractionEncoder", done=done + 1, total=len(PARTS), text=text)
    write_manifest(store, cut, infos, split)


class _PartWriter:
    """Writes the shards of a part of the store.

    Args:
        store: Folder of the store.
        name: Name of the part.
        parts: Its events.
        known: The vocabularies by file.
        features: Features of the events.
        labels_until: Time of the newest event whose labels are known [seconds since 1970, UTC].
        trained: Times of the training events, of which the part's users have some; None: unused.

    Attributes:
        users: Its users.
    """

    def __init__(
        self,
        store: Path,
        name: str,
        parts: Sequence[SegmentPart],
        known: Mapping[str, Vocabulary],
        features: Sequence[LearnedFeature],
        labels_until: int,
        trained: TrainedTimes | None,
    ) -> None:
        self._store, self._name, self._features = store, name, features
        self._labels_until, self._trained = labels_until, trained
        self.users = UserOrder(parts, known[USERS], by_row=name == "train")
        self._sources = in_threads(
            lambda one: _Source(one[0], one[1], known, features),
            zip(parts, self.users.places_of_parts(), strict=True),
        )
        self._n_events, self._n_in_history = np.zeros((2, self.users.n_users), np.int64)
        for source in self._sources:
            self._n_events[source.place] += source.ends - source.starts
            self._n_in_history[source.place] += source.count_in_history()

    def write(self, most: int) -> list[ShardInfo]:
        """Writes the shards, of about `most` events each."""
        borders = itertools.pairwise(_borders(self._n_events, most))
        return in_threads(self._write_shard, enumerate(borders))

    def _write_shard(self, numbered: tuple[int, tuple[int, int]]) -> ShardInfo:
        index, (first, end) = numbered
        users = self.users.table(first, end)
        shard, rows = self._shard(first, end, users, int(self._n_in_history[:first].sum()))
        return commit_shard(self._store, self._name, index, shard, users, rows)

    def _shard(
        self, first: int, end: int, users: pa.Table, n_written: int
    ) -> tuple[EventShard, RowShard | None]:
        """Returns the log, and all rows if there are labels, of the users `first` … `end` - 1."""
        user_row = users["user_row"].to_numpy()
        offsets = np.concatenate([[0], np.cumsum(self._n_events[first:end])])
        columns = self._gather(first, end, offsets)
        user = np.repeat(np.arange(end - first, dtype=np.int32), np.diff(offsets))
        time, item_row = columns.pop("timestamp"), columns.pop("item")
        tied, order = count_tied(user, time), np.arange(len(user))
        ties = [columns[name] for name in OPTIONAL if name in columns]
        settle(order, order - tied, [item_row, *ties])
        item_row = item_row[order]
        columns = {name: column[order] for name, column in columns.items()}
        is_positive = columns.pop("positive", None)
        has_labels = any(name.startswith("label.") for name in columns)
        inside: Any = columns.pop("history", is_positive if has_labels else None)
        features = self._encoded(columns, Moments(user, time, inside), users)
        optional: dict[str, Any] = {name: columns[name] for name in OPTIONAL if name in columns}
        log = EventShard(
            user_row[user], item_row, time, tied, offsets, features=features, **optional
        )
        if is_positive is None:
            return log, None
        inside = np.ones(len(user), bool) if inside is None else inside
        log = positives_of(log, is_positive, None if inside is is_positive else inside)
        if not has_labels:
            return log, None
        before = np.arange(len(user)) - tied
        n_before = np.concatenate([[0], np.cumsum(inside)])
        rows = RowShard(
            item_row,
            time,
            n_written + n_before[before],
            offsets,
            labels=_labels(columns, time <= self._labels_until),
            rate=columns.get("rate"),
            impression=numbered(user, columns["impression"]) if "impression" in columns else None,
            position=columns.get("position"),
            features=features,
        )
        return log, rows

    def _gather(self, first: int, end: int, offsets: np.ndarray) -> dict[str, np.ndarray]:
        """Returns the stored columns of users, whose events start at `offsets`, in that order."""
        columns: dict[str, np.ndarray] = {}
        free = offsets[:-1].copy()
        for source in self._sources:
            low, high = np.searchsorted(source.place, [first, end], sorter=source.order)
            users = source.order[low:high]
            to, start = source.place[users] - first, source.starts[users]
            length = source.ends[users] - start
            here, there = ranges(free[to], length), ranges(start, length)
            for name in source.names:
                values = source.read(name, there)
                if name not in columns:
                    shape = (offsets[-1], *values.shape[1:])
                    columns[name] = np.zeros(shape, values.dtype)
                columns[name][here] = values
            free[to] += length
        return columns

    def _encoded(
        self, columns: dict[str, np.ndarray], moments: Moments, users: pa.Table
    ) -> dict[str, np.ndarray]:
        """Returns the features by name."""
        encoded: dict[str, np.ndarray] = {}
        for one in sorted(self._features, key=lambda one: one.feature.value == "tokens"):
            if one.feature.value == "gap":
                gaps = as_arrow(moments.gaps(self._trained, users))
                encoded[one.name] = smallest(one.encode(gaps), one.rows)
            elif one.feature.value == "tokens":
                of: Any = one.feature
                tokens = np.concatenate([encoded[name] for name in of.of], axis=1)
                encoded[one.name] = smallest(one.encode(tokens), one.rows)
            else:
                encoded[one.name] = columns[f"feature.{one.name}"]
        return encoded


class _Source:
    """The events of a bucket of a segment.

    Args:
        part: Their files; columns are memory-mapped.
        place: Index of each of its users among the users of the log `[users]` int32.
        known: The vocabularies by file.
        features: Features of the events.

    Attributes:
        names: Names of the columns.
    """

    def __init__(
        self,
        part: SegmentPart,
        place: np.ndarray,
        known: Mapping[str, Vocabulary],
        features: Sequence[LearnedFeature],
    ) -> None:
        stems = [file.stem for file in sorted(part.folder.glob("*.npy"))]
        self._columns = {
            name: part.stored(name)
            for name in stems
            if name != "offsets" and not name.startswith("feature.")
        }
        self._item_rows = known[ITEMS].rows(part.ids(ITEMS))
        self._encoders = {
            f"feature.{one.name}": encoder(part, one)
            for one in features
            if one.feature.value not in ("gap", "tokens")
        }
        self.names = [*self._columns, *self._encoders]
        self.starts, self.ends = (bound[part.users] for bound in part.bounds)
        self.place, self.order = place, np.argsort(place, kind="stable")
        """The indices of the users, and the order that sorts them."""

    def count_in_history(self) -> np.ndarray:
        """Returns the number of events of each user's history `[users]` int64."""
        inside = self._columns.get("history", self._columns.get("positive"))
        if inside is None:
            return self.ends - self.starts
        n_before = np.concatenate([[0], np.cumsum(inside)])
        return n_before[self.ends] - n_before[self.starts]

    def read(self, name: str, places: np.ndarray) -> np.ndarray:
        """Returns a column at indices `[n]`: items as vocabulary rows, features encoded."""
        if name in self._encoders:
            return self._encoders[name](places)
        values = self._columns[name][places]
        return self._item_rows[values] if name == "item" else values


def _borders(n_events: np.ndarray, most: int) -> list[int]:
    """Returns the index of each shard's first user, and the end."""
    if not len(n_events):
        return []
    ends = np.cumsum(n_events)
    n = max(1, -(-int(ends[-1]) // most))
    shares = np.arange(1, n) * (ends[-1] / n)
    inside = np.unique(np.searchsorted(ends, shares, side="left") + 1)
    return [0, *inside[inside < len(ends)].tolist(), len(ends)]


def _labels(columns: Mapping[str, np.ndarray], is_known: np.ndarray) -> dict[str, np.ndarray]:
    """Returns the labels by name, unknown except for the rows `is_known` `[n]` bool."""
    return {
        name.removeprefix("label."): np.where(is_known, c, c.dtype.type(MISSING[c.dtype.type]))
        for name, c in columns.items()
        if name.startswith("label.")
    }
