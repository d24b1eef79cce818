"""The name that pip knows this package by, and how its extras are installed.

It is in no registry, and `recsys` there is a package of somebody else: what is told to
people installs from their clone. docs/install.md tells more.
"""

from __future__ import annotations

NAME = "sharded-recsys"
"""The distribution; the package that is imported and the command are `recsys`."""

SYNC = "uv sync --all-extras"
"""Installs every extra in the virtual environment of a clone."""

_BY_PIP = ("serve",)  # The others need the overrides of pyproject.toml, which pip doesn't read.


def install_extra(extra: str) -> str:
    """Returns the sentence that helps where packages of `extra` are missing."""
    by_pip = f", or: pip install '{NAME}[{extra}] @ file:///path/to/clone'"
    return f"Install the extra {extra}, in your clone: {SYNC}{by_pip if extra in _BY_PIP else ''}."
