"""How much a client may ask for; bodies are read within the limits before anything else."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import time
from collections.abc import Callable
from typing import Any

from recsys.serving.server.http_errors import BAD_REQUEST, TIMEOUT, HttpError, busy, too_large

MIB = 2**20


@dataclasses.dataclass(frozen=True)
class Limits:
    """What one request may hold, and what all of them may.

    Attributes:
        body_bytes: Of one request's body.
        all_bodies_bytes: Of all bodies that are held at once.
        all_answers_bytes: Of all answers that clients have not read yet.
        rows: Of one batch.
        values: Of one input, ids in all histories say.
        threads: That TensorFlow is asked from.
        queue: Requests that wait for a thread.
        connections: Open at once.
        headers_s: Until the headers of a request are there [s].
        body_s: Until its body is there [s].
        answer_s: Until its answer is there, the queue included [s].
        read_s: Until the client has read it [s].
    """

    body_bytes: int = 8 * MIB
    all_bodies_bytes: int = 256 * MIB
    all_answers_bytes: int = 128 * MIB
    rows: int = 1024
    values: int = 1_000_000
    threads: int = dataclasses.field(default_factory=lambda: os.cpu_count() or 1)
    queue: int = 64
    connections: int = 1000
    headers_s: float = 10.0
    body_s: float = 20.0
    answer_s: float = 10.0
    read_s: float = 30.0


Message = dict[str, Any]
_LINGER_S = 2.0
_LINGER_BYTES = 256 * MIB
_UNSUPPORTED_MEDIA = 415


class Disconnected(Exception):
    """The client went away before its body was whole."""


class BodyLimits:
    """An ASGI app that hands whole bodies to another one, and refuses what is too large.

    Args:
        app: The app behind it.
        limits: Bytes of a body, of all bodies, and seconds.
        check: Called once a body was read; may raise an HttpError, which costs less here
            than in the app.
    """

    def __init__(self, app: Any, limits: Limits, check: Callable[[], None]) -> None:
        self._app, self._limits, self._check = app, limits, check
        self._held_bytes = 0

    async def __call__(self, scope: Message, receive: Any, send: Any) -> None:
        """Answers a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        reading = _Reading(self, receive)
        try:
            body = await reading.whole(dict(scope["headers"]))
        except HttpError as error:
            await send_error(send, error, receive)
        except Disconnected:
            pass
        else:
            await self._pass_on(scope, body, receive, send)
        finally:
            self._held_bytes -= reading.n_bytes

    async def _pass_on(self, scope: Message, body: bytes, receive: Any, send: Any) -> None:
        try:
            if scope["method"] == "POST":  # Every other method needs no thread of TensorFlow.
                self._check()
        except HttpError as error:
            await send_error(send, error)
            return
        await self._app(scope, _replay(body, receive), send)

    def hold(self, n_bytes: int) -> None:
        """Counts bytes that a request holds.

        Raises:
            HttpError: All requests together hold too much.
        """
        self._held_bytes += n_bytes
        if self._held_bytes > self._limits.all_bodies_bytes:
            raise busy(f"{self._held_bytes:,} bytes of bodies")

    @property
    def limits(self) -> Limits:
        """What holds for each body."""
        return self._limits


class _Reading:
    """The reading of one body.

    Attributes:
        n_bytes: Bytes that are held.
    """

    def __init__(self, owner: BodyLimits, receive: Any) -> None:
        self._owner, self._receive = owner, receive
        self.n_bytes = 0

    async def whole(self, headers: dict[bytes, bytes]) -> bytes:
        """Returns the body.

        Raises:
            HttpError: It is too large, compressed, or comes too slowly.
            Disconnected: It doesn't come at all.
        """
        limits = self._owner.limits
        _check_headers(headers, limits)
        try:
            async with asyncio.timeout(limits.body_s):
                return await self._read(limits.body_bytes)
        except TimeoutError:
            raise HttpError(
                TIMEOUT,
                "R562",
                f"A body must be there within {limits.body_s:g} s.",
                "Send it faster, or in several requests.",
                f"{self.n_bytes:,} bytes",
            ) from None

    async def _read(self, most: int) -> bytes:
        chunks = []
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise Disconnected
            chunk = message.get("body", b"")
            self.n_bytes += len(chunk)
            self._owner.hold(len(chunk))
            if self.n_bytes > most:
                raise too_large("bytes", most, "more")
            chunks.append(chunk)
            if not message.get("more_body", False):
                return b"".join(chunks)


def _check_headers(headers: dict[bytes, bytes], limits: Limits) -> None:
    encoding = headers.get(b"content-encoding", b"identity")
    if encoding.lower() != b"identity":
        raise HttpError(
            _UNSUPPORTED_MEDIA,
            "R564",
            "A body must not be compressed.",
            "Leave Content-Encoding out.",
            encoding.decode("latin-1"),
        )
    length = headers.get(b"content-length", b"0")
    if not length.isdigit():
        raise HttpError(
            BAD_REQUEST, "R564", "Content-Length must be a number.", "Correct it.", length
        )
    if int(length[:20]) > limits.body_bytes:
        raise too_large("bytes", limits.body_bytes, length[:20].decode())


async def send_error(send: Any, error: HttpError, receive: Any = None) -> None:
    """Sends a error, and closes the connection.

    Args:
        send: Of the request.
        error: What to send.
        receive: Where the rest of a body comes from. It is read for a moment: a client
            that still sends would else see its connection reset, and not the response.
    """
    body = error.body()
    headers = {"content-type": "application/json", "content-length": str(len(body))}
    headers |= {"connection": "close"} if receive else {}
    headers |= {name.lower(): value for name, value in error.headers.items()}
    encoded = [(name.encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": error.status, "headers": encoded})
    await send({"type": "http.response.body", "body": body, "more_body": receive is not None})
    if receive is not None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LINGER_S):
                await _drop(receive)
        await send({"type": "http.response.body", "body": b""})


async def _drop(receive: Any) -> None:
    n_bytes, started = 0, time.monotonic()
    while n_bytes < _LINGER_BYTES and time.monotonic() < started + _LINGER_S:
        message = await receive()
        n_bytes += len(message.get("body", b""))
        if not message.get("more_body", False):
            return


def _replay(body: bytes, receive: Any) -> Any:
    """Returns a `receive` that gives the whole body first."""
    is_given = False

    async def replay() -> Message:
        nonlocal is_given
        if is_given:
            return await receive()
        is_given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replay
