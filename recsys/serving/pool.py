"""The versions of a model that are loaded, and how one replaces another.

A request takes a version once, and keeps it to its end; a swap is one assignment. So every
request is answered by one whole version, and none waits for a swap.
"""

from __future__ import annotations

import dataclasses
import gc
import logging
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from recsys.bundles.bundle import MANIFEST
from recsys.bundles.versions import versions
from recsys.errors import RecsysError

_LOG = logging.getLogger("recsys.serve")
_FIRST_RETRY_S, _LONGEST_RETRY_S = 60.0, 3600.0

ModelT = TypeVar("ModelT")
_Identity = tuple[int, ...]


class Listener(Protocol):
    """Is notified of what a pool does."""

    def loaded(self, version: int, seconds: float) -> None:
        """A version was loaded, in this time [s]."""

    def refused(self, version: int) -> None:
        """A version couldn't be loaded."""

    def serving(self, versions: tuple[int, ...], is_swap: bool) -> None:
        """These are served now, the newest last; `is_swap`: the newest is another."""


@dataclasses.dataclass(frozen=True)
class Loaded(Generic[ModelT]):
    """A loaded version.

    Attributes:
        identity: Number and manifest of what was loaded: a version may be deleted, and
            another be published under its number.
        model: What answers.
    """

    identity: _Identity
    model: ModelT

    @property
    def version(self) -> int:
        """Number of the version."""
        return self.identity[0]


@dataclasses.dataclass(frozen=True)
class Failure:
    """A version that couldn't be loaded.

    Attributes:
        error: Why.
        tries: How often it was tried.
        retry_at: When it is tried again, by the monotonic clock [s].
    """

    error: RecsysError
    tries: int
    retry_at: float


class Pool(Generic[ModelT]):
    """Keeps the newest versions of a serving folder loaded.

    `refresh` is called from one thread; everything else from any.

    Args:
        folder: The serving folder of a model; may be empty or missing.
        load: Loads the version in a folder; raises RecsysError where it can't.
        keep: Newest versions that are loaded; one more while a new one comes.
        listener: Is notified.
    """

    def __init__(
        self, folder: Path, load: Callable[[Path], ModelT], keep: int, listener: Listener
    ) -> None:
        self._folder, self._load, self._keep = folder, load, keep
        self._listener = listener
        self._loaded: tuple[Loaded[ModelT], ...] = ()
        self._failures: dict[_Identity, Failure] = {}
        self._loading: int | None = None
        self._retired: list[weakref.ref[ModelT]] = []
        self._is_alone = False

    @property
    def models(self) -> tuple[ModelT, ...]:
        """What is loaded, the newest version last."""
        return tuple(loaded.model for loaded in self._loaded)

    @property
    def loading(self) -> int | None:
        """Number of the version that is being loaded."""
        return self._loading

    @property
    def failures(self) -> dict[int, RecsysError]:
        """Why versions of the folder aren't loaded, by number."""
        return {identity[0]: failure.error for identity, failure in self._failures.copy().items()}

    def refresh(self) -> None:
        """Looks at the folder once, and loads and releases what that asks for."""
        folders = {_identity(path): path for path in versions(self._folder)}
        self._failures = {key: loaded for key, loaded in self._failures.items() if key in folders}
        wanted: list[Loaded[ModelT]] = []
        for identity, path in reversed(folders.items()):
            if len(wanted) < self._keep and (loaded := self._get(identity, path)):
                wanted.append(loaded)
                # The newest serves at once, while older ones still load.
                rest = [old for old in self._loaded if old.identity in folders]
                self._serve({other.version: other for other in (*rest, *wanted)})
        if wanted:
            self._serve({loaded.version: loaded for loaded in wanted})
        elif self._loaded and not self._is_alone:
            _LOG.warning("nothing in %s can be served; the loaded version stays", self._folder)
        self._is_alone = not wanted
        self._release()

    def _get(self, identity: _Identity, path: Path) -> Loaded[ModelT] | None:
        for loaded in self._loaded:
            if loaded.identity == identity:
                return loaded
        failure = self._failures.get(identity)
        if failure and time.monotonic() < failure.retry_at:
            return None
        return self._try(identity, path, failure.tries + 1 if failure else 1)

    def _try(self, identity: _Identity, path: Path, tries: int) -> Loaded[ModelT] | None:
        self._loading = identity[0]
        started = time.monotonic()
        try:
            model = self._load(path)
        except Exception as error:  # noqa: BLE001 any failure of a damaged bundle, or of a request, is reported
            self._refuse(identity, path, _as_recsys_error(path, error), tries)
            return None
        finally:
            self._loading = None
        seconds = time.monotonic() - started
        self._failures.pop(identity, None)
        self._listener.loaded(identity[0], seconds)
        _LOG.info("version %d loaded in %.1f s", identity[0], seconds)
        return Loaded(identity, model)

    def _refuse(self, identity: _Identity, path: Path, error: RecsysError, tries: int) -> None:
        if not path.exists():  # Taken away while it was read.
            return
        wait_s = min(_FIRST_RETRY_S * 2 ** (tries - 1), _LONGEST_RETRY_S)
        self._failures[identity] = Failure(error, tries, time.monotonic() + wait_s)
        self._listener.refused(identity[0])
        _LOG.error("version %d refused: %s", identity[0], error)

    def _serve(self, by_version: dict[int, Loaded[ModelT]]) -> None:
        """Serves exactly these from now on."""
        before = self._loaded
        now = tuple(by_version[number] for number in sorted(by_version))
        if now == before:
            return
        self._loaded = now
        self._retired += [weakref.ref(old.model) for old in before if old not in now]
        is_swap = bool(before) and before[-1] != now[-1]
        self._listener.serving(tuple(loaded.version for loaded in now), is_swap)
        if not before or is_swap:
            _LOG.info("version %d is served", now[-1].version)

    def _release(self) -> None:
        """Frees versions that no request uses any more."""
        self._retired = [reference for reference in self._retired if reference() is not None]
        if self._retired:
            gc.collect()  # A SavedModel refers to itself.


def _identity(path: Path) -> _Identity:
    number = int(path.name)
    try:
        status = (path / MANIFEST).stat()
    except OSError:
        return (number,)
    return (number, status.st_ino, status.st_mtime_ns, status.st_size)


def _as_recsys_error(path: Path, error: Exception) -> RecsysError:
    if isinstance(error, RecsysError):
        return error
    return RecsysError(
        "R566",
        f"The version {str(path)!r} must be a bundle that can be loaded.",
        "Delete it and run again: recsys run.",
        f"{type(error).__name__}: {error}",
    )


class VersionWatcher:
    """A thread that refreshes a pool again and again.

    Args:
        pool: The pool.
        every_s: Time between two looks [s].
    """

    def __init__(self, pool: Pool[Any], every_s: float) -> None:
        self._pool, self._every_s = pool, every_s
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="recsys-watch", daemon=True)

    def start(self) -> None:
        """Begins."""
        self._thread.start()

    def stop(self, timeout_s: float) -> bool:
        """Ends it; returns whether it ended in time [s]: a load can't be stopped."""
        self._is_over.set()
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _watch(self) -> None:
        while not self._is_over.is_set():
            try:
                self._pool.refresh()
            except OSError as error:
                _LOG.error("the serving folder can't be read: %s", error)
            self._is_over.wait(self._every_s)
