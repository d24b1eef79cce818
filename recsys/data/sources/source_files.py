"""The files of a config, given by globs and spans; their sizes and bytes.

A file's size is read once, and no more bytes than that are read later, so that every reader
of a growing file gets the same rows. A file that was truncated or replaced is an error.

Spans have the same syntax as in TFX's ExampleGen: `{SPAN}` is a number that grows with time;
`{YYYY}`, `{MM}` and `{DD}` are a date, whose span is the number of days since 1970. `{VERSION}`
numbers the versions of a span, of which the newest is read. `{SPAN:2}` has two digits.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import fnmatch
import glob
import hashlib
import io
import itertools
import os
import re
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Any, BinaryIO, cast

from recsys.data.config import Files, InteractionsConfig, SourceConfig
from recsys.data.sources.tables import Table
from recsys.data.split import Part
from recsys.errors import RecsysError, UsageError
from recsys.storage.bucket import ConflictError, Entry, is_url, located
from recsys.system.files import open_regular


@dataclasses.dataclass(frozen=True)
class SourceFile:
    """A file of a source.

    Attributes:
        path: Its path or URL.
        size: Its size when it was found [bytes].
    """

    path: str
    size: int


def match_files(source: SourceConfig, what: str) -> list[SourceFile]:
    """Returns the files of a source, by pattern, then by span, then by name.

    A file that matches two patterns occurs twice. Files of interactions for validation or
    evaluation come last, and only once.

    Args:
        source: Files to read. For interactions, all spans are read, or the newest
            `spans`; for other sources, the newest span.
        what: Key of the source in `data`, for errors.

    Raises:
        RecsysError: A pattern matches no file, or a file can't be read.
        UsageError: A pattern's spans are wrong.
    """
    if isinstance(source.format, Table):
        return source.format.files()
    parts = parts_of_files(source, what)
    paths = [path for path, _ in match_paths(source, what) if path not in parts]
    return [SourceFile(path, file_size(path)) for path in (*paths, *parts)]


def parts_of_files(source: SourceConfig, what: str) -> dict[str, Part]:
    """Returns the part of each file that matches `valid_files` or `eval_files` of interactions.

    A file that matches both is held out. Other sources have no parts.

    Raises:
        RecsysError: A pattern matches no file.
    """
    if not isinstance(source, InteractionsConfig):
        return {}
    named: dict[str, Part] = {}
    parts: dict[Part, Files] = {"valid": source.valid_files, "eval": source.eval_files}
    for part, files in parts.items():
        for pattern in patterns(files):
            named |= dict.fromkeys(_match(pattern, pattern, what), part)
    return named


def match_paths(source: SourceConfig, what: str) -> list[tuple[str, tuple[int, int] | None]]:
    """Returns the paths of a source as `match_files` does, with the span and version of each.

    Args:
        source: Files to read.
        what: Key of the source in `data`, for errors.

    Raises:
        RecsysError: A pattern matches no file.
        UsageError: A pattern's spans are wrong.
    """
    if isinstance(source.format, Table):
        return [(file.path, None) for file in source.format.files()]
    n_spans = getattr(source, "spans", None) if what == "interactions" else 1
    matched: list[tuple[str, tuple[int, int] | None]] = []
    spanned: list[tuple[str, tuple[int, int]]] = []
    for pattern in patterns(source.files):
        spans = span_pattern(pattern)
        if spans is None:
            matched += [(path, None) for path in _match(pattern, pattern, what)]
            continue
        newest = spans.newest(_match(spans.as_glob, pattern, what))
        if not newest:
            raise _no_file(pattern, what, "no file with such a span")
        # The newest versions are chosen per pattern, the window of spans over all patterns.
        spanned += newest
    kept = sorted({span for _, (span, _) in spanned})[-n_spans if n_spans else 0 :]
    return [*matched, *(file for file in spanned if file[1][0] in kept)]


def patterns(files: Files) -> tuple[str, ...]:
    """Returns the patterns of a config as a tuple."""
    return (files,) if isinstance(files, str) else files


def _match(pattern: str, named: str, what: str) -> list[str]:
    if is_url(pattern):
        paths = [path for path in _remote_paths(pattern) if not is_skipped(path, pattern)]
    elif Path(pattern).is_file():
        paths = [pattern]
    else:
        found = glob.glob(pattern, recursive=True)
        paths = [path for path in found if not is_skipped(path, pattern)]
        paths = [path for path in paths if not Path(path).is_dir()]
    for path in paths:
        if not is_text(path):  # Dead letters, reports and JSON can't contain it.
            raise RecsysError(
                "R205",
                "The path of a file must be UTF-8 text.",
                "Rename it, for example with mv or convmv.",
                os.fsencode(path),
            )
    if not paths:
        raise _no_match(pattern, named, what)
    return sorted(paths)


def skipped_files(files: Files) -> list[str]:
    """Returns the local files that globs match, but whose names mark them as no data."""
    globs = [span.as_glob if (span := span_pattern(name)) else name for name in patterns(files)]
    return sorted(
        path
        for pattern in globs
        if glob.has_magic(pattern) and not is_url(pattern)
        for path in glob.glob(pattern, recursive=True)
        if is_skipped(path, pattern) and Path(path).is_file()
    )


def is_skipped(path: str, pattern: str) -> bool:
    """Returns whether a path that a glob matches is no data, such as Spark's `_SUCCESS`.

    This is so if the name of the file, or of a folder after the first wildcard, begins with `_`
    or `.`, unless the glob contains that prefix or it is a column, such as `_day=1`.
    """
    parts = pattern.split("/")
    n_plain = next((at for at, part in enumerate(parts) if glob.has_magic(part)), len(parts))
    asked = [part for part in parts if part.startswith(("_", "."))]
    return any(
        name.startswith(("_", "."))
        and "=" not in name
        and not any(fnmatch.fnmatchcase(name, part) for part in asked)
        for name in path.split("/")[n_plain:]
    )


def _no_match(pattern: str, named: str, what: str) -> RecsysError:
    """Returns the error for a pattern without a file."""
    if is_url(pattern) or not (glob.has_magic(pattern) or Path(pattern).is_dir()):
        return _no_file(named, what, "no such file")
    folders = [path for path in sorted(glob.glob(pattern)) if Path(path).is_dir()]
    for folder in folders:
        for rest in ("*", "**/*"):
            deeper = os.path.join(pattern, rest)
            files = (path for path in glob.iglob(deeper, recursive=True) if Path(path).is_file())
            if any(not is_skipped(path, deeper) for path in files):
                received = f"a folder: {folder}"
                return _no_file(named, what, received, f"Name the files in it: {deeper}.")
    return _no_file(named, what, "a folder without files" if folders else "no file matches")


def is_text(name: str) -> bool:
    """Returns whether a name can be encoded as UTF-8, without lone surrogates."""
    return not any("\ud800" <= char <= "\udfff" for char in name)


def _no_file(pattern: str, what: str, received: str, cure: str = "") -> RecsysError:
    return RecsysError(
        "R201",
        f"{pattern!r} must name at least one file.",
        cure or f"Correct data.{what}.files.",
        received,
    )


# --- spans

_PART = re.compile(r"(\{[A-Z]+(?::[^}]*)?\}|\*\*/|\*\*|\*|\?|\[!?\]?[^\]]*\])")
_SPEC = re.compile(r"\{(SPAN|VERSION|YYYY|MM|DD)(?::(\d+))?\}")
_DATE = {"YYYY": 4, "MM": 2, "DD": 2}
_EPOCH = dt.date(1970, 1, 1)


@dataclasses.dataclass(frozen=True)
class SpanPattern:
    """A pattern of files with spans.

    Attributes:
        as_glob: Glob that matches the files of all spans, and maybe others.
        regex: Regular expression of paths, with a group for each part of the span.
    """

    as_glob: str
    regex: re.Pattern[str]

    @property
    def has_dates(self) -> bool:
        """Whether a span is a day."""
        return "YYYY" in self.regex.groupindex

    def span_of(self, path: str) -> tuple[int, int] | None:
        """Returns the span and version of a path; `None` if it has none."""
        match = self.regex.fullmatch(path)
        if match is None:
            return None
        parts = {name: int(text) for name, text in match.groupdict().items()}
        version = parts.get("VERSION", 0)
        if "SPAN" in parts:
            return parts["SPAN"], version
        try:
            day = dt.date(parts["YYYY"], parts["MM"], parts["DD"])
        except ValueError:
            return None
        return (day - _EPOCH).days, version

    def newest(self, paths: Iterable[str]) -> list[tuple[str, tuple[int, int]]]:
        """Returns the files of the newest version of each span, the oldest span first.

        If a wildcard precedes the version, versions are separate for each of its matches:
        `eu/span-1/v2` doesn't replace `us/span-1/v1`.

        Args:
            paths: Files that the glob matched; those without a span are left out.

        Returns:
            Each file with its span and version.
        """
        spans = ((path, self.span_of(path)) for path in paths)
        matched = [(path, span) for path, span in spans if span is not None]
        files = sorted(matched, key=lambda file: (file[1], file[0]))
        newest = {(self._series(path), span): version for path, (span, version) in files}
        return [file for file in files if newest[self._series(file[0]), file[1][0]] == file[1][1]]

    def _series(self, path: str) -> str:
        """Returns the part of a path before the version, within which versions count."""
        match = self.regex.fullmatch(path)
        has_versions = match is not None and "VERSION" in match.groupdict()
        return path[: match.start("VERSION")] if match and has_versions else ""


def day_name(span: int) -> str:
    """Returns the date of a span of days, in ISO 8601."""
    return (_EPOCH + dt.timedelta(days=span)).isoformat()


def span_pattern(pattern: str) -> SpanPattern | None:
    """Returns the spans of a pattern; `None` if it has none.

    Raises:
        UsageError: The placeholders don't form a span.
    """
    parts = _PART.split(pattern)
    specs = [part for part in parts if re.match(r"\{[A-Z]", part)]
    if not specs:
        return None
    names = [match[1] if (match := _SPEC.fullmatch(spec)) else spec for spec in specs]
    if len(set(names)) < len(names) or set(names) - {"VERSION"} not in ({"SPAN"}, set(_DATE)):
        raise UsageError(
            "R251",
            "A pattern with spans must hold {SPAN}, or {YYYY}, {MM} and {DD}, each once, "
            "and may hold {VERSION}.",
            "Write, for example, logs/{YYYY}-{MM}-{DD}/*.parquet or span-{SPAN}/v{VERSION}/*.",
            pattern,
        )
    regex = re.compile("".join(map(_part_regex, parts)), re.DOTALL)
    return SpanPattern(_SPEC.sub("*", pattern), regex)


def _part_regex(part: str) -> str:
    """Returns the regular expression for a part of a glob."""
    if spec := _SPEC.fullmatch(part):
        width = spec[2] or _DATE.get(spec[1])
        return f"(?P<{spec[1]}>" + (rf"\d{{{width}}})" if width else r"\d+)")
    if part.startswith("**"):
        return "(?:.*/)?" if part == "**/" else ".*"
    if part.startswith("[") and _PART.fullmatch(part):
        return fnmatch.translate(part).removeprefix("(?s:").removesuffix(r")\Z")
    is_glob = _PART.fullmatch(part)
    return ("[^/]*" if part == "*" else "[^/]") if is_glob else re.escape(part)


# --- sizes and bytes

_END_BYTES = 1 << 16


def file_size(path: str) -> int:
    """Returns the size of a file [bytes].

    Raises:
        RecsysError: The file doesn't exist, or it is a pipe, a socket, a device or a folder.
    """
    if is_url(path):
        return _remote_entry(path).size
    try:
        status = Path(path).stat()
    except (OSError, ValueError) as error:
        raise unreadable(path, getattr(error, "strerror", None) or str(error)) from None
    if not stat.S_ISREG(status.st_mode):  # Others may never end, or aren't seekable.
        kinds = {stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket", stat.S_IFDIR: "a folder"}
        raise RecsysError(
            "R205",
            f"{path!r} must be a regular file.",
            "Write its output into a file, and name that.",
            kinds.get(stat.S_IFMT(status.st_mode), "a device"),
        )
    return status.st_size


def open_file(path: str) -> BinaryIO:
    """Opens a seekable file for reading.

    Raises:
        RecsysError: It can't be opened.
    """
    try:
        if is_url(path):
            return located(path)[0].open(_remote_entry(path))
        return open_regular(path)  # It may have become a pipe.
    except OSError as error:
        raise unreadable(path, error.strerror or str(error)) from None


def unreadable(path: str, received: str) -> RecsysError:
    """Returns the error for a file that can't be opened."""
    return RecsysError(
        "R205",
        f"{path!r} must be a readable file.",
        "Check the path and its permissions.",
        received,
    )


class Section(io.RawIOBase):
    """The bytes of a file from `start` to `stop`, never more.

    Args:
        path: The file.
        start: First byte.
        stop: End, exclusive.

    Raises:
        RecsysError: The file can't be opened, or ends before `stop` while it is read.
    """

    def __init__(self, path: str, start: int, stop: int) -> None:
        super().__init__()
        self._path, self._stop, self._at = path, stop, start
        self._file = open_file(path)
        self._file.seek(start)

    def readable(self) -> bool:
        """Returns True."""
        return True

    def readinto(self, buffer: Any, /) -> int:
        """Fills a buffer with the next bytes; returns their number."""
        wanted = memoryview(buffer)[: self._stop - self._at]
        try:
            n_bytes = cast(io.BufferedReader, self._file).readinto(wanted)
        except (ConflictError, FileNotFoundError):
            raise replaced(self._path) from None
        if not n_bytes and len(wanted):
            raise RecsysError(
                "R250",
                f"{self._path!r} must not get shorter while it is read: it had {self._stop:,}"
                " bytes.",
                f"All up to byte {self._at:,} could be read. Write the file whole again, and run"
                " again.",
                f"{self._at:,} bytes",
            )
        self._at += n_bytes
        return n_bytes

    def close(self) -> None:
        """Closes the file."""
        if not self.closed:
            self._file.close()
        super().close()


def ends_digest(path: str, size: int) -> str:
    """Returns a digest of the first and the last bytes of a file; for an object, its tag.

    It stays the same if the file grows.

    Args:
        path: The file.
        size: Size of the part of the file to consider [bytes].

    Raises:
        RecsysError: The file can't be read, or is shorter.
    """
    if is_url(path):
        return str(_remote_entry(path).tag)
    n_bytes, digest = min(size, _END_BYTES), hashlib.sha256()
    for start in (0, size - n_bytes):
        with io.BufferedReader(Section(path, start, start + n_bytes)) as section:
            digest.update(section.read(n_bytes))
    return digest.hexdigest()


def replaced(path: str) -> RecsysError:
    """Returns the error for a file that was replaced."""
    return RecsysError(
        "R250",
        f"{path!r} must not be replaced while it is read.",
        "Run again when it is complete, or give each version of it a name of its own.",
        "other bytes than at the start",
    )


def files_digest(files: Iterable[SourceFile]) -> str:
    """Returns a digest of the names and contents of files, and of columns in folder names.

    For objects the store's tag is used.
    """
    digest = hashlib.sha256()
    for file in files:
        folders, _, name = file.path.rpartition("/")
        columns = [part for part in folders.split("/") if "=" in part]
        named = "/".join([*columns, name])
        digest.update(named.encode() + b"\0" + content_digest(file.path))
    return digest.hexdigest()


def content_digest(path: str) -> bytes:
    """Returns a digest of a file's content; for an object, its size and the store's tag.

    Raises:
        RecsysError: The file can't be read.
    """
    if is_url(path):
        entry = _remote_entry(path)
        return f"{entry.size} {entry.tag}".encode()
    try:
        with open_file(path) as stream:
            return hashlib.file_digest(cast(io.BufferedReader, stream), "sha256").digest()
    except OSError as error:
        raise unreadable(path, error.strerror or str(error)) from None


# --- objects in buckets


def _remote_paths(pattern: str) -> list[str]:
    """Returns the URLs of the objects that a glob matches."""
    bucket, key = located(pattern)
    if not glob.has_magic(key):
        return [] if bucket.head(key) is None else [pattern]
    plain = "/".join(itertools.takewhile(lambda part: not glob.has_magic(part), key.split("/")))
    regex = re.compile("".join(map(_part_regex, _PART.split(key))), re.DOTALL)
    return [bucket.at(e.key) for e in bucket.list(plain) if regex.fullmatch(e.key)]


def _remote_entry(path: str) -> Entry:
    bucket, key = located(path)
    entry = bucket.head(key)
    if entry is None:
        raise unreadable(path, "no such object")
    return entry
