"""The spans of a rolling window: their files, checks before a run, and digests."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from recsys.data import entities, interactions
from recsys.data.config import DataConfig, InteractionsConfig
from recsys.data.ingest.cache import key_of
from recsys.data.sources.pieces import EMPTY, WHOLE_FILES, plan_pieces
from recsys.data.sources.source_files import (
    content_digest,
    day_name,
    is_remote,
    match_paths,
    patterns,
    span_pattern,
)
from recsys.errors import RecsysError, UsageError
from recsys.system.files import commit_text

_DIGESTS = "digests.json"
_SETTLED_NS = 2_000_000_000


@dataclasses.dataclass(frozen=True)
class SpanFiles:
    """The files of one span.

    Attributes:
        span: Its number; None for the single span of files without spans.
        name: Its date, or its number as text.
        version: The newest version among its files.
        paths: Its files, in reading order.
        file_indices: Index of each file among all files of the window, ascending.
    """

    span: int | None
    name: str
    version: int
    paths: tuple[str, ...]
    file_indices: tuple[int, ...]


def has_spans(config: InteractionsConfig) -> bool:
    """Returns whether a pattern of the interactions has spans."""
    return any(span_pattern(pattern) is not None for pattern in patterns(config.files))


def has_days(config: InteractionsConfig) -> bool:
    """Returns whether the spans are days; then days can be missing."""
    span_patterns = [span_pattern(pattern) for pattern in patterns(config.files)]
    return all(pattern.has_dates for pattern in span_patterns if pattern is not None)


def read_window(config: InteractionsConfig) -> list[SpanFiles]:
    """Returns the spans that a run reads, the oldest first; files without a span come first.

    Raises:
        RecsysError: A pattern matches no file.
        UsageError: A pattern's spans are wrong.
    """
    are_days = has_days(config)
    groups: dict[int | None, list[tuple[int, str, int]]] = {}
    for place, (path, span) in enumerate(match_paths(config, "interactions")):
        number, version = (None, 0) if span is None else span
        groups.setdefault(number, []).append((place, path, version))
    window = []
    for number, files in sorted(groups.items(), key=lambda group: (group[0] is not None, group[0])):
        name = "files" if number is None else day_name(number) if are_days else str(number)
        places, paths, versions = zip(*files, strict=True)
        window.append(SpanFiles(number, name, max(versions), paths, places))
    return window


def restrict(config: InteractionsConfig, paths: Sequence[str]) -> InteractionsConfig:
    """Returns a copy of the config with only these files."""
    return config.model_copy(update={"files": tuple(paths), "spans": None})


def read_spans(
    config: InteractionsConfig, read: Callable[[InteractionsConfig], Any]
) -> tuple[list[str], RecsysError | None]:
    """Reads each file of the interactions before a run, span by span.

    A span without rows isn't broken. A broken span that may be set aside raises no error.

    Args:
        config: Files to read.
        read: Reads a config with one file of a span, or with all files if there are no spans.

    Returns:
        Names of the broken spans, and the last error.

    Raises:
        RecsysError: A file can't be read, and spans may not be set aside.
        UsageError: The config describes no format or no span.
    """
    if not has_spans(config):
        read(config)
        return [], None
    broken: list[str] = []
    last: RecsysError | None = None
    for span in read_window(config):
        for path in span.paths:
            try:
                read(restrict(config, [path]))
            except UsageError:
                raise
            except RecsysError as error:
                last = error
                if error.code == EMPTY:
                    continue
                if config.bad_spans == "stop":
                    raise unreadable_span(span.name, path, error) from error
                broken.append(span.name)
                break
    return broken, last


def check_sources(data: DataConfig) -> None:
    """Checks the start of every raw file that a config names.

    Raises:
        RecsysError: A file is missing, can't be read, is empty, has another
            format, or lacks a column.
        UsageError: The config describes no format or no span.
    """
    if data.interactions.query is None:
        columns = interactions.interaction_columns(data.interactions)
        read_spans(
            data.interactions,
            lambda config: plan_pieces(config, "interactions", columns, WHOLE_FILES),
        )
    for what, side in data.sides.items():
        plan_pieces(side, what, entities.raw_columns(side), WHOLE_FILES)


BROKEN_CURE = (
    "Repair or replace its files and run again; or set data.interactions.bad_spans to set_aside,"
    " and the run excludes the span until its files change. What the other spans hold"
    " is kept, and the model that is served stays."
)


def unreadable_span(name: str, file: str, error: RecsysError) -> RecsysError:
    """Returns the error for a span with an unreadable file."""
    return RecsysError("R262", f"Span {name} must be readable. {file}: {error}", BROKEN_CURE)


class Digests:
    """Digests of files; the digests of local files are cached until a file changes.

    Args:
        root: Folder that stores them.
    """

    def __init__(self, root: Path) -> None:
        self._file = root / _DIGESTS
        self._known, self._used = read_map(self._file), dict[str, list[Any]]()

    def of_span(self, span: SpanFiles) -> str:
        """Returns a digest of the paths and contents of a span's files.

        Raises:
            RecsysError: A file can't be read.
        """
        return key_of([[path, self.of_file(path)] for path in span.paths])

    def of_file(self, path: str) -> str:
        """Returns the digest of a file."""
        if is_remote(path):
            return content_digest(path).hex()
        now, stamp = time.time_ns(), _stamp(path)
        *known_stamp, digest = self._known.get(path, [None])
        if known_stamp != stamp:
            digest = content_digest(path).hex()
        # A file that has just changed may change again without a new time stamp.
        if stamp[-1] < now - _SETTLED_NS:
            self._used[path] = [*stamp, digest]
        return str(digest)

    def save(self) -> None:
        """Stores the requested digests, and no others."""
        if self._used != self._known:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            commit_text(json.dumps(self._used) + "\n", self._file)


def window_digest(config: InteractionsConfig, root: Path) -> str:
    """Returns a digest of all files of the window; an unreadable file counts by its error.

    Args:
        config: Files to read.
        root: Folder of the content cache, which stores digests of unchanged files.

    Raises:
        RecsysError: A pattern matches no file.
        UsageError: A pattern's spans are wrong.
    """
    digests = Digests(root)
    parts = []
    for span in read_window(config):
        try:
            content = digests.of_span(span)
        except RecsysError as error:
            content = str(error)
        parts.append([span.span, span.version, content])
    digests.save()
    return key_of(parts)


def read_map(file: Path) -> dict[str, Any]:
    """Returns the content of a JSON file; empty if it is missing or damaged."""
    try:
        known = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return known if isinstance(known, dict) else {}


def _stamp(path: str) -> list[int]:
    try:
        status = Path(path).stat()
    except OSError:
        return [-1, -1, -1, time.time_ns()]
    return [status.st_size, status.st_ino, status.st_mtime_ns, status.st_ctime_ns]
