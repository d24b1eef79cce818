"""The spans of a run: new, late, empty, set aside or missing ones."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any

from recsys.formats import count, counted
from recsys.report.artifacts import Artifacts, MissingError

_TOLD = ("new", "late", "empty", "set_aside", "missing")
_WORDS = {"late": "late", "empty": "empty", "set_aside": "set aside", "missing": "missing"}
_SHOWN_NAMES = 2
_SHOWN_SPANS = 31


def spans_of(spans: Any) -> dict[str, list[str]] | None:
    """Returns the names of the notable spans by kind; None without spans.

    Args:
        spans: As `run.json` has them, see docs/architecture.md.
    """
    if not isinstance(spans, Sequence) or isinstance(spans, str):
        return None
    by_kind: dict[str, list[str]] = {kind: [] for kind in _TOLD}
    for span in spans:
        if not isinstance(span, Mapping):
            continue
        name = str(span.get("name"))
        kinds = [kind for kind in ("new", "late") if span.get(kind) is True]
        kinds += [state for state in (span.get("state"),) if state in by_kind]
        for kind in dict.fromkeys(kinds):
            by_kind[kind].append(name)
    return by_kind


def spans_in_words(spans: Mapping[str, Sequence[str]] | None) -> list[str]:
    """Returns a phrase for each notable kind of spans."""
    if spans is None:
        return []
    new = spans["new"]
    words = [f"new: {new[0]}" if len(new) == 1 else f"{count(len(new))} new"] if new else []
    for kind, word in _WORDS.items():
        names = spans[kind]
        if names:
            more = len(names) - _SHOWN_NAMES
            tail = f" and {count(more)} more" if more > 0 else ""
            words.append(f"{word}: {', '.join(names[:_SHOWN_NAMES])}{tail}")
    return words


@dataclasses.dataclass(frozen=True)
class ShownSpan:
    """One span.

    Attributes:
        name: Its name.
        words: What is to be said of it, such as `new` and `late`.
        is_odd: Whether it is late, or was not simply read.
        rows: Its rows.
        rejected: How many of them were rejected; empty for none.
        reason: What was wrong with it; empty where nothing was.
    """

    name: str
    words: str
    is_odd: bool
    rows: str
    rejected: str
    reason: str


@dataclasses.dataclass(frozen=True)
class Spans:
    """The spans of the window.

    Attributes:
        summary: How many there are, and which are odd.
        rows: The newest ones, and every odd one, the newest first.
    """

    summary: str
    rows: list[ShownSpan]


def read_spans(artifacts: Artifacts) -> Spans | None:
    """Returns the spans; None where the data have none.

    Raises:
        MissingError: They can't be read.
    """
    folder = artifacts.dead_letters.get("interactions")
    if folder is None or not (folder / "spans.json").is_file():
        return None
    try:
        listed = json.loads((folder / "spans.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise MissingError(f"The spans can't be read: {error}.") from None
    shown = [_shown(span) for span in reversed(listed)]
    rows = [span for place, span in enumerate(shown) if place < _SHOWN_SPANS or span.is_odd]
    words = spans_in_words(spans_of(listed))
    total = counted(len(listed), "span", "spans")
    return Spans(f"{total}; {'; '.join(words)}" if words else total, rows)


def _shown(span: Mapping[str, Any]) -> ShownSpan:
    state = str(span.get("state") or "")
    words = [kind for kind in ("new", "late") if span.get(kind) is True]
    words.append({**_WORDS, "reused": "read before"}.get(state, state))
    return ShownSpan(
        name=str(span.get("name")),
        words=", ".join(words),
        is_odd=state not in ("read", "reused") or span.get("late") is True,
        rows=count(span.get("rows")),
        rejected=count(span["rejected"]) if span.get("rejected") else "",
        reason=str(span.get("reason") or ""),
    )
