"""Moves closed files of the log of what was served to the bucket of the root.

    s3://BUCKET/FOLDER/served/NAME/2026-11-27-000001-<digest>.jsonl

Servers log while a run holds the root, so these objects are not in its manifest. Their names have a
digest of the content, so a file that is sent again after a kill is one object.
"""

from __future__ import annotations

import hashlib
import logging
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from recsys.data.forgotten import Forgotten
from recsys.data.served_log import FOLDER, ServedRows, log_files, only_log_writer, surplus
from recsys.errors import RecsysError
from recsys.storage.bucket import Bucket

_LOG = logging.getLogger("recsys.serve")
_CHECK_S, _END_S = 30.0, 10.0
_RETRIES = 3
"""Most retries of a request, since files that stay are sent with the next ones."""


class LogSender:
    """Sends all files but the newest, which may be open, in the background; at the end that too.

    Args:
        url: URL of the root.
        folder: Folder of the log.
        rows: Rows of the log.
        days: Days for which objects are kept.
        most_bytes: Maximum size of all objects together; the oldest are removed first.
        forget: File of the users to leave out (`data.forget`); None: none.
    """

    def __init__(
        self,
        url: str,
        folder: Path,
        rows: ServedRows,
        days: int,
        most_bytes: int,
        forget: Path | None = None,
    ) -> None:
        self._bucket = Bucket(f"{url}/{FOLDER}/{folder.name}", _RETRIES)
        self._folder, self._rows, self._forget = folder, rows, forget
        self._days, self._most_bytes = days, most_bytes
        self._is_over, self._told = threading.Event(), ""
        self._thread = threading.Thread(target=self._run, name="recsys-log-sender", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Sends what is left, the newest file too."""
        self._is_over.set()
        self._thread.join(_END_S)
        self._send(log_files(self._folder))

    def _run(self) -> None:
        while not self._is_over.wait(_CHECK_S):
            self._send(log_files(self._folder)[:-1])

    def _send(self, files: Sequence[Path]) -> None:
        try:
            for file in files:
                self._move(file)
            if files:
                sizes = {entry.key: entry.size for entry in self._bucket.list()}
                self._bucket.delete(surplus(sizes, self._days, self._most_bytes))
            self._told = ""
        except (OSError, RecsysError) as error:
            if str(error) != self._told:
                self._told = str(error)
                _LOG.error("files in %s could not be sent, and stay: %s", self._folder, error)

    def _move(self, file: Path) -> None:
        try:
            content = file.read_bytes()
        except FileNotFoundError:  # Another process has sent or removed it.
            return
        if kept := self._without_forgotten(content):
            digest = hashlib.sha256(content).hexdigest()[:16]
            self._bucket.write(f"{file.stem}-{digest}.jsonl", kept)
        with only_log_writer(self._folder), suppress(FileNotFoundError):
            if file.read_bytes() == content:  # Else it was open, or forgotten users were removed.
                file.unlink()

    def _without_forgotten(self, content: bytes) -> bytes:
        if self._forget is None or not self._forget.exists():
            return content
        listed = Forgotten.load(self._forget)
        return self._rows.without(content, lambda id_: listed.hash_of(id_) in listed.hashes)
