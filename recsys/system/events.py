"""Progress events of a run, one line of JSON each.

The parent that shows progress sets `RECSYS_EVENTS` to a file, and every process of the run
appends to it. Without the variable nothing is written, for example under a scheduler that only
collects logs.
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

from recsys.system.disk import naming

ENVIRONMENT_VARIABLE = "RECSYS_EVENTS"
POLL_S = 0.1
"""How often new events are looked for [s]."""


def emit(kind: str, **fields: Any) -> None:
    """Appends an event to the file that `RECSYS_EVENTS` names, if any does.

    Args:
        kind: `run_started`, `step_started`, `progress`, `note`, `step_finished`,
            `error` or `finished`; docs/folders.md has their fields.
        **fields: JSON values that belong to the event.
    """
    path = os.environ.get(ENVIRONMENT_VARIABLE)
    if not path:
        return
    line = json.dumps({"kind": kind, "time": time.time(), **fields}) + "\n"
    # One write of one line to a file opened for append: lines of several
    # processes never mix.
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        with naming(path):
            os.write(descriptor, line.encode())
    finally:
        os.close(descriptor)


def note(sentence: str, step: str = "Trainer") -> None:
    """Reports a note, which is no error, also in the log.

    Args:
        sentence: What it says.
        step: Step of the pipeline that it belongs to.
    """
    emit("note", step=step, text=sentence)
    with suppress(OSError):  # It may be a file on a full disk.
        print(sentence, file=sys.stderr, flush=True)  # noqa: T201 the log of the run


class EventReader:
    """Reads the events that were appended to `path` since the last call."""

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
    """Returns what emits the events of a file that have come since it was last called."""
    reader = EventReader(file)

    def emit_new() -> None:
        for event in reader:
            emit(**event)

    return emit_new


def show_events(
    file: Path, show: Callable[[dict[str, Any]], object], is_over: Callable[[], object]
) -> None:
    """Calls `show` with each event of a file until it is over, with the last ones too.

    Args:
        file: The file.
        show: Shows one event.
        is_over: Says whether no more will come; waits a little if not.
    """
    reader, is_last = EventReader(file), False
    while not is_last:
        is_last = bool(is_over())
        for event in reader:
            show(event)


@contextmanager
def shown_events(show: Callable[[dict[str, Any]], object]) -> Iterator[None]:
    """Calls `show` in a thread with each event of this process and its children, while open.

    Nothing is shown where a parent already reads the events.
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
