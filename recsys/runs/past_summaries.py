"""The summaries of the runs under a root, read from their records alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from recsys.errors import BusyError
from recsys.report.artifacts import MissingError
from recsys.report.runs import RESULT, RUNS, read_result, read_steps
from recsys.runs.lock import refuse_if_held
from recsys.runs.summary import run_summary

_UNREADABLE = (MissingError, OSError, LookupError, TypeError, ValueError, AttributeError)


def read_summaries(
    root: Path, most: int | None = None
) -> tuple[list[dict[str, Any]], list[tuple[str, str]]]:
    """Returns the summaries of the newest runs, the newest first, and the damaged records.

    Args:
        root: Folder of everything that the runs write.
        most: How many; None for all.

    Returns:
        The summaries; and path and fault of each record that can't be read.
    """
    nights: list[dict[str, Any]] = []
    damaged: list[tuple[str, str]] = []
    for folder in _newest_first(root):
        if most is not None and len(nights) >= most:
            break
        try:
            nights.append(_read(folder, root))
        except _UNREADABLE as error:
            damaged.append((f"{RUNS}/{folder.name}", str(error)))
    return nights, damaged


def read_summary(root: Path, run_id: str) -> dict[str, Any] | None:
    """Returns the summary of one run; None where it left no record, or a damaged one.

    Args:
        root: Folder of everything that the runs write.
        run_id: Id of the run.
    """
    try:
        return _read(root / RUNS / run_id, root)
    except _UNREADABLE:
        return None


def _newest_first(root: Path) -> Iterator[Path]:
    folders = [path for path in (root / RUNS).glob("*") if path.is_dir()]
    yield from sorted(folders, key=lambda path: path.name, reverse=True)


def _read(folder: Path, root: Path) -> dict[str, Any]:
    result = read_result(folder)
    return run_summary(folder.name, _unfinished(folder, root) if result is None else result, root)


def _unfinished(folder: Path, root: Path) -> dict[str, Any]:
    """Returns the partial result of a run without `run.json`."""
    recorded = read_steps(folder)
    n_done, n_all = len(recorded.steps), len(recorded.planned)
    step = recorded.planned[n_done] if n_done < n_all else None
    # Of those without a result: a clock that was set back makes ended runs look newer.
    unfinished = (path for path in _newest_first(root) if not (path / RESULT).exists())
    runs_now = _is_held(root) and folder == next(unfinished)
    return {
        "name": recorded.name,
        "started": recorded.started,
        "seconds": round(recorded.seconds, 1),
        "state": "running" if runs_now else "interrupted",
        "step": step,
        "sentence": f"{n_done} of {n_all} steps ended",
    }


def _is_held(root: Path) -> bool:
    """Returns whether a living process is seen to hold the lock of the root."""
    try:
        refuse_if_held(root)
    except BusyError:
        return True
    return False
