"""Untrusted text, fit for a terminal and for a line of YAML."""

from __future__ import annotations

from recsys.visible import visible


def shown(text: str, limit: int = 40) -> str:
    """Returns text without control characters, which are written as escapes, and cut short."""
    plain = visible(text[: limit + 1])
    return plain if len(plain) <= limit else plain[: limit - 1] + "…"
