"""The error that a broken span ends a run with."""

from __future__ import annotations

from recsys.errors import RecsysError

_CURE = (
    "Mend or replace its files and run again; or set data.interactions.bad_spans to set_aside,"
    " and the run goes on without the span until its files change. What the other spans hold"
    " is kept, and the model that is served stays."
)


def unreadable_span(name: str, file: str, error: RecsysError) -> RecsysError:
    """Returns the error of a span of which a file can't be read."""
    return RecsysError("R262", f"Span {name} must be readable. {file}: {error}", _CURE)


def bad_rows(name: str, found: str) -> RecsysError:
    """Returns the error of a span with too many bad rows."""
    return RecsysError("R263", f"Span {name} must have few bad rows: {found}.", _CURE)
