"""The XML API of Google Cloud Storage, as Google documents it, before moto's S3 server.

The two APIs have the same requests, and different headers. Every write gives an object a new
generation, which answers have and which writes may expect. Refused as by Google: S3's conditional
writes, conditions on uploads in parts, deletes of several objects, and of one that is not there. A
second write of a name within a second is answered with 429, which Google may do.

Clients: `GOOGLE_BASE_URL=http://… GOOGLE_BEARER_TOKEN=any`.
"""

from __future__ import annotations

import itertools
import threading
import time
import warnings
from collections.abc import Iterable
from typing import Any

_CONDITION = "HTTP_X_GOOG_IF_GENERATION_MATCH"
_S3_CONDITIONS = ("HTTP_IF_MATCH", "HTTP_IF_NONE_MATCH")
_S3_AUTHORIZATION = "AWS4-HMAC-SHA256 Credential=test/20260101/us-east-1/s3/aws4_request"
_WRITE_S = 1.0
"""Least time between writes of one name [s]."""


class GoogleXml:
    """WSGI application that translates requests and answers of an S3 application."""

    def __init__(self, s3: Any) -> None:
        self._s3, self._lock = s3, threading.Lock()
        self._next = itertools.count(time.time_ns() // 1000)
        self._generations: dict[str, int] = {}
        self._written: dict[str, float] = {}

    def __call__(self, environ: dict[str, Any], start: Any) -> Iterable[bytes]:
        name, query, method = (
            environ[key] for key in ("PATH_INFO", "QUERY_STRING", "REQUEST_METHOD")
        )
        if not environ.get("HTTP_AUTHORIZATION", "").startswith("Bearer "):
            return _error(start, "401 Unauthorized", "AuthenticationRequired")
        environ["HTTP_AUTHORIZATION"] = _S3_AUTHORIZATION
        is_part = "partNumber=" in query or "uploads" in query
        if method not in ("PUT", "POST", "DELETE") or is_part:
            if is_part and _CONDITION in environ:
                return _error(start, "400 Bad Request", "InvalidArgument")
            return self._answer(environ, start, lambda _: self._generations.get(name))
        if "delete" in query or any(key in environ for key in _S3_CONDITIONS):
            return _error(start, "400 Bad Request", "InvalidArgument")
        with self._lock:  # A condition and its write are one.
            expected = environ.pop(_CONDITION, None)
            if expected is not None and int(expected) != self._generations.get(name, 0):
                return _error(start, "412 Precondition Failed", "PreconditionFailed")
            if method == "DELETE" and name not in self._generations:
                return _error(start, "404 Not Found", "NoSuchKey")
            if method != "DELETE" and time.monotonic() < self._written.get(name, 0) + _WRITE_S:
                return _error(start, "429 Too Many Requests", "SlowDown")
            return self._answer(environ, start, lambda status: self._wrote(name, method, status))

    def _wrote(self, name: str, method: str, status: str) -> int | None:
        if status.startswith("2"):
            self._generations.pop(name, None)
            if method != "DELETE":
                self._generations[name] = next(self._next)
                self._written[name] = time.monotonic()
        return self._generations.get(name)

    def _answer(self, environ: dict[str, Any], start: Any, generation_of: Any) -> Iterable[bytes]:
        def started(status: str, headers: list[tuple[str, str]], *exc_info: Any) -> Any:
            generation = generation_of(status)
            known = [] if generation is None else [("x-goog-generation", str(generation))]
            kept = [header for header in headers if not header[0].lower().startswith("x-amz")]
            return start(status, [*kept, *known], *exc_info)

        return self._s3(environ, started)  # type: ignore[no-any-return]


def _error(start: Any, status: str, code: str) -> Iterable[bytes]:
    content = f"<?xml version='1.0'?><Error><Code>{code}</Code></Error>".encode()
    start(status, [("Content-Type", "application/xml"), ("Content-Length", str(len(content)))])
    return [content]


def main() -> None:
    """Serves on a free port of the loopback, which it writes to stderr."""
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import run_simple

    warnings.simplefilter("ignore")
    app = GoogleXml(DomainDispatcherApplication(create_backend_app))
    run_simple("127.0.0.1", 0, app, threaded=True)


if __name__ == "__main__":
    main()
