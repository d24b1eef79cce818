"""The server's process: sockets, signals, the watcher of new versions, and limits of headers."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import logging
import os
import resource
import socket
import sys
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import numpy as np
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from recsys.errors import UsageError
from recsys.savedmodel.signatures import DTYPES
from recsys.serving import grpc_server
from recsys.serving.app import App, Lifespan
from recsys.serving.opening import open_bundle
from recsys.serving.pair import Pair
from recsys.serving.pool import Pool, ServerMetrics
from recsys.serving.predictor import MicroBatcher, Predictor
from recsys.serving.requests import HEAD_BYTES, HEAD_LINES, Limits
from recsys.serving.served_log import ServedLog
from recsys.serving.served_model import ServedModel
from recsys.system.process import signals_to

_LOG = logging.getLogger("recsys.serve")
_STDERR = 2
_END_S, _LOAD_END_S, _KEEP_ALIVE_S = 30, 1.0, 60
_SWITCH_S = 0.001
_BACKLOG = 512
_OTHER_FILES = 256 + _BACKLOG
"""Number of open files besides connections: for loading a version, and for asyncio's backlog."""
_FEWEST_CONNECTIONS = 16
_OWN_HOSTS = ("127.0.0.1", "::1", "localhost")


@dataclasses.dataclass(frozen=True)
class Service:
    """Options of the server.

    Attributes:
        name: Name of the model.
        folder: Its serving folder; may be empty or missing.
        host: Address to bind.
        port: Port; 0: any free one.
        grpc_port: Port of gRPC; None: no gRPC.
        keep: Number of newest versions to keep loaded.
        poll_s: Interval at which the folder is read [s].
        hosts: Further allowed values of the Host header.
        limits: Limits of requests.
        log: Returns the log of what was served, given the metrics; None: no log.
    """

    name: str
    folder: Path
    host: str = "127.0.0.1"
    port: int = 8501
    grpc_port: int | None = None
    keep: int = 1
    poll_s: float = 2.0
    hosts: tuple[str, ...] = ()
    limits: Limits = dataclasses.field(default_factory=Limits)
    log: Callable[[ServerMetrics], ServedLog] | None = None


def serve(service: Service, ready: Callable[[str, str | None], None]) -> None:
    """Serves until SIGTERM or SIGINT, then finishes requests in flight.

    Args:
        service: Options of the server.
        ready: Called with the URL, and with the address of gRPC, once they are bound.

    Raises:
        UsageError: An address can't be bound.
    """
    _log_to_stderr()
    # Time for which a computing thread holds the interpreter while others wait.
    sys.setswitchinterval(_SWITCH_S)
    listener = _listen(service.host, service.port)
    host, port = listener.getsockname()[:2]
    at = f"[{host}]" if ":" in host else host
    grpc_address = None
    if service.grpc_port is not None:
        with _listen(service.host, service.grpc_port) as free:
            grpc_address = f"{at}:{free.getsockname()[1]}"
    hosts: tuple[str, ...] | None = (*_OWN_HOSTS, *map(str.lower, service.hosts))
    if host not in _OWN_HOSTS:
        hosts = None
        _LOG.warning("%s is reached from other machines, and asks for no password", service.host)
    metrics = ServerMetrics()
    load = functools.partial(load_version, metrics=metrics)
    pool = Pool(service.name, service.folder, load, service.keep, metrics)
    limits = with_enough_files(service.limits)
    log = service.log and service.log(metrics)
    predictor = Predictor(pool, MicroBatcher(limits), limits, log)
    app = App(predictor, metrics, hosts, lifespan(grpc_address, predictor, metrics))
    server = uvicorn.Server(server_config(app, limits))
    is_over = threading.Event()
    watcher = threading.Thread(target=pool.watch, args=(service.poll_s, is_over), daemon=True)
    watcher.start()
    # A signal may arrive before uvicorn handles signals. uvicorn re-raises caught signals at its
    # end, which must not kill this process.
    with signals_to(lambda *_: setattr(server, "should_exit", True)):
        ready(f"http://{at}:{port}", grpc_address)
        server.run(sockets=[listener])
        predictor.work.close()
        if log is not None:
            log.close()
    is_over.set()
    watcher.join(_LOAD_END_S)
    if watcher.is_alive():
        # Loading can't be interrupted, and TensorFlow crashes if the interpreter exits meanwhile.
        sys.stdout.flush()
        os._exit(0)


def lifespan(address: str | None, predictor: Predictor, metrics: ServerMetrics) -> Lifespan:
    """Returns the app's lifespan, which runs a gRPC server if `address` is given."""

    @contextlib.asynccontextmanager
    async def running(_: Any) -> AsyncIterator[None]:
        server = await grpc_server.start(address, predictor, metrics) if address else None
        yield
        if server is not None:
            await server.stop(_END_S)

    return running


def with_enough_files(limits: Limits) -> Limits:
    """Raises this process's limit of open files, or returns limits of fewer connections."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if hard == resource.RLIM_INFINITY or hard >= limits.connections + _OTHER_FILES:
        return limits
    most = max(_FEWEST_CONNECTIONS, hard - _OTHER_FILES)
    _LOG.warning("at most %d connections: the limit of open files is %d (`ulimit -n`)", most, hard)
    return dataclasses.replace(limits, connections=min(most, limits.connections))


def load_version(folder: Path, metrics: ServerMetrics | None = None) -> ServedModel:
    """Loads a version and warms it up, since the first call of a graph is slow.

    With `metrics`, which count its lists, the ranker of a pair has a deadline from then on.

    Raises:
        RecsysError: The bundle is damaged, or TensorFlow is missing or can't load it.
    """
    model = open_bundle(folder)
    for name, signature in model.signatures.items():
        blank = {}
        for key, spec in signature.items():
            nothing = b"" if spec.dtype == "DT_STRING" else 0
            sizes = [max(1, size) for size in spec.shape]  # -1 means any size.
            blank[key] = np.full(sizes, nothing, DTYPES[spec.dtype])
        model.ask(name, blank)
    if isinstance(model, Pair) and metrics is not None:
        model.count = metrics.pair_lists
    return model


def server_config(app: App, limits: Limits) -> uvicorn.Config:
    """Returns uvicorn's config for an app."""
    protocol: Any = functools.partial(BoundedProtocol, limits.head_s)
    return uvicorn.Config(
        app,
        http=protocol,
        ws="none",
        proxy_headers=False,
        access_log=False,
        log_config=None,
        server_header=False,
        limit_concurrency=limits.connections,
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=_END_S,
        backlog=_BACKLOG,
    )


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except (OSError, OverflowError) as error:
        rule = f"The server must be able to listen at {host}, port {port}."
        cure = "Name another port with --port or --grpc-port, or 0 for any free port."
        raise UsageError("R565", rule, cure, str(error)) from None


def _log_to_stderr() -> None:
    """Logs to the current stderr, since loading TensorFlow redirects it."""
    stream: Any = os.fdopen(os.dup(_STDERR), "w", buffering=1)
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    # uvicorn warns of invalid requests: clients could fill the log.
    for name, level in (("recsys.serve", logging.INFO), ("uvicorn", logging.ERROR)):
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.setLevel(level)
        logger.propagate = False


# --- headers


class BoundedProtocol(HttpToolsProtocol):
    """uvicorn's HTTP/1.1 protocol with limits for headers.

    uvicorn waits for the headers of a request forever, and its parser keeps any number of them.
    This class counts bytes before they are parsed, and headers, and limits the time of the headers.

    Bytes that are not part of a body (headers, trailers, chunk sizes) may be at most
    `HEAD_BYTES` more than the body. A slow or too long head closes the connection.

    Args:
        head_s: Timeout of the headers of a request [s].
        **named: Arguments of uvicorn.
    """

    def __init__(self, head_s: float, **named: Any) -> None:
        super().__init__(**named)
        self._head_s, self._head_bytes = head_s, 0
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Takes a connection."""
        super().connection_made(transport)
        self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forgets a connection."""
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Takes bytes of a request."""
        self._head_bytes += len(data)
        super().data_received(data)
        if self._head_bytes > HEAD_BYTES and not self.transport.is_closing():
            self.send_400_response("Too many bytes outside of the body.")

    def on_message_begin(self) -> None:
        """Begins a request."""
        super().on_message_begin()
        self._head_bytes = 0
        self._start_timer()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Takes a header or a trailer; the parser reports an exception as a wrong request."""
        if len(self.headers) >= HEAD_LINES:
            raise ValueError("too many headers")
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Starts the request."""
        self._stop_timer()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Takes a part of a body."""
        self._head_bytes -= 2 * len(body)
        super().on_body(body)

    def _start_timer(self) -> None:
        self._stop_timer()
        self._timer = self.loop.call_later(self._head_s, self.transport.close)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
