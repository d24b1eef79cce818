"""Undoes what a test registers; what it has imported of recsys stays registered."""

import contextlib

from recsys.registry import registered


@contextlib.contextmanager
def undone():
    """Forgets, at the end, the classes outside of recsys that were registered meanwhile."""
    before = set(registered._registered)
    yield
    for key in set(registered._registered) - before:
        if not registered._registered[key].__module__.startswith("recsys."):
            del registered._registered[key]
