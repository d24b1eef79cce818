"""The spans of a rolling window: files, rows, state (cached, to be read, broken) and report.

Segments are made from the rows of spans. Each bucket of a span's users has a file,
`rows-00007.arrow`, sorted by time: a day is a slice of it.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from recsys.data import entities, interactions
from recsys.data.config import DataConfig, InteractionsConfig
from recsys.data.dead_letters import Tally
from recsys.data.hashes import hash_buckets
from recsys.data.ingest.cache import CachedFolder, ContentCache, key_of
from recsys.data.interactions import (
    POSITION,
    POSITION_FILE_BITS,
    drop_duplicates,
    interaction_columns,
)
from recsys.data.labels import without_working
from recsys.data.sources.pieces import EMPTY, WHOLE_FILES, Piece, plan_pieces
from recsys.data.sources.source_files import (
    content_digest,
    day_name,
    file_size,
    is_remote,
    match_files,
    match_paths,
    patterns,
    span_pattern,
)
from recsys.data.split import DAY_S, TIME
from recsys.errors import RecsysError, UsageError
from recsys.strict import canonical_json
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


Days = list[list[int]]
"""`[day, rows, positives]` of each UTC day [days since 1970], ascending."""
_BATCH_ROWS = 1 << 20
_PART = "recsys:part"  # No column of interactions has this name.


def write_span_rows(
    folder: Path, bucket: int, rows: pa.Table, by_time: bool = True
) -> dict[str, Any]:
    """Writes the rows of one bucket of a span, without duplicates.

    Args:
        folder: Folder of the span.
        bucket: Index of the bucket, by the hash of the user.
        rows: Interactions with a column `position`; all rows of their users.
        by_time: Whether to sort them by time, so that days are slices.

    Returns:
        `rows` and `duplicates`: numbers of rows written and dropped; `days`, empty without times.
    """
    kept, n_dropped = drop_duplicates(with_codes(rows))
    days: Days = []
    if TIME.name in kept.column_names:
        time = kept[TIME.name].to_numpy()
        if by_time:
            order = np.argsort(time, kind="stable")
            kept, time = kept.take(pa.array(order)), time[order]
        days = _count_days(time // DAY_S, kept["label"].to_numpy() == 1)
    with (
        pa.OSFile(str(folder / _bucket_file(bucket)), "wb") as sink,
        pa.ipc.new_file(sink, kept.schema) as writer,
    ):
        writer.write_table(kept, _BATCH_ROWS)
    return {"rows": kept.num_rows, "duplicates": n_dropped, "days": days}


def with_codes(rows: pa.Table) -> pa.Table:
    """Returns rows with the ids of users and items dictionary-encoded, in one chunk each."""
    for name in ("user_id", "item_id"):
        at, ids = rows.column_names.index(name), rows[name].combine_chunks()
        rows = rows.set_column(at, name, ids.dictionary_encode())
    return rows


def _count_days(day: np.ndarray, is_positive: np.ndarray) -> Days:
    """Returns the days, from those `[n]` of the rows and whether these are positives `[n]`."""
    if not len(day):
        return []
    first = int(day.min())
    rows = np.bincount(day - first)
    positives = np.bincount(day[is_positive] - first, minlength=len(rows))
    used = np.flatnonzero(rows)
    return np.stack([first + used, rows[used], positives[used]], axis=1).tolist()


def _bucket_file(bucket: int) -> str:
    return f"rows-{bucket:05d}.arrow"


@dataclasses.dataclass(frozen=True)
class SpanRows:
    """The rows of a span.

    Attributes:
        folder: Their folder.
        key: Hash of the files, the config and the code that they were made from.
        file_indices: Index of each of its files among all files of the window.
        buckets: The result of `write_span_rows` for each bucket; empty for one without rows.
            Their number is a power of two.
    """

    folder: Path
    key: str
    file_indices: tuple[int, ...]
    buckets: Sequence[dict[str, Any]]

    def days(self, column: int = 1) -> dict[int, int]:
        """Returns the rows of each day over all buckets; with `column` 2 the positives."""
        totals: Counter[int] = Counter()
        for bucket in self.buckets:
            for day in bucket.get("days", []):
                totals[day[0]] += day[column]
        return dict(sorted(totals.items()))

    def part(self, first: int, last: int) -> SpanPart:
        """Returns the rows of the days `first` … `last`."""
        slices = []
        for bucket in self.buckets:
            days = bucket.get("days", [])
            before = sum(rows for day, rows, _ in days if day < first)
            slices.append((before, sum(rows for day, rows, _ in days if first <= day <= last)))
        return SpanPart(self.folder, self.file_indices, tuple(slices))


@dataclasses.dataclass(frozen=True)
class SpanPart:
    """The rows of some days in one span.

    Attributes:
        folder: Folder of the span.
        file_indices: Index of each of its files among all files of the window.
        slices: For each bucket, the first row and the number of rows of these days.
    """

    folder: Path
    file_indices: tuple[int, ...]
    slices: tuple[tuple[int, int], ...]

    def read(self, bucket: int, n_buckets: int) -> pa.Table | None:
        """Returns the rows of `bucket` of `n_buckets`, a multiple of the span's, or None.

        Their positions are relative to all files of the window.
        """
        own = bucket % len(self.slices)
        start, length = self.slices[own]
        if not length:
            return None
        with pa.memory_map(str(self.folder / _bucket_file(own))) as file:
            rows = pa.ipc.open_file(file).read_all().slice(start, length)
        if n_buckets > len(self.slices):
            buckets = hash_buckets(rows["user_id"].combine_chunks(), n_buckets)
            rows = rows.filter(pa.array(buckets == bucket))
        position = rows[POSITION.name].to_numpy()
        file_index = position >> POSITION_FILE_BITS
        place = np.array(self.file_indices, np.int64)[file_index]
        moved = position + ((place - file_index) << POSITION_FILE_BITS)
        at = rows.column_names.index(POSITION.name)
        return rows.set_column(at, POSITION, pa.array(moved, POSITION.type))


def join_parts(
    parts: Sequence[SpanPart], bucket: int, n_buckets: int
) -> tuple[pa.Table | None, list[int]]:
    """Returns the rows of a bucket of a segment, and the number of duplicates in each part.

    Of duplicate rows, the one in the first file is kept.
    """
    read = [part.read(bucket, n_buckets) for part in parts]
    tables = [
        rows.append_column(_PART, pa.array(np.full(rows.num_rows, at, np.int32)))
        for at, rows in enumerate(read)
        if rows is not None
    ]
    if not tables:
        return None, [0] * len(parts)
    # There are no duplicates within a span.
    rows = tables[0] if len(tables) == 1 else drop_duplicates(pa.concat_tables(tables))[0]
    left = np.bincount(rows[_PART].to_numpy(), minlength=len(parts))
    before = [0 if table is None else table.num_rows for table in read]
    final = without_working(rows.drop_columns([_PART, POSITION.name]))
    return final, (np.array(before) - left).tolist()


@dataclasses.dataclass(eq=False)
class WindowSpan:
    """A span of a run.

    Attributes:
        files: Its files.
        key: Key that is equal for equal files, config and code.
        rows: Its rows, once they are read; None if it is empty, or can't be read.
        pieces: Pieces that must be read.
        is_reused: Whether an earlier run read it.
        broken: Reason why it is broken; None if it isn't.
        error: The error of the span.
        cause: The error of the file that can't be read.
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
        return f"span-{self.key}"

    @property
    def tally(self) -> Tally:
        """Counts of its rows."""
        return {} if self.rows is None else self.rows.facts["tally"]

    @property
    def span_rows(self) -> SpanRows:
        """Its rows; empty if it has none."""
        folder, buckets = Path(), []
        if self.rows is not None:
            folder, buckets = self.rows.path, self.rows.facts["buckets"]
        return SpanRows(folder, self.key, self.files.file_indices, buckets)

    def count(self, what: str) -> int:
        """Returns its number of `rows` (good ones) or `duplicates`."""
        return sum(bucket.get(what, 0) for bucket in self.span_rows.buckets)

    def fail(self, file: str, error: RecsysError) -> None:
        """Marks the span as broken, since one of its files can't be read."""
        self.broken, self.cause = f"{file}: {error}", error
        self.error = unreadable_span(self.files.name, file, error)

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
        rule = f"Span {self.files.name} must have few bad rows: {self.broken}."
        self.error = RecsysError("R263", rule, BROKEN_CURE)


def settings_of(config: InteractionsConfig, code: str) -> list[str]:
    """Returns the settings that, besides its files, determine the rows of a span.

    Args:
        config: Columns and types.
        code: Fingerprint of the code.
    """
    free = {"files": (), "query": "", "spans": None, "bad_spans": "stop"}
    return [code, canonical_json(config.model_copy(update=free))]


def span_of_files(config: InteractionsConfig) -> WindowSpan:
    """Returns the files of a config without spans, as a single span.

    Raises:
        RecsysError: A file can't be read, or isn't what the config says.
    """
    pieces = plan_pieces(config, "interactions", interaction_columns(config))
    paths = tuple(file.path for file in match_files(config, "interactions"))
    files = SpanFiles(None, "files", 0, paths, tuple(range(len(paths))))
    return WindowSpan(files, key_of("span", list(paths)), pieces=tuple(pieces))


def find_spans(
    config: InteractionsConfig, settings: Sequence[str], cache: ContentCache, now: int
) -> list[WindowSpan]:
    """Returns the spans of a window, each with its cached rows or the pieces to read.

    Args:
        config: Files to read.
        settings: The result of `settings_of`.
        cache: The content cache.
        now: The latest valid time of a row [seconds since 1970, UTC].

    Raises:
        RecsysError: A pattern matches no file.
        UsageError: The config describes no format, or no span.
    """
    digests = Digests(cache.root)
    spans = []
    for files in read_window(config):
        try:
            span = WindowSpan(files, key_of("span", list(settings), digests.of_span(files)))
        except RecsysError as error:
            span = WindowSpan(files, key_of("span", files.name, str(error)))
            span.fail(files.paths[0], error)
        else:
            rows = cache.find(span.name)
            # A row from the future becomes valid when its time has passed.
            if rows is not None and (rows.facts["future"] is None or rows.facts["future"] > now):
                span.rows, span.is_reused = rows, True
            else:
                _plan(span, config)
        spans.append(span)
    digests.save()
    return spans


def _plan(span: WindowSpan, config: InteractionsConfig) -> None:
    """Plans how a span is read; a broken file makes the whole span broken.

    An empty file among files with rows may be one whose writing was interrupted.
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


# --- the report: `spans.json`


class Seen:
    """The spans that earlier runs with the same root have read.

    Args:
        root: Folder that stores them.
        run: Identity of this run; equal for runs that read the same files.
    """

    def __init__(self, root: Path, run: str) -> None:
        self._file, self._run = root / "seen.json", run
        self._first_read = {int(span): str(by) for span, by in read_map(self._file).items()}
        earlier = [span for span, by in self._first_read.items() if by != run]
        self._newest = max(earlier, default=None)

    def is_new(self, span: int) -> bool:
        """Returns whether no other run has read the span."""
        return self._first_read.get(span, self._run) == self._run

    def is_late(self, span: int) -> bool:
        """Returns whether the span is new, and older than one that was read before."""
        return self._newest is not None and span < self._newest and self.is_new(span)

    def remember(self, spans: Iterable[int]) -> None:
        for span in spans:
            self._first_read.setdefault(span, self._run)
        by_text = {str(span): by for span, by in sorted(self._first_read.items())}
        commit_text(json.dumps(by_text, indent=1) + "\n", self._file)


def report_span(span: WindowSpan, seen: Seen, dropped: int) -> dict[str, Any]:
    """Returns the entry of a span in `spans.json`.

    Its `state` is `read` in this run, `reused` from an earlier one, `empty` (without rows),
    `set_aside` because it is broken, or `missing`: no file has this day. It is `new` if no
    other run has read it, and `late` if it is also older than one that was read before;
    `reason` is a sentence on its state.

    Args:
        span: A span with a number.
        seen: The spans that earlier runs have read.
        dropped: Number of its rows that equal rows of earlier spans.
    """
    number = span.files.span or 0
    read, rejected = span.tally.get("read", 0), span.tally.get("rejected", 0)
    duplicates = dropped + span.count("duplicates")
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
        "name": span.files.name,
        "version": span.files.version,
        "files": len(span.files.paths),
        "rows": read,
        "rejected": rejected,
        "duplicates": duplicates,
        "state": state,
        "late": seen.is_late(number),
        "new": is_new,
        "reason": reason,
    }


def with_missing(reports: Sequence[dict[str, Any]], are_days: bool) -> list[dict[str, Any]]:
    """Returns reports, the oldest first, with entries for missing days in between.

    No day is missing if spans are numbers, or if most days are further apart than one: weekly
    files don't have gaps of six days.
    """
    by_span = {report["span"]: report for report in reports}
    numbers = sorted(by_span)
    steps = collections.Counter(b - a for a, b in itertools.pairwise(numbers))
    if are_days and steps and steps.most_common(1)[0][0] == 1:
        none = dict.fromkeys(("version", "files", "rows", "rejected", "duplicates"), 0)
        state = {"state": "missing", "late": False, "new": False, "reason": "no file has this day"}
        for span in range(numbers[0], numbers[-1]):
            by_span.setdefault(span, {"span": span, "name": day_name(span), **none, **state})
    return [by_span[span] for span in sorted(by_span)]
