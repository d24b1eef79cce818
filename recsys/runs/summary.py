"""The summary of a run: a JSON object, made from its record, as one line, and sent to a webhook.

docs/runs.md describes it. Unknown values are null, so that every key exists.

The URL of a webhook is a secret, since everyone who has it can post there. It comes from the
environment, and only its host is ever shown. Redirects are not followed, so that no message
goes to another host.
"""

from __future__ import annotations

import base64
import datetime as dt
import json
import os
import re
import ssl
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePath
from typing import Any
from urllib.parse import unquote, urlsplit, urlunsplit

import tenacity

from recsys.config import NotifyConfig
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
        "second_stage": result.get("second_stage"),
        "error": result.get("error"),
        "step": result.get("step"),
        "deciding": result.get("deciding"),
        "confidence": result.get("confidence"),
        "metrics": _metrics(result),
        "against": _against(result),
        "data": _data(result),
        "carried": result.get("carried"),
        "choice": result.get("choice"),
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
    if warning := summary.get("warning"):
        first = str(warning).partition(":")[0]
        yield first[:1].lower() + first[1:]
    if "left out" in (summary.get("second_stage") or ""):
        yield "without its ranker"
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


# --- the webhook

_FIRST_WAIT_S, _LONGEST_WAIT_S = 1.0, 20.0
_AGAIN = {408, 425, 429, 500, 502, 503, 504}


class _AttemptError(Exception):
    """An attempt failed; another may succeed, after at least `after_s` seconds if that is set."""

    def __init__(self, text: str, after_s: float | None = 0.0) -> None:
        super().__init__(text)
        self.after_s = after_s


def send_summary(summary: Mapping[str, Any], config: NotifyConfig) -> dict[str, Any] | None:
    """Sends a run's summary to the webhook; a failure doesn't fail the run.

    Args:
        summary: Its summary.
        config: The webhook, and the states to report.

    Returns:
        `host`, `sent`, `attempts` and `error`, without a secret; None if no
        notification is due.
    """
    if config.webhook_env is None or summary.get("state") not in config.on:
        return None
    url = os.environ.get(config.webhook_env, "").strip()
    outcome: dict[str, Any] = {"host": _host(url), "sent": False, "attempts": 0, "error": None}
    if outcome["host"] is None:
        error = f"the variable {config.webhook_env} holds no http or https URL"
        return {**outcome, "error": error}
    request = _request(url, json.dumps({"text": one_line(summary), **summary}).encode())
    deadline = time.monotonic() + config.total_s
    retrying = tenacity.Retrying(
        stop=tenacity.stop_after_attempt(config.attempts)
        | tenacity.stop_before_delay(config.total_s),
        wait=_wait_s,
        retry=tenacity.retry_if_exception(lambda e: getattr(e, "after_s", None) is not None),
        reraise=True,
    )
    try:
        for attempt in retrying:
            with attempt:
                outcome["attempts"] = attempt.retry_state.attempt_number
                left_s = max(deadline - time.monotonic(), 0.1)
                _within(min(config.timeout_s, left_s), request)
    except _AttemptError as error:
        return {**outcome, "error": str(error)}
    return {**outcome, "sent": True}


def _host(url: str) -> str | None:
    """Returns host and port of a URL; None if the URL is invalid or not HTTP."""
    try:
        parts = urlsplit(url)
        port = f":{parts.port}" if parts.port else ""
    except ValueError:
        return None
    is_web = parts.scheme in ("http", "https") and parts.hostname
    return f"{parts.hostname}{port}" if is_web else None


def _request(url: str, body: bytes) -> urllib.request.Request:
    """Returns the request; `name:password@` in a URL becomes a header."""
    headers = {"Content-Type": "application/json; charset=utf-8", "User-Agent": "recsys"}
    parts = urlsplit(url)
    login, at, place = parts.netloc.rpartition("@")
    if at:
        url = urlunsplit(parts._replace(netloc=place))
        encoded = base64.b64encode(unquote(login).encode()).decode()
        headers["Authorization"] = f"Basic {encoded}"
    return urllib.request.Request(url, body, headers, method="POST")  # noqa: S310 http(s)


def _wait_s(state: tenacity.RetryCallState) -> float:
    """Returns the delay before the next attempt [s]: random, growing, at least `Retry-After`."""
    drawn = tenacity.wait_random_exponential(multiplier=_FIRST_WAIT_S, max=_LONGEST_WAIT_S)
    error = state.outcome.exception() if state.outcome else None
    return max(drawn(state), error.after_s or 0.0 if isinstance(error, _AttemptError) else 0.0)


def _within(timeout_s: float, request: urllib.request.Request) -> None:
    """Makes one attempt that ends after `timeout_s`, even if the answer arrives slowly.

    A socket timeout restarts with every byte, and a name lookup has none that can be set. So the
    attempt runs in a thread, which is abandoned at the timeout.
    """
    errors: list[Exception] = []

    def attempt() -> None:
        try:
            _post(request, timeout_s)
        except Exception as error:  # noqa: BLE001 raised in the waiting thread
            errors.append(error)

    thread = threading.Thread(target=attempt, daemon=True)
    thread.start()
    thread.join(timeout_s)
    if thread.is_alive():
        raise _AttemptError(f"no answer within {timeout_s:.3g} s")
    if errors:
        raise _redacted(errors[0]) from None


def _redacted(error: Exception) -> _AttemptError:
    """Returns an error whose text doesn't contain the URL."""
    reason = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(error, _AttemptError):
        return error
    if isinstance(reason, ssl.SSLCertVerificationError):
        text = f"its certificate is not good: {reason.verify_message}"
        return _AttemptError(text, after_s=None)
    if isinstance(reason, TimeoutError):
        return _AttemptError("no answer in time")
    if isinstance(reason, OSError):
        return _AttemptError(reason.strerror or type(reason).__name__)
    # Other errors may quote the URL.
    return _AttemptError(f"no answer that can be read ({type(reason).__name__})")


def _post(request: urllib.request.Request, timeout_s: float) -> None:
    opener = urllib.request.OpenerDirector()  # It follows no redirects, and opens no files.
    for handler in (
        urllib.request.ProxyHandler(),
        urllib.request.HTTPHandler(),
        urllib.request.HTTPSHandler(context=ssl.create_default_context()),
    ):
        opener.add_handler(handler)
    with opener.open(request, timeout=timeout_s) as answer:
        status = int(answer.status)
        after = str(answer.headers.get("Retry-After") or "").strip()
    if status in _AGAIN:
        wait_s = float(after[:9]) if re.fullmatch("[0-9]+", after) else 0.0
        raise _AttemptError(f"status {status}", wait_s)
    if 300 <= status < 400:
        raise _AttemptError(f"status {status}: redirects are not followed", after_s=None)
    if not 200 <= status < 300:
        raise _AttemptError(f"status {status}", after_s=None)
