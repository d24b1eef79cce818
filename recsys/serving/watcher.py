"""A thread that looks for new versions again and again."""

from __future__ import annotations

import logging
import threading
from typing import Any

from recsys.serving.pool import Pool

_LOG = logging.getLogger("recsys.serve")


class Watcher:
    """A thread that refreshes a pool again and again.

    Args:
        pool: The pool.
        every_s: Time between two looks [s].
    """

    def __init__(self, pool: Pool[Any], every_s: float) -> None:
        self._pool, self._every_s = pool, every_s
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="recsys-watch", daemon=True)

    def start(self) -> None:
        """Begins."""
        self._thread.start()

    def stop(self, timeout_s: float) -> bool:
        """Ends it; returns whether it ended in time [s]: a load can't be stopped."""
        self._is_over.set()
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _watch(self) -> None:
        while not self._is_over.is_set():
            try:
                self._pool.refresh()
            except OSError as error:
                _LOG.error("the serving folder can't be read: %s", error)
            self._is_over.wait(self._every_s)
