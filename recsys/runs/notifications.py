"""Sends the summary of a run to a webhook, with retries and a time limit.

The URL of a webhook is a secret: whoever knows it can write there. It comes from the
environment, and of it the host alone is ever shown.

Python's own HTTP client does: one POST with certificates verified needs no other one.
No redirect is followed: none leads to another host, and none takes the message there.
"""

from __future__ import annotations

import base64
import datetime as dt
import functools
import json
import os
import ssl
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import unquote, urlsplit, urlunsplit

import tenacity

from recsys.config.operation import NotifyConfig
from recsys.runs.summary import one_line

_LONGEST_ANSWER = 64 << 10
"""Bytes of an answer that are read."""
_FIRST_WAIT_S, _LONGEST_WAIT_S = 1.0, 20.0
_AGAIN = {408, 425, 429, 500, 502, 503, 504}


class _AgainError(Exception):
    """An attempt failed; another one may succeed after at least `after_s` seconds."""

    def __init__(self, text: str, after_s: float = 0.0) -> None:
        super().__init__(text)
        self.after_s = after_s


class _RefusedError(Exception):
    """An attempt failed permanently."""


def send_summary(night: Mapping[str, Any], config: NotifyConfig) -> dict[str, Any] | None:
    """Sends a run's summary to the webhook; a failure doesn't fail the run.

    Args:
        night: Its summary.
        config: The webhook, and the states to report.

    Returns:
        `host`, `sent`, `attempts` and `error`, without a secret; None where nobody is to
        be told of such a night.
    """
    if config.webhook_env is None or night.get("state") not in config.on:
        return None
    url = os.environ.get(config.webhook_env, "").strip()
    host = _host(url)
    if not host:
        wanted = f"the variable {config.webhook_env} holds no http or https URL"
        return {"host": None, "sent": False, "attempts": 0, "error": wanted}
    body = json.dumps({"text": one_line(night), **night}).encode()
    return _send(url, host, body, config)


def _host(url: str) -> str:
    """Returns host and port of a URL; empty where it is none that we send to."""
    try:
        parts = urlsplit(url)
        port = f":{parts.port}" if parts.port else ""
    except ValueError:
        return ""
    if parts.scheme not in ("http", "https") or not parts.hostname:
        return ""
    return f"{parts.hostname}{port}"


def _send(url: str, host: str, body: bytes, config: NotifyConfig) -> dict[str, Any]:
    if url.startswith("https:"):
        _certificates()
    deadline = time.monotonic() + config.total_s
    retrying = tenacity.Retrying(
        stop=tenacity.stop_after_attempt(config.attempts)
        | tenacity.stop_before_delay(config.total_s),
        wait=_wait_s,
        retry=tenacity.retry_if_exception_type(_AgainError),
        reraise=True,
    )
    outcome: dict[str, Any] = {"host": host, "sent": False, "attempts": 0, "error": None}
    try:
        for attempt in retrying:
            with attempt:
                outcome["attempts"] = attempt.retry_state.attempt_number
                left = deadline - time.monotonic()
                _within(min(config.timeout_s, max(left, 0.1)), url, body)
    except (_AgainError, _RefusedError) as error:
        return {**outcome, "error": str(error)}
    return {**outcome, "sent": True}


def _wait_s(state: tenacity.RetryCallState) -> float:
    """Returns how long to wait [s]: a random time that grows, and what the answer asks for."""
    drawn = tenacity.wait_random_exponential(multiplier=_FIRST_WAIT_S, max=_LONGEST_WAIT_S)
    error = state.outcome.exception() if state.outcome else None
    return max(drawn(state), error.after_s if isinstance(error, _AgainError) else 0.0)


def _within(timeout_s: float, url: str, body: bytes) -> None:
    """Makes one attempt that ends after `timeout_s`, even if the answer comes in drops.

    A time limit of a socket begins anew with every byte, and that of a name's lookup is
    none of ours; so the attempt has a thread, which is left behind.
    """
    outcome: list[Exception | None] = []

    def attempt() -> None:
        try:
            _post(url, body, timeout_s)
        except Exception as error:  # noqa: BLE001 it is told where it is waited for
            outcome.append(error)
        else:
            outcome.append(None)

    thread = threading.Thread(target=attempt, daemon=True)
    thread.start()
    thread.join(timeout_s)
    if not outcome:
        raise _AgainError(f"no answer within {timeout_s:.3g} s")
    if outcome[0] is not None:
        raise _redacted(outcome[0]) from None


def _redacted(error: Exception) -> Exception:
    """Returns an error whose text doesn't contain the URL."""
    if isinstance(error, _AgainError | _RefusedError):
        return error
    reason = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(reason, ssl.SSLCertVerificationError):
        return _RefusedError(f"its certificate is not good: {reason.verify_message}")
    if isinstance(reason, TimeoutError):
        return _AgainError("no answer in time")
    if isinstance(reason, OSError):
        return _AgainError(reason.strerror or type(reason).__name__)
    # Errors of other kinds may quote what they were given.
    return _AgainError(f"no answer that can be read ({type(reason).__name__})")


def _post(url: str, body: bytes, timeout_s: float) -> None:
    headers = {"Content-Type": "application/json; charset=utf-8", "User-Agent": "recsys"}
    bare, login = _without_login(url)
    if login:
        headers["Authorization"] = f"Basic {base64.b64encode(login.encode()).decode()}"
    request = urllib.request.Request(bare, body, headers, method="POST")  # noqa: S310 http(s)
    with _opener().open(request, timeout=timeout_s) as answer:
        status = int(answer.status)
        after = str(answer.headers.get("Retry-After") or "").strip()
        answer.read(_LONGEST_ANSWER)
    if 200 <= status < 300:
        return
    if status in _AGAIN:
        raise _AgainError(f"status {status}", _seconds_until(after))
    if 300 <= status < 400:
        raise _RefusedError(f"status {status}: redirects are not followed")
    raise _RefusedError(f"status {status}")


def _seconds_until(retry_after: str) -> float:
    """Returns the seconds that a header `Retry-After` asks for (RFC 9110, 10.2.3); 0 if none."""
    if retry_after.isascii() and retry_after.isdecimal():
        return float(retry_after[:9])
    try:
        then = parsedate_to_datetime(retry_after)
    except (TypeError, ValueError):
        return 0.0
    # A date without a zone is one in UTC there.
    then = then if then.tzinfo else then.replace(tzinfo=dt.UTC)
    return max(0.0, (then - dt.datetime.now(dt.UTC)).total_seconds())


def _without_login(url: str) -> tuple[str, str]:
    """Returns a URL without `name:password@`, and what stood there."""
    parts = urlsplit(url)
    login, at, place = parts.netloc.rpartition("@")
    if not at:
        return url, ""
    return urlunsplit(parts._replace(netloc=place)), unquote(login)


def _opener() -> urllib.request.OpenerDirector:
    """Returns what opens http and https, through the proxy of the environment if it has one.

    Nothing in it follows redirects, opens files or makes an error of a status.
    """
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler(),
        urllib.request.HTTPHandler(),
        urllib.request.HTTPSHandler(context=_certificates()),
    ):
        opener.add_handler(handler)
    return opener


@functools.cache
def _certificates() -> ssl.SSLContext:
    """Returns what certificates are verified by; to read those takes its time."""
    return ssl.create_default_context()
