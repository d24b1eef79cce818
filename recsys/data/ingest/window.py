"""The spans of a rolling window: their files and the digests of the contents."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from recsys.config import InteractionsConfig
from recsys.data.ingest.cache import key_of
from recsys.data.sources.files import (
    SourceFile,
    content_digest,
    day_name,
    file_size,
    is_remote,
    match_paths,
    patterns,
    span_pattern,
)
from recsys.errors import RecsysError, UsageError
from recsys.system.commit import commit_text

_DIGESTS = "digests.json"
_SETTLED_NS = 2_000_000_000


@dataclasses.dataclass(frozen=True)
class SpanFiles:
    """The files of one span.

    Attributes:
        span: Its number; None for files whose pattern has no spans, which are one span.
        name: Its date, or its number as text.
        version: The newest version among its files.
        paths: Its files, in the order that they are read in.
        places: Place of each file among all files of the window, ascending.
    """

    span: int | None
    name: str
    version: int
    paths: tuple[str, ...]
    places: tuple[int, ...]


def has_spans(config: InteractionsConfig) -> bool:
    """Returns whether a pattern of the interactions has spans."""
    return any(span_pattern(pattern) is not None for pattern in patterns(config.files))


def has_days(config: InteractionsConfig) -> bool:
    """Returns whether the spans are days, so that one may be missing."""
    span_patterns = [span_pattern(pattern) for pattern in patterns(config.files)]
    return all(pattern.has_dates for pattern in span_patterns if pattern is not None)


def read_window(config: InteractionsConfig) -> list[SpanFiles]:
    """Returns the spans that a run reads, the oldest first, files without a span before them.

    Raises:
        RecsysError: A pattern matches no file.
        UsageError: A pattern's spans are wrong.
    """
    named = has_days(config)
    groups: dict[int | None, list[tuple[int, str, int]]] = {}
    for place, (path, span) in enumerate(match_paths(config, "interactions")):
        number, version = (None, 0) if span is None else span
        groups.setdefault(number, []).append((place, path, version))
    ordered = sorted(groups.items(), key=lambda group: (group[0] is not None, group[0] or 0))
    return [_span(number, files, named) for number, files in ordered]


def restrict(config: InteractionsConfig, paths: Sequence[str]) -> InteractionsConfig:
    """Returns the same with these files alone."""
    return config.model_copy(update={"files": tuple(paths), "spans": None})


class Digests:
    """Digests of files; those of local files are remembered while the files are untouched.

    Args:
        root: Folder that stores them; None: they aren't stored.
    """

    def __init__(self, root: Path | None) -> None:
        self._file = None if root is None else root / _DIGESTS
        self._known = {} if self._file is None else _read(self._file)
        self._used: dict[str, list[Any]] = {}

    def of_span(self, span: SpanFiles) -> str:
        """Returns a digest of the paths and contents of a span's files.

        Raises:
            RecsysError: A file can't be read.
        """
        return key_of([[path, self.of_file(path)] for path in span.paths])

    def of_file(self, path: str) -> str:
        """Returns the digest of a file."""
        if is_remote(path) or self._file is None:
            return content_digest(SourceFile(path, file_size(path))).hex()
        now = time.time_ns()
        stamp = _stamp(path)
        known = self._known.get(path)
        if known is not None and known[:-1] == stamp:
            digest = str(known[-1])
        else:
            digest = content_digest(SourceFile(path, file_size(path))).hex()
        # What changed a moment ago may change again within one tick of the clock.
        if stamp[-1] < now - _SETTLED_NS:
            self._used[path] = [*stamp, digest]
        return digest

    def save(self) -> None:
        """Stores the digests of the files that were requested, and no others."""
        if self._file is not None and self._used != self._known:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            commit_text(json.dumps(self._used) + "\n", self._file)


def window_digest(config: InteractionsConfig, root: Path | None = None) -> str:
    """Returns a digest of all files of the window; an unreadable file counts by its error.

    Args:
        config: What to read.
        root: Folder of the kept segments, which remembers digests of untouched files.

    Raises:
        RecsysError: A pattern matches no file.
        UsageError: A pattern's spans are wrong.
    """
    digests = Digests(root)
    parts = []
    for span in read_window(config):
        try:
            parts.append([span.span, span.version, digests.of_span(span)])
        except UsageError:
            raise
        except RecsysError as error:
            parts.append([span.span, span.version, str(error)])
    digests.save()
    return key_of(parts)


def _span(number: int | None, files: list[tuple[int, str, int]], named: bool) -> SpanFiles:
    name = "files" if number is None else day_name(number) if named else str(number)
    return SpanFiles(
        span=number,
        name=name,
        version=max(version for _, _, version in files),
        paths=tuple(path for _, path, _ in files),
        places=tuple(place for place, _, _ in files),
    )


def _stamp(path: str) -> list[int]:
    try:
        status = Path(path).stat()
    except OSError:
        return [-1, -1, -1, time.time_ns()]
    return [status.st_size, status.st_ino, status.st_mtime_ns, status.st_ctime_ns]


def _read(file: Path) -> dict[str, list[Any]]:
    try:
        known = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return known if isinstance(known, dict) else {}


_FILE = "seen.json"


class Seen:
    """The spans that earlier runs on a root have read.

    Args:
        root: Folder that stores them.
        run: Identity of this run: equal where it reads the same files.
    """

    def __init__(self, root: Path, run: str) -> None:
        self._file, self._run = root / _FILE, run
        self._first_read = _first_read(self._file)
        earlier = [span for span, by in self._first_read.items() if by != run]
        self._newest = max(earlier, default=None)

    def is_new(self, span: int) -> bool:
        """Returns whether no other run has read the span."""
        return self._first_read.get(span, self._run) == self._run

    def is_late(self, span: int) -> bool:
        """Returns whether the span is new, and older than one that was read before."""
        return self._newest is not None and span < self._newest and self.is_new(span)

    def remember(self, spans: Iterable[int]) -> None:
        """Remembers that this run has read `spans`."""
        for span in spans:
            self._first_read.setdefault(span, self._run)
        by_text = {str(span): by for span, by in sorted(self._first_read.items())}
        commit_text(json.dumps(by_text, indent=1) + "\n", self._file)


def _first_read(file: Path) -> dict[int, str]:
    try:
        recorded = json.loads(file.read_text(encoding="utf-8"))
        return {int(span): str(by) for span, by in recorded.items()}
    except (OSError, ValueError, AttributeError):
        return {}


_BROKEN_CURE = (
    "Mend or replace its files and run again; or set data.interactions.bad_spans to set_aside,"
    " and the run goes on without the span until its files change. What the other spans hold"
    " is kept, and the model that is served stays."
)


def unreadable_span(name: str, file: str, error: RecsysError) -> RecsysError:
    """Returns the error of a span of which a file can't be read."""
    return RecsysError("R262", f"Span {name} must be readable. {file}: {error}", _BROKEN_CURE)


def bad_rows(name: str, reason: str) -> RecsysError:
    """Returns the error of a span with too many bad rows."""
    return RecsysError("R263", f"Span {name} must have few bad rows: {reason}.", _BROKEN_CURE)
