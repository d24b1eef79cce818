"""Roots whose home is a bucket: a working folder on this machine, and commits to the bucket.

    s3://BUCKET/FOLDER/.recsys/manifest.json     each path with its sha256, size and time of change
    s3://BUCKET/FOLDER/.recsys/objects/<sha256>  the files
    s3://BUCKET/FOLDER/.recsys/lock.json         the process that writes, see `bucket_lock`
    s3://BUCKET/FOLDER/serving/NAME/1/…          the files of served versions, by their own names

All other code works in the working folder. A commit writes new objects, then the manifest, if it is
still the one that was read; only then does it delete objects that are no longer named. So readers
and machines that go on with a killed run see the state of one commit.

The working folder has the same path on every machine, since ML Metadata and TFX's cache keys have
absolute paths. It belongs to the bucket: what no commit has is removed when the folder is opened.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import os
import re
import sqlite3
import tempfile
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from recsys.errors import RecsysError
from recsys.storage.bucket import Bucket, ConflictError, Entry, check_url, is_url
from recsys.storage.bucket_lock import bucket_lock, refuse_if_locked
from recsys.system.files import remove
from recsys.system.run_lock import LOCK_NAME

CACHE_VARIABLE = "RECSYS_CACHE"
"""Environment variable of the folder of the working folders, the same on all machines."""
LIMIT_VARIABLE = "RECSYS_CACHE_GIB"
"""Environment variable of the size up to which other roots' working folders stay [GiB]."""
_LIMIT_GIB = 100
HOME = ".home"
"""File of a working folder with its URL."""
_CACHE = Path("/var/tmp")  # noqa: S108 each folder is checked to be this user's.
_FETCHED = ".fetched"
_MANIFEST = ".recsys/manifest.json"
_SERVED = re.compile(r"serving/([^/]+)/(\d+)/.")
# Files of this machine, of unfinished work, and of SQLite's transactions.
_OWN = re.compile(
    rf"({re.escape(HOME)}(\..*)?|{_FETCHED}|{re.escape(LOCK_NAME)}|\.lock|\.system|\.publish-.*"
    r"|\d+\.(writing.*|old)|recsys-run-.*|.*\.(sqlite|db)-(journal|wal|shm))"
)
_DATABASE = (".sqlite", ".db")
_LOGS = "logs/"
_CHECKPOINTS = "checkpoints/"
_THREADS = 16
_AT_ONCE_BYTES = 8 << 20
"""Files up to this size are read once, since they may grow, as a log does."""
_TRIES = 3
_CHECK_S = 5.0
_SPARED_VERSIONS = 2


_LOG = logging.getLogger("recsys.storage")


class Kept(NamedTuple):
    """A file in the manifest: sha256 in hex, size [bytes], and its change [ns since 1970]."""

    digest: str
    size: int
    changed: int


def local_folder(root: str | Path) -> Path:
    """Returns the root of a run as a folder of this machine: a URL's working folder.

    The folder of a URL is created; nothing is fetched.

    Raises:
        UsageError: The URL is not supported (R112).
        RecsysError: The working folder belongs to another user (R623).
    """
    url = str(root)
    if not is_url(url):
        return Path(root)
    check_url(url)
    url = url.rstrip("/")
    digest = hashlib.sha256(url.encode()).hexdigest()[:16]
    folder = Path(os.environ.get(CACHE_VARIABLE) or _CACHE) / f"recsys-{digest}"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.lstat()
        if status.st_uid != os.getuid() or folder.is_symlink():
            raise PermissionError("it belongs to another user")
        (folder / HOME).write_text(url, encoding="utf-8")
    except OSError as error:
        rule = f"The working folder {str(folder)!r} of {url!r} must be this user's."
        cure = f"Set {CACHE_VARIABLE} to another folder, the same on all machines of this root."
        raise RecsysError("R623", rule, cure, error.strerror or str(error)) from None
    return folder


def home_of(root: Path) -> str | None:
    """Returns the URL of a working folder; None for any other folder."""
    try:
        return (root / HOME).read_text(encoding="utf-8")
    except OSError:
        return None


def check_home(root: Path) -> None:
    """Checks within seconds that the bucket of a working folder can be used for a run.

    Raises:
        BusyError: A run uses it (R601).
        RecsysError: It doesn't answer (R620), or refuses the credentials (R621).
    """
    if (url := home_of(root)) is not None:
        refuse_if_locked(Bucket(url, retries=2), url)


def fetched(root: Path, *prefixes: str) -> Path:
    """Fetches files for reading, and returns `root`.

    A folder that is not a working folder, or that a run on this machine uses, stays as it is.

    Args:
        root: Root of a run.
        prefixes: Beginnings of the paths to fetch; all if there are none.
    """
    if (url := home_of(root)) is not None:
        with _only_user(root, wait=False) as is_ours:
            if is_ours:
                _WorkingFolder(root, url).down(prefixes or ("",))
    return root


def fetch_served(root: Path, n_versions: int = 1) -> Path:
    """Fetches the newest versions of each model under `serving/`, and returns `root`."""
    if (url := home_of(root)) is not None:
        with _only_user(root, wait=False) as is_ours:
            if is_ours:
                folder = _WorkingFolder(root, url)
                # A server may be loading an older version, or fall back to it.
                spared = tuple(_newest(folder.kept, n_versions + _SPARED_VERSIONS))
                wanted = tuple(_newest(folder.kept, n_versions))
                folder.down(wanted, scope=("serving/",), spared=spared)
    return root


@contextmanager
def following(root: Path, n_versions: int) -> Iterator[None]:
    """Fetches new versions as `fetch_served` does, in the background, inside the block."""
    is_over = threading.Event()

    def follow() -> None:
        told = ""
        while not is_over.wait(_CHECK_S):
            try:
                fetch_served(root, n_versions)
                told = ""
            except (RecsysError, OSError) as error:
                if str(error) != told:
                    _LOG.warning("new versions can't be fetched: %s", told := str(error))

    if home_of(root) is None:
        yield
        return
    thread = threading.Thread(target=follow, name="new versions", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()


@contextmanager
def written(root: Path, *prefixes: str) -> Iterator[Callable[[], None]]:
    """Fetches files, holds the bucket's lock inside the block, and commits at the end.

    Yields a function that commits; for a folder that is not a working folder it does nothing.
    Checkpoints are committed when they are complete.

    Args:
        root: Root of a run.
        prefixes: Beginnings of the paths that are read or written; all if there are none.

    Raises:
        BusyError: Another process holds the lock (R601).
        RecsysError: The bucket can't be used (R620, R621), or another process took over (R604).
    """
    url = home_of(root)
    if url is None:
        yield lambda: None
        return
    within = prefixes or ("",)
    with bucket_lock(Bucket(url), url) as check, _only_user(root, wait=True):
        folder = _WorkingFolder(root, url, check)
        folder.sweep()
        folder.down(within)
        with _checkpoints_committed(folder):
            try:
                yield lambda: folder.commit(within)
            except BaseException:
                with suppress(RecsysError, OSError):  # The first error is told.
                    folder.commit(within)
                raise
        folder.commit(within)


class _WorkingFolder:
    """A working folder and the manifest that was read last."""

    def __init__(self, root: Path, url: str, check: Callable[[], None] = lambda: None) -> None:
        self.root, self._bucket, self._check = root, Bucket(url), check
        self._lock = threading.Lock()
        self._entry: Entry | None = None
        self.kept: dict[str, Kept] = {}
        self._folders: list[str] = []
        self._read()

    def _read(self) -> None:
        try:
            content, self._entry = self._bucket.read(_MANIFEST)
        except FileNotFoundError:
            return
        fields = json.loads(content)
        self.kept = {path: Kept(*fact) for path, fact in fields["files"].items()}
        self._folders = fields["folders"]

    # --- from the bucket

    def down(
        self,
        prefixes: tuple[str, ...],
        scope: tuple[str, ...] | None = None,
        spared: tuple[str, ...] = (),
    ) -> None:
        """Makes the folder equal to the manifest.

        Args:
            prefixes: Beginnings of the paths to fetch.
            scope: Beginnings of the paths to remove if they are not fetched; None: `prefixes`.
            spared: Beginnings of the paths to keep if the manifest has them.
        """
        for _ in range(_TRIES):
            try:
                self._down(prefixes, scope or prefixes, spared)
                return _bound_cache(self.root)
            except FileNotFoundError:  # A newer commit has deleted objects.
                self._read()
        raise self._damaged("an object is gone")

    def _down(
        self, prefixes: tuple[str, ...], scope: tuple[str, ...], spared: tuple[str, ...]
    ) -> None:
        wanted = {path: kept for path, kept in self.kept.items() if path.startswith(prefixes)}
        there = {path: kept for path, kept in self._scan() if path.startswith(scope)}
        staged = self.root / _FETCHED
        remove(staged)
        missing = {path: k for path, k in wanted.items() if not _is_same(path, there.get(path), k)}
        with ThreadPoolExecutor(_THREADS) as threads:
            list(threads.map(lambda path: self._fetch(path, staged), missing))
        for path in there.keys() - wanted.keys():
            is_spared = path in self.kept and path.startswith(spared)
            if not is_spared and not path.startswith(_LOGS):
                (self.root / path).unlink(missing_ok=True)
        if staged.exists():
            _move(staged, self.root)
            remove(staged)
        for parent, *_ in os.walk(self.root, topdown=False):
            with suppress(OSError):  # It is not empty.
                Path(parent).rmdir()
        # Artifacts that are not fetched are there for `is_dir`.
        unfetched = {str(Path(path).parent) for path in self.kept if path.startswith("artifacts/")}
        for path in unfetched.union(self._folders):
            (self.root / path).mkdir(parents=True, exist_ok=True)

    def _fetch(self, path: str, staged: Path) -> None:
        kept, file = self.kept[path], staged / path
        file.parent.mkdir(parents=True, exist_ok=True)
        for _ in range(_TRIES):
            digest = hashlib.sha256()
            with file.open("wb") as opened:
                for chunk in self._bucket.stream(_key(path, kept)):
                    digest.update(chunk)
                    opened.write(chunk)
            if digest.hexdigest() == kept.digest:
                os.utime(file, ns=(kept.changed, kept.changed))
                return
        raise self._damaged(path)

    def _damaged(self, received: str) -> RecsysError:
        rule = f"The files of {self._bucket.url!r} must be as they were written."
        cure = "Restore the objects, or choose another root; nothing was changed."
        return RecsysError("R624", rule, cure, received)

    # --- to the bucket

    def commit(self, prefixes: tuple[str, ...], checkpoints: bool = False) -> None:
        """Writes new and changed files, then the manifest.

        Args:
            prefixes: Beginnings of the paths to commit; all others stay as they are.
            checkpoints: Whether a file that vanishes meanwhile is left to the next commit.

        Raises:
            ConflictError: Another process has committed (R622).
        """
        with self._lock:
            self._check()
            now = {path: kept for path, kept in self._scan() if path.startswith(prefixes)}
            with ThreadPoolExecutor(_THREADS) as threads:
                try:
                    put = dict(zip(now, threads.map(self._put, now, now.values()), strict=True))
                except FileNotFoundError:
                    if checkpoints:
                        return
                    raise
            others = {p: kept for p, kept in self.kept.items() if not p.startswith(prefixes)}
            files = others | {path: kept for path, kept in put.items() if kept is not None}
            folders = [p for p in self._folders if not p.startswith(prefixes)]
            folders += [path for path in self._empty_folders() if path.startswith(prefixes)]
            if (files, sorted(folders)) != (self.kept, self._folders):
                self._write(files, sorted(folders))

    def _write(self, files: dict[str, Kept], folders: list[str]) -> None:
        # A store's tag may be a digest of the content, so that each manifest needs an id.
        fields = {"format": 1, "id": uuid.uuid4().hex, "files": files, "folders": folders}
        content = json.dumps(fields).encode()
        self._entry = self._bucket.write_if(_MANIFEST, content, self._entry)
        old = {_key(path, kept) for path, kept in self.kept.items()}
        self.kept, self._folders = files, folders
        self._bucket.delete(old - {_key(path, kept) for path, kept in files.items()})

    def _put(self, path: str, now: Kept) -> Kept | None:
        """Writes a file, if it has changed; None if it is gone or always changing."""
        known, file = self.kept.get(path), self.root / path
        if known is not None and _is_same(path, now, known):
            return known
        if path.endswith(_DATABASE):
            with _copied(file) as copy:
                return self._put_file(path, copy, now)
        try:
            return self._put_file(path, file, now) or known
        except FileNotFoundError:
            if path.startswith(_CHECKPOINTS):
                raise
            return None

    def _put_file(self, path: str, file: Path, now: Kept) -> Kept | None:
        known = self.kept.get(path)
        for _ in range(_TRIES):
            before = file.stat()
            content = file.read_bytes() if before.st_size <= _AT_ONCE_BYTES else None
            if content is not None:
                digest, size = hashlib.sha256(content).hexdigest(), len(content)
            else:
                with file.open("rb") as opened:
                    digest, size = hashlib.file_digest(opened, "sha256").hexdigest(), before.st_size
            kept = Kept(digest, size, now.changed)
            if known is None or known.digest != kept.digest:
                self._put_object(_key(path, kept), file if content is None else content)
            if content is not None or file.stat().st_mtime_ns == before.st_mtime_ns:
                return kept
        return None

    def _put_object(self, key: str, content: bytes | Path) -> None:
        if isinstance(content, Path) or not _SERVED.match(key):
            self._bucket.write(key, content)
            return
        try:  # The name doesn't tell the content.
            self._bucket.write_if(key, content, None)
        except ConflictError:
            found = self._bucket.head(_MANIFEST)
            if (found and found.tag) != (self._entry and self._entry.tag):
                raise
            self._bucket.write(key, content)  # A killed run's, or one that `forget` changed.

    def sweep(self) -> None:
        """Deletes objects that killed processes left; for the holder of the lock."""
        named = {_key(path, kept) for path, kept in self.kept.items()}
        for folder in (".recsys/objects", "serving"):
            self._bucket.delete({entry.key for entry in self._bucket.list(folder)} - named)

    # --- this machine's files

    def _scan(self) -> Iterator[tuple[str, Kept]]:
        """Yields the files to keep, without digests."""
        for parent, folders, names in os.walk(self.root):
            folders[:] = [name for name in folders if not _OWN.fullmatch(name)]
            for name in names:
                file = Path(parent, name)
                with suppress(FileNotFoundError):
                    if not _OWN.fullmatch(name) and file.is_file():
                        status = file.stat()
                        path = file.relative_to(self.root).as_posix()
                        yield path, Kept("", status.st_size, status.st_mtime_ns)

    def _empty_folders(self) -> Iterator[str]:
        for parent, folders, names in os.walk(self.root):
            folders[:] = [name for name in folders if not _OWN.fullmatch(name)]
            if not folders and not names:
                yield Path(parent).relative_to(self.root).as_posix()


@contextmanager
def _checkpoints_committed(folder: _WorkingFolder) -> Iterator[None]:
    """Commits checkpoints in the background when there are new ones."""
    is_over = threading.Event()

    def names() -> set[Path]:
        found = folder.root.glob(f"{_CHECKPOINTS}**/contents.json")
        return {path for path in found if path.parent.name.isdecimal()}

    def watch() -> None:
        seen = names()
        while not is_over.wait(_CHECK_S):
            if (now := names()) != seen:
                with suppress(RecsysError, OSError):  # The commit after the step tells it.
                    folder.commit((_CHECKPOINTS,), checkpoints=True)
                    seen = now

    thread = threading.Thread(target=watch, name="checkpoints", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


@contextmanager
def _only_user(root: Path, *, wait: bool) -> Iterator[bool]:
    """Yields whether this process may change the folder; others on this machine may not."""
    with (root / f"{HOME}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            yield False
            return
        yield True


def _newest(kept: Mapping[str, Any], n_versions: int) -> Iterator[str]:
    """Yields the beginnings of the paths of the newest versions of each model."""
    models: dict[str, set[int]] = {}
    for path in kept:
        if match := _SERVED.match(path):
            models.setdefault(match[1], set()).add(int(match[2]))
    for name, numbers in models.items():
        yield from (f"serving/{name}/{n}/" for n in sorted(numbers)[-n_versions:])


def _key(path: str, kept: Kept) -> str:
    return path if _SERVED.match(path) else f".recsys/objects/{kept.digest}"


def _is_same(path: str, there: Kept | None, kept: Kept) -> bool:
    if there is None or there.changed != kept.changed:
        return False
    return there.size == kept.size or path.endswith(_DATABASE)  # Its copy may be smaller.


@contextmanager
def _copied(database: Path) -> Iterator[Path]:
    """Yields a consistent copy of an SQLite database, which others may be writing."""
    with tempfile.TemporaryDirectory(prefix="recsys-") as folder:
        copy = Path(folder) / "copy"
        with (
            closing(sqlite3.connect(f"{database.as_uri()}?mode=ro", uri=True)) as source,
            closing(sqlite3.connect(copy)) as target,
        ):
            source.backup(target)
        yield copy


def _move(staged: Path, final: Path) -> None:
    """Moves files and folders; a folder that is new appears at once with its content."""
    if staged.is_dir() and final.is_dir():
        for path in sorted(staged.iterdir()):
            _move(path, final / path.name)
    else:
        staged.replace(final)


def _bound_cache(current: Path) -> None:
    """Removes the working folders of other roots that were not used for longest."""
    limit = float(os.environ.get(LIMIT_VARIABLE) or _LIMIT_GIB) * 2**30
    folders = [file.parent for file in current.parent.glob(f"recsys-*/{HOME}")]
    with suppress(OSError):  # Another process may be removing one.
        for folder in sorted(folders, key=lambda folder: -(folder / HOME).stat().st_mtime):
            files = folder.rglob("*") if folder.owner() == current.owner() else ()
            limit -= sum(file.lstat().st_size for file in files)
            if limit < 0 and folder != current:
                with _only_user(folder, wait=False) as is_ours:
                    if is_ours:
                        remove(folder)
