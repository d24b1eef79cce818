"""The summary of a run: one JSON object, made from its record.

docs/runs.md describes it. What is not known is null, so that a reader finds every key.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any
from recsys.formats import ends_of, is_number
from recsys.report.evaluated import BLESSED
from recsys.report.index import INDEX
from recsys.report.spans import spans_of
from collections.abc import Iterator, Mapping
from recsys.formats import change, count, counted, duration, figure, is_number, span

FORMAT = 1
_CUT_SHORT = ("interrupted", "killed", "stopped")
_LATEST = 253_402_300_799
"""Last second of the year 9999."""


def run_summary(run_id: str | None, result: Mapping[str, Any], root: Path) -> dict[str, Any]:
    """Returns the summary of a run.

    Args:
        run_id: Id of the run, the name of its record; None where it left none.
        result: What `run.json` holds, be it of an earlier version.
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


def state_of(result: Mapping[str, Any]) -> str:
    """Returns `blessed`, `refused`, `failed`, `interrupted`, `running` or `no verdict`."""
    state = result.get("state")
    if state in _CUT_SHORT:
        return "interrupted"
    if state == "running":
        return "running"
    if result.get("error") or state == "failed":
        return "failed"
    blessed = result.get("blessed")
    if not isinstance(blessed, bool):
        return "no verdict"
    return "blessed" if blessed else "refused"


def _metrics(result: Mapping[str, Any]) -> dict[str, Any] | None:
    metrics, intervals = result.get("metrics"), result.get("intervals")
    if not isinstance(metrics, Mapping):
        return None
    ends = intervals if isinstance(intervals, Mapping) else {}
    return {
        name: {"value": value, "interval": ends_of(ends.get(name))}
        for name, value in metrics.items()
    }


def _against(result: Mapping[str, Any]) -> dict[str, Any] | None:
    """Returns how far the deciding metric lies from that of each other model."""
    metric, comparisons = result.get("deciding"), result.get("against")
    others = dict(result.get("baselines") or {}) | {BLESSED: result.get(BLESSED)}
    compared = {}
    for name, figures in others.items():
        if not isinstance(figures, Mapping) or not is_number(figures.get(metric)):
            continue
        apart = comparisons.get(name) if isinstance(comparisons, Mapping) else None
        apart = apart if isinstance(apart, Mapping) else {}
        compared[name] = {
            "value": figures[metric],
            "relative": apart.get("relative"),
            "interval": ends_of(apart.get("interval")),
        }
    return compared or None


def _data(result: Mapping[str, Any]) -> dict[str, Any]:
    sources = result.get("rejected")
    sources = dict(sources) if isinstance(sources, Mapping) else {}
    total = {
        key: _sum([source.get(key) for source in sources.values() if isinstance(source, Mapping)])
        for key in ("read", "rejected", "duplicates")
    }
    return {
        **total,
        "sources": sources,
        "spans": spans_of(result.get("spans")),
        "anomalies": result.get("anomalies"),
    }


def _sum(values: Sequence[Any]) -> float | None:
    numbers = [value for value in values if is_number(value)]
    return sum(numbers) if numbers else None


def _moment(started: Any) -> str | None:
    if not is_number(started) or not 0 <= started <= _LATEST:
        return None
    return f"{dt.datetime.fromtimestamp(started, dt.UTC):%Y-%m-%dT%H:%M:%SZ}"


def _version(pushed: Any) -> int | None:
    name = PurePath(str(pushed)).name if pushed else ""
    return int(name) if name.isascii() and name.isdecimal() else None



# --- the same as one line, for a chat

_LONGEST = 500
_MARKS = {"blessed": "✓", "refused": "✗", "failed": "!", "interrupted": "…"}
_SPANS = {"late": "late", "empty": "empty", "set_aside": "set aside", "missing": "missing"}


def one_line(night: Mapping[str, Any]) -> str:
    """Returns the summary as text without line breaks, as Slack and Mattermost show it."""
    state = str(night.get("state") or "no verdict")
    head = f"{_MARKS.get(state, '?')} {night.get('name') or 'recsys'}: {state}"
    text = f"{head}; {'; '.join(_parts(night))}" if any(_parts(night)) else head
    text = " ".join(text.split())
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


def _parts(night: Mapping[str, Any]) -> Iterator[str]:
    if night.get("error"):
        step = f"in {night['step']}: " if night.get("step") else ""
        yield f"{step}{night['error']}"
    yield from _metric(night)
    if night.get("version") is not None:
        yield f"version {night['version']} is served"
    elif night.get("not_pushed"):
        yield f"not pushed: {night['not_pushed']}"
    yield from _data_parts(night.get("data") or {})
    if is_number(night.get("seconds")):
        yield duration(night["seconds"])


def _metric(night: Mapping[str, Any]) -> Iterator[str]:
    name = night.get("deciding")
    measured = (night.get("metrics") or {}).get(name)
    if not isinstance(measured, Mapping):
        return
    ends = f" ({span(measured['interval'])})" if measured.get("interval") else ""
    apart = ((night.get("against") or {}).get("blessed_model") or {}).get("relative")
    beside = f", {change(apart)} on the last blessed" if is_number(apart) else ""
    yield f"{name} {figure(measured.get('value'))}{ends}{beside}"


def _data_parts(data: Mapping[str, Any]) -> Iterator[str]:
    if is_number(data.get("read")):
        read = counted(data["read"], "row", "rows")
        yield f"{read} read, {count(data.get('rejected'))} rejected"
    for kind, word in _SPANS.items():
        names = (data.get("spans") or {}).get(kind)
        if names:
            shown = ", ".join(names[:3]) + (" …" if len(names) > 3 else "")
            yield f"{word}: {shown}"
    if data.get("anomalies"):
        yield counted(len(data["anomalies"]), "anomaly", "anomalies")


