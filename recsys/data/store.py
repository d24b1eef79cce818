"""The interaction store: the positives of a run in two parts, memory-mapped.

A training example is an index into the columns; the user's history is the slice
before it. Layout of a store (docs/store.md):

    store.json                the split, the shards of both parts, and the sha256 of each file
    train/00000/              a shard: all events of some users
        user_row.npy item_row.npy timestamp.npy weight.npy tied.npy   one value per event
        valid.npy             whether an event is marked for validation, if the data have marks
        feature.<name>.npy    features of each event
        offsets.npy           index of each user's first event, and the end
        users.parquet         id and user_row of each user, in order
        rows/                 all good rows of these users with their labels, if there are labels
        history/              events of histories, if they are more than the positives
    eval/00000/ …

A shard is written under a hidden name, synced to disk and then renamed.
"""

from __future__ import annotations

import dataclasses
import functools
import shutil
import threading
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from recsys.data.candidates import Candidates
from recsys.data.event_log import (
    COLUMNS,
    HISTORY_COLUMNS,
    OPTIONAL,
    EventLog,
    EventShard,
    HistoryLog,
    HistoryShard,
)
from recsys.data.row_log import OPTIONAL_ROW_COLUMNS, ROW_COLUMNS, RowLog, RowShard
from recsys.data.split import BY_TIME, SplitRule
from recsys.data.vocabulary import IdIndex, reading_data
from recsys.errors import RecsysError
from recsys.ragged import ranges, run_starts
from recsys.system import manifest
from recsys.system.files import commit_folder, undamaged

MANIFEST = "store.json"
PARTS = ("train", "eval")
"""The parts of a store: training events and held-out events."""
EVENTS_OF_A_SHARD = 4_000_000
"""Approximate number of events per shard; more if a single user has more."""
USERS_SCHEMA = pa.schema({"id": pa.large_string(), "user_row": pa.int32()})

_FORMAT = 4
_USERS = "users.parquet"
_ONE_HEADER = threading.Lock()
"""NumPy parses a header with `ast`, which in Python 3.11 sometimes fails in two threads at once:
"AST constructor recursion depth mismatch" (gh-106905)."""


@dataclasses.dataclass(frozen=True)
class LogUsers:
    """The users of a log, in its order.

    Attributes:
        ids: Their ids `[users]` large_string.
        rows: Their rows `[users]` int32; several users may share one.
    """

    ids: pa.Array
    rows: np.ndarray

    def find(self, ids: pa.Array) -> np.ndarray:
        """Returns the index in the log of each user id `[n]` int64; -1 if not found."""
        return self._index.find(ids)

    @functools.cached_property
    def _index(self) -> IdIndex:
        return IdIndex(self.ids)


class InteractionStore:
    """A store, opened by `open`.

    Args:
        folder: Folder of the store.
        facts: Its manifest.
    """

    def __init__(self, folder: Path, facts: Mapping[str, Any]) -> None:
        self._folder, self._shards = folder, facts["parts"]
        self.cut, self.split = int(facts["cut"]), SplitRule.from_json(dict(facts))
        """End of the training data [seconds since 1970, UTC], 0 if the events have no times; and
        how the parts were split."""
        self.train, self.eval = (
            EventLog(
                tuple(_open_shard(folder, part, s, facts["files"]) for s in self._shards[part])
            )
            for part in PARTS
        )
        """Training events and held-out events; in a split by time, before and after the cut."""
        self.train_rows, self.eval_rows = (
            RowLog(tuple(_open_rows(folder, part, s, facts["files"]) for s in self._shards[part]))
            if any("rows" in shard for shards in self._shards.values() for shard in shards)
            else None
            for part in PARTS
        )
        """All good rows of both parts with their labels; None: the data have no labels."""
        self.has_others = self.train.has_others or self.eval.has_others
        """Whether histories hold other events than positives."""
        self.candidates: Candidates | None = None
        """Items drawn for rows of `train_rows`, of `Data` that were opened with them."""

    @classmethod
    def open(cls, folder: Path, verify: bool = False) -> InteractionStore:
        """Maps the store in `folder` into memory, read-only.

        Args:
            folder: Folder of the store.
            verify: Whether to verify the sha256 of all files. The sizes are always verified.

        Raises:
            RecsysError: The folder holds no store, or it is damaged.
        """
        with _explained(folder):
            facts = _read_facts(folder)
            manifest.verify_files(folder, facts["files"], sizes_only=not verify)
            return cls(folder, facts)

    @functools.cached_property
    def train_users(self) -> LogUsers:
        """Users of `train`, sorted by (row, id) within a shard."""
        return self._users("train")

    @functools.cached_property
    def eval_users(self) -> LogUsers:
        """Users of `eval`, sorted by id within a shard."""
        return self._users("eval")

    @functools.cached_property
    def trained_user(self) -> np.ndarray:
        """Index in `train` of each user of `eval` `[eval users]` int64; -1 if not found."""
        return self.train_users.find(self.eval_users.ids)

    def _users(self, part: str) -> LogUsers:
        tables = [USERS_SCHEMA.empty_table()]
        for shard in self._shards[part]:
            path = self._folder / part / shard["name"] / _USERS
            with undamaged(functools.partial(_damaged, path)):
                tables.append(pq.read_table(path, schema=USERS_SCHEMA))
        table = pa.concat_tables(tables).combine_chunks()
        ids = pa.chunked_array(table["id"].chunks, pa.large_string()).combine_chunks()
        return LogUsers(ids, table["user_row"].to_numpy())


def verify_store(folder: Path, share: int = 0, shares: int = 1) -> None:
    """Verifies the sha256 of a store's files, or of a share of them.

    Args:
        folder: Folder of the store.
        share: Index of the share to verify.
        shares: Number of shares, of about the same size.

    Raises:
        RecsysError: The folder holds no store, or a file of the share is damaged.
    """
    with _explained(folder):
        files: manifest.Files = _read_facts(folder)["files"]
        manifest.verify_files(folder, manifest.share_of(files, share, shares))


def _read_facts(folder: Path) -> dict[str, Any]:
    facts = manifest.read_manifest(folder / MANIFEST)
    if facts["format"] == _FORMAT:
        return facts
    if facts["format"] < _FORMAT:
        raise RecsysError(
            "R220",
            f"{str(folder)!r} holds a store of an earlier version, format {facts['format']}.",
            "Ingest again: recsys run or recsys ingest. With these data as the previous ones, users"
            " and items keep their rows.",
            f"format {facts['format']} where {_FORMAT} is read",
        )
    raise ValueError(f"format {facts['format']} where {_FORMAT} is read")


@contextmanager
def _explained(folder: Path) -> Iterator[None]:
    """Converts errors inside the context to ones that name the damaged file or folder."""
    with reading_data(folder, "an interaction store", "R220"):
        try:
            yield
        except manifest.ChangedFileError as error:
            raise _damaged(folder / error.name, error.reason) from None


def _open_shard(
    folder: Path, part: str, shard: Mapping[str, Any], files: manifest.Files
) -> EventShard:
    at, n = f"{part}/{shard['name']}", shard["events"]
    longer = None
    if "history" in shard:
        lengths = {"offsets": shard["users"] + 1, "tied": n, "place": n}
        longer = HistoryShard(
            **_map_columns(
                folder, f"{at}/history", files, HISTORY_COLUMNS, shard["history"], lengths
            )
        )
    lengths = {"offsets": shard["users"] + 1}
    columns = _map_columns(folder, at, files, COLUMNS, n, lengths)
    return EventShard(**columns, longer_history=longer)


def _open_rows(
    folder: Path, part: str, shard: Mapping[str, Any], files: manifest.Files
) -> RowShard:
    at, types = f"{part}/{shard['name']}/rows", ROW_COLUMNS | OPTIONAL_ROW_COLUMNS
    lengths = {"offsets": shard["users"] + 1}
    return RowShard(**_map_columns(folder, at, files, types, shard["rows"], lengths))


def _map_columns(
    folder: Path,
    at: str,
    files: manifest.Files,
    types: Mapping[str, Any],
    n: int,
    lengths: Mapping[str, int],
) -> dict[str, Any]:
    """Maps the columns that `_save_columns` wrote to the folder `at`, by field.

    Args:
        folder: Folder of the store.
        at: Folder of the columns in it.
        files: Files of the store.
        types: Types of the columns.
        n: Number of values of a column.
        lengths: The numbers of those with another number of values, with the one of the offsets.
    """
    columns: dict[str, Any] = {}
    for file in files:
        if not file.endswith(".npy") or file.rpartition("/")[0] != at:
            continue
        name, _, key = Path(file).stem.partition(".")
        if key:  # One of several features or labels.
            columns.setdefault(f"{name}s", {})[key] = _map_column(folder / file, None, n)
        else:
            dtype = np.int64 if name == "offsets" else types[name]
            columns[name] = _map_column(folder / file, dtype, lengths.get(name, n))
    if (ends := columns["offsets"][[0, -1]].tolist()) != [0, n]:
        raise _damaged(folder / at / "offsets.npy", f"offsets from {ends}, not {[0, n]}")
    return columns


def _map_column(path: Path, dtype: Any, length: int) -> np.ndarray:
    """Maps a column of `length` values into memory, read-only; None: of any type and width."""
    with undamaged(functools.partial(_damaged, path)):
        column = map_array(path)
    is_alike = len(column) == length if dtype is None else column.shape == (length,)
    if not is_alike or (dtype is not None and column.dtype != dtype):
        wanted = f"{'' if dtype is None else np.dtype(dtype)} ({length},)".strip()
        raise _damaged(path, f"{column.dtype} {column.shape}, not {wanted}")
    # A plain view, since indexing a `np.memmap` is slower. It keeps the map alive.
    return np.asarray(column)


def map_array(path: Path) -> np.ndarray:
    """Maps an array into memory, read-only; safe in threads."""
    array: np.ndarray
    with _ONE_HEADER:
        try:
            array = np.load(path, mmap_mode="r", allow_pickle=False)
        except ValueError:  # An array without values can't be mapped.
            array = np.load(path, allow_pickle=False)
    return array


def _damaged(path: Path, received: str) -> RecsysError:
    return RecsysError(
        "R221",
        f"{str(path)!r} must be as the store's manifest says.",
        "The store is damaged: delete it and run again.",
        received,
    )


# --- writing


@dataclasses.dataclass(frozen=True)
class ShardInfo:
    """A written shard.

    Attributes:
        name: Name of its folder in the folder of the part.
        events: Number of events.
        users: Number of users.
        files: `size` and `sha256` of each file, by name.
        rows: Number of rows with labels; None: the data have no labels.
        history: Number of events of histories; None: they are the events.
    """

    name: str
    events: int
    users: int
    files: manifest.Files
    rows: int | None = None
    history: int | None = None

    @property
    def sizes(self) -> dict[str, int]:
        """Numbers of events, users, and rows and events of histories if there are any."""
        sizes = {"events": self.events, "users": self.users}
        more = {"rows": self.rows, "history": self.history}
        return sizes | {name: n for name, n in more.items() if n is not None}


def write_manifest(
    folder: Path,
    cut: int,
    parts: Mapping[str, Sequence[ShardInfo]],
    split: SplitRule = BY_TIME,
) -> None:
    """Writes the manifest, which makes the shards in `folder` a store.

    Args:
        folder: Folder of the store, with all shards in it.
        cut: End of the training data [seconds since 1970, UTC].
        parts: The shards of `train` and `eval`, in order.
        split: How the parts were split.
    """
    files = {
        f"{part}/{shard.name}/{name}": described
        for part, shards in parts.items()
        for shard in shards
        for name, described in shard.files.items()
    }
    fields: dict[str, Any] = {"format": _FORMAT, "cut": cut, **split.to_json(), "parts": {}}
    for part, shards in parts.items():
        sizes = [shard.sizes for shard in shards]
        for what in dict.fromkeys(["events", "users", *(name for one in sizes for name in one)]):
            fields[f"{part}_{what}"] = sum(one[what] for one in sizes)
        named = zip(shards, sizes, strict=True)
        fields["parts"][part] = [{"name": shard.name, **one} for shard, one in named]
    folder.mkdir(parents=True, exist_ok=True)
    manifest.write_manifest(folder / MANIFEST, fields, files)


def add_row_features(folder: Path, name: str, columns: Iterable[np.ndarray]) -> None:
    """Adds a feature of the rows of all shards to a store and its manifest.

    Args:
        folder: Folder of the store.
        name: Name of the feature.
        columns: The feature of each shard's rows `[rows, …]`, training shards first.
    """
    facts = manifest.read_manifest(folder / MANIFEST)
    shards = [f"{part}/{shard['name']}" for part in PARTS for shard in facts["parts"][part]]
    added = [f"{shard}/rows/feature.{name}.npy" for shard in shards]
    for file, column in zip(added, columns, strict=True):
        np.save(folder / file, column)
    files = facts.pop("files") | manifest.checksums(folder, added)
    manifest.write_manifest(folder / MANIFEST, facts, files)


def commit_shard(
    folder: Path,
    part: str,
    index: int,
    shard: EventShard,
    users: pa.Table,
    rows: RowShard | None = None,
) -> ShardInfo:
    """Writes a shard atomically; replaces one that an earlier attempt wrote.

    Args:
        folder: Folder of the store.
        part: Part of the shard, one of `PARTS`.
        index: Index of the shard in its part.
        shard: The events, sorted.
        users: `id` and `user_row` of each of its users, in order.
        rows: All rows of these users; None: the data have no labels.
    """
    final = folder / part / f"{index:05d}"
    temporary = final.with_name(f".{final.name}-{uuid.uuid4().hex}")
    temporary.mkdir(parents=True)
    try:
        _save_columns(temporary, shard)
        if rows is not None:
            (temporary / "rows").mkdir()
            _save_columns(temporary / "rows", rows)
        if shard.longer_history is not None:
            (temporary / "history").mkdir()
            _save_columns(temporary / "history", shard.longer_history)
        pq.write_table(users, temporary / _USERS)
        files = manifest.checksums(temporary, manifest.file_names(temporary))
        shutil.rmtree(final, ignore_errors=True)
        commit_folder(temporary, final)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    n_rows = None if rows is None else len(rows)
    n_history = None if shard.longer_history is None else len(shard.longer_history)
    return ShardInfo(final.name, len(shard), users.num_rows, files, n_rows, n_history)


def _save_columns(folder: Path, shard: EventShard | RowShard | HistoryShard) -> None:
    """Writes the fields of a shard; fields of several columns have a file each."""
    for name, column in vars(shard).items():
        several = column if isinstance(column, Mapping) else {}
        for key, one in several.items():
            np.save(folder / f"{name.removesuffix('s')}.{key}.npy", one)
        if isinstance(column, np.ndarray):
            np.save(folder / f"{name}.npy", column)


def order_users(ids: pa.Array, rows: np.ndarray, by_row: bool) -> tuple[np.ndarray, pa.Table]:
    """Returns the index `[n]` int32 of each user in the order of a log, and the ordered users.

    Args:
        ids: Ids of users `[n]`.
        rows: Their rows `[n]`.
        by_row: Whether they are sorted by (row, id), as in `train`, or by id.
    """
    table = pa.table({"id": ids.cast(pa.large_string()), "user_row": rows}, USERS_SCHEMA)
    keys = ["user_row", "id"] if by_row else ["id"]
    order = pc.sort_indices(table, [(key, "ascending") for key in keys])
    place = np.empty(table.num_rows, np.int32)
    place[order.to_numpy()] = np.arange(table.num_rows, dtype=np.int32)
    return place, table.take(order)


def count_tied(user: np.ndarray, timestamp: np.ndarray) -> np.ndarray:
    """Returns the number of events before each event with its user and time `[n]` int32."""
    position = np.arange(len(timestamp), dtype=np.int32)
    first = np.where(run_starts(user, timestamp), position, np.int32(0))
    np.maximum.accumulate(first, out=first)
    position -= first
    return position


def positives_of(
    shard: EventShard, is_positive: np.ndarray, inside: np.ndarray | None = None
) -> EventShard:
    """Returns the positives of a shard.

    Args:
        shard: The events.
        is_positive: Which of them are positives `[n]` bool.
        inside: Which of them histories hold, all positives among them `[n]` bool; None: the
            positives.
    """
    user = np.repeat(np.arange(len(shard.offsets) - 1), np.diff(shard.offsets))

    def chosen(which: np.ndarray) -> dict[str, Any]:
        return {
            "item_row": shard.item_row[which],
            "timestamp": shard.timestamp[which],
            "offsets": np.concatenate([[0], np.cumsum(which)])[shard.offsets],
            "tied": count_tied(user[which], shard.timestamp[which]),
            "features": {name: column[which] for name, column in shard.features.items()},
        }

    longer = None
    if inside is not None:
        place, columns = np.flatnonzero(is_positive[inside]), chosen(inside)
        longer = HistoryShard(**columns | {"tied": columns["tied"][place], "place": place})
    found = {name: getattr(shard, name) for name in OPTIONAL}
    optional: dict[str, Any] = {n: x[is_positive] for n, x in found.items() if x is not None}
    return EventShard(
        user_row=shard.user_row[is_positive],
        longer_history=longer,
        **chosen(is_positive),
        **optional,
    )


_BITS = 63


def event_order(user: np.ndarray, timestamp: np.ndarray, rest: Sequence[np.ndarray]) -> np.ndarray:
    """Returns the order `[n]` int64 in which events are stored.

    Sorting one number is several times faster than sorting by columns, so user and time
    are combined into one; the remaining columns are only used for ties.

    Args:
        user: Index of each event's user `[n]`, from 0 on.
        timestamp: Time of each event `[n]` [seconds].
        rest: Columns that order the events of the same user and time, the most significant
            first, `[n]` each: the row of the item, and optional columns.
    """
    if len(user) == 0:
        return np.zeros(0, np.int64)
    first = int(timestamp.min())
    bits = (int(timestamp.max()) - first).bit_length()
    if int(user.max()).bit_length() + bits > _BITS:
        return np.lexsort((*reversed(rest), timestamp, user))
    key = user.astype(np.int64)
    key <<= bits
    key += timestamp
    key -= first
    order = np.argsort(key)
    return settle(order, key, rest)


def settle(order: np.ndarray, key: np.ndarray, rest: Sequence[np.ndarray]) -> np.ndarray:
    """Orders events with equal keys by other columns, the most significant first.

    Args:
        order: Events sorted by key `[n]`; modified in place.
        key: Key of each event `[n]`.
        rest: The other columns `[n]` each.
    """
    ordered = key[order]
    same = ordered[1:] == ordered[:-1]
    undecided = np.zeros(len(order), bool)
    undecided[1:] = same
    undecided[:-1] |= same
    chosen = order[undecided]
    again = np.lexsort((*(column[chosen] for column in reversed(rest)), key[chosen]))
    order[undecided] = chosen[again]
    return order


# --- histories for serving


@dataclasses.dataclass(frozen=True)
class ServingHistories:
    """The events of the histories of every known user in both parts, oldest first.

    Attributes:
        ids: Id of each user `[n]` large_string: users of training in the order of the store, then
            users whose events are all held out.
        user_rows: Row of each user `[n]` int32, own or shared.
        offsets: Index of each user's first event, and the end `[n + 1]` int64.
        item_rows: Item row of each event `[events]` int32, the oldest first; including row 0 and
            hash rows, for items without their own row.
        times: Time of each event `[events]` int64 [seconds since 1970, UTC]; None if not
            requested, or if the events have none.
        features: Features of each event by name `[events, width]`; see
            `recsys.data.event_log.EventShard`.
        is_positive: Which events are positives `[events]` bool; None: all.
    """

    ids: pa.Array
    user_rows: np.ndarray
    offsets: np.ndarray
    item_rows: np.ndarray
    times: np.ndarray | None = None
    features: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
    is_positive: np.ndarray | None = None


def serving_histories(
    store: InteractionStore, features: Collection[str] = (), *, times: bool = False
) -> ServingHistories:
    """Joins each user's events of both parts; in a split by time, held-out events come last.

    Args:
        store: The events.
        features: Names of the features of events to include.
        times: Whether to include the times of events, if the store has them.
    """
    n_trained = len(store.train_users.rows)
    is_new = store.trained_user < 0
    n_users = n_trained + int(is_new.sum())
    eval_index = store.trained_user.copy()
    eval_index[is_new] = np.arange(n_trained, n_users)

    n_train, n_eval = np.zeros((2, n_users), np.int64)
    trained, held_out = store.train.history, store.eval.history
    n_train[:n_trained] = np.diff(trained.offsets)
    n_eval[eval_index] = np.diff(held_out.offsets)
    offsets = np.zeros(n_users + 1, np.int64)
    np.cumsum(n_train + n_eval, out=offsets[1:])
    of_train = ranges(offsets[:-1], n_train)
    of_eval = ranges((offsets[:-1] + n_train)[eval_index], n_eval[eval_index])

    def joined(read: Callable[[HistoryLog], Any], dtype: Any = None) -> np.ndarray:
        logs = ((of_train, trained), (of_eval, held_out))
        parts = [(places, read(log)) for places, log in logs if len(log)]
        like = parts[0][1] if parts else np.zeros(0, dtype)
        column = np.empty((offsets[-1], *like.shape[1:]), like.dtype)
        for places, part in parts:
            column[places] = part
        return column if order is None else column[order]

    order = None
    if store.split.split in ("random", "given"):
        time = joined(lambda log: log.timestamp, np.int64)
        order = np.lexsort((time, np.repeat(np.arange(n_users), n_train + n_eval)))
    has_times = times and store.split.order == "time"
    new_ids = store.eval_users.ids.filter(pa.array(is_new))
    return ServingHistories(
        ids=pa.concat_arrays([store.train_users.ids, new_ids]),
        user_rows=np.concatenate([store.train_users.rows, store.eval_users.rows[is_new]]),
        offsets=offsets,
        item_rows=joined(lambda log: log.item_row, np.int32),
        times=joined(lambda log: log.timestamp, np.int64) if has_times else None,
        features={
            name: joined(lambda log, name=name: log.features[name], np.int32)  # type: ignore[misc]
            for name in features
        },
        is_positive=joined(lambda log: log.is_positive, np.bool_) if store.has_others else None,
    )
