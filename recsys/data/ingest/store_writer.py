"""Segments → vocabularies, whose rows are stable, and the interaction store.

Users are sorted into the order of the store. The events of a user are sorted within each segment,
and no two segments share a second, so they are concatenated. Only events of the same user and
second are sorted again, by item row. Each thread holds one shard of the store in memory.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from recsys.data.config import VocabulariesConfig
from recsys.data.entities import LEAST_JOIN
from recsys.data.event_features import NOT_STORED, LearnedFeature
from recsys.data.event_log import OPTIONAL, EventShard
from recsys.data.example_files import example_files, read_split
from recsys.data.ingest.event_values import as_arrow, encoder, smallest
from recsys.data.ingest.growth import Growth
from recsys.data.ingest.id_places import IdRows
from recsys.data.ingest.late_labels import save_late_labels
from recsys.data.ingest.moments import TrainedTimes, gaps_of, newest_time, numbered
from recsys.data.ingest.segment_parts import (
    ITEMS,
    MISSING,
    USERS,
    SegmentPart,
    read_parts,
)
from recsys.data.ingest.tasks import in_threads
from recsys.data.ingest.user_order import UserOrder, first_rows
from recsys.data.row_log import RowShard
from recsys.data.split import BY_TIME, SplitRule
from recsys.data.store import (
    EVENTS_OF_A_SHARD,
    PARTS,
    USERS_SCHEMA,
    ShardInfo,
    commit_shard,
    count_tied,
    map_array,
    positives_of,
    settle,
    write_manifest,
)
from recsys.errors import RecsysError
from recsys.ragged import ranges
from recsys.system.events import emit
from recsys.system.process import release_freed


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
        files = example_files(entities[name]) if name in entities else []
        n_ids = sum(part.n_ids(file) for part in parts)
        n_ids += sum(pq.read_metadata(one).num_rows for one in files)
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
        release_freed()
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
    infos: dict[str, list[ShardInfo]] = {}
    trained: TrainedTimes | None = None
    store.mkdir(parents=True, exist_ok=True)
    of_events = [one for one in features if one.feature.side == "event"]
    keeps_late = label_after_s > 0 and len(of_events) < len(features)
    with tempfile.TemporaryDirectory(prefix=".join-", dir=store) as name_of_work:
        work = Path(name_of_work)
        known = {name: IdRows(vocabularies / name, work / name) for name in (USERS, ITEMS)}
        for done, name in enumerate(PARTS):
            parts = read_parts(examples, name)
            end = cut if name == "train" else newest_time(parts)
            users = UserOrder(parts, known[USERS], name == "train", most, work)
            sources = in_threads(lambda part: _Source(part, known[ITEMS], of_events, work), parts)
            # Other rows may be newer than the newest positive.
            until = end - label_after_s if label_after_s else np.iinfo(np.int64).max
            writer = _PartWriter(store, name, users, sources, of_events, until, trained, keeps_late)
            infos[name] = in_threads(writer.write_shard, range(users.n_shards))
            if any(one.feature.value == "gap" for one in of_events):
                trained = TrainedTimes(store / name, infos[name], work / f"times-{name}")
            text = f"{name} events written"
            emit("progress", step="InteractionEncoder", done=done + 1, total=len(PARTS), text=text)
    write_manifest(store, cut, infos, split)


class _PartWriter:
    """Writes the shards of a part of the store.

    Args:
        store: Folder of the store.
        name: Name of the part.
        users: Its users.
        sources: Its events.
        features: Features of the events.
        labels_until: Time of the newest event whose labels are known [seconds since 1970, UTC].
        trained: Times of the training events, of which the part's users have some; None: unused.
        keeps_late: Whether to write the labels of training rows that are unknown at the cut, too.
    """

    def __init__(
        self,
        store: Path,
        name: str,
        users: UserOrder,
        sources: Sequence[_Source],
        features: Sequence[LearnedFeature],
        labels_until: int,
        trained: TrainedTimes | None,
        keeps_late: bool,
    ) -> None:
        self._store, self._name, self._features = store, name, features
        self._users, self._sources = users, sources
        self._labels_until, self._trained = labels_until, trained
        self._keeps_late = keeps_late and name == "train"

    def write_shard(self, index: int) -> ShardInfo:
        """Writes a shard."""
        users, offsets, columns = self._gather(self._users.users(index))
        release_freed()
        shard, rows, labels = self._shard(users, offsets, columns, self._users.n_written[index])
        if self._keeps_late:
            save_late_labels(self._store, index, labels)
        return commit_shard(self._store, self._name, index, shard, users, rows)

    def _shard(
        self, users: pa.Table, offsets: np.ndarray, columns: dict[str, np.ndarray], n_written: int
    ) -> tuple[EventShard, RowShard | None, dict[str, np.ndarray]]:
        """Returns the log, all rows if there are labels, and their labels by name.

        These are also the labels that the rows don't have yet.

        Args:
            users: The users.
            offsets: Index of each user's first event, and the end.
            columns: Columns of the events by name, in the order of the users.
            n_written: Number of positives of earlier shards.
        """
        user_row = users["user_row"].to_numpy()
        user = np.repeat(np.arange(len(users), dtype=np.int32), np.diff(offsets))
        time, item_row = columns.pop("timestamp"), columns.pop("item")
        tied, order = count_tied(user, time), np.arange(len(user))
        ties = [columns[name] for name in OPTIONAL if name in columns]
        settle(order, order - tied, [item_row, *ties])
        item_row = item_row[order]
        columns = {name: column[order] for name, column in columns.items()}
        is_positive = columns.pop("positive", None)
        labels = {
            name.removeprefix("label."): column
            for name, column in columns.items()
            if name.startswith("label.")
        }
        inside: Any = columns.pop("history", is_positive if labels else None)
        features = self._encoded(columns, user, time, inside, users)
        optional: dict[str, Any] = {name: columns[name] for name in OPTIONAL if name in columns}
        log = EventShard(
            user_row[user], item_row, time, tied, offsets, features=features, **optional
        )
        if is_positive is None:
            return log, None, labels
        inside = np.ones(len(user), bool) if inside is None else inside
        log = positives_of(log, is_positive, None if inside is is_positive else inside)
        if not labels:
            return log, None, labels
        before = np.arange(len(user)) - tied
        n_before = np.concatenate([[0], np.cumsum(inside)])
        rows = RowShard(
            item_row,
            time,
            n_written + n_before[before],
            offsets,
            labels=_known(labels, time <= self._labels_until),
            rate=columns.get("rate"),
            impression=numbered(user, columns["impression"]) if "impression" in columns else None,
            position=columns.get("position"),
            **optional,
            features=features,
        )
        return log, rows, labels

    def _gather(self, lines: pa.Table) -> tuple[pa.Table, np.ndarray, dict[str, np.ndarray]]:
        """Returns the users of lines, the offsets of their events, and the stored columns.

        Args:
            lines: Users by part, see `UserOrder.users`.
        """
        is_first = first_rows(lines)
        users = lines.filter(pa.array(is_first)).select(USERS_SCHEMA.names).combine_chunks()
        of_line = np.cumsum(is_first, dtype=np.int32) - 1
        part, starts, ends = (lines[name].to_numpy() for name in ("part", "start", "end"))
        n_events = np.bincount(of_line, ends - starts, len(users)).astype(np.int64)
        offsets = np.concatenate([[0], np.cumsum(n_events)])
        columns: dict[str, np.ndarray] = {}
        free = offsets[:-1].copy()
        for number in np.unique(part).tolist():
            source, mine = self._sources[number], np.flatnonzero(part == number)
            to, start = of_line[mine], starts[mine]
            length = ends[mine] - start
            here, there = ranges(free[to], length), ranges(start, length)
            for name in source.names:
                values = source.read(name, there)
                if name not in columns:
                    shape = (offsets[-1], *values.shape[1:])
                    columns[name] = np.zeros(shape, values.dtype)
                columns[name][here] = values
            free[to] += length
        return users.cast(USERS_SCHEMA), offsets, columns

    def _encoded(
        self,
        columns: dict[str, np.ndarray],
        user: np.ndarray,
        time: np.ndarray,
        inside: np.ndarray | None,
        users: pa.Table,
    ) -> dict[str, np.ndarray]:
        """Returns the features by name."""
        encoded: dict[str, np.ndarray] = {}
        for one in sorted(self._features, key=lambda one: one.feature.value == "tokens"):
            if one.feature.value == "gap":
                gaps = as_arrow(gaps_of(user, time, inside, self._trained, users))
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
        part: Their files.
        items: Rows of items.
        features: Features of the events.
        work: Folder of temporary files.

    Attributes:
        names: Names of the columns.
    """

    def __init__(
        self, part: SegmentPart, items: IdRows, features: Sequence[LearnedFeature], work: Path
    ) -> None:
        self._part, self._item_rows = part, work / f"{part.folder.name}.npy"
        if not self._item_rows.exists():  # Both splits may be in one folder.
            np.save(self._item_rows, items.rows(part.ids(ITEMS)))
        self._encoders = {
            f"feature.{one.name}": encoder(part, one)
            for one in features
            if one.feature.value not in NOT_STORED
        }
        stems = [file.stem for file in sorted(part.folder.glob("*.npy"))]
        columns = [stem for stem in stems if stem != "offsets" and not stem.startswith("feature.")]
        self.names = [*columns, *self._encoders]

    def read(self, name: str, places: np.ndarray) -> np.ndarray:
        """Returns a column at indices `[n]`: items as vocabulary rows, features encoded."""
        if name in self._encoders:
            return self._encoders[name](places)
        # Files are mapped only while they are read, so that they don't stay in memory.
        values: np.ndarray = self._part.stored(name)[places]
        return map_array(self._item_rows)[values] if name == "item" else values


def _known(labels: Mapping[str, np.ndarray], is_known: np.ndarray) -> dict[str, np.ndarray]:
    """Returns the labels by name, unknown except for the rows `is_known` `[n]` bool."""
    return {
        name: np.where(is_known, column, column.dtype.type(MISSING[column.dtype.type]))
        for name, column in labels.items()
    }
