"""The spans of interactions: their files, digests and checks. Files without spans are one span."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from recsys.data.config import DataConfig, InteractionsConfig
from recsys.data.dead_letters import Tally
from recsys.data.ingest.cache import CachedFolder, key_of
from recsys.data.ingest.landed import source_columns
from recsys.data.sources.pieces import EMPTY, WHOLE_FILES, Piece, plan_pieces
from recsys.data.sources.source_files import (
    content_digest,
    day_name,
    file_size,
    match_paths,
    patterns,
    span_pattern,
)
from recsys.data.sources.tables import Table, table_columns
from recsys.errors import RecsysError, UsageError
from recsys.storage.bucket import is_url
from recsys.system.files import commit_text

_DIGESTS = "digests.json"
_SETTLED_NS = 2_000_000_000
_CURE = (
    "Repair or replace its files and run again; or set data.interactions.bad_spans to set_aside,"
    " and the run excludes the span until its files change. What the other spans hold"
    " is kept, and the model that is served stays."
)


@dataclasses.dataclass(eq=False)
class Span:
    """The files of a span, and what a run knows of them.

    Attributes:
        number: Its number; None for files without spans.
        name: Its date, or its number as text.
        version: The newest version among its files.
        paths: Its files, in reading order.
        file_indices: Index of each file among all files of the window, ascending.
        key: Key that is equal for equal files, config and code.
        rows: Its rows, once they are read; None if it is empty, or can't be read.
        pieces: Pieces that must be read.
        is_reused: Whether an earlier run read it.
        broken: Reason why it is broken; None if it isn't.
        error: The error of a broken span.
    """

    number: int | None
    name: str
    version: int
    paths: tuple[str, ...]
    file_indices: tuple[int, ...]
    key: str = ""
    rows: CachedFolder | None = None
    pieces: tuple[Piece, ...] = ()
    is_reused: bool = False
    broken: str | None = None
    error: RecsysError | None = None

    @property
    def folder_name(self) -> str:
        """Name of its cached folder."""
        return f"span-{self.key}"

    @property
    def tally(self) -> Tally:
        """Counts of its rows."""
        return {} if self.rows is None else self.rows.facts["tally"]

    @property
    def buckets(self) -> Sequence[dict[str, Any]]:
        """Facts of its buckets, of a number that is a power of two; empty for one without rows."""
        return [] if self.rows is None else self.rows.facts["buckets"]

    def count(self, what: str) -> int:
        """Returns its number of `rows` (good ones) or `duplicates`."""
        return sum(bucket.get(what, 0) for bucket in self.buckets)

    def fail(self, file: str, error: RecsysError) -> None:
        """Marks the span as broken, since one of its files can't be read."""
        rule = f"Span {self.name} must be readable. {file}: {error}"
        self.broken, self.error = f"{file}: {error}", RecsysError("R262", rule, _CURE)

    def read_files(
        self, config: InteractionsConfig, read: Callable[[InteractionsConfig], Any]
    ) -> list[Any]:
        """Returns what `read` returns for a config with each file; None for one without rows.

        A file that can't be read breaks the span. A span without rows isn't broken, but an empty
        file among files with rows may be one whose writing was interrupted.
        """
        results: list[Any] = []
        empty: list[tuple[str, RecsysError]] = []
        for path in self.paths:
            try:
                own = config.model_copy(update={"files": (path,), "spans": None})
                results.append(read(own))
            except UsageError:
                raise
            except RecsysError as error:
                if error.code != EMPTY:
                    self.fail(path, error)
                    return []
                results.append(None)
                empty.append((path, error))
        for path, its_error in empty if len(empty) < len(results) else ():
            if file_size(path) == 0:
                self.fail(path, its_error)
        return results

    def judge(self, max_rejected_share: float) -> None:
        """Marks the span as broken if too many of its rows were rejected."""
        read, rejected = self.tally.get("read", 0), self.tally.get("rejected", 0)
        if rejected <= max_rejected_share * read:
            return
        reason = max(self.tally["by_reason"].items(), key=lambda entry: entry[1])[0]
        first = self.tally["examples"][reason][0]
        self.broken = (
            f"{rejected / read:.2%} of its rows were rejected ({rejected} of {read}), at most"
            f" {max_rejected_share:.2%} may be; most often: {reason}, first in"
            f" {first['file']}, line {first['line']}: {first['row'][:80]!r}"
        )
        rule = f"Span {self.name} must have few bad rows: {self.broken}."
        self.error = RecsysError("R263", rule, _CURE)


def has_spans(config: InteractionsConfig) -> bool:
    """Returns whether a pattern of the interactions has spans."""
    return any(span_pattern(pattern) is not None for pattern in patterns(config.files))


def has_days(config: InteractionsConfig) -> bool:
    """Returns whether the spans are days; then days can be missing."""
    span_patterns = [span_pattern(pattern) for pattern in patterns(config.files)]
    return all(pattern.has_dates for pattern in span_patterns if pattern is not None)


def read_window(config: InteractionsConfig) -> list[Span]:
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
        window.append(Span(number, name, max(versions), paths, places))
    return window


def read_spans(
    config: InteractionsConfig, read: Callable[[InteractionsConfig], Any]
) -> tuple[list[str], RecsysError | None]:
    """Reads each file of the interactions before a run, span by span.

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
    spans = read_window(config)
    for span in spans:
        span.read_files(config, read)
        if span.error is not None and config.bad_spans == "stop":
            raise span.error
    broken = [span for span in spans if span.error is not None]
    return [span.name for span in broken], broken[-1].error if broken else None


def check_sources(data: DataConfig) -> None:
    """Checks the start of every raw file, and that every table can be read.

    Raises:
        RecsysError: A file is missing, can't be read, is empty, has another
            format, or lacks a column.
        UsageError: The config describes no format or no span.
    """
    for what, source in {"interactions": data.interactions, **data.sides}.items():
        columns = source_columns(source)
        if isinstance(source.format, Table):
            source.format.reach(table_columns(source, columns))
        elif isinstance(source, InteractionsConfig):
            read_spans(source, lambda own: plan_pieces(own, what, columns, WHOLE_FILES))  # noqa: B023
        else:
            plan_pieces(source, what, columns, WHOLE_FILES)


# --- digests


def digest_spans(spans: Sequence[Span], root: Path) -> list[str | RecsysError]:
    """Returns a digest of the paths and contents of each span's files, or why there is none.

    Args:
        spans: The spans.
        root: Folder of the content cache, which stores digests of unchanged files.
    """
    known, used = read_map(root / _DIGESTS), dict[str, list[Any]]()
    digests: list[str | RecsysError] = []
    for span in spans:
        try:
            digests.append(key_of([[path, _digest(path, known, used)] for path in span.paths]))
        except RecsysError as error:
            digests.append(error)
    if used != known:
        root.mkdir(parents=True, exist_ok=True)
        commit_text(json.dumps(used) + "\n", root / _DIGESTS)
    return digests


def _digest(path: str, known: dict[str, Any], used: dict[str, list[Any]]) -> str:
    """Returns the digest of a file: the known one, if the file hasn't changed since."""
    if is_url(path):
        return content_digest(path).hex()
    now, stamp = time.time_ns(), _stamp(path)
    *known_stamp, digest = known.get(path, [None])
    if known_stamp != stamp:
        digest = content_digest(path).hex()
    # A file that has just changed may change again without a new time stamp.
    if stamp[-1] < now - _SETTLED_NS:
        used[path] = [*stamp, digest]
    return str(digest)


def window_digest(config: InteractionsConfig, root: Path) -> str:
    """Returns a digest of all files of the window; an unreadable file counts by its error.

    Args:
        config: Files to read.
        root: Folder of the content cache, which stores digests of unchanged files.

    Raises:
        RecsysError: A pattern matches no file.
        UsageError: A pattern's spans are wrong.
    """
    spans = read_window(config)
    digests = map(str, digest_spans(spans, root))
    return key_of([[s.number, s.version, d] for s, d in zip(spans, digests, strict=True)])


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
