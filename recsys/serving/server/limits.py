"""Limits of requests; bodies are read within them before anything else."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
from typing import Any

from recsys.serving.server.http_errors import (
    BAD_REQUEST,
    TIMEOUT,
    UNSUPPORTED,
    HttpError,
    busy,
    too_large,
)
from recsys.system.files import unique_fields

MIB = 2**20
SMALL_BYTES = 16 << 10
"""Of a body: a thread would take longer to wake up than to read it."""
_MOST_LISTS = 1_000_000
"""Of a body, objects included; Python reads them all while every other thread waits."""


@dataclasses.dataclass(frozen=True)
class Limits:
    """Limits of one request, and of all requests together.

    Attributes:
        body_bytes: Of one request's body.
        all_bodies_bytes: Of all bodies that are held at once.
        all_answers_bytes: Of all answers that clients have not read yet.
        rows: Of one batch.
        values: Of one input, ids in all histories say.
        threads: That TensorFlow is called from.
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


class Bodies:
    """Reads whole bodies, and refuses those that are too large.

    Args:
        limits: Bytes of a body, of all bodies, and seconds.

    Attributes:
        held_bytes: Of all bodies that are held now.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.held_bytes = 0

    async def read(self, headers: dict[bytes, bytes], receive: Any) -> bytes | None:
        """Returns a whole body, whose bytes count as held; None if its client went away.

        Raises:
            HttpError: It is too large, compressed, or comes too slowly.
        """
        limits, n_bytes, is_whole = self._limits, 0, False
        chunks: list[bytes] = []
        _check_headers(headers, limits)
        try:
            async with asyncio.timeout(limits.body_s):
                while not is_whole:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        return None
                    chunks.append(message.get("body", b""))
                    n_bytes += len(chunks[-1])
                    self.held_bytes += len(chunks[-1])
                    if self.held_bytes > limits.all_bodies_bytes:
                        raise busy(f"{self.held_bytes:,} bytes of bodies")
                    if n_bytes > limits.body_bytes:
                        raise too_large("bytes", limits.body_bytes, "more")
                    is_whole = not message.get("more_body", False)
            return b"".join(chunks)
        except TimeoutError:
            rule = f"A body must arrive within {limits.body_s:g} s."
            cure, received = "Send it faster, or in several requests.", f"{n_bytes:,} bytes"
            raise HttpError(TIMEOUT, "R562", rule, cure, received) from None
        finally:
            if not is_whole:
                self.held_bytes -= n_bytes


def _check_headers(headers: dict[bytes, bytes], limits: Limits) -> None:
    encoding = headers.get(b"content-encoding", b"identity").decode("latin-1")
    if encoding.lower() != "identity":
        rule, cure = "A body must not be compressed.", "Leave Content-Encoding out."
        raise HttpError(UNSUPPORTED, "R564", rule, cure, encoding)
    length = headers.get(b"content-length", b"0")[:20]
    if not length.isdigit():
        rule = "Content-Length must be a number."
        raise HttpError(BAD_REQUEST, "R564", rule, "Correct it.", length)
    if int(length) > limits.body_bytes:
        raise too_large("bytes", limits.body_bytes, length.decode())


def read_object(body: bytes) -> dict[str, Any]:
    """Returns the JSON object that `body` is.

    Raises:
        HttpError: It is none (400), or holds too many lists (413).
    """
    if body.count(b"[") + body.count(b"{") > _MOST_LISTS:
        raise too_large("lists and objects", _MOST_LISTS, "more")
    try:
        parsed = json.loads(body.decode("utf-8"), object_pairs_hook=unique_fields)
        received = type(parsed).__name__
    # Too deep, or a number of more digits than Python reads.
    except (ValueError, RecursionError) as error:
        parsed, received = None, str(error)
    if not isinstance(parsed, dict):
        rule = "The body must be a JSON object in UTF-8, with each key once."
        cure = "See docs/serving.md."
        raise HttpError(BAD_REQUEST, "R551", rule, cure, received)
    return parsed
