"""Progress events of a run, one line of JSON each.

The parent that shows progress names a file in `RECSYS_EVENTS`; every process of
the run appends to it. Without the variable nothing is written, so the same code
runs under a scheduler that only wants logs.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ENVIRONMENT_VARIABLE = "RECSYS_EVENTS"


def emit(kind: str, **fields: Any) -> None:
    """Appends an event to the file that `RECSYS_EVENTS` names, if any does.

    Args:
        kind: `run_started`, `step_started`, `progress`, `note`, `step_finished`,
            `error` or `finished`; docs/architecture.md has their fields.
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
        os.write(descriptor, line.encode())
    finally:
        os.close(descriptor)


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
