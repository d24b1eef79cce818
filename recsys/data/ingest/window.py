"""The spans of a run: which are cached, which must be read; and their report, `spans.json`."""

from __future__ import annotations

import collections
import dataclasses
import functools
import itertools
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from recsys.data.config import InteractionsConfig
from recsys.data.ingest.cache import ContentCache, key_of
from recsys.data.ingest.read_rows import cut_files
from recsys.data.ingest.spans import (
    Span,
    digest_spans,
    has_days,
    has_spans,
    read_map,
    read_window,
)
from recsys.data.interactions import interaction_columns
from recsys.data.sources.source_files import day_name
from recsys.errors import RecsysError
from recsys.system.files import commit_text

_WHAT = "interactions"


def find_spans(
    config: InteractionsConfig, settings: Sequence[str], cache: ContentCache, now: int
) -> list[Span]:
    """Returns the spans, each with its cached rows or the pieces to read.

    Args:
        config: Files to read.
        settings: The settings that, besides its files, determine the rows of a span.
        cache: The content cache.
        now: The latest valid time of a row [seconds since 1970, UTC].

    Raises:
        RecsysError: A pattern matches no file; or, without spans, a file can't be read.
        UsageError: The config describes no format, or no span.
    """
    spans, columns = read_window(config), interaction_columns(config)
    if not has_spans(config):
        pieces = cut_files(config, _WHAT, columns)
        return [dataclasses.replace(spans[0], key="files", pieces=tuple(pieces))]
    for span, digest in zip(spans, digest_spans(spans, cache.root), strict=True):
        span.key = key_of("span", span.name, list(settings), str(digest))
        if isinstance(digest, RecsysError):
            span.fail(span.paths[0], digest)
            continue
        rows = cache.find(span.folder_name)
        # A row from the future becomes valid when its time has passed.
        if rows is not None and (rows.facts["future"] is None or rows.facts["future"] > now):
            span.rows, span.is_reused = rows, True
        else:
            cut = span.read_files(config, functools.partial(cut_files, what=_WHAT, columns=columns))
            numbered = ((n, piece) for n, pieces in enumerate(cut) for piece in pieces or ())
            span.pieces = tuple(dataclasses.replace(p, file_index=n) for n, p in numbered)
    return spans


# --- the report


class Seen:
    """The spans that earlier runs with the same root have read.

    Args:
        root: Folder that stores them.
        run: Identity of this run; equal for runs that read the same files.
    """

    def __init__(self, root: Path, run: str) -> None:
        self._file, self._run = root / "seen.json", run
        self._first_read = {int(span): str(by) for span, by in read_map(self._file).items()}
        self.earlier = [span for span, by in self._first_read.items() if by != run]

    def is_new(self, span: int) -> bool:
        """Returns whether no other run has read the span."""
        return span not in self.earlier

    def is_late(self, span: int) -> bool:
        """Returns whether the span is new, and older than one that was read before."""
        return self.is_new(span) and span < max(self.earlier, default=span)

    def remember(self, spans: Iterable[int]) -> None:
        for span in spans:
            self._first_read.setdefault(span, self._run)
        by_text = {str(span): by for span, by in sorted(self._first_read.items())}
        commit_text(json.dumps(by_text, indent=1) + "\n", self._file)


def report_window(
    spans: Sequence[Span], seen: Seen, dropped: Sequence[int], config: InteractionsConfig
) -> list[dict[str, Any]]:
    """Returns the entries of `spans.json`, the oldest span first.

    The `state` of a span is `read` in this run, `reused` from an earlier one, `empty` (without
    rows), `set_aside` because it is broken, or `missing`: no file has this day, or its files are
    gone since a run read them. It is `new` if no other run has read it, and `late` if it is also
    older than one that was read before; `reason` is a sentence on its state.

    Args:
        spans: The spans.
        seen: The spans that earlier runs have read.
        dropped: Number of rows of each span that equal rows of earlier spans.
        config: The interactions.
    """
    found = {
        span.number: _report(span, span.number, seen, duplicates + span.count("duplicates"))
        for span, duplicates in zip(spans, dropped, strict=True)
        if span.number is not None
    }
    window = sorted({*found, *seen.earlier})[-(config.spans or 0) :]
    gone = dict.fromkeys(window, "its files are gone since a run read them")
    are_days = has_days(config)
    missing = dict.fromkeys(missing_days(found) if are_days else (), "no file has this day")
    none = dict.fromkeys(("version", "files", "rows", "rejected", "duplicates"), 0)
    for span, reason in (missing | gone).items():
        name = day_name(span) if are_days else str(span)
        state = {"state": "missing", "late": False, "new": False, "reason": reason}
        found.setdefault(span, {"span": span, "name": name, **none, **state})
    return [found[span] for span in sorted(found)]


def missing_days(days: Iterable[int]) -> list[int]:
    """Returns the days between others.

    There are none if most days are further apart than one: weekly files don't have gaps of six
    days.
    """
    ordered = sorted(days)
    steps = collections.Counter(b - a for a, b in itertools.pairwise(ordered))
    if not steps or steps.most_common(1)[0][0] != 1:
        return []
    return sorted({*range(ordered[0], ordered[-1])} - {*ordered})


def _report(span: Span, number: int, seen: Seen, duplicates: int) -> dict[str, Any]:
    read, rejected = span.tally.get("read", 0), span.tally.get("rejected", 0)
    is_new, state, reason = seen.is_new(number), "read", span.broken
    if span.broken is not None:
        state = "set_aside"
    elif span.rows is None:
        state, reason = "empty", "its files have no rows"
    elif read - rejected and read - rejected == duplicates:
        reason = "all its rows are duplicates of rows of other files"
    elif not is_new and not span.is_reused:
        reason = "its files, the config or the code have changed since it was read"
    if state == "read" and span.is_reused and not is_new:
        state = "reused"
    return {
        "span": number,
        "name": span.name,
        "version": span.version,
        "files": len(span.paths),
        "rows": read,
        "rejected": rejected,
        "duplicates": duplicates,
        "state": state,
        "late": seen.is_late(number),
        "new": is_new,
        "reason": reason,
    }
