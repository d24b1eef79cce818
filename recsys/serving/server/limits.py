"""How much a client may ask for."""

from __future__ import annotations

import dataclasses
import os

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
