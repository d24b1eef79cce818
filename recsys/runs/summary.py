"""The summary of a run: one JSON object, made from its record, and the same as one line.

docs/runs.md describes it. Unknown values are null, so that every key exists.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePath
from typing import Any

from recsys.errors import BusyError, shortened
from recsys.formats import change, count, counted, duration, ends_of, figure, is_number, span
from recsys.report.runs import (
    INDEX,
    RESULT,
    RUNS,
    MissingError,
    read_result,
    read_steps,
    run_folders,
    spans_in_words,
    spans_of,
    state_of,
)
from recsys.system.run_lock import refuse_if_held
from recsys.tasks.judging_side import BLESSED

FORMAT = 1
_LATEST = 253_402_300_799
"""Last second of the year 9999."""


def run_summary(run_id: str | None, result: Mapping[str, Any], root: Path) -> dict[str, Any]:
    """Returns the summary of a run.

    Args:
        run_id: Id of the run, the name of its record; None if it left no record.
        result: Content of `run.json`, of this or an earlier version.
        root: Folder of everything that the runs write.
    """
    report = result.get("report")
    pushed = result.get("pushed")
    return {
        "format": FORMAT,
        "run": run_id,
        "name": result.get("name"),
        "started": _moment(result.get("started")),
        "seconds": result.get("seconds"),
        "state": state_of(result),
        "verdict": result.get("sentence"),
        "warning": result.get("warning") or None,
        "error": result.get("error"),
        "step": result.get("step"),
        "deciding": result.get("deciding"),
        "confidence": result.get("confidence"),
        "metrics": _metrics(result),
        "against": _against(result),
        "data": _data(result),
        "carried": result.get("carried"),
        "pushed": pushed,
        "version": _version(pushed),
        "not_pushed": result.get("not_pushed"),
        "root": str(root),
        "report": str(root / str(report)) if report else None,
        "index": str(root / INDEX),
    }


def _metrics(result: Mapping[str, Any]) -> dict[str, Any] | None:
    intervals = result.get("intervals") or {}
    return result.get("metrics") and {
        name: {"value": value, "interval": ends_of(intervals.get(name))}
        for name, value in result["metrics"].items()
    }


def _against(result: Mapping[str, Any]) -> dict[str, Any] | None:
    """Returns the difference of the deciding metric from each other model."""
    metric, comparisons = result.get("deciding"), result.get("against") or {}
    others = {**(result.get("baselines") or {}), BLESSED: result.get(BLESSED)}
    compared = {}
    for name, figures in others.items():
        if figures and is_number(figures.get(metric)):
            apart = comparisons.get(name) or {}
            ends = ends_of(apart.get("interval"))
            known = {"value": figures[metric], "relative": apart.get("relative")}
            compared[name] = {**known, "interval": ends}
    return compared or None


def _data(result: Mapping[str, Any]) -> dict[str, Any]:
    sources = result.get("rejected") or {}
    total = {}
    for key in ("read", "rejected", "duplicates"):
        numbers = [source[key] for source in sources.values() if is_number(source.get(key))]
        total[key] = sum(numbers) if numbers else None
    spans = spans_of(result.get("spans"))
    return {**total, "sources": sources, "spans": spans, "anomalies": result.get("anomalies")}


def _moment(started: Any) -> str | None:
    if not is_number(started) or not 0 <= started <= _LATEST:
        return None
    return f"{dt.datetime.fromtimestamp(started, dt.UTC):%Y-%m-%dT%H:%M:%SZ}"


def _version(pushed: str | None) -> int | None:
    name = PurePath(pushed or "").name
    return int(name) if name.isascii() and name.isdecimal() else None


# --- the same as one line, for a chat

_LONGEST = 500
_MARKS = {"blessed": "✓", "refused": "✗", "failed": "!", "interrupted": "…"}


def one_line(summary: Mapping[str, Any]) -> str:
    """Returns the summary as text without line breaks, as Slack and Mattermost show it."""
    state = str(summary.get("state") or "no verdict")
    head = f"{_MARKS.get(state, '?')} {summary.get('name') or 'recsys'}: {state}"
    text = f"{head}; {'; '.join(_parts(summary))}" if any(_parts(summary)) else head
    return shortened(" ".join(text.split()), _LONGEST)


def _parts(summary: Mapping[str, Any]) -> Iterator[str]:
    if summary.get("error"):
        step = f"in {summary['step']}: " if summary.get("step") else ""
        yield f"{step}{summary['error']}"
    yield from _metric(summary)
    if summary.get("warning"):
        yield "worse than popularity"
    if summary.get("version") is not None:
        yield f"version {summary['version']} is served"
    elif summary.get("not_pushed"):
        yield f"not pushed: {summary['not_pushed']}"
    yield from _data_parts(summary.get("data") or {})
    if is_number(summary.get("seconds")):
        yield duration(summary["seconds"])


def _metric(summary: Mapping[str, Any]) -> Iterator[str]:
    name = summary.get("deciding")
    measured = (summary.get("metrics") or {}).get(name)
    if not isinstance(measured, Mapping):
        return
    ends = f" ({span(measured['interval'])})" if measured.get("interval") else ""
    apart = ((summary.get("against") or {}).get("blessed_model") or {}).get("relative")
    beside = f", {change(apart)} on the last blessed" if is_number(apart) else ""
    yield f"{name} {figure(measured.get('value'))}{ends}{beside}"


def _data_parts(data: Mapping[str, Any]) -> Iterator[str]:
    if is_number(data.get("read")):
        read = counted(data["read"], "row", "rows")
        yield f"{read} read, {count(data.get('rejected'))} rejected"
    if spans := data.get("spans"):
        yield from spans_in_words({**spans, "new": ()})  # New spans are the normal case.
    if data.get("anomalies"):
        yield counted(len(data["anomalies"]), "anomaly", "anomalies")


# --- the summaries of the runs under a root

_UNREADABLE = (MissingError, OSError, LookupError, TypeError, ValueError, AttributeError)


def read_summaries(
    root: Path, most: int | None = None
) -> tuple[list[dict[str, Any]], list[tuple[str, str]]]:
    """Returns the summaries of the newest runs, the newest first, and the damaged records.

    Args:
        root: Folder of everything that the runs write.
        most: Maximum number of runs. Default: all.

    Returns:
        The summaries; and path and fault of each record that can't be read.
    """
    summaries: list[dict[str, Any]] = []
    damaged: list[tuple[str, str]] = []
    for folder in run_folders(root):
        if most is not None and len(summaries) >= most:
            break
        try:
            summaries.append(read_summary(root, folder.name))
        except _UNREADABLE as error:
            damaged.append((f"{RUNS}/{folder.name}", str(error)))
    return summaries, damaged


def read_summary(root: Path, run_id: str) -> dict[str, Any]:
    """Returns the summary of one run, from its record only.

    Raises:
        MissingError: The record is missing or damaged.
    """
    folder = root / RUNS / run_id
    result = read_result(folder)
    if result is None:
        # Only runs without a result: if the clock was set back, finished runs look newer.
        unfinished = (path for path in run_folders(root) if not (path / RESULT).exists())
        try:
            refuse_if_held(root)
            is_running = False
        except BusyError:
            is_running = folder == next(unfinished)
        result = unfinished_result(folder, is_running=is_running)
    return run_summary(run_id, result, root)


def unfinished_result(folder: Path, *, is_running: bool = False) -> dict[str, Any]:
    """Returns the partial result of a run without `run.json`.

    Raises:
        MissingError: There is no record of its steps either.
    """
    recorded = read_steps(folder)
    return {
        "name": recorded.name,
        "started": recorded.started,
        "seconds": round(recorded.seconds, 1),
        "state": "running" if is_running else "interrupted",
        "step": recorded.step,
        "sentence": f"{len(recorded.steps)} of {len(recorded.planned)} steps ended",
    }
