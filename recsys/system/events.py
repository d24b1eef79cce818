"""Progress events of a run, one line of JSON each.

The parent that shows progress sets `RECSYS_EVENTS` to a file, to which every process of the run
appends. Without the variable, as under most schedulers, nothing is written.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from recsys.system.files import naming

ENVIRONMENT_VARIABLE = "RECSYS_EVENTS"
POLL_S = 0.1
"""Polling interval for new events [s]."""


def emit(kind: str, **fields: Any) -> None:
    """Appends an event to the file of `RECSYS_EVENTS`, if it is set.

    Args:
        kind: `run_started`, `step_started`, `progress`, `note`, `step_finished`,
            `error` or `finished`; docs/folders.md has their fields.
        **fields: JSON values of the event.
    """
    path = os.environ.get(ENVIRONMENT_VARIABLE)
    if not path:
        return
    line = json.dumps({"kind": kind, "time": time.time(), **fields}) + "\n"
    # A single append per line, so lines of several processes never mix.
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        with naming(path):
            os.write(descriptor, line.encode())
    finally:
        os.close(descriptor)


def note(sentence: str) -> None:
    """Reports a note, which is not an error, also in the log."""
    emit("note", text=sentence)
    with suppress(OSError):  # The disk may be full.
        print(sentence, file=sys.stderr, flush=True)  # noqa: T201 the log of the run


class EventReader:
    """Reads the events appended to `path` since the last call."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yields each new complete event, a dict with at least `kind` and `time`."""
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._offset)
            for line in file:
                if not line.endswith(b"\n"):
                    return
                self._offset += len(line)
                yield json.loads(line)


def relay(file: Path) -> Callable[[], None]:
    """Returns a function that emits the new events of a file since its last call."""
    reader = EventReader(file)

    def emit_new() -> None:
        for event in reader:
            emit(**event)

    return emit_new


def show_events(
    file: Path, show: Callable[[dict[str, Any]], object], is_over: Callable[[], object]
) -> None:
    """Calls `show` with each event of a file until `is_over`, including the last events.

    Args:
        file: The file.
        show: Displays one event.
        is_over: Returns whether no more events will come; waits briefly if not.
    """
    reader, is_last = EventReader(file), False
    while not is_last:
        is_last = bool(is_over())
        for event in reader:
            show(event)


@contextmanager
def shown_events(show: Callable[[dict[str, Any]], object]) -> Iterator[None]:
    """Calls `show` in a thread with each event of this process and its children inside the block.

    Does nothing if a parent already reads the events.
    """
    if os.environ.get(ENVIRONMENT_VARIABLE):
        yield
        return
    is_over = threading.Event()
    with tempfile.TemporaryDirectory(prefix="recsys-") as folder:
        file = Path(folder) / "events.jsonl"
        watch = (file, show, lambda: is_over.wait(POLL_S))
        thread = threading.Thread(target=show_events, args=watch)
        os.environ[ENVIRONMENT_VARIABLE] = str(file)
        thread.start()
        try:
            yield
        finally:
            del os.environ[ENVIRONMENT_VARIABLE]
            is_over.set()
            thread.join()
