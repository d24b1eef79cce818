"""The log of what was served, written by a background thread.

An answer never waits for the log: if the bounded queue is full, the request is left out and
counted. Files are private. They are appended to under a lock, so `recsys forget` can rewrite them.
"""

from __future__ import annotations

import datetime as dt
import logging
import os
import queue
import threading
import time
import uuid
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from recsys.data.config import InteractionsConfig
from recsys.data.forgotten import Forgotten
from recsys.data.served_log import (
    DAY,
    Served,
    ServedRows,
    log_files,
    only_log_writer,
    surplus,
)
from recsys.errors import RecsysError
from recsys.serving.label_scorer import RankedItems, RankQuery
from recsys.serving.log_sender import LogSender
from recsys.serving.pool import ServerMetrics
from recsys.serving.requests import MIB

_LOG = logging.getLogger("recsys.serve")
_QUEUE, _AT_ONCE = 256, 64
"""Maximum number of requests that wait, and that are written together."""
_FILES = 16
"""Number of files in which a log of the maximum size is divided."""
_CLEAN_S, _END_S = 3600.0, 10.0
_DIGITS = 6
"""Digits of the number in the name of a file."""


class _Answer(NamedTuple):
    """A request and its answer."""

    time: float
    impression: str
    version: int
    query: RankQuery
    ranked: RankedItems

    def served(self) -> Served:
        """Returns the items in the order of the answer."""
        query, ranked = self.query, self.ranked
        places, of_items = ranked.places.tolist(), ranked.by_item
        return Served(
            self.time,
            query.user,
            self.impression,
            self.version,
            [query.items[place] for place in places],
            {name: x for name, x in query.context.items() if name not in of_items},
            {name: [query.context[name][place] for place in places] for name in of_items},
            {label: x.astype(float).round(7).tolist() for label, x in ranked.scores.items()},
        )


class ServedLog:
    """Appends what was served to files.

    Args:
        folder: Folder of the log; made if missing, for this user only.
        interactions: Columns of the rows.
        days: Days for which files are kept.
        mib: Maximum size of all files together; the oldest are removed first [MiB].
        metrics: Counts rows, and requests that were left out.
        forget: File of the users to leave out (`data.forget`); None: none.
        url: URL of the root if it is in a bucket, which gets closed files; None: they stay.
    """

    def __init__(
        self,
        folder: Path,
        interactions: InteractionsConfig,
        days: int,
        mib: int,
        metrics: ServerMetrics,
        forget: Path | None = None,
        url: str | None = None,
    ) -> None:
        self._folder, self._metrics = folder, metrics
        self._days, self._most_bytes = days, mib * MIB
        self._rows, self._forget = ServedRows(interactions), forget
        self._forgotten: tuple[int, Forgotten | None] = (0, None)
        self._file: Path | None = None
        self._queue: queue.Queue[_Answer | None] = queue.Queue(_QUEUE)
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._sender = None
        if url is not None:
            self._sender = LogSender(url, folder, self._rows, days, self._most_bytes, forget)
        self._thread = threading.Thread(target=self._run, name="recsys-served-log", daemon=True)
        self._thread.start()

    def add(
        self, query: RankQuery, ranked: RankedItems, version: int, impression: str | None
    ) -> str | None:
        """Logs an answer; returns the id of its impression, or None if it isn't logged.

        A request without a user is not logged: the ingestion reads events of users.

        Args:
            query: The request.
            ranked: The answer.
            version: Version of the model.
            impression: Id of the impression; None: a new one.
        """
        if not query.user:
            return None
        impression = impression or uuid.uuid4().hex
        try:
            self._queue.put_nowait(_Answer(time.time(), impression, version, query, ranked))
        except queue.Full:
            self._metrics.not_logged.inc()
            return None
        return impression

    def close(self) -> None:
        """Writes what waits, for at most 10 s, and sends it to the bucket of the root."""
        with suppress(queue.Full):
            self._queue.put(None, timeout=_END_S)
            self._thread.join(_END_S)
        if self._sender is not None:
            self._sender.close()

    def _run(self) -> None:
        is_over = False
        while not is_over:
            waiting: list[_Answer | None] = []
            with suppress(queue.Empty):
                waiting.append(self._queue.get(timeout=_CLEAN_S))
                while len(waiting) < _AT_ONCE:
                    waiting.append(self._queue.get_nowait())
            is_over = None in waiting
            answers = [one for one in waiting if one is not None]
            try:
                self._write(answers)
            except (OSError, RecsysError) as error:
                self._metrics.not_logged.inc(len(answers))
                _LOG.error("what was served could not be logged: %s", error)

    def _write(self, answers: Sequence[_Answer]) -> None:
        kept = [one for one in answers if not self._is_forgotten(one.query.user)]
        content = "".join(self._rows.lines(one.served()) for one in kept)
        encoded = content.encode("utf-8", "surrogatepass")
        with only_log_writer(self._folder):
            file = self._open_file(len(encoded))
            if encoded:
                _append(file, encoded)
        self._metrics.logged.inc(content.count("\n"))

    def _is_forgotten(self, user: str) -> bool:
        if self._forget is None or not self._forget.exists():
            return False
        changed, forgotten = self._forget.stat().st_mtime_ns, self._forgotten[1]
        if forgotten is None or changed != self._forgotten[0]:
            forgotten = Forgotten.load(self._forget)
            self._forgotten = (changed, forgotten)
        return forgotten.hash_of(user) in forgotten.hashes

    def _open_file(self, n_bytes: int) -> Path:
        """Returns the file to append to, a new one on a new day or at its limit of size."""
        today, most = dt.datetime.now(dt.UTC).strftime(DAY), self._most_bytes // _FILES
        file = self._file
        is_open = file is not None and file.exists() and file.name.startswith(today)
        if file is not None and is_open and file.stat().st_size + n_bytes <= most:
            return file
        self._remove_old(self._most_bytes - max(most, n_bytes))
        numbers = [int(path.stem[-_DIGITS:]) for path in self._folder.glob(f"{today}-*.jsonl")]
        number = 1 + max(numbers, default=0)
        new = self._folder / f"{today}-{number:0{_DIGITS}d}.jsonl"
        os.close(os.open(new, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        self._file = new
        return new

    def _remove_old(self, most: int) -> None:
        sizes = {file.name: file.stat().st_size for file in log_files(self._folder)}
        for name in surplus(sizes, self._days, most):
            (self._folder / name).unlink()


def _append(file: Path, content: bytes) -> None:
    """Appends whole rows; leaves the file as it was if the disk is full."""
    with file.open("ab", buffering=0) as opened:
        size = opened.tell()
        try:
            done = opened.write(content)
            if done != len(content):
                raise OSError(f"{file} took {done} of {len(content)} bytes")
        except OSError:
            opened.truncate(size)
            raise
