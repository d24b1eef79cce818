"""Sends the summary of a run to a webhook, with retries and a time limit.

The URL of a webhook is a secret, since everyone who has it can post there. It comes from the
environment, and only its host is ever shown. Redirects are not followed, so that no message
goes to another host.
"""

from __future__ import annotations

import base64
import json
import os
import re
import ssl
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote, urlsplit, urlunsplit

import tenacity

from recsys.config.operation import NotifyConfig
from recsys.runs.summary import one_line

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
