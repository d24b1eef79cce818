"""Errors with an HTTP status: what a client did wrong, or must wait for."""

from __future__ import annotations

import json
from typing import Any

from recsys.errors import RecsysError

BAD_REQUEST, NOT_FOUND, TIMEOUT, TOO_LARGE = 400, 404, 408, 413
MISDIRECTED, INVALID, TOO_MANY, UNAVAILABLE = 421, 422, 429, 503


class HttpError(RecsysError):
    """A request that gets no answer, and why.

    Args:
        status: HTTP status.
        code: `R550` … `R569`, an anchor in `docs/errors.md`.
        rule: What must hold, as a sentence.
        cure: What the client can do about it, as a sentence.
        received: What was found.
        headers: More headers of the response.
    """

    def __init__(
        self,
        status: int,
        code: str,
        rule: str,
        cure: str,
        received: Any = ...,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(code, rule, cure, received)
        self.status = status
        self.headers = headers or {}

    def body(self) -> bytes:
        """Returns the response's body, in the form of TensorFlow Serving."""
        return error_body(str(self))


def error_body(sentence: str) -> bytes:
    """Returns `{"error": sentence}` as JSON."""
    return json.dumps({"error": sentence}).encode()


def busy(received: str) -> HttpError:
    """Returns what a client hears when all places are taken."""
    return HttpError(
        TOO_MANY,
        "R560",
        "The server works on as many requests as it can hold.",
        "Ask again in a second.",
        received,
        {"Retry-After": "1"},
    )


def too_large(what: str, most: int, received: Any) -> HttpError:
    """Returns what a client hears that asks for too much at once.

    Args:
        what: What there is too much of, with its unit.
        most: How much there may be.
        received: How much there is.
    """
    return HttpError(
        TOO_LARGE,
        "R557",
        f"A request may hold at most {most:,} {what}.",
        "Ask in several requests.",
        received,
    )
