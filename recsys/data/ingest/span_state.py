"""State of a span of a window: cached, to be read, empty, or broken."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from recsys.config import InteractionsConfig, canonical_json
from recsys.data.ingest.cache import CachedFolder, ContentCache, key_of
from recsys.data.ingest.span_rows import Days
from recsys.data.ingest.tally import Tally
from recsys.data.ingest.window import (
    Digests,
    SpanFiles,
    bad_rows,
    read_window,
    restrict,
    unreadable_span,
)
from recsys.data.interactions import interaction_columns
from recsys.data.sources.files import file_size, match_files
from recsys.data.sources.pieces import EMPTY, Piece, plan_pieces
from recsys.errors import RecsysError, UsageError


@dataclasses.dataclass(eq=False)
class WindowSpan:
    """A span of a run.

    Attributes:
        files: Its files.
        key: Equal for equal files, config and code.
        rows: Its rows, once they are read; None if it is empty, or can't be read.
        pieces: What has to be read of it.
        is_reused: Whether an earlier run has read it.
        broken: Why it is broken; None if it isn't.
        error: The error of the span.
        cause: The error of its file that can't be read.
    """

    files: SpanFiles
    key: str
    rows: CachedFolder | None = None
    pieces: tuple[Piece, ...] = ()
    is_reused: bool = False
    broken: str | None = None
    error: RecsysError | None = None
    cause: RecsysError | None = None

    @property
    def name(self) -> str:
        """Name of its cached folder."""
        return _name(self.key)

    @property
    def is_numbered(self) -> bool:
        """Whether it is a span, and not the files that have none."""
        return self.files.span is not None

    @property
    def is_used(self) -> bool:
        """Whether it isn't broken; it may be empty."""
        return self.broken is None

    @property
    def facts(self) -> dict[str, Any]:
        """The facts of its rows; empty without rows."""
        return self.rows.facts if self.rows is not None else {}

    @property
    def path(self) -> Path:
        """Folder of its rows."""
        if self.rows is None:
            raise ValueError(f"{self.name} has no rows")
        return self.rows.path

    @property
    def tally(self) -> Tally:
        """What was counted of its rows."""
        return dict(self.facts.get("tally", {}))

    @property
    def buckets(self) -> list[dict[str, Any]]:
        """The facts of each of its buckets; empty ones of buckets without rows."""
        return list(self.facts.get("buckets", []))

    @property
    def days(self) -> list[Days]:
        """The days of each of its buckets."""
        return [bucket.get("days", []) for bucket in self.buckets]

    @property
    def n_good(self) -> int:
        """Its good rows, without those that are duplicates within it."""
        return sum(bucket.get("rows", 0) for bucket in self.buckets)

    @property
    def n_duplicates(self) -> int:
        """Its rows that are duplicates within it."""
        return sum(bucket.get("duplicates", 0) for bucket in self.buckets)

    def fail(self, file: str, error: RecsysError) -> None:
        """Marks it as broken: a file of it can't be read."""
        self.broken, self.cause = f"{file}: {error}", error
        self.error = unreadable_span(self.files.name, file, error)

    def judge(self, max_rejected_share: float) -> None:
        """Marks it as broken if too many of its rows were rejected."""
        read, rejected = self.tally.get("read", 0), self.tally.get("rejected", 0)
        if rejected <= max_rejected_share * read:
            return
        by_reason = sorted(self.tally["by_reason"].items(), key=lambda entry: -entry[1])
        reason = by_reason[0][0]
        first = self.tally["examples"][reason][0]
        self.broken = (
            f"{rejected / read:.2%} of its rows were rejected ({rejected} of {read}), at most"
            f" {max_rejected_share:.2%} may be; most often: {reason}, first in"
            f" {first['file']}, line {first['line']}: {first['row'][:80]!r}"
        )
        self.error = bad_rows(self.files.name, self.broken)


def settings_of(config: InteractionsConfig, code: str) -> list[str]:
    """Returns the settings that, beside the files of a span, determine its rows.

    Args:
        config: Which column holds what.
        code: Fingerprint of the code.
    """
    free = {"files": (), "query": "", "spans": None, "bad_spans": "stop"}
    return [code, canonical_json(config.model_copy(update=free))]


def unread_files(config: InteractionsConfig, cache: Path, code: str) -> list[str]:
    """Returns the files of the window whose spans aren't cached, which a run will read.

    Args:
        config: What to read; its files have spans.
        cache: Folder of the content cache.
        code: Fingerprint of the code.
    """
    settings, digests = settings_of(config, code), Digests(cache)
    unread: list[str] = []
    for files in read_window(config):
        try:
            name = _name(key_of("span", settings, digests.of_span(files)))
        except RecsysError:  # It can't be read.
            continue
        if not (cache / name).is_dir():
            unread += files.paths
    return unread


def span_of_files(config: InteractionsConfig) -> WindowSpan:
    """Returns the files of a config without spans, which are one.

    Raises:
        RecsysError: A file can't be read, or isn't what the config says.
    """
    pieces = plan_pieces(config, "interactions", interaction_columns(config))
    paths = tuple(file.path for file in match_files(config, "interactions"))
    files = SpanFiles(None, "files", 0, paths, tuple(range(len(paths))))
    return WindowSpan(files, key_of("span", list(paths)), pieces=tuple(pieces))


def find_span(
    files: SpanFiles,
    config: InteractionsConfig,
    settings: Sequence[str],
    digests: Digests,
    cache: ContentCache,
    now: int,
) -> WindowSpan:
    """Returns a span with what is cached of it, or with what has to be read.

    Args:
        files: Its files.
        config: Which column holds what.
        settings: The result of `settings_of`.
        digests: Digests of files.
        cache: The content cache.
        now: The latest time that a row may have [seconds since 1970, UTC].

    Raises:
        UsageError: The config describes no format.
    """
    try:
        span = WindowSpan(files, key_of("span", list(settings), digests.of_span(files)))
    except UsageError:
        raise
    except RecsysError as error:
        span = WindowSpan(files, key_of("span", files.name, str(error)))
        span.fail(", ".join(files.paths[:1]), error)
        return span
    rows = cache.find(span.name)
    # A row whose time was to come is a good one when it has come.
    if rows is not None and (rows.facts["future"] is None or rows.facts["future"] > now):
        span.rows, span.is_reused = rows, True
        return span
    _plan(span, config)
    return span


def _plan(span: WindowSpan, config: InteractionsConfig) -> None:
    """Plans how a span is read; a broken file makes the whole span broken.

    An empty file among others with rows looks like one that wasn't written to its end.
    """
    pieces: list[Piece] = []
    empty: list[tuple[str, RecsysError]] = []
    for index, path in enumerate(span.files.paths):
        try:
            planned = plan_pieces(
                restrict(config, [path]), "interactions", interaction_columns(config)
            )
        except UsageError:
            raise
        except RecsysError as error:
            if error.code != EMPTY:
                span.fail(path, error)
                return
            empty.append((path, error))
            continue
        pieces += [dataclasses.replace(piece, file_index=index) for piece in planned]
    for path, its_error in empty:
        if pieces and file_size(path) == 0:
            span.fail(path, its_error)
            return
    span.pieces = tuple(pieces)


def _name(key: str) -> str:
    return f"span-{key}"
