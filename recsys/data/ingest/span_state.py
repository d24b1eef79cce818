"""A span of a night: whether it is kept, has to be read, is empty or is broken."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from recsys.data.ingest.read_rows import BrokenSpanError, plan_span
from recsys.data.ingest.tally import Tally
from recsys.config import InteractionsConfig, canonical_json
from recsys.data.ingest.span_report import bad_rows, unreadable_span
from recsys.data.ingest.cache import Kept, KeptFolder, key_of
from recsys.data.ingest.span_rows import totals
from recsys.data.ingest.window import Digests, SpanFiles, read_window
from recsys.data.sources.pieces import Piece
from recsys.errors import RecsysError, UsageError


@dataclasses.dataclass(eq=False)
class NightSpan:
    """A span of a night.

    Attributes:
        files: Its files.
        key: Equal for equal files, config and code.
        kept: What was made of it; None if it has to be read, is empty, or can't be.
        pieces: What has to be read of it.
        is_reused: Whether an earlier run has read it.
        broken: What is wrong with it, if anything is.
        error: The error that says so.
    """

    files: SpanFiles
    key: str
    kept: KeptFolder | None = None
    pieces: tuple[Piece, ...] = ()
    is_reused: bool = False
    broken: str | None = None
    error: RecsysError | None = None

    @property
    def name(self) -> str:
        """Name of its kept folder."""
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
        """What was said of it when it was read."""
        return self.kept.facts if self.kept is not None else {}

    @property
    def path(self) -> Path:
        """Its kept folder."""
        if self.kept is None:
            raise ValueError(f"{self.name} isn't kept")
        return self.kept.path

    @property
    def tally(self) -> Tally:
        """What was counted of its rows."""
        return dict(self.facts.get("tally", {}))

    @property
    def n_good(self) -> int:
        """Its good rows, without those that are duplicates within it."""
        return sum(totals(self.facts.get("days", [])).values())

    @property
    def n_buckets(self) -> int:
        """Buckets that its rows lie in."""
        return len(self.facts["days"])

    def fail(self, file: str, error: RecsysError) -> None:
        """Says that a file of it can't be read."""
        self.broken, self.error = f"{file}: {error}", unreadable_span(self.files.name, file, error)

    def judge(self, max_rejected_share: float) -> None:
        """Calls it broken if too many of its rows were rejected."""
        read, rejected = self.tally.get("read", 0), self.tally.get("rejected", 0)
        if rejected <= max_rejected_share * read:
            return
        by_reason = sorted(self.tally["by_reason"].items(), key=lambda one: -one[1])
        reason = by_reason[0][0]
        first = self.tally["examples"][reason][0]
        self.broken = (
            f"{rejected / read:.2%} of its rows were rejected ({rejected} of {read}), at most"
            f" {max_rejected_share:.2%} may be; most often: {reason}, first in"
            f" {first['file']}, line {first['line']}: {first['row'][:80]!r}"
        )
        self.error = bad_rows(self.files.name, self.broken)


def settings_of(config: InteractionsConfig, code: str) -> list[str]:
    """Returns what decides, beside the files of a span, what its rows become.

    Args:
        config: Which column holds what.
        code: Fingerprint of the code.
    """
    free = {"files": (), "query": "", "spans": None, "bad_spans": "stop"}
    return [code, canonical_json(config.model_copy(update=free))]


def unread_files(config: InteractionsConfig, kept: Path, code: str) -> list[str]:
    """Returns the files of the window that a run will read, as far as can be told at once.

    Args:
        config: What to read; its files have spans.
        kept: Folder of what is kept from run to run.
        code: Fingerprint of the code.
    """
    settings, digests = settings_of(config, code), Digests(kept)
    unread: list[str] = []
    for files in read_window(config):
        try:
            name = _name(key_of("span", settings, digests.of_span(files)))
        except RecsysError:  # It can't be read.
            continue
        if not (kept / name).is_dir():
            unread += files.paths
    return unread


def look_at(
    files: SpanFiles,
    config: InteractionsConfig,
    settings: Sequence[str],
    digests: Digests,
    kept: Kept,
    now: int,
) -> NightSpan:
    """Returns a span with what is kept of it, or with what has to be read.

    Args:
        files: Its files.
        config: Which column holds what.
        settings: What else decides what its rows become.
        digests: Digests of files.
        kept: What earlier runs have kept.
        now: The latest time that a row may have [seconds since 1970, UTC].

    Raises:
        UsageError: The config describes no format.
    """
    try:
        span = NightSpan(files, key_of("span", list(settings), digests.of_span(files)))
    except UsageError:
        raise
    except RecsysError as error:
        span = NightSpan(files, key_of("span", files.name, str(error)))
        span.fail(", ".join(files.paths[:1]), error)
        return span
    found = kept.find(span.name)
    # A row whose time was to come is a good one when it has come.
    if found is not None and (found.facts["future"] is None or found.facts["future"] > now):
        span.kept, span.is_reused = found, True
        return span
    try:
        span.pieces = tuple(plan_span(config, files.paths))
    except BrokenSpanError as broken:
        span.fail(broken.file, broken.error)
    return span


def _name(key: str) -> str:
    return f"span-{key}"
