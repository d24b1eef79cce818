"""Keeps the record of a run and the page of all runs, and never fails a run over them."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from absl import logging

from recsys.errors import RecsysError
from recsys.report.index import write_index
from recsys.report.runs import RUNS, RunRecord
from recsys.source_version import source_version

_T = TypeVar("_T")


def new_run_id() -> str:
    """Returns an id for a run that starts now; ids sort as the runs do."""
    return f"{dt.datetime.now(dt.UTC):%Y-%m-%dT%H-%M-%S.%fZ}"


class Recorder:
    """Writes what a run does and what came of it; a record that fails is a warning.

    Args:
        root: Folder of everything that the run writes.
        run_id: Id of the run.
        name: Name of the pipeline.
    """

    def __init__(self, root: Path, run_id: str, name: str) -> None:
        self._root, self._name = root, name
        self._record = RunRecord(root / RUNS / run_id)
        self._started, self._clock = time.time(), time.monotonic()

    def start(self, steps: Sequence[str]) -> None:
        """Writes that the run has started, and with which steps."""
        _tried(lambda: self._record.start(self._name, steps, self._started))

    def step(self, step: str, state: str, reason: str, seconds: float) -> None:
        """Writes that a step has just ended after `seconds`."""
        started = time.time() - seconds
        _tried(lambda: self._record.step(step, state, reason, seconds, started))

    def end(
        self,
        tell: Callable[[], Mapping[str, Any]],
        error: RecsysError | None = None,
        step: str | None = None,
        state: str = "failed",
    ) -> Path | None:
        """Writes what came of the run, and the page of all runs.

        Args:
            tell: Returns what is known of data, model and report.
            error: Why it failed or was stopped, if it did or was.
            step: The step that failed, or the last one.
            state: What a run with an error is: `failed` or `stopped`.

        Returns:
            The path of the page; None if it couldn't be written.
        """
        result: dict[str, Any] = {
            "name": self._name,
            "started": self._started,
            "seconds": round(time.monotonic() - self._clock, 1),
            "state": "finished" if error is None else state,
            "source": source_version(),
        }
        if error is not None:
            result |= {"error": str(error), "step": step}
        result |= _tried(tell) or {}
        _tried(lambda: self._record.end(result))
        return _tried(lambda: write_index(self._root))


def _tried(write: Callable[[], _T]) -> _T | None:
    try:
        return write()
    except Exception as error:  # noqa: BLE001 ML Metadata has errors of its own; none counts
        logging.warning("The record of the run is not whole: %s", error)
        return None
