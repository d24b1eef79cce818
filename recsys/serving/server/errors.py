"""Errors with an HTTP status, in TensorFlow Serving's form."""

from __future__ import annotations

from typing import Any

from fastapi.responses import JSONResponse

from recsys.errors import RecsysError, UsageError

BAD_REQUEST, NOT_FOUND, TIMEOUT, TOO_LARGE = 400, 404, 408, 413
MISDIRECTED, INVALID, TOO_MANY, UNAVAILABLE = 421, 422, 429, 503
_CLOSE, _RETRY = {"Connection": "close"}, {"Retry-After": "1"}
_HEADERS = {TIMEOUT: _CLOSE, TOO_LARGE: _CLOSE, TOO_MANY: _RETRY, UNAVAILABLE: _RETRY}


class HttpError(RecsysError):
    """An error with an HTTP status.

    Args:
        status: HTTP status.
        code: Anchor in `docs/errors.md`.
        rule: The condition that must hold, as a sentence.
        cure: How to resolve the error, as a sentence.
        received: The received value.
    """

    def __init__(self, status: int, code: str, rule: str, cure: str, received: Any = ...) -> None:
        super().__init__(code, rule, cure, received)
        self.status = status


def status_of(error: RecsysError) -> int:
    """Returns the HTTP status of an error of the server or of the library."""
    if isinstance(error, HttpError):
        return error.status
    return BAD_REQUEST if isinstance(error, UsageError) else UNAVAILABLE


def response(error: RecsysError) -> JSONResponse:
    """Returns the response to a request that failed."""
    status = status_of(error)
    return JSONResponse({"error": str(error)}, status, _HEADERS.get(status))


def busy(received: str) -> HttpError:
    """Returns the error of a request above the limit of concurrent ones."""
    rule = "The server has reached its limit of concurrent requests."
    return HttpError(TOO_MANY, "R560", rule, "Ask again in a second.", received)


def too_large(what: str, most: int, received: Any) -> HttpError:
    """Returns the error of a request with more than `most` `what`, a plural noun."""
    rule = f"A request may contain at most {most:,} {what}."
    return HttpError(TOO_LARGE, "R557", rule, "Ask in several requests.", received)


def wrong(code: str, rule: str, cure: str, received: Any) -> HttpError:
    """Returns the error of a request that breaks a rule."""
    return HttpError(BAD_REQUEST, code, rule, cure, received)
