"""The spans of a run: new, late, empty, set aside or missing ones."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from recsys.formats import count
from recsys.report.run_artifacts import Artifacts

SPAN_WORDS = {"late": "late", "empty": "empty", "set_aside": "set aside", "missing": "missing"}
_SHOWN_NAMES = 2
_SHOWN_SPANS = 31


def spans_of(spans: Any) -> dict[str, list[str]] | None:
    """Returns the names of the notable spans by kind; None without spans.

    Args:
        spans: As `run.json` has them, see docs/architecture.md.
    """
    if not isinstance(spans, list):
        return None
    by_kind: dict[str, list[str]] = {kind: [] for kind in ("new", *SPAN_WORDS)}
    for span in spans:
        for kind, names in by_kind.items():
            if span.get(kind) is True or span.get("state") == kind:
                names.append(str(span.get("name")))
    return by_kind


def spans_in_words(spans: Mapping[str, Sequence[str]] | None) -> list[str]:
    """Returns a phrase for each notable kind of spans."""
    if spans is None:
        return []
    new = spans["new"]
    words = [f"new: {new[0]}" if len(new) == 1 else f"{count(len(new))} new"] if new else []
    for kind, word in SPAN_WORDS.items():
        names = spans[kind]
        if names:
            more = len(names) - _SHOWN_NAMES
            tail = f" and {count(more)} more" if more > 0 else ""
            words.append(f"{word}: {', '.join(names[:_SHOWN_NAMES])}{tail}")
    return words


def read_spans(artifacts: Artifacts) -> dict[str, Any] | None:
    """Returns how many spans there are, the newest ones and every odd one; None without spans."""
    folder = artifacts.dead_letters.get("interactions")
    if folder is None or not (folder / "spans.json").is_file():
        return None
    spans = json.loads((folder / "spans.json").read_text(encoding="utf-8"))
    shown = [{**span, **_in_words(span)} for span in reversed(spans)]
    rows = [span for place, span in enumerate(shown) if place < _SHOWN_SPANS or span["is_odd"]]
    return {"n": len(spans), "words": spans_in_words(spans_of(spans)), "rows": rows}


def _in_words(span: Mapping[str, Any]) -> dict[str, Any]:
    state = str(span.get("state") or "")
    words = [kind for kind in ("new", "late") if span.get(kind) is True]
    words.append({**SPAN_WORDS, "reused": "reused"}.get(state, state))
    is_odd = state not in ("read", "reused") or span.get("late") is True
    return {"words": ", ".join(words), "is_odd": is_odd}
