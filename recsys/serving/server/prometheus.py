"""Metrics for Prometheus."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
)

_BUCKETS_S = (0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class ServerMetrics:
    """Metrics of one server.

    Attributes:
        load_failures: Versions that couldn't be loaded.
        load_seconds: Time to load a version [s].
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
