"""Errors with an HTTP status, and how they are sent."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from typing import Any

from recsys.errors import RecsysError

BAD_REQUEST, NOT_FOUND, TIMEOUT, TOO_LARGE, UNSUPPORTED = 400, 404, 408, 413, 415
MISDIRECTED, INVALID, TOO_MANY, UNAVAILABLE = 421, 422, 429, 503
JSON = "application/json"
LINGER_S, _LINGER_BYTES = 2.0, 256 << 20

_MEANINGS = {
    BAD_REQUEST: "The request is wrong; the sentence says how.",
    NOT_FOUND: "No such model, version, user or item.",
    TIMEOUT: "The body came too slowly.",
    TOO_LARGE: "The request is too large.",
    UNSUPPORTED: "The body is compressed.",
    MISDIRECTED: "The Host header names another machine.",
    INVALID: "A parameter is wrong; the sentence says how.",
    TOO_MANY: "Too many requests at once: ask again.",
    UNAVAILABLE: "No version is loaded yet, or the answer took too long.",
}
_SCHEMA = {
    "type": "object",
    "properties": {"error": {"type": "string"}},
    "required": ["error"],
    "additionalProperties": False,
}


def documented(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Returns what the OpenAPI page says of a route's errors."""
    content = {JSON: {"schema": _SCHEMA}}
    return {status: {"description": _MEANINGS[status], "content": content} for status in statuses}


class HttpError(RecsysError):
    """An error that is answered with an HTTP status.

    Args:
        status: HTTP status.
        code: `R537` or `R550` … `R571`, an anchor in `docs/errors.md`.
        rule: What must hold, as a sentence.
        cure: What the client can do about it, as a sentence.
        received: What was received.
        retry_s: When to ask again [s]; 0: the same request is never answered.
    """

    def __init__(
        self, status: int, code: str, rule: str, cure: str, received: Any = ..., retry_s: int = 0
    ) -> None:
        super().__init__(code, rule, cure, received)
        self.status = status
        self.headers = {"Retry-After": str(retry_s)} if retry_s else {}

    @classmethod
    def of(cls, status: int, error: RecsysError) -> HttpError:
        """Returns an error of the library with a status."""
        made = cls(status, error.code, error.rule, error.cure)
        made.received, made.args = error.received, error.args
        return made

    def body(self) -> bytes:
        """Returns the response's body, in the form of TensorFlow Serving."""
        return json.dumps({"error": str(self)}).encode()


def busy(received: str) -> HttpError:
    """Returns the error of a request that comes when all places are taken."""
    rule = "The server has reached its limit of concurrent requests."
    return HttpError(TOO_MANY, "R560", rule, "Ask again in a second.", received, retry_s=1)


def too_large(what: str, most: int, received: Any) -> HttpError:
    """Returns the error of a request for too much at once.

    Args:
        what: What there is too much of, with its unit.
        most: How much there may be.
        received: How much there is.
    """
    rule = f"A request may contain at most {most:,} {what}."
    return HttpError(TOO_LARGE, "R557", rule, "Ask in several requests.", received)


async def send_error(send: Any, error: HttpError, receive: Any = None) -> None:
    """Sends an error.

    Args:
        send: Of the request.
        error: What to send.
        receive: Where the rest of a body comes from, which is read for a moment before the
            connection is closed: a client that still sends would else see its connection
            reset, and not the response. None: the body was read.
    """
    body = error.body()
    headers = {"content-type": JSON, "content-length": str(len(body)), **error.headers}
    if receive is not None:
        headers["connection"] = "close"
    encoded = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": error.status, "headers": encoded})
    await send({"type": "http.response.body", "body": body, "more_body": receive is not None})
    if receive is not None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LINGER_S):
                await _drop(receive)
        await send({"type": "http.response.body", "body": b""})


async def _drop(receive: Any) -> None:
    n_bytes, end = 0, time.monotonic() + LINGER_S
    while n_bytes < _LINGER_BYTES and time.monotonic() < end:
        message = await receive()
        n_bytes += len(message.get("body", b""))
        if not message.get("more_body", False):
            return
