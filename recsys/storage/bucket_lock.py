"""One process at a time that writes to a root in a bucket; `recsys.system.run_lock` for objects.

The holder writes its identity if there is no object, or replaces that of a dead holder. It renews
it every few seconds, if it is still the one that it wrote.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from recsys.errors import RecsysError
from recsys.storage.bucket import Bucket, ConflictError, Entry
from recsys.strict import Strict
from recsys.system.run_lock import BEAT_S, SILENT_S, Owner, busy_error, taken_error

_KEY = ".recsys/lock.json"


class _Held(Strict):
    """The content of the object."""

    owner: Owner
    renewed: float
    """Last sign of life [seconds since 1970]; clocks may differ by a minute."""

    def is_dead(self) -> bool:
        """Returns whether the process has ended, or has been silent for too long."""
        lives = self.owner.is_alive()
        return time.time() - self.renewed > SILENT_S if lives is None else not lives


@contextmanager
def bucket_lock(bucket: Bucket, root: str) -> Iterator[Callable[[], None]]:
    """Holds the lock inside the block; if it is lost, this process gets SIGTERM.

    Yields a function that raises R604 if the lock is lost.

    Args:
        bucket: Objects of the root.
        root: Its URL, for errors.

    Raises:
        BusyError: Another process holds it (R601).
        RecsysError: Another process took it over (R604), or the bucket can't be used.
    """
    held = _Held(owner=Owner.this(), renewed=time.time())
    entry = _take(bucket, root, held)
    is_over, lost = threading.Event(), threading.Event()

    def beat() -> None:
        nonlocal entry
        while not is_over.wait(BEAT_S):
            renewed = held.model_copy(update={"renewed": time.time()})
            try:
                entry = bucket.write_if(_KEY, _content(renewed), entry)
            except ConflictError:
                lost.set()
                os.kill(os.getpid(), signal.SIGTERM)  # As a signal from outside.
                return
            except RecsysError:  # The store may be unreachable for a while.
                continue

    thread = threading.Thread(target=beat, name="bucket lock", daemon=True)
    thread.start()

    def check() -> None:
        if lost.is_set():
            raise taken_error(root, None)

    try:
        yield check
    finally:
        is_over.set()
        thread.join()
        if not lost.is_set():
            with suppress(RecsysError):
                bucket.delete([_KEY])


def refuse_if_locked(bucket: Bucket, root: str) -> Entry | None:
    """Returns the object of a dead holder, if there is one.

    Raises:
        BusyError: Another process holds the lock (R601).
    """
    try:
        content, entry = bucket.read(_KEY)
    except FileNotFoundError:
        return None
    with suppress(ValueError):  # Damaged: nobody holds it.
        holder = _Held.model_validate_json(content)
        if not holder.is_dead():
            raise busy_error(root, holder.owner, time.time() - holder.renewed)
    return entry


def _take(bucket: Bucket, root: str, held: _Held) -> Entry:
    before = refuse_if_locked(bucket, root)
    try:
        return bucket.write_if(_KEY, _content(held), before)
    except ConflictError:
        raise busy_error(root, None, 0.0) from None


def _content(held: _Held) -> bytes:
    return held.model_dump_json().encode()
