"""Answers that their clients have not read yet: all of them together are limited."""

from __future__ import annotations

from typing import Any

from recsys.serving.server.body import refuse
from recsys.serving.server.limits import Limits
from recsys.serving.server.protocol import Connections
from recsys.serving.server.refusals import Refusal, busy, too_large

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
            refusal = _refusal(n_bytes, connections, limits)
            if refusal is not None:
                is_refused, start = True, None
                await refuse(send, refusal)
        if is_refused:
            return
        with connections.holding(n_bytes):
            if start is not None:
                first, start = start, None
                await send(first)
            await send(message)

    return limited_send


def _refusal(n_bytes: int, connections: Connections, limits: Limits) -> Refusal | None:
    most = limits.all_answers_bytes
    if n_bytes <= _SMALL_BYTES:
        return None
    if n_bytes > most:
        return too_large("bytes of answers", most, f"{n_bytes:,}")
    unread = connections.unread_bytes()
    return (
        busy(f"{unread:,} bytes of answers that nobody read") if unread + n_bytes > most else None
    )
