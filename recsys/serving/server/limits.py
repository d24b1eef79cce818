"""Limits of requests."""

from __future__ import annotations

import dataclasses
import os

MIB = 2**20
SMALL_BYTES = 16 << 10
"""Largest request that is read in the event loop: waking up a thread takes longer."""
HEAD_BYTES, HEAD_LINES = 64 << 10, 100


@dataclasses.dataclass(frozen=True)
class Limits:
    """Limits of one request, and of all requests together.

    Attributes:
        body_bytes: Maximum body size of a request, or message size of gRPC.
        all_bodies_bytes: Maximum size of all bodies that are held at once.
        rows: Maximum rows of a batch.
        values: Maximum values of one input.
        threads: Threads that call TensorFlow.
        queue: Maximum requests that wait for a thread.
        connections: Maximum open connections, and maximum requests at once.
        head_s: Timeout of the headers of a request [s].
        request_s: Timeout of a request, its body and its answer [s].
        answer_s: Timeout of an answer, the queue included [s].
    """

    body_bytes: int = 8 * MIB
    all_bodies_bytes: int = 256 * MIB
    rows: int = 1024
    values: int = 1_000_000
    threads: int = dataclasses.field(default_factory=lambda: os.cpu_count() or 1)
    queue: int = 64
    connections: int = 1000
    head_s: float = 10.0
    request_s: float = 30.0
    answer_s: float = 10.0
