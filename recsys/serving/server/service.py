"""The process: sockets, signals, and the watcher of new versions."""

from __future__ import annotations

import dataclasses
import functools
import logging
import os
import resource
import socket
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import uvicorn

from recsys.errors import UsageError
from recsys.serving.retriever import Retriever
from recsys.serving.server.app import App
from recsys.serving.server.connections import HARD_LIMIT, PatientProtocol
from recsys.serving.server.limits import Limits
from recsys.serving.server.pool import Pool
from recsys.serving.server.predict import DTYPES
from recsys.serving.server.prometheus import ServerMetrics
from recsys.system.signals import signals_to

_LOG = logging.getLogger("recsys.serve")
_STDERR = 2
_END_S, _LOAD_END_S = 30, 1.0
_SWITCH_S = 0.001
_BACKLOG = 512
_OTHER_FILES = 256 + _BACKLOG
"""Open files beside connections: what loads a version, and all that asyncio accepts at once."""
_FEWEST_CONNECTIONS = 16


@dataclasses.dataclass(frozen=True)
class Service:
    """What to serve, and where.

    Attributes:
        name: Name of the model.
        folder: Its serving folder; may be empty or missing.
        host: Address to listen at.
        port: Port; 0 for any that is free.
        keep: Newest versions that are loaded.
        poll_s: Time between two looks into the folder [s].
        hosts: More names that a Host header may have.
        limits: How much a client may ask for.
    """

    name: str
    folder: Path
    host: str = "127.0.0.1"
    port: int = 8501
    keep: int = 1
    poll_s: float = 2.0
    hosts: tuple[str, ...] = ()
    limits: Limits = dataclasses.field(default_factory=Limits)


def serve(service: Service, ready: Callable[[str], None]) -> None:
    """Serves until SIGTERM or SIGINT, then finishes what is in flight.

    Args:
        service: What to serve.
        ready: Called with the address once it is bound.

    Raises:
        UsageError: The address can't be bound.
    """
    _log_to_stderr()
    # A thread that computes holds the interpreter for so long while others wait.
    sys.setswitchinterval(_SWITCH_S)
    listener = _listen(service.host, service.port)
    host, port = listener.getsockname()[:2]
    hosts: tuple[str, ...] | None = tuple(name.lower() for name in service.hosts)
    if host not in ("127.0.0.1", "::1"):
        hosts = None
        _LOG.warning("%s is reached from other machines, and asks for no password", service.host)
    metrics = ServerMetrics()
    pool = Pool(service.name, service.folder, load_version, service.keep, metrics)
    app = App(pool, with_enough_files(service.limits), metrics, hosts)
    server = uvicorn.Server(server_config(app))
    is_over = threading.Event()
    watcher = threading.Thread(target=pool.watch, args=(service.poll_s, is_over), daemon=True)
    watcher.start()
    # A signal may come before uvicorn listens to it. And it raises what it caught once
    # more when it is done: that must not kill us.
    with signals_to(lambda *_: setattr(server, "should_exit", True)):
        ready(f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}")
        server.run(sockets=[listener])
        app.work.close()
    is_over.set()
    watcher.join(_LOAD_END_S)
    if watcher.is_alive():
        # A load can't be stopped, and TensorFlow crashes if the interpreter ends below one.
        sys.stdout.flush()
        os._exit(0)


def with_enough_files(limits: Limits) -> Limits:
    """Raises this process's limit of open files, or returns limits of fewer connections."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = HARD_LIMIT * limits.connections + _OTHER_FILES
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return limits
    if hard == resource.RLIM_INFINITY or hard > soft:
        soft = needed if hard == resource.RLIM_INFINITY else min(hard, needed)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    most = min(limits.connections, max(_FEWEST_CONNECTIONS, (soft - _OTHER_FILES) // HARD_LIMIT))
    if most < limits.connections:
        _LOG.warning(
            "at most %d connections, not %d: the limit of open files is %d (`ulimit -n`)",
            most,
            limits.connections,
            soft,
        )
    return dataclasses.replace(limits, connections=most)


def load_version(folder: Path) -> Retriever:
    """Returns a version, loaded and warm: the first call of a graph is slow.

    Raises:
        RecsysError: The bundle is damaged, or TensorFlow is missing or can't load it.
    """
    retriever = Retriever.open(folder)
    for name, signature in retriever.signatures.items():
        blank = {}
        for key, spec in signature.items():
            nothing = b"" if spec.dtype == "DT_STRING" else 0
            blank[key] = np.full([1] * len(spec.shape), nothing, DTYPES[spec.dtype])
        retriever.ask(name, blank)
    return retriever


def server_config(app: App) -> uvicorn.Config:
    """Returns how uvicorn runs an app: its limits, and nothing that is printed."""
    protocol: Any = functools.partial(PatientProtocol, app.connections)
    return uvicorn.Config(
        app,
        http=protocol,
        ws="none",
        proxy_headers=False,
        lifespan="off",
        access_log=False,
        log_config=None,
        server_header=False,
        timeout_graceful_shutdown=_END_S,
        backlog=_BACKLOG,
    )


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(_BACKLOG)
    except (OSError, OverflowError) as error:
        rule = f"The server must be able to listen at {host}, port {port}."
        cure = "Name another port with --port, or 0 for any free port."
        raise UsageError("R565", rule, cure, str(error)) from None
    return listener


def _log_to_stderr() -> None:
    """Logs to the stderr of this moment, since TensorFlow's loading redirects it."""
    stream: Any = os.fdopen(os.dup(_STDERR), "w", buffering=1)
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    # What uvicorn warns of are mistakes of clients: they would write the log.
    for name, level in (("recsys.serve", logging.INFO), ("uvicorn", logging.ERROR)):
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.setLevel(level)
        logger.propagate = False
