"""The interaction store: the positives of a run, split into two parts, memory-mapped.

A training example is an index into the columns; the user's history is the slice
before it. Layout of a store (docs/store.md):

    store.json           the split, and the shards of both parts with the sha256 of each file
    train/00000/ …       a shard of events, see `recsys.data.shard`
    eval/00000/ …
"""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from recsys.data.event_log import EventLog
from recsys.data.shard import (
    PARTS,
    USERS_SCHEMA,
    ShardInfo,
    open_shard,
    read_users,
    write_shard,
)
from recsys.data.split_rule import BY_TIME, SplitRule
from recsys.data.vocabulary import IdIndex
from recsys.errors import RecsysError
from recsys.system.commit import commit_text
from recsys.system.files import DAMAGE, read_json

MANIFEST = "store.json"
_FORMAT = 2
_READERS = 4


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
        """Returns which user of the log `[n]` int64 each of `ids` `[n]` is; -1 for none."""
        return self._index.find(ids)

    @functools.cached_property
    def _index(self) -> IdIndex:
        return IdIndex(self.ids)


@dataclasses.dataclass(frozen=True)
class _Part:
    """A part of a store.

    Attributes:
        folder: Folder of the part.
        shards: Its shards, in order.
    """

    folder: Path
    shards: tuple[ShardInfo, ...]

    def open(self, verify: bool) -> EventLog:
        """Returns its events; hashing lets other threads run."""
        with ThreadPoolExecutor(_READERS) as pool:
            opened = pool.map(lambda info: open_shard(self.folder, info, verify), self.shards)
            return EventLog(tuple(opened))

    def users(self) -> LogUsers:
        """Returns the users of all shards."""
        tables = [read_users(self.folder, info) for info in self.shards]
        table = pa.concat_tables([USERS_SCHEMA.empty_table(), *tables]).combine_chunks()
        ids = pa.chunked_array(table["id"].chunks, pa.large_string()).combine_chunks()
        return LogUsers(ids, table["user_row"].to_numpy())


class InteractionStore:
    """A store, opened.

    Args:
        parts: `train` and `eval`.
        cut: The moment that the training data end [seconds since 1970, UTC]; 0 where the
            events have no times.
        verify: Whether every byte is compared with the manifest.
        split: How the parts were split.
    """

    def __init__(
        self,
        parts: Mapping[str, _Part],
        cut: int,
        verify: bool,
        split: SplitRule = BY_TIME,
    ) -> None:
        self._parts = parts
        self.cut, self.split = cut, split
        self.train = parts["train"].open(verify)
        """Events to train on; split by time, those before the cut."""
        self.eval = parts["eval"].open(verify)
        """Events that are held out; split by time, those from the cut on."""

    @classmethod
    def open(cls, folder: Path, verify: bool = False) -> InteractionStore:
        """Maps the store in `folder` into memory, read-only.

        Args:
            folder: Folder of the store.
            verify: Whether every byte is read and compared with the manifest's sha256.
                The sizes are compared in any case.

        Raises:
            RecsysError: The folder holds no store, or a damaged one.
        """
        try:
            manifest = read_json(folder / MANIFEST)
            if manifest["format"] != _FORMAT:
                raise ValueError(f"format {manifest['format']} where {_FORMAT} is read")
            parts = {
                part: _Part(folder / part, tuple(map(ShardInfo.from_json, manifest["parts"][part])))
                for part in PARTS
            }
            cut, split = int(manifest["cut"]), SplitRule.from_json(manifest)
        except DAMAGE as error:
            raise RecsysError(
                "R220",
                f"{str(folder)!r} must hold an interaction store.",
                "Name the folder that the InteractionEncoder wrote, or run again.",
                f"{type(error).__name__}: {error}",
            ) from None
        return cls(parts, cut, verify, split)

    @functools.cached_property
    def train_users(self) -> LogUsers:
        """Users of `train`, sorted by (row, id) within a shard."""
        return self._parts["train"].users()

    @functools.cached_property
    def eval_users(self) -> LogUsers:
        """Users of `eval`, sorted by id within a shard."""
        return self._parts["eval"].users()

    @functools.cached_property
    def trained_user(self) -> np.ndarray:
        """Which user of `train` each user of `eval` is `[eval users]` int64; -1 for none."""
        return self.train_users.find(self.eval_users.ids)


def write_manifest(
    folder: Path,
    cut: int,
    parts: Mapping[str, Sequence[ShardInfo]],
    split: SplitRule = BY_TIME,
) -> None:
    """Writes the manifest, which makes the shards in `folder` a store.

    Args:
        folder: Folder of the store, with all shards in it.
        cut: The moment that the training data end [seconds since 1970, UTC].
        parts: The shards of `train` and `eval`, in any order.
        split: How the parts were split.

    Raises:
        RecsysError: Some shards have weights and some have none, or two have one name.
    """
    ordered = {part: sorted(parts[part], key=lambda info: info.name) for part in parts}
    _refuse_mixed(ordered)
    manifest = {
        "format": _FORMAT,
        "cut": cut,
        **split.to_json(),
        **{f"{part}_events": sum(i.events for i in infos) for part, infos in ordered.items()},
        **{f"{part}_users": sum(i.users for i in infos) for part, infos in ordered.items()},
        "parts": {part: _with_first_user(infos) for part, infos in ordered.items()},
    }
    folder.mkdir(parents=True, exist_ok=True)
    commit_text(json.dumps(manifest, indent=1) + "\n", folder / MANIFEST)


def write_store(
    folder: Path,
    cut: int,
    train: pa.Table,
    held_out: pa.Table,
    split: SplitRule = BY_TIME,
) -> None:
    """Writes a store of events that fit into memory, a shard a part.

    Args:
        folder: Folder of the store.
        cut: The moment that the training data end [seconds since 1970, UTC].
        train: Events to train on, columns as `write_shard` takes them.
        held_out: Events that are held out.
        split: How they were split.
    """
    tables: dict[str, pa.Table] = {"train": train, "eval": held_out}
    infos = {
        part: [write_shard(folder, part, 0, table)] if table.num_rows else []
        for part, table in tables.items()
    }
    write_manifest(folder, cut, infos, split)


def _with_first_user(infos: Sequence[ShardInfo]) -> list[dict[str, Any]]:
    first, described = 0, []
    for info in infos:
        described.append({**info.to_json(), "first_user": first})
        first += info.users
    return described


def _refuse_mixed(parts: Mapping[str, Sequence[ShardInfo]]) -> None:
    names = [f"{part}/{info.name}" for part, infos in parts.items() for info in infos]
    weighted = {info.has_weight for infos in parts.values() for info in infos}
    if len(set(names)) != len(names) or len(weighted) > 1:
        raise RecsysError(
            "R222",
            "The shards of a store must have different names, and all have weights or none.",
            "Delete the data folder and run again; if it comes back, report it as a bug.",
            {"shards": len(names), "names": len(set(names)), "weights": sorted(weighted)},
        )
