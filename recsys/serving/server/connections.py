"""Connections: slow headers, unread answers, and too many at once.

uvicorn waits for ever for the headers of a request, and for a client to read its answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from recsys.serving.server.http_errors import HttpError, busy, too_large
from recsys.serving.server.limits import Limits, send_error

HARD_LIMIT = 2
"""Times the limit of connections, where even a error is too much work."""


class Connections:
    """The open connections of a server, and the bytes that their clients have not read.

    Args:
        count_dropped: Called for each client that is dropped because it doesn't read.
    """

    def __init__(self, count_dropped: Callable[[], None] = lambda: None) -> None:
        self.transports: set[asyncio.Transport] = set()
        self.count_dropped = count_dropped
        self._held_bytes = 0

    def __len__(self) -> int:
        return len(self.transports)

    def unread_bytes(self) -> int:
        """Returns the bytes of all answers that are not on their way to a client yet."""
        buffered = sum(transport.get_write_buffer_size() for transport in self.transports)
        return self._held_bytes + buffered

    @contextmanager
    def holding(self, n_bytes: int) -> Iterator[None]:
        """Counts an answer that waits until the one before it is read."""
        self._held_bytes += n_bytes
        try:
            yield
        finally:
            self._held_bytes -= n_bytes


def protocol_class(limits: Limits, connections: Connections) -> type[asyncio.Protocol]:
    """Returns the protocol of one connection, with these limits."""

    class Limited(PatientProtocol):
        """One connection."""

        headers_s = limits.headers_s
        read_s = limits.read_s
        most = limits.connections * HARD_LIMIT
        all_connections = connections

    return Limited


class PatientProtocol(H11Protocol):
    """Closes a connection whose request doesn't come, or whose answer isn't read.

    Attributes:
        headers_s: From the first byte, or from the connection, to the end of the headers [s].
        read_s: From the moment that the system takes no more of an answer to the moment
            that it has taken all of it [s].
        most: Connections that are held.
        all_connections: Those of the server.
    """

    headers_s: float
    read_s: float
    most: int
    all_connections: Connections

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._deadline: asyncio.TimerHandle | None = None
        self._read_deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Takes a connection."""
        super().connection_made(transport)
        self.all_connections.transports.add(transport)
        # Writing counts as paused as soon as a byte has to wait for the client.
        transport.set_write_buffer_limits(high=0)
        if len(self.all_connections) > self.most:
            transport.abort()
        else:
            self._expect_headers()

    def data_received(self, data: bytes) -> None:
        """Takes bytes of a request."""
        before: RequestResponseCycle | None = self.cycle
        if self._deadline is None and (before is None or before.response_complete):
            self._expect_headers()
        super().data_received(data)
        if self.cycle is not before:
            self._expect_nothing()

    def pause_writing(self) -> None:
        """Begins to wait for the client to read."""
        super().pause_writing()
        self._read_deadline = self.loop.call_later(self.read_s, self._drop)

    def resume_writing(self) -> None:
        """Notes that the client has read."""
        self._forget_read_deadline()
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forgets the connection."""
        self._expect_nothing()
        self._forget_read_deadline()
        self.all_connections.transports.discard(self.transport)
        super().connection_lost(exc)

    def _drop(self) -> None:
        self.all_connections.count_dropped()
        self.transport.abort()  # `close` would wait until the client has read.

    def _expect_headers(self) -> None:
        self._deadline = self.loop.call_later(self.headers_s, self.transport.close)

    def _expect_nothing(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _forget_read_deadline(self) -> None:
        if self._read_deadline is not None:
            self._read_deadline.cancel()
            self._read_deadline = None


_SMALL_BYTES = 64 << 10
"""Of an answer that is always sent: counting costs more than all of them can hold."""


def limited(send: Any, connections: Connections, limits: Limits) -> Any:
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
        n_bytes = len(message.get("body", b""))
        if start is not None:
            error = _error_of(n_bytes, connections, limits)
            if error is not None:
                is_refused, start = True, None
                await send_error(send, error)
        if is_refused:
            return
        with connections.holding(n_bytes):
            if start is not None:
                first, start = start, None
                await send(first)
            await send(message)

    return limited_send


def _error_of(n_bytes: int, connections: Connections, limits: Limits) -> HttpError | None:
    most = limits.all_answers_bytes
    if n_bytes <= _SMALL_BYTES:
        return None
    if n_bytes > most:
        return too_large("bytes of answers", most, f"{n_bytes:,}")
    unread = connections.unread_bytes()
    return (
        busy(f"{unread:,} bytes of answers that nobody read") if unread + n_bytes > most else None
    )
