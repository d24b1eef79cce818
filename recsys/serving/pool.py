"""The loaded versions of the served model, their replacement by newer ones, and metrics.

A request takes one version and keeps it until it ends, and a swap is a single assignment. So
every request is answered by one version, and none waits for a swap.
"""

from __future__ import annotations

import gc
import logging
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
)

from recsys.bundles.bundle import MANIFEST
from recsys.bundles.publishing import is_version, versions
from recsys.errors import RecsysError
from recsys.serving.requests import BAD_REQUEST, NOT_FOUND, UNAVAILABLE, HttpError

_LOG = logging.getLogger("recsys.serve")
_FIRST_RETRY_S, _LONGEST_RETRY_S = 60.0, 3600.0

_Identity = tuple[int, ...]
"""Number and manifest of a version: a deleted version's number may be reused."""


class _Failure(NamedTuple):
    """A version that couldn't be loaded: number of attempts, and time of the next one."""

    error: RecsysError
    tries: int
    retry_at: float


class Pool:
    """Keeps the newest versions of a serving folder loaded.

    `refresh` is called from one thread; everything else from any.

    Args:
        name: Name of the served model.
        folder: Its serving folder; may be empty or missing.
        load: Loads the version in a folder; raises RecsysError if it can't.
        keep: Number of newest versions to keep loaded; one more while a new version is loaded.
        metrics: Metrics of the server.

    Attributes:
        metrics: Metrics of the server.
        loading: Number of the version that is being loaded.
        models: Loaded versions, the newest last.
        failures: Errors of versions that can't be loaded, by number.
    """

    def __init__(
        self,
        name: str,
        folder: Path,
        load: Callable[[Path], Any],
        keep: int,
        metrics: ServerMetrics,
    ) -> None:
        self.name = name
        self._folder, self._load, self._keep = folder, load, keep
        self.metrics = metrics
        self._loaded: dict[_Identity, Any] = {}
        self._failures: dict[_Identity, _Failure] = {}
        self._retired: list[weakref.ref[Any]] = []
        self._is_alone = False
        self.loading: int | None = None
        self.models: tuple[Any, ...] = ()
        self.failures: dict[int, RecsysError] = {}

    def refresh(self) -> None:
        """Reads the folder once; loads new versions and releases old ones."""
        folders = {_identity(path): path for path in versions(self._folder)}
        self._failures = {key: value for key, value in self._failures.items() if key in folders}
        wanted: dict[_Identity, Any] = {}
        for identity, path in reversed(folders.items()):
            if len(wanted) < self._keep and (model := self._get(identity, path)) is not None:
                wanted[identity] = model
                # The newest version is served at once, while older versions are still loaded.
                rest = {key: old for key, old in self._loaded.items() if key in folders}
                self._serve(rest | wanted)
        self.failures = {key[0]: failure.error for key, failure in self._failures.items()}
        if wanted:
            self._serve(wanted)
        elif self._loaded and not self._is_alone:
            _LOG.warning("nothing in %s can be served; the loaded version stays", self._folder)
        self._is_alone = not wanted
        self._retired = [reference for reference in self._retired if reference() is not None]
        if self._retired:
            gc.collect()  # A SavedModel has reference cycles.

    def watch(self, every_s: float, is_over: threading.Event) -> None:
        """Refreshes every `every_s` seconds until `is_over` is set."""
        while not is_over.is_set():
            try:
                self.refresh()
            except OSError as error:
                _LOG.error("the serving folder can't be read: %s", error)
            is_over.wait(every_s)

    def _get(self, identity: _Identity, path: Path) -> Any:
        """Loads a version; None if that fails."""
        if identity in self._loaded:
            return self._loaded[identity]
        failure = self._failures.get(identity)
        if failure and time.monotonic() < failure.retry_at:
            return None
        self.loading = identity[0]
        started = time.monotonic()
        try:
            model = self._load(path)
        except Exception as error:  # noqa: BLE001 any failure of a damaged bundle, or of a request, is reported
            if path.exists():  # Else it was deleted while it was read.
                self._refuse(identity, path, error, failure.tries if failure else 0)
            return None
        finally:
            self.loading = None
        seconds = time.monotonic() - started
        self._failures.pop(identity, None)
        self.metrics.load_seconds.observe(seconds)
        _LOG.info("version %d loaded in %.1f s", identity[0], seconds)
        return model

    def _refuse(self, identity: _Identity, path: Path, error: Exception, tries: int) -> None:
        if not isinstance(error, RecsysError):
            rule = f"The version {str(path)!r} must be a bundle that can be loaded."
            received = f"{type(error).__name__}: {error}"
            error = RecsysError("R566", rule, "Delete it and run again: recsys run.", received)
        retry_at = time.monotonic() + min(_FIRST_RETRY_S * 2**tries, _LONGEST_RETRY_S)
        self._failures[identity] = _Failure(error, tries + 1, retry_at)
        self.failures = {**self.failures, identity[0]: error}
        self.metrics.load_failures.inc()
        _LOG.error("version %d refused: %s", identity[0], error)

    def _serve(self, models: dict[_Identity, Any]) -> None:
        """Replaces the served versions by `models`."""
        before, now = self.models, dict(sorted(models.items()))
        if list(now.values()) == list(before):
            return
        self._loaded, self.models = now, tuple(now.values())
        self._retired += [weakref.ref(old) for old in before if old not in self.models]
        is_swap = bool(before) and before[-1] is not self.models[-1]
        newest = max(now)[0]
        self.metrics.serving(newest, len(now), is_swap)
        if not before or is_swap:
            _LOG.info("version %d is served", newest)

    def model(self, version: int | None = None) -> Any:
        """Returns a loaded version, the newest by default.

        Raises:
            HttpError: It isn't loaded (404), or no version is loaded yet (503).
        """
        models = self.models
        if not models:
            raise self._nothing_yet()
        for model in reversed(models):
            if version is None or model.version == version:
                return model
        rule = f"Servable not found for request: Specific({self.name}, {version})."
        cure = "Request a loaded version, or omit the version to use the newest."
        raise HttpError(NOT_FOUND, "R558", rule, cure, [model.version for model in models])

    def find(self, name: str, version: str) -> Any:
        """Returns the loaded version that a request names; raises like `number` and `model`."""
        return self.model(self.number(name, version))

    def number(self, name: str, version: str) -> int | None:
        """Returns the number of the version that a request names; None if it names none.

        Raises:
            HttpError: There is no such model (404), or the version is not a number (400).
        """
        if name != self.name:
            rule = f"Servable not found for request: Latest({name[:80]})."
            cure = f"The served model is {self.name!r}."
            raise HttpError(NOT_FOUND, "R558", rule, cure)
        if not version:
            return None
        if len(version) >= 20 or not is_version(version):
            rule = "A version in a path must be a 64-bit integer."
            raise HttpError(BAD_REQUEST, "R564", rule, "Correct the path.", version)
        return int(version)

    def state(self) -> tuple[bool, str]:
        """Returns whether a version is loaded, and a message for users if not."""
        if self.models:
            return True, ""
        loading, failures = self.loading, self.failures
        if loading is not None:
            sentence = f"Version {loading} of {self.name} is being loaded."
        elif failures:
            newest = max(failures)
            sentence = (
                f"Version {newest} of {self.name} could not be loaded and will be retried."
                f" {failures[newest]}"
            )
        else:
            sentence = f"There is no model {self.name} yet: recsys run pushes one."
        return False, f"{sentence} This page reloads once a version is available."

    def statuses(self, version: int | None) -> list[dict[str, Any]]:
        """Returns the state of one version, or of all, in TensorFlow Serving's form.

        Raises:
            HttpError: The version is unknown.
        """
        states = {} if self.loading is None else {self.loading: _status("LOADING")}
        states |= {number: _status("END", str(e)) for number, e in self.failures.items()}
        states |= {model.version: _status("AVAILABLE") for model in self.models}
        if not states:
            raise self._nothing_yet()
        if version is not None and version not in states:
            rule = f"Could not find version {version} of model {self.name}."
            cure = "Omit the version to list the available ones."
            raise HttpError(NOT_FOUND, "R558", rule, cure, sorted(states))
        numbers = sorted(states, reverse=True) if version is None else [version]
        return [{"version": str(number), **states[number]} for number in numbers]

    def _nothing_yet(self) -> HttpError:
        rule = f"A version of {self.name!r} must be loaded before it can serve requests."
        cure = "Push a model (recsys run), or wait until it is loaded, and retry."
        received = {"loading": self.loading, "refused": sorted(self.failures)}
        return HttpError(UNAVAILABLE, "R559", rule, cure, received)


def _status(state: str, message: str = "") -> dict[str, Any]:
    code = "FAILED_PRECONDITION" if message else "OK"
    return {"state": state, "status": {"error_code": code, "error_message": message}}


def _identity(path: Path) -> _Identity:
    number = int(path.name)
    try:
        status = (path / MANIFEST).stat()
    except OSError:
        return (number,)
    return (number, status.st_ino, status.st_mtime_ns, status.st_size)


# --- metrics for Prometheus


_BUCKETS_S = (0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class ServerMetrics:
    """Metrics of one server.

    Attributes:
        load_failures: Versions that couldn't be loaded.
        load_seconds: Time to load a version [s].
        logged, not_logged: Rows of the log of what was served, and requests left out of it.
    """

    def __init__(self) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self._registry = CollectorRegistry()
        names = ("route", "method", "code")
        self._requests = self._add(Counter, "requests", "Requests answered.", names)
        text = "Time of an answer [s]."
        self._seconds = self._add(Histogram, "request_seconds", text, ["route"], buckets=_BUCKETS_S)
        self._in_flight = self._add(Gauge, "requests_in_flight", "Requests being answered.")
        text = "Newest loaded version; 0 before there is one."
        self._version = self._add(Gauge, "model_version", text)
        self._loaded = self._add(Gauge, "model_versions_loaded", "Versions that are loaded.")
        self._swaps = self._add(Counter, "model_swaps", "Times that the newest version changed.")
        text = "Versions that were refused, each try counted."
        self.load_failures: Counter = self._add(Counter, "model_load_failures", text)
        text = "Time to check, load and warm up a version [s]."
        self.load_seconds: Histogram = self._add(Histogram, "model_load_seconds", text)
        text = "Values of the context that a default replaced: missing, or unknown to training."
        self._defaults = self._add(Counter, "context_defaults", text, ("column", "reason"))
        text = (
            "Lists of a pair, by what ordered them: the ranker, or the retriever if the ranker was"
        )
        self._lists = self._add(Counter, "pair_lists", f"{text} late, or failed.", ["order"])
        self.logged: Counter = self._add(Counter, "served_log_rows", "Rows of served items logged.")
        text = "Requests that were not logged: the queue was full, or writing failed."
        self.not_logged: Counter = self._add(Counter, "served_log_dropped", text)

    def _add(self, kind: Any, name: str, text: str, labels: Any = (), **more: Any) -> Any:
        return kind(f"recsys_{name}", text, labels, registry=self._registry, **more)

    def text(self) -> bytes:
        """Returns all metrics in the text format of Prometheus."""
        return generate_latest(self._registry)

    def serving(self, newest: int, n_loaded: int, is_swap: bool) -> None:
        """Sets the gauges of served versions; `is_swap`: the newest version has changed."""
        self._version.set(newest)
        self._loaded.set(n_loaded)
        self._swaps.inc(is_swap)

    def context_defaults(self, missing: Mapping[str, int], unknown: Mapping[str, int]) -> None:
        """Counts values of the context that a default replaced, by column."""
        for reason, columns in {"missing": missing, "unknown": unknown}.items():
            for column, n in columns.items():
                self._defaults.labels(column, reason).inc(n)

    def pair_lists(self, order: str, n: int) -> None:
        """Counts lists of a pair by what ordered them: `ranker`, `late` or `failed`."""
        self._lists.labels(order).inc(n)

    @contextmanager
    def request(self, labels: Callable[[], tuple[str, str, str]]) -> Iterator[None]:
        """Counts a request with its route, method and code, which `labels` returns at its end."""
        started = time.perf_counter()
        try:
            with self._in_flight.track_inprogress():
                yield
        finally:
            route, method, code = labels()
            self._seconds.labels(route).observe(time.perf_counter() - started)
            self._requests.labels(route, method, code).inc()
