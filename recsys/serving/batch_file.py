"""A file of users in, a Parquet file of recommendations out: whole, or not at all."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import os
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import IO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from recsys.bundles.signatures import SOURCES
from recsys.data import dead_letters
from recsys.errors import RecsysError, UsageError
from recsys.serving.retriever import RankedRows, Retriever
from recsys.serving.users_file import UsersFile
from recsys.system.commit import commit_file

SCHEMA = pa.schema(
    [
        ("user_id", pa.string()),
        ("item_ids", pa.list_(pa.string())),
        ("scores", pa.list_(pa.float32())),
        ("known", pa.bool_()),
        ("source", pa.string()),
    ]
)
"""Of an answer: items the best first, fewer than asked for where the catalogue has no more;
whether the data hold the user; what the answer rests on, see `recsys.bundles.signatures`."""

ENCODED = SCHEMA.set(1, pa.field("item_ids", pa.list_(pa.dictionary(pa.int32(), pa.string()))))
"""`SCHEMA` as an answer holds it: each id once, and numbers of ids for the lists."""

Tell = Callable[[int, int], None]
"""Called with the users that were answered since, and the bytes of the file that are done."""

BLOCK = 8192
"""Users that are answered at a time."""

_MOST_ITEMS = 1 << 20
"""Of a block; their ids fit into one array."""

_AT_ONCE = 2
"""Blocks that are answered at once: what one thread does alone leaves the other cores."""

_MOST_ID_BYTES = 1 << 26
"""Of the ids of a block that Parquet writes once, and numbers for the lists."""


Answer = Callable[[pa.Array, int], pa.RecordBatch]
"""Answers user ids with so many items each, in the columns of `SCHEMA` or `ENCODED`; called
from several threads."""


@dataclasses.dataclass(frozen=True)
class Answered:
    """What became of a file of users.

    Attributes:
        out: The recommendations.
        rejected_file: The rows that are no user id, as dead letters; None: there are none.
        users: Users that were answered.
        unknown: Those of them whom the bundle doesn't know.
        sources: How many answers rest on what, see `recsys.bundles.signatures`.
        rejected: Rows that are no user id.
        seconds: Time that it took [s].
    """

    out: str
    rejected_file: str | None
    users: int
    unknown: int
    sources: dict[str, int]
    rejected: int
    seconds: float


def recommend_file(
    answer: Answer, users: UsersFile, out: Path, k: int, block: int, tell: Tell
) -> Answered:
    """Answers every user of a file, in its order, and writes `out` in one step.

    Args:
        answer: Answers some of them, as `batch_answer` makes one.
        users: The users; any number, a few blocks of them are in memory.
        out: Parquet file to write, or to replace; in the columns of `SCHEMA`.
        k: Items for each.
        block: Users that are answered at a time.
        tell: Called with the progress.

    Raises:
        UsageError: `out` is a folder (R546), or `k` is out of range (R541).
        RecsysError: Another run writes the same file (R545); or as reading and answering.
    """
    started = time.monotonic()
    rejected_file = rejected_name(out)
    n_users = n_unknown = n_rejected = 0
    sources: Counter[str] = Counter()
    with _replacing(out) as file, _replacing(rejected_file) as other:
        with (
            _writer(file) as writer,
            pq.ParquetWriter(other, dead_letters.SCHEMA) as rejects,
        ):
            blocks = _blocks(users, min(block, max(1, _MOST_ITEMS // k)))
            for answers, letters, n_bytes in _answers(answer, blocks, k):
                if letters.num_rows:
                    rejects.write_batch(letters)
                    n_rejected += letters.num_rows
                if answers.num_rows:
                    writer.write_batch(answers)
                    n_users += answers.num_rows
                    n_unknown += pc.sum(pc.invert(answers["known"])).as_py()
                    sources.update(answers["source"].to_pylist())
                tell(answers.num_rows, n_bytes)
        _commit(other, rejected_file, is_wanted=n_rejected > 0)
        _commit(file, out, is_wanted=True)
    return Answered(
        out=str(out),
        rejected_file=str(rejected_file) if n_rejected else None,
        users=n_users,
        unknown=n_unknown,
        sources={name: sources[name] for name in SOURCES if sources[name]},
        rejected=n_rejected,
        seconds=time.monotonic() - started,
    )


def batch_answer(retriever: Retriever, user_ids: pa.Array, k: int) -> pa.RecordBatch:
    """Returns the best `k` items of users, in the columns of `ENCODED`.

    What a user has seen is left out, unless the bundle's config includes repeats.

    Args:
        retriever: Answers.
        user_ids: Ids `[n]` string, without null; unknown ones may be among them.
        k: How many.

    Raises:
        UsageError: `k` is out of range (R541).
    """
    inputs = retriever.query_inputs(user_ids.to_pylist())
    ranked = retriever.rank(inputs, k, is_batch=True)
    return as_batch(user_ids, ranked, retriever.catalogue.items.ids_of_rows)


def as_batch(user_ids: pa.Array, ranked: RankedRows, ids_of_rows: pa.Array) -> pa.RecordBatch:
    """Returns answers in the columns of `ENCODED`."""
    is_item = ranked.rows > 0
    offsets = pa.array(np.concatenate([[0], np.cumsum(is_item.sum(axis=1))]), pa.int32())
    # Each id once, and its number for the lists.
    number = np.zeros(len(ids_of_rows), np.int32)
    rows = ranked.rows[is_item]
    number[rows] = 1
    used = np.flatnonzero(number)
    number[used] = np.arange(len(used), dtype=np.int32)
    ids = ids_of_rows.take(pa.array(used)).cast(pa.string())
    encoded = pa.DictionaryArray.from_arrays(pa.array(number[rows]), ids)
    columns = [
        user_ids.cast(pa.string()),
        pa.ListArray.from_arrays(offsets, encoded),
        pa.ListArray.from_arrays(offsets, pa.array(ranked.scores[is_item])),
        pa.array(ranked.known),
        pa.array(ranked.source, pa.binary()).cast(pa.string()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=ENCODED)


def _writer(file: IO[bytes]) -> pq.ParquetWriter:
    """Writes a file that reads as `SCHEMA`: the encoding isn't stored."""
    encoded = ["item_ids.list.element", "source"]
    return pq.ParquetWriter(
        file, ENCODED, use_dictionary=encoded, dictionary_pagesize_limit=_MOST_ID_BYTES,
        store_schema=False,
        # The least and the greatest id of lists help nobody, and take longer than the rest.
        write_statistics=["user_id"],
    )  # fmt: skip


def _answers(
    answer: Answer, blocks: Iterable[tuple[pa.Array, pa.RecordBatch, int]], k: int
) -> Iterator[tuple[pa.RecordBatch, pa.RecordBatch, int]]:
    """Yields `blocks` in their order, with answers in place of ids."""
    nobody = pa.RecordBatch.from_pylist([], SCHEMA)
    waiting: deque[tuple[Future[pa.RecordBatch] | None, pa.RecordBatch, int]] = deque()

    def first() -> tuple[pa.RecordBatch, pa.RecordBatch, int]:
        future, letters, n_bytes = waiting.popleft()
        return (_encoded(future.result()) if future else nobody), letters, n_bytes

    threads = ThreadPoolExecutor(_AT_ONCE)
    try:
        for ids, letters, n_bytes in blocks:
            future = threads.submit(answer, ids, k) if len(ids) else None
            waiting.append((future, letters, n_bytes))
            if len(waiting) > _AT_ONCE:
                yield first()
        while waiting:
            yield first()
    finally:
        threads.shutdown(cancel_futures=True)


def _encoded(answer: pa.RecordBatch) -> pa.RecordBatch:
    """Returns an answer in the columns of `ENCODED`."""
    if answer.schema.equals(ENCODED):
        return answer
    return pa.RecordBatch.from_arrays(
        [column.cast(field.type) for column, field in zip(answer.columns, ENCODED, strict=True)],
        schema=ENCODED,
    )


def rejected_name(out: Path) -> Path:
    """Returns where the rows go that are no user id: `recs.rejected.parquet` of `recs.parquet`."""
    return out.with_name(f"{out.name.removesuffix('.parquet')}.rejected.parquet")


def _blocks(users: UsersFile, size: int) -> Iterator[tuple[pa.Array, pa.RecordBatch, int]]:
    """Yields as `users` does, but ids in blocks of `size`, and fewer at the end."""
    waiting: list[pa.Array] = []
    none = pa.array([], pa.string())
    n_waiting = 0
    for ids, letters, n_bytes in users:
        waiting.append(ids)
        n_waiting += len(ids)
        if n_waiting < size:
            if letters.num_rows or n_bytes:
                yield none, letters, n_bytes
            continue
        joined = pa.concat_arrays(waiting)
        whole = n_waiting // size * size
        for start in range(0, whole, size):
            yield joined.slice(start, size), letters, n_bytes
            letters, n_bytes = letters.slice(0, 0), 0
        waiting, n_waiting = [joined.slice(whole)], n_waiting - whole
    if n_waiting:
        yield pa.concat_arrays(waiting), dead_letters.dead_letters([], "", [], []), 0


@contextlib.contextmanager
def _replacing(out: Path) -> Iterator[IO[bytes]]:
    """Opens a file beside `out`, which this process alone writes; gone at the end."""
    if out.is_dir():
        rule = "The file to write must not be a folder."
        raise UsageError("R546", rule, "Name a file with --out.", str(out))
    out.parent.mkdir(parents=True, exist_ok=True)
    temporary = _temporary(out)
    descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
    try:
        _lock(descriptor, temporary, out)
        with _removed(descriptor, temporary), os.fdopen(os.dup(descriptor), "wb") as file:
            file.truncate()
            yield file
    finally:
        os.close(descriptor)


def _lock(descriptor: int, temporary: Path, out: Path) -> None:
    """Takes the file for this process; the system frees that of a killed one."""
    with contextlib.suppress(BlockingIOError):
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if _is_at(descriptor, temporary):  # And not renamed meanwhile by who had it.
            return
    raise RecsysError(
        "R545",
        f"One run at a time can write {str(out)!r}.",
        "Wait for the other one, or name another file with --out.",
    )


@contextlib.contextmanager
def _removed(descriptor: int, temporary: Path) -> Iterator[None]:
    """Removes the file at the end, unless it got its name."""
    try:
        yield
    finally:
        if _is_at(descriptor, temporary):
            temporary.unlink()


def _is_at(descriptor: int, path: Path) -> bool:
    with contextlib.suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(descriptor), os.lstat(path))
    return False


def _commit(file: IO[bytes], out: Path, *, is_wanted: bool) -> None:
    file.flush()
    if is_wanted:
        commit_file(_temporary(out), out)
    else:
        out.unlink(missing_ok=True)  # That of an earlier run.


def _temporary(out: Path) -> Path:
    return out.with_name(f".{out.name}.partial")
