"""The files that a config names, their sizes, and their bytes.

A file's size is taken once. No more than that is read, so that one which grows
meanwhile gives the same rows to every reader; one that got shorter is an error.
"""

from __future__ import annotations

import dataclasses
import glob
import hashlib
import io
import os
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Any, BinaryIO, cast

from recsys.config import Files, InteractionsConfig, SourceConfig
from recsys.data.sources.spans import span_pattern
from recsys.distribution import install_extra
from recsys.errors import RecsysError
from recsys.system.files import open_regular


@dataclasses.dataclass(frozen=True)
class SourceFile:
    """A file of a source.

    Attributes:
        path: Its path, or its URL.
        size: Its size when it was looked at [bytes].
    """

    path: str
    size: int


def is_remote(path: str) -> bool:
    """Returns whether a path is a URL, as `gs://bucket/file`."""
    return "://" in path


def match_files(source: SourceConfig, what: str) -> list[SourceFile]:
    """Returns the files of a source: pattern by pattern, in each by span, then by name.

    A file that two patterns name stands there twice. Files of held-out interactions come
    last, and once.

    Args:
        source: What to read. Of interactions all spans are read, or the newest
            `spans`; of anything else the newest span.
        what: The part of `data` in the config that it is, for errors.

    Raises:
        RecsysError: A pattern matches no file, or a file can't be read.
        UsageError: A pattern's spans are wrong.
    """
    held_out = held_out_files(source, what)
    paths = [path for path, _ in match_paths(source, what) if path not in held_out]
    return [SourceFile(path, file_size(path)) for path in (*paths, *held_out)]


def held_out_files(source: SourceConfig, what: str) -> list[str]:
    """Returns the files that `eval_files` of interactions name, each once; none of others.

    Raises:
        RecsysError: A pattern matches no file.
    """
    if not isinstance(source, InteractionsConfig):
        return []
    named = [_match(pattern, pattern, what) for pattern in patterns(source.eval_files)]
    return list(dict.fromkeys(path for paths in named for path in paths))


def match_paths(source: SourceConfig, what: str) -> list[tuple[str, tuple[int, int] | None]]:
    """Returns the paths of a source as `match_files` does, with the span and version of each.

    Args:
        source: What to read.
        what: The part of `data` in the config that it is, for errors.

    Raises:
        RecsysError: A pattern matches no file.
        UsageError: A pattern's spans are wrong.
    """
    n_spans = source.spans if isinstance(source, InteractionsConfig) else 1
    matched: list[tuple[str, tuple[int, int] | None]] = []
    spanned: list[tuple[str, tuple[int, int]]] = []
    for pattern in patterns(source.files):
        spans = span_pattern(pattern)
        if spans is None:
            matched += [(path, None) for path in _match(pattern, pattern, what)]
            continue
        ours = spans.newest(_match(spans.as_glob, pattern, what))
        if not ours:
            raise _no_file(pattern, what, "no file with such a span")
        # Versions count within their pattern, the window of spans over all of them.
        spanned += ours
    return [*matched, *_window(spanned, n_spans)]


def patterns(files: Files) -> tuple[str, ...]:
    """Returns the patterns that a config gives, one or several."""
    return (files,) if isinstance(files, str) else files


def _window(
    spanned: list[tuple[str, tuple[int, int]]], n_spans: int | None
) -> list[tuple[str, tuple[int, int]]]:
    spans = sorted({span for _, (span, _) in spanned})
    kept = set(spans if n_spans is None else spans[-n_spans:])
    return [file for file in spanned if file[1][0] in kept]


def _match(pattern: str, named: str, what: str) -> list[str]:
    if is_remote(pattern):
        paths = [entry.path for entry in _remote_entries(pattern)]
    elif Path(pattern).is_file():
        paths = [pattern]
    else:
        paths = [path for path in glob.glob(pattern, recursive=True) if not Path(path).is_dir()]
    if paths:
        _check_names(paths)
        return sorted(paths)
    if Path(pattern).is_dir():
        cure = f"Name its files: {os.path.join(pattern, '*')}."
        raise _no_file(named, what, "a folder", cure)
    raise _no_file(named, what, "no file matches" if glob.has_magic(pattern) else "no such file")


def _check_names(paths: Iterable[str]) -> None:
    """Raises an error if a name is no text: dead letters, reports and JSON couldn't hold it."""
    for path in paths:
        if not is_text(path):
            raise RecsysError(
                "R205",
                "The path of a file must be UTF-8 text.",
                "Rename it, for example with mv or convmv.",
                os.fsencode(path),
            )


def is_text(name: str) -> bool:
    """Returns whether a name can be written as UTF-8: it has no lone surrogate."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _no_file(pattern: str, what: str, received: str, cure: str = "") -> RecsysError:
    return RecsysError(
        "R201",
        f"{pattern!r} must name at least one file.",
        cure or f"Correct data.{what}.files.",
        received,
    )


def file_size(path: str) -> int:
    """Returns the size of a file [bytes].

    Raises:
        RecsysError: There is no such file, or it is a pipe, a socket, a device or a folder.
    """
    if is_remote(path):
        return int(_remote_entries(path)[0].size_in_bytes)
    try:
        status = Path(path).stat()
    except (OSError, ValueError) as error:
        raise unreadable(path, getattr(error, "strerror", None) or str(error)) from None
    _check_regular(path, status.st_mode)
    return status.st_size


def open_file(path: str) -> BinaryIO:
    """Opens a seekable file for reading.

    Raises:
        RecsysError: It can't be opened.
    """
    try:
        if is_remote(path):
            return _remote_open(path)
        return open_regular(path)  # It may be a pipe by now.
    except OSError as error:
        raise unreadable(path, error.strerror or str(error)) from None


def _check_regular(path: str, mode: int) -> None:
    """Raises an error unless a file is a regular one: others never end, or can't seek."""
    kinds = {stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket", stat.S_IFDIR: "a folder"}
    if not stat.S_ISREG(mode):
        raise RecsysError(
            "R205",
            f"{path!r} must be a regular file.",
            "Write what it gives into a file, and name that.",
            kinds.get(stat.S_IFMT(mode), "a device"),
        )


def unreadable(path: str, received: str) -> RecsysError:
    """Returns the error of a file that can't be opened."""
    return RecsysError(
        "R205",
        f"{path!r} must be a readable file.",
        "Check the path and its permissions.",
        received,
    )


def got_shorter(path: str, size: int, got: int) -> RecsysError:
    """Returns the error of a file that ended too early."""
    return RecsysError(
        "R250",
        f"{path!r} must not get shorter while it is read: it had {size:,} bytes.",
        f"All up to byte {got:,} could be read. Write the file whole again, and run again.",
        f"{got:,} bytes",
    )


class Section(io.RawIOBase):
    """The bytes of a file from `start` to `stop`, never more.

    Args:
        path: The file.
        start: First byte.
        stop: One past the last byte.

    Raises:
        RecsysError: The file can't be opened; or, while reading, ends before `stop`.
    """

    def __init__(self, path: str, start: int, stop: int) -> None:
        super().__init__()
        self._path, self._stop, self._at = path, stop, start
        self._file = open_file(path)
        self._file.seek(start)

    def read(self, size: int = -1, /) -> bytes:
        """Returns the next bytes, as many as asked where there are so many."""
        left = self._stop - self._at
        wanted = left if size < 0 else min(size, left)
        if wanted <= 0:
            return b""
        data = self._file.read(wanted)
        if not data:
            raise got_shorter(self._path, self._stop, self._at)
        self._at += len(data)
        return data

    def readable(self) -> bool:
        """Returns True."""
        return True

    def readinto(self, buffer: Any, /) -> int:
        """Fills a buffer with the next bytes; returns how many."""
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        """Closes the file."""
        if not self.closed:
            self._file.close()
        super().close()


def files_digest(files: Iterable[SourceFile]) -> str:
    """Returns a digest of the names and contents of files; of remote ones the file system's."""
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.path.rpartition("/")[2].encode() + b"\0" + content_digest(file))
    return digest.hexdigest()


def content_digest(file: SourceFile) -> bytes:
    """Returns a digest of what a file holds; of a remote one what its file system says.

    Raises:
        RecsysError: The file can't be read.
    """
    if is_remote(file.path):
        return f"{file.size} {_filesystems().checksum(file.path)}".encode()
    try:
        with open_file(file.path) as stream:
            return hashlib.file_digest(cast(io.BufferedReader, stream), "sha256").digest()
    except OSError as error:
        raise unreadable(file.path, error.strerror or str(error)) from None


# --- remote files


def _filesystems() -> Any:
    try:
        from apache_beam.io.filesystems import FileSystems
    except ImportError:
        raise RecsysError(
            "R252",
            "Files with a scheme, as gs:// or s3://, are read through Apache Beam.",
            f"{install_extra('pipeline')} Add Beam's own extra for the scheme, as apache-beam[gcp] "
            "or apache-beam[aws].",
        ) from None
    return FileSystems


def _remote_entries(pattern: str) -> list[Any]:
    filesystems = _filesystems()
    try:
        return list(filesystems.match([pattern])[0].metadata_list)
    except Exception as error:  # noqa: BLE001 each file system raises its own kinds
        raise unreadable(pattern, str(error)) from None


def _remote_open(path: str) -> BinaryIO:
    from apache_beam.io.filesystem import CompressionTypes

    try:
        return _filesystems().open(path, compression_type=CompressionTypes.UNCOMPRESSED)
    except Exception as error:  # noqa: BLE001 each file system raises its own kinds
        raise unreadable(path, str(error)) from None
