"""A shard of the store: all events of some users, in files of its own.

    user_row item_row timestamp weight tied   .npy, one value an event
    offsets.npy                               first event of each user, and the end
    users.parquet                             id and user_row of each user, in order

It is written under a hidden name beside, and renamed when all of it is on the disk.
"""

from __future__ import annotations

import dataclasses
import hashlib
import shutil
import threading
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from recsys.data.event_log import COLUMNS, EventShard
from recsys.errors import RecsysError
from recsys.system.commit import commit_folder

PARTS = ("train", "eval")
"""The parts of a store: events before the cut, and from it on."""

EVENTS_OF_A_SHARD = 4_000_000
"""Events that a shard holds, about, unless a user has more."""

_USERS = "users.parquet"
USERS_SCHEMA = pa.schema({"id": pa.large_string(), "user_row": pa.int32()})
_ONE_HEADER = threading.Lock()
"""NumPy parses a header by `ast`, which in Python 3.11 fails now and then in two threads at
once: "AST constructor recursion depth mismatch" (gh-106905)."""


@dataclasses.dataclass(frozen=True)
class ShardInfo:
    """The entry of a shard in the manifest.

    Attributes:
        name: Its folder within the folder of the part.
        events: Events in it.
        users: Users in it.
        files: `bytes` and `sha256` of each file, by name.
    """

    name: str
    events: int
    users: int
    files: dict[str, dict[str, Any]]

    def to_json(self) -> dict[str, Any]:
        """Returns the description as plain JSON."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> ShardInfo:
        """Returns the shard that `to_json` described."""
        return cls(**{field.name: fields[field.name] for field in dataclasses.fields(cls)})

    @property
    def has_weight(self) -> bool:
        """Whether the events have weights."""
        return "weight.npy" in self.files


def write_shard(folder: Path, part: str, index: int, events: pa.Table) -> ShardInfo:
    """Sorts all events of some users, and writes them as a shard.

    Users of `train` are sorted by (row, id), those of `eval` by id. The order of the
    rows of `events` changes nothing.

    Args:
        folder: Folder of the store.
        part: The part that the shard belongs to, one of `PARTS`.
        index: Its place among the shards of the part.
        events: Columns `user_id` (text), `user_row`, `item_row`, `timestamp` [seconds
            since 1970, UTC], and `weight` where the data have one; at least one row.

    Returns:
        The entry for `write_manifest`.
    """
    user, users = _number_users(events, by_row=part == "train")
    columns = {name: events[name].to_numpy() for name in COLUMNS if name in events.column_names}
    shard = EventShard.sort(user, n_users=users.num_rows, **columns)
    return commit_shard(folder, part, index, shard, users)


def commit_shard(
    folder: Path, part: str, index: int, shard: EventShard, users: pa.Table
) -> ShardInfo:
    """Writes a shard, whole or not at all.

    Args:
        folder: Folder of the store.
        part: The part that the shard belongs to, one of `PARTS`.
        index: Its place among the shards of the part.
        shard: The events, sorted.
        users: `id` and `user_row` of each of its users, in order.

    Returns:
        The entry for `write_manifest`.
    """
    name = f"{index:05d}"
    final = folder / part / name
    temporary = final.with_name(f".{name}-{uuid.uuid4().hex}")
    try:
        files = _write_files(temporary, shard, users)
        _put(temporary, final)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    return ShardInfo(name, len(shard), users.num_rows, files)


def open_shard(folder: Path, info: ShardInfo, verify: bool) -> EventShard:
    """Maps a shard into memory, read-only.

    Args:
        folder: Folder of the part.
        info: What the manifest says of it.
        verify: Whether every byte is read and compared with the manifest's sha256.

    Raises:
        RecsysError: A file is missing, or not as the manifest says.
    """
    path = folder / info.name
    for name, described in info.files.items():
        check_file(path / name, described, verify)
    columns: dict[str, np.ndarray | None] = {
        name: map_column(path / f"{name}.npy", dtype, info.events)
        for name, dtype in COLUMNS.items()
        if f"{name}.npy" in info.files
    }
    offsets = map_column(path / "offsets.npy", np.int64, info.users + 1)
    if offsets[0] != 0 or offsets[-1] != info.events:
        raise _damaged(path / "offsets.npy", f"an end of {offsets[-1]}", f"{info.events}")
    return EventShard(**{"weight": None, **columns, "offsets": offsets})  # type: ignore[arg-type]


def read_users(folder: Path, info: ShardInfo) -> pa.Table:
    """Returns `id` and `user_row` of each user of a shard, in order.

    Raises:
        RecsysError: The file can't be read.
    """
    path = folder / info.name / _USERS
    try:
        return pq.read_table(path, schema=USERS_SCHEMA)
    except (OSError, pa.ArrowException) as error:
        raise _damaged(path, str(error), "a Parquet file") from None


def _number_users(events: pa.Table, by_row: bool) -> tuple[np.ndarray, pa.Table]:
    """Returns each event's user `[n]` int32, and the users in that order."""
    encoded = events["user_id"].dictionary_encode().combine_chunks()
    codes, ids = encoded.indices.to_numpy(), encoded.dictionary
    rows = np.zeros(len(ids), np.int32)
    rows[codes] = events["user_row"].to_numpy()
    table = pa.table({"id": ids.cast(pa.large_string()), "user_row": rows}, schema=USERS_SCHEMA)
    keys = ["user_row", "id"] if by_row else ["id"]
    order = pc.sort_indices(table, [(key, "ascending") for key in keys])
    place = np.empty(len(ids), np.int32)
    place[order.to_numpy()] = np.arange(len(ids), dtype=np.int32)
    return place[codes], table.take(order)


def _write_files(folder: Path, shard: EventShard, users: pa.Table) -> dict[str, dict[str, Any]]:
    folder.mkdir(parents=True)
    for name in (*COLUMNS, "offsets"):
        column = getattr(shard, name)
        if column is not None:
            np.save(folder / f"{name}.npy", column)
    pq.write_table(users, folder / _USERS)
    return {path.name: describe(path) for path in sorted(folder.iterdir())}


def _put(temporary: Path, final: Path) -> None:
    """Commits a shard; replaces one that an earlier attempt wrote."""
    try:
        commit_folder(temporary, final)
    except OSError:
        if not final.exists():
            raise
        shutil.rmtree(final)
        commit_folder(temporary, final)


def describe(path: Path) -> dict[str, Any]:
    """Returns the `bytes` and the `sha256` of a file."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return {"bytes": path.stat().st_size, "sha256": digest}


def check_file(path: Path, described: Mapping[str, Any], verify: bool) -> None:
    """Raises an error if a file is not as a manifest describes it.

    Args:
        path: The file.
        described: Its `bytes` and `sha256`.
        verify: Whether its bytes are read and compared, not their number alone.
    """
    try:
        n_bytes = path.stat().st_size
        if n_bytes != described["bytes"]:
            raise _damaged(path, f"{n_bytes} bytes", f"{described['bytes']}")
        if verify and (digest := describe(path)["sha256"]) != described["sha256"]:
            raise _damaged(path, f"sha256 {digest[:16]}…", f"{described['sha256'][:16]}…")
    except OSError as error:
        raise _damaged(path, str(error), "a file") from None


def map_column(path: Path, dtype: Any, length: int) -> np.ndarray:
    """Maps a column into memory, read-only.

    Args:
        path: The file.
        dtype: What its values are.
        length: How many they are.

    Raises:
        RecsysError: It is another column, or none.
    """
    try:
        with _ONE_HEADER:
            column = np.load(path, mmap_mode=None if length == 0 else "r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise _damaged(path, str(error), "a whole .npy column") from None
    if column.dtype != dtype or column.shape != (length,):
        raise _damaged(path, f"{column.dtype} {column.shape}", f"{np.dtype(dtype)} ({length},)")
    # A plain view: indexing a `np.memmap` takes longer. It keeps the map alive.
    return np.asarray(column)


def _damaged(path: Path, received: str, expected: str) -> RecsysError:
    return RecsysError(
        "R221",
        f"{str(path)!r} must be as the store's manifest says: {expected}.",
        "The store is damaged: delete it and run again.",
        received,
    )
