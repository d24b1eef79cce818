"""Parsing of HTTP requests within a bounded time, however a client cuts their bytes."""

from __future__ import annotations

import h11

HEAD_BYTES, HEAD_LINES = 64 << 10, 100
LEAST_CHUNKS, CHUNK_BYTES = 1000, 256
"""A body may have `LEAST_CHUNKS`, and one more for every `CHUNK_BYTES` in it."""
_STEP_BYTES = 4 << 10
_BAD_REQUEST, _TOO_LARGE, _TOO_MANY_HEADERS = 400, 413, 431


class BoundedConnection(h11.Connection):
    """h11's parser, which takes 10 to 30 µs for each header line and for each chunk.

    It receives a few KiB at a time, and stops at too many lines or chunks: uvicorn parses
    all that it has read at once, while all other clients wait.

    Attributes:
        refusal: Status and reason, once the parser has stopped.
    """

    def __init__(self) -> None:
        super().__init__(h11.SERVER, HEAD_BYTES)
        self.refusal: tuple[int, str] = _BAD_REQUEST, ""
        self._unparsed = bytearray()
        self._n_left = self._n_chunks = self._n_bytes = 0

    def receive_data(self, data: bytes) -> None:
        """Holds bytes until `next_event` parses them."""
        self._unparsed += data

    def next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        """Returns the next event.

        Raises:
            h11.RemoteProtocolError: The request is wrong, or takes too long to parse.
        """
        try:
            event = self._next_event()
            if isinstance(event, h11.Request):
                self._begin(event)
            elif isinstance(event, h11.Data):
                self._count(event)
        except h11.RemoteProtocolError as error:
            self.refusal = error.error_status_hint, str(error)
            raise
        return event

    def _next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        while (event := super().next_event()) is h11.NEED_DATA and self._unparsed:
            # Lines that wait for more are a head or a trailer.
            if not self._n_left and self.trailing_data[0].count(b"\n") > HEAD_LINES + 1:
                raise h11.RemoteProtocolError("too many lines", _TOO_MANY_HEADERS)
            n_bytes = max(_STEP_BYTES, self._n_left)
            super().receive_data(bytes(self._unparsed[:n_bytes]))
            del self._unparsed[:n_bytes]
        return event

    def _begin(self, request: h11.Request) -> None:
        headers = dict(request.headers)
        if len(request.headers) > HEAD_LINES:
            raise h11.RemoteProtocolError("too many headers", _TOO_MANY_HEADERS)
        if b"transfer-encoding" in headers and b"content-length" in headers:
            # A proxy in front may believe the other one, and end the request elsewhere.
            raise h11.RemoteProtocolError("both Transfer-Encoding and Content-Length")
        self._n_left = int(headers.get(b"content-length", 0))
        self._n_chunks = self._n_bytes = 0

    def _count(self, data: h11.Data) -> None:
        self._n_left = max(0, self._n_left - len(data.data))
        self._n_bytes += len(data.data)
        self._n_chunks += data.chunk_start
        if self._n_chunks > LEAST_CHUNKS + self._n_bytes // CHUNK_BYTES:
            raise h11.RemoteProtocolError(f"{self._n_chunks:,} chunks", _TOO_LARGE)
