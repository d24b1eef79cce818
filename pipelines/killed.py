"""The records of runs that were killed: the next run writes what they could not."""

from __future__ import annotations

import time
from pathlib import Path

from absl import logging

from recsys.report.artifacts import MissingError
from recsys.report.runs import RESULT, RUNS, STEPS, RunRecord, Started, read_steps

KILLED = "killed"


def record_killed(root: Path) -> list[str]:
    """Writes the result of each run that left none.

    Only the holder of the run lock may call this, before it makes a record of its own.

    Args:
        root: Folder of everything that runs write.

    Returns:
        Their ids, the oldest first.
    """
    left = [
        folder
        for folder in sorted((root / RUNS).glob("*"))
        if folder.is_dir() and not (folder / RESULT).exists()
    ]
    return [folder.name for folder in left if _record(folder)]


def _record(folder: Path) -> bool:
    try:
        told = read_steps(folder)
        last = (folder / STEPS).stat().st_mtime
        RunRecord(folder).end(_result(told, last))
    except (OSError, ValueError, MissingError) as error:
        logging.warning("The record of the killed run %s is not whole: %s", folder.name, error)
        return False
    return True


def _result(told: Started, last: float) -> dict[str, object]:
    n_done, n_all = len(told.steps), len(told.planned)
    step = told.planned[n_done] if n_done < n_all else None
    where = f" in {step}" if step else ""
    started = told.started if told.started is not None else last
    return {
        "name": told.name,
        "started": started,
        "seconds": round(max(0.0, last - started), 1),
        "state": KILLED,
        "step": step,
        "error": f"The run was killed{where}, after {n_done} of {n_all} steps; the next run"
        f" cleared up after it ({time.strftime('%Y-%m-%d %H:%M:%S', time.gmtime())} UTC).",
    }
