"""uvicorn's HTTP/1.1 protocol with limits for headers.

uvicorn waits for the headers of a request forever, and its parser keeps any number of them.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from recsys.serving.server.limits import HEAD_BYTES, HEAD_LINES


class BoundedProtocol(HttpToolsProtocol):
    """Counts bytes before they are parsed, and headers, and limits the time of the headers.

    Bytes that are not part of a body (headers, trailers, chunk sizes) may be at most
    `HEAD_BYTES` more than the body. A slow or too long head closes the connection.

    Args:
        head_s: Timeout of the headers of a request [s].
        **named: Arguments of uvicorn.
    """

    def __init__(self, head_s: float, **named: Any) -> None:
        super().__init__(**named)
        self._head_s, self._head_bytes = head_s, 0
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Takes a connection."""
        super().connection_made(transport)
        self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forgets a connection."""
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Takes bytes of a request."""
        self._head_bytes += len(data)
        super().data_received(data)
        if self._head_bytes > HEAD_BYTES and not self.transport.is_closing():
            self.send_400_response("Too many bytes outside of the body.")

    def on_message_begin(self) -> None:
        """Begins a request."""
        super().on_message_begin()
        self._head_bytes = 0
        self._start_timer()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Takes a header or a trailer; the parser reports an exception as a wrong request."""
        if len(self.headers) >= HEAD_LINES:
            raise ValueError("too many headers")
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Starts the request."""
        self._stop_timer()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Takes a part of a body."""
        self._head_bytes -= 2 * len(body)
        super().on_body(body)

    def _start_timer(self) -> None:
        self._stop_timer()
        self._timer = self.loop.call_later(self._head_s, self.transport.close)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
