"""Connections: slow headers, wrong requests, unread answers, and too many at once.

uvicorn waits for ever for the headers of a request, and for a client to read its answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import STATUS_PHRASES, H11Protocol, RequestResponseCycle

from recsys.serving.server.http_errors import (
    JSON,
    LINGER_S,
    HttpError,
    busy,
    send_error,
    too_large,
)
from recsys.serving.server.limits import Limits
from recsys.serving.server.parsing import (
    CHUNK_BYTES,
    HEAD_BYTES,
    HEAD_LINES,
    LEAST_CHUNKS,
    BoundedConnection,
)

HARD_LIMIT = 2
"""Times the limit of connections, where even an error is too much work."""
_SMALL_BYTES = 64 << 10
"""Of an answer that is always sent: counting costs more than all of them can hold."""
_RULE = (
    f"A request must be HTTP/1.1, with at most {HEAD_LINES} headers in {HEAD_BYTES >> 10} KiB, and"
    f" {LEAST_CHUNKS:,} chunks or one for every {CHUNK_BYTES} bytes of its body."
)
_CURE = "Send the body with its Content-Length, or in larger chunks."


class Connections:
    """The open connections of a server, and the bytes that their clients have not read.

    Args:
        limits: How many there may be, and how long they may wait.
        count_dropped: Called for each client that is dropped because it doesn't read.
    """

    def __init__(self, limits: Limits, count_dropped: Callable[[], None]) -> None:
        self.limits, self.count_dropped = limits, count_dropped
        self.transports: set[asyncio.Transport] = set()
        self._held_bytes = 0

    def __len__(self) -> int:
        return len(self.transports)

    def limited(self, send: Any) -> Any:
        """Returns a `send` of ASGI that refuses an answer in place of holding too many bytes.

        An answer is held back until its first bytes come, so that its status can still change.
        """
        start: dict[str, Any] | None = None
        is_refused = False

        async def limited_send(message: dict[str, Any]) -> None:
            nonlocal start, is_refused
            if message["type"] == "http.response.start":
                start = message
                return
            n_bytes, first, start = len(message.get("body", b"")), start, None
            if first is not None and (error := self._error_of(n_bytes)):
                is_refused = True
                await send_error(send, error)
            if is_refused:
                return
            self._held_bytes += n_bytes
            try:
                if first is not None:
                    await send(first)
                await send(message)
            finally:
                self._held_bytes -= n_bytes

        return limited_send

    def _error_of(self, n_bytes: int) -> HttpError | None:
        most = self.limits.all_answers_bytes
        if n_bytes <= _SMALL_BYTES:
            return None
        if n_bytes > most:
            return too_large("bytes of answers", most, f"{n_bytes:,}")
        buffered = sum(transport.get_write_buffer_size() for transport in self.transports)
        unread = self._held_bytes + buffered
        if unread + n_bytes <= most:
            return None
        return busy(f"{unread:,} bytes of answers that no client has read")


class PatientProtocol(H11Protocol):
    """Closes connections whose request doesn't arrive or is wrong, or whose answer isn't read.

    Headers have `headers_s` from the first byte, or from the connection, to their end; a
    client has `read_s` from the moment that the system takes no more of an answer.

    Args:
        connections: Those of the server.
        **named: As uvicorn gives them.
    """

    def __init__(self, connections: Connections, **named: Any) -> None:
        super().__init__(**named)
        self._connections, self._limits = connections, connections.limits
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self.conn = self._parser = BoundedConnection()
        self._is_refused = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Takes a connection."""
        super().connection_made(transport)
        self._connections.transports.add(transport)
        # Writing counts as paused as soon as a byte has to wait for the client.
        transport.set_write_buffer_limits(high=0)
        if len(self._connections) > HARD_LIMIT * self._limits.connections:
            transport.abort()
        else:
            self._expect("headers", self._limits.headers_s, transport.close)

    def data_received(self, data: bytes) -> None:
        """Takes bytes of a request; drops those after one that was refused."""
        if self._is_refused:
            return
        before: RequestResponseCycle | None = self.cycle
        if "headers" not in self._timers and (before is None or before.response_complete):
            self._expect("headers", self._limits.headers_s, self.transport.close)
        super().data_received(data)
        if self.cycle is not before:
            self._expect_no_more("headers")

    def send_400_response(self, msg: str) -> None:
        """Answers a request that can't be parsed, and ends the connection.

        A client that still sends would see a reset, and not the answer, if it were closed.
        """
        self._is_refused = True
        self._expect_no_more("headers")
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.abort()  # Another answer is on its way.
            return
        if self.cycle is not None:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        status, reason = self._parser.refusal
        error = HttpError(status, "R570", _RULE, _CURE, reason)
        headers = {"content-type": JSON, "connection": "close"}
        body = error.body()
        for event in (
            h11.Response(
                status_code=status,
                reason=STATUS_PHRASES[status],
                headers=[*headers.items(), ("content-length", str(len(body)))],
            ),
            h11.Data(data=body),
            h11.EndOfMessage(),
        ):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.write_eof()
        self._expect("headers", LINGER_S, self.transport.abort)

    def pause_writing(self) -> None:
        """Begins to wait for the client to read."""
        super().pause_writing()
        self._expect("reading", self._limits.read_s, self._drop)

    def resume_writing(self) -> None:
        """Notes that the client has read."""
        self._expect_no_more("reading")
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forgets the connection."""
        self._expect_no_more("headers")
        self._expect_no_more("reading")
        self._connections.transports.discard(self.transport)
        super().connection_lost(exc)

    def _drop(self) -> None:
        self._connections.count_dropped()
        self.transport.abort()  # `close` would wait until the client has read.

    def _expect(self, what: str, seconds: float, otherwise: Callable[[], None]) -> None:
        self._timers[what] = self.loop.call_later(seconds, otherwise)

    def _expect_no_more(self, what: str) -> None:
        if timer := self._timers.pop(what, None):
            timer.cancel()
