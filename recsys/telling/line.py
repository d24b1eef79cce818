"""The summary of a night as one line, for a chat."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from recsys.formats import change, count, counted, duration, figure, is_number, span

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
    yield from _data(night.get("data") or {})
    if is_number(night.get("seconds")):
        yield duration(night["seconds"])


def _metric(night: Mapping[str, Any]) -> Iterator[str]:
    name = night.get("deciding")
    found = (night.get("metrics") or {}).get(name)
    if not isinstance(found, Mapping):
        return
    ends = f" ({span(found['interval'])})" if found.get("interval") else ""
    apart = ((night.get("against") or {}).get("blessed_model") or {}).get("relative")
    beside = f", {change(apart)} on the last blessed" if is_number(apart) else ""
    yield f"{name} {figure(found.get('value'))}{ends}{beside}"


def _data(data: Mapping[str, Any]) -> Iterator[str]:
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
