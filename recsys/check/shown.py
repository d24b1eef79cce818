"""Untrusted text, fit for a terminal and for a line of YAML."""

from __future__ import annotations


def shown(text: str, limit: int = 40) -> str:
    """Returns text without control characters, which are written as escapes, and cut short."""
    plain = "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text[: limit + 1])
    return plain if len(plain) <= limit else plain[: limit - 1] + "…"
