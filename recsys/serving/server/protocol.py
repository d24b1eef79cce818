"""Connections: headers that come too slowly, and too many at once.

uvicorn waits for ever for the headers of a request.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from recsys.serving.server.limits import Limits

HARD_LIMIT = 2
"""Times the limit of connections, where even a refusal is too much work."""


def protocol_class(limits: Limits) -> type[asyncio.Protocol]:
    """Returns the protocol of one connection, with these limits."""

    class Limited(PatientProtocol):
        """One connection."""

        headers_s = limits.headers_s
        most = limits.connections * HARD_LIMIT

    return Limited


class PatientProtocol(H11Protocol):
    """Closes a connection whose request doesn't come.

    Attributes:
        headers_s: From the first byte, or from the connection, to the end of the headers [s].
        most: Connections that are held.
    """

    headers_s: float
    most: int

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Takes a connection."""
        super().connection_made(transport)
        if len(self.connections) > self.most:
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

    def connection_lost(self, exc: Exception | None) -> None:
        """Forgets the connection."""
        self._expect_nothing()
        super().connection_lost(exc)

    def _expect_headers(self) -> None:
        self._deadline = self.loop.call_later(self.headers_s, self.transport.close)

    def _expect_nothing(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
