"""The process: sockets, signals, and the watcher of new versions."""

from __future__ import annotations

import dataclasses
import logging
import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import uvicorn

from recsys.errors import UsageError
from recsys.serving.pool import Pool, VersionWatcher
from recsys.serving.retriever import Retriever
from recsys.serving.server.app import App
from recsys.serving.server.connections import protocol_class
from recsys.serving.server.limits import Limits
from recsys.serving.server.prometheus import ServerMetrics
from recsys.serving.server.served_models import ServedModel
from recsys.serving.server.tensors import blank
from recsys.system.signals import signals_to

_LOG = logging.getLogger("recsys.serve")
_STDERR = 2
_END_S, _LOAD_END_S = 30, 1.0
_SWITCH_S = 0.001
_BACKLOG = 512


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
    is_loopback = listener.getsockname()[0] in ("127.0.0.1", "::1")
    if not is_loopback:
        _LOG.warning(
            "%s is reached from other machines, and asks nobody who they are", service.host
        )
    metrics = ServerMetrics()
    pool = Pool(service.folder, load_version, service.keep, metrics)
    app = App(
        ServedModel(service.name, pool),
        service.limits,
        metrics,
        tuple(name.lower() for name in service.hosts) if is_loopback else None,
    )
    server = uvicorn.Server(server_config(app, service.limits))
    watcher = VersionWatcher(pool, service.poll_s)
    watcher.start()
    # A signal may come before uvicorn listens to it. And it raises what it caught once
    # more when it is done: that must not kill us.
    with signals_to(lambda *_: setattr(server, "should_exit", True)):
        ready(_url(listener))
        server.run(sockets=[listener])
        app.work.close()
    if not watcher.stop(_LOAD_END_S):
        # TensorFlow crashes if the interpreter ends below a load.
        sys.stdout.flush()
        os._exit(0)


def load_version(folder: Path) -> Retriever:
    """Returns a version, loaded and warm: the first call of a graph is slow.

    Raises:
        RecsysError: The bundle is damaged, or TensorFlow is missing or can't load it.
    """
    retriever = Retriever.open(folder)
    for name, signature in retriever.signatures.items():
        if signature.inputs:
            retriever.ask(name, {input_: blank(spec) for input_, spec in signature.inputs.items()})
    return retriever


def server_config(app: App, limits: Limits) -> uvicorn.Config:
    """Returns how uvicorn runs an app: its limits, and nothing that is printed."""
    return uvicorn.Config(
        app,
        http=protocol_class(limits, app.connections),
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
        raise UsageError(
            "R565",
            f"The server must be able to listen at {host}, port {port}.",
            "Name another port with --port, or 0 for any that is free.",
            str(error),
        ) from None
    return listener


def _url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _log_to_stderr() -> None:
    """Logs to what is stderr now: while TensorFlow loads, stderr goes nowhere."""
    stream: Any = os.fdopen(os.dup(_STDERR), "w", buffering=1)
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    # What uvicorn warns of are mistakes of clients: they would write the log.
    for name, level in (("recsys.serve", logging.INFO), ("uvicorn", logging.ERROR)):
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.setLevel(level)
        logger.propagate = False
