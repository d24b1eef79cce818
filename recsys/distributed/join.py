"""Joins the processes of a run through `jax.distributed`, and checks that they agree."""

from __future__ import annotations

import math
import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

from recsys.distributed.agreement import agree, is_loopback
from recsys.distributed.coordination import detected, publish
from recsys.distributed.ending import HEARTBEAT_S, calling_after, end_process, listen
from recsys.distributed.place import Place
from recsys.errors import RecsysError, UsageError

_LEAVE_S = 300
_TRY_S = 2.0


def join(facts: Callable[[], Mapping[str, Any]] = dict, folders: Sequence[Path] = ()) -> bool:
    """Joins the other processes of the run, if a parent gave this one a place among them.

    Args:
        facts: Returns values that must be equal on all processes, by name, JSON-serializable.
        folders: Folders that all must share; created if missing.

    Returns:
        Whether a parent gave this process a place, even if it is the only one.

    Raises:
        RecsysError: The processes do not connect before the timeout, or differ.
    """
    place = Place.of_environment()
    if place is None:
        return False
    if place.coordinator == "auto":
        place = detected(place)
    host, port = place.address
    if place.process == 0:
        _wait_for_port(port, place.wait_s)
    with calling_after(place.wait_s, lambda: end_process(_not_met(place))):
        jax.distributed.initialize(
            place.coordinator,
            place.n_processes,
            place.process,
            [int(device) for device in place.devices.split(",")] if place.devices else None,
            cluster_detection_method="deactivate",
            # Longer than `wait_s`, since this timeout aborts the process.
            initialization_timeout=math.ceil(place.wait_s) + 60,
            heartbeat_timeout_seconds=HEARTBEAT_S,
            shutdown_timeout_seconds=_LEAVE_S,
            coordinator_bind_address=place.coordinator if is_loopback(host) else None,  # None: all
        )
    if place.is_local:
        address = "127.0.0.1"
    else:
        listen()
        address = agree(place, facts(), folders)
    if os.environ.get("JAX_PLATFORMS", "cpu") == "cpu":
        publish(address)
    return True


def _wait_for_port(port: int, wait_s: float) -> None:
    """Waits until the port of the coordination service is free; otherwise the service crashes.

    Raises:
        UsageError: Another program keeps the port (R383).
    """
    deadline = time.monotonic() + wait_s
    while True:
        try:
            with socket.create_server(("", port)):
                return
        except OSError as error:
            if time.monotonic() > deadline:
                raise UsageError(
                    "R383",
                    f"The first process must be able to listen on port {port}.",
                    "End the program that listens there, or name another port everywhere.",
                    error.strerror or str(error),
                ) from None
        time.sleep(0.5)


def _not_met(place: Place) -> RecsysError:
    """Returns the error for processes that did not connect before the timeout."""
    who = f"process {place.process} ({socket.gethostname()!r})"
    try:
        if place.process:
            socket.create_connection(place.address, _TRY_S).close()
    except OSError as error:
        is_unknown = isinstance(error, socket.gaierror)
        return RecsysError(
            "R383",
            f"The first process, {place.coordinator}, must be reachable from {who} within"
            f" {place.wait_s:.0f} s.",
            "Check whether the name is right, the command was started there, and no firewall is"
            " between.",
            "its name isn't known here" if is_unknown else error.strerror or str(error),
        )
    return RecsysError(
        "R384",
        f"All {place.n_processes} processes must come to {place.coordinator} within"
        f" {place.wait_s:.0f} s; {who} has waited for the others in vain.",
        "Check their logs; to continue with fewer, give a smaller --num-processes everywhere.",
    )
