"""Files that may be damaged, folders, temporary folders, full disks and atomic writes."""

from __future__ import annotations

import collections
import errno
import fcntl
import functools
import hashlib
import json
import os
import re
import shutil
import stat
import tempfile
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from io import BufferedReader
from pathlib import Path
from typing import Any

from recsys.errors import RecsysError

DAMAGE = (OSError, EOFError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError)
"""Errors that reading a damaged file and its expected fields may raise, besides Arrow's."""


@contextmanager
def undamaged(error: Callable[[str], RecsysError]) -> Iterator[None]:
    """Replaces what reading a damaged file raises.

    Args:
        error: Returns the error for a text that says what was raised.
    """
    try:
        yield
    except Exception as raised:
        # The module of Arrow's errors isn't imported here: it takes a quarter of a second.
        if isinstance(raised, DAMAGE) or type(raised).__module__ == "pyarrow.lib":
            raise error(f"{type(raised).__name__}: {raised}") from None
        raise


def open_regular(path: str | Path) -> BufferedReader:
    """Opens a regular file that a config or a user names.

    Raises:
        OSError: It is not a regular file, or can't be read.
    """
    # Non-blocking: opening a pipe would wait for a writer.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    file = os.fdopen(descriptor, "rb")
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        file.close()
        raise OSError("no regular file")
    return file


def read_result(path: Path) -> dict[str, Any]:
    """Returns the fields of a JSON file that an earlier step wrote.

    Raises:
        RecsysError: It is missing or damaged (R221).
    """
    rule = f"{str(path)!r} must be as it was written."
    cure = f"Delete {str(path.parent)!r} and run again."
    with undamaged(functools.partial(RecsysError, "R221", rule, cure)):
        return read_json(path)


def read_json(path: Path) -> dict[str, Any]:
    """Returns the fields of a JSON file.

    Raises:
        OSError: It is missing or can't be read.
        ValueError: It is not a JSON object.
    """
    fields = json.loads(path.read_bytes())
    if not isinstance(fields, dict):
        raise ValueError(f"{path.name} holds no map")
    return fields


def unique_fields(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Returns the fields of a JSON object without duplicate keys; an `object_pairs_hook`.

    Raises:
        ValueError: A key occurs twice.
    """
    fields = dict(pairs)
    if len(fields) != len(pairs):
        ((twice, _),) = collections.Counter(name for name, _ in pairs).most_common(1)
        raise ValueError(f"the key {twice!r} is there twice")
    return fields


def digest_of_files(folder: Path, files: Iterable[Path]) -> str:
    """Returns a sha256 in hex of the contents of files and of their names relative to `folder`.

    Raises:
        OSError: One can't be read.
    """
    digest = hashlib.sha256()
    for file in sorted(files):
        digest.update(file.relative_to(folder).as_posix().encode() + b"\0")
        with file.open("rb") as content:
            digest.update(hashlib.file_digest(content, "sha256").digest())
    return digest.hexdigest()


def folders_in(folder: Path) -> list[Path]:
    """Returns the folders in a folder, sorted; none if it does not exist."""
    return sorted(filter(Path.is_dir, folder.iterdir())) if folder.is_dir() else []


def last_change(path: Path) -> float:
    """Returns when a file, or the newest file at the top of a folder, changed [s since 1970]."""
    moments = [0.0]
    for entry in [path, *path.glob("*"), *path.glob("*/*")]:
        with suppress(OSError):  # Another process may be removing it.
            moments.append(entry.lstat().st_mtime)
    return max(moments)


def remove(path: Path) -> None:
    """Removes a file, a link, or a folder with its content, if it exists."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def retire(path: Path, hidden: Path) -> None:
    """Renames a folder and removes it, so that it is never visible in part."""
    path.rename(hidden)
    remove(hidden)


# --- temporary folders that are removed even if their program is killed

PREFIX = "recsys-run-"


@contextmanager
def scratch_folder(parent: Path | None = None, prefix: str = PREFIX) -> Iterator[Path]:
    """Yields a temporary folder; first removes such folders of killed programs.

    Args:
        parent: Where to make it; None: the system's folder of temporary files.
        prefix: Start of its name, before 12 hex digits.
    """
    parent = Path(tempfile.gettempdir()) if parent is None else parent
    sweep(parent, prefix)
    name = f"{prefix}{uuid.uuid4().hex[:12]}"
    # Renamed once it is locked, so that no other program removes it as abandoned.
    hidden = parent / f".{name}"
    hidden.mkdir(mode=0o700)
    held = os.open(hidden, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    folder = parent / name
    try:
        with suppress(OSError):  # The file system has no locks: the folder is kept.
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            hidden.rename(folder)
        yield folder if folder.exists() else hidden
    finally:
        os.close(held)
        for path in (folder, hidden):
            shutil.rmtree(path, ignore_errors=True)


@contextmanager
def temporary_files_in(folder: Path) -> Iterator[None]:
    """Makes this process and its children create temporary files in `folder`."""
    before = os.environ.get("TMPDIR"), tempfile.tempdir
    os.environ["TMPDIR"] = tempfile.tempdir = str(folder)
    try:
        yield
    finally:
        tempfile.tempdir = before[1]
        if before[0] is None:
            os.environ.pop("TMPDIR", None)
        else:
            os.environ["TMPDIR"] = before[0]


def sweep(parent: Path, prefix: str = PREFIX) -> list[Path]:
    """Removes the folders of `scratch_folder` under `parent` that no live process holds.

    Returns:
        The removed folders.
    """
    swept: list[Path] = []
    name = re.compile(f"{re.escape(prefix)}[0-9a-f]{{12}}")
    for path in [path for path in parent.iterdir() if name.fullmatch(path.name)]:
        with suppress(OSError):
            # Skip folders of other users, and don't follow links.
            held = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                if os.fstat(held).st_uid != os.getuid():
                    continue
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path, ignore_errors=True)
                swept.append(path)
            finally:
                os.close(held)
    return swept


# --- full disks, and files that can't be read or written


_FULL_BYTES = 1 << 20
"""Below this, a failure without a reason is taken as a full disk: SQLite rolls back, ML Metadata
then reports a missing transaction, and a process may be unable to report its error."""


def free_bytes(path: str | os.PathLike[str] | None) -> int | None:
    """Returns the free bytes on the disk of `path`; None if unknown.

    Args:
        path: A file or folder, which need not exist, or None.
    """
    if path is None:
        return None
    place = Path(path).absolute()
    for folder in (place, *place.parents):
        try:
            return shutil.disk_usage(folder).free
        except FileNotFoundError:
            continue
        except OSError:
            return None
    return None


def free_there(path: str | os.PathLike[str] | None) -> str:
    """Returns the free space on the disk of `path` as the end of a sentence; empty if unknown."""
    free = free_bytes(path)
    return "" if free is None else f"; {free:,} bytes are free there"


@contextmanager
def naming(path: str | os.PathLike[str]) -> Iterator[None]:
    """Adds a file name to the block's errors; the system doesn't name open files.

    Args:
        path: The file that is written.
    """
    try:
        yield
    except OSError as error:
        if error.errno is None or error.filename is not None:
            raise
        raise OSError(error.errno, error.strerror, os.fspath(path)) from None


def storage_error(error: OSError, place: str | os.PathLike[str] | None = None) -> RecsysError:
    """Returns the error of a file that couldn't be read or written.

    Args:
        error: The system's error.
        place: Folder of the work, for an error that names no file.
    """
    path = place if error.filename is None else os.fsdecode(error.filename)
    what = "its files" if path is None else repr(str(path))
    rule = f"The program must be able to read and write {what}{free_there(path)}."
    cure = (
        "Free disk space or change the permissions, and run again; the served model did not change."
    )
    return RecsysError("R603", rule, cure, error.strerror or str(error))


def full_disk_error(*places: str | os.PathLike[str]) -> RecsysError | None:
    """Returns the error of the first folder on a full disk, for failures without a reason."""
    for place in places:
        free = free_bytes(place)
        if free is not None and free < _FULL_BYTES:
            return storage_error(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(place)))
    return None


# --- atomic writes, by one writer at a time


@contextmanager
def only_writer(folder: Path, unfinished: str) -> Iterator[None]:
    """Waits for other writers of a folder, and removes unfinished files of killed writers.

    The system frees the lock of a killed writer.

    Args:
        folder: The folder, created if missing.
        unfinished: Prefix of the names of unfinished files and folders.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("a+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for left in folder.glob(f"{unfinished}*"):
            remove(left)
        yield


def commit_folder(temporary: Path, final: Path) -> None:
    """Syncs a complete folder to the disk and renames it to its final name."""
    for parent, _, names in os.walk(temporary, topdown=False):
        for name in names:
            sync_file(Path(parent) / name)
        sync_file(Path(parent))
    os.rename(temporary, final)
    sync_file(final.parent)


def commit_text(text: str, final: Path) -> None:
    """Writes a text file atomically and syncs it to the disk."""
    with replacing(final) as temporary, temporary.open("x", encoding="utf-8") as file:
        file.write(text)  # "x": never through a link.


@contextmanager
def replacing(final: Path) -> Iterator[Path]:
    """Yields the path of a file to write, which replaces `final` atomically at the end."""
    temporary = final.with_name(f".{final.name}.{os.getpid()}")
    try:
        temporary.unlink(missing_ok=True)
        with naming(final):
            yield temporary
        commit_file(temporary, final)
    except BaseException:
        with suppress(OSError):  # Free the space, since the disk may be full.
            temporary.unlink()
        raise


def commit_file(temporary: Path, final: Path) -> None:
    """Syncs a complete file to the disk and renames it to its final name in the same folder."""
    sync_file(temporary)
    os.replace(temporary, final)
    sync_file(final.parent)


def sync_file(path: Path) -> None:
    """Syncs the content of a file, or the names in a folder, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
