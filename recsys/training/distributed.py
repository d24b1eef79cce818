"""Training in several processes: join, agree, and stop together.

The processes of a run find each other through the environment:

    RECSYS_COORDINATOR   host:port where the first one listens
    RECSYS_PROCESSES     how many there are
    RECSYS_PROCESS       which one this is, from 0
    RECSYS_LOCAL_DEVICE  the one GPU of this machine that it takes; all if not set

`recsys train --processes N` sets them on this machine; a scheduler sets them on a
cluster, or `RECSYS_COORDINATOR=auto` where JAX can ask the scheduler itself (Slurm,
Open MPI, Kubernetes).
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from recsys.errors import RecsysError, UsageError
from recsys.system.process import storage_error
from recsys.system.signals import signals_to

COORDINATOR, COUNT, INDEX = "RECSYS_COORDINATOR", "RECSYS_PROCESSES", "RECSYS_PROCESS"
LOCAL_DEVICE = "RECSYS_LOCAL_DEVICE"


def join() -> None:
    """Joins the processes of the run, if the environment names any.

    Raises:
        UsageError: The environment names them wrongly.
    """
    coordinator = os.environ.get(COORDINATOR)
    if not coordinator:
        return
    if os.environ.get("JAX_PLATFORMS", "cpu") == "cpu":  # Of no consequence on GPUs.
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
    if coordinator == "auto":
        jax.distributed.initialize()
        return
    # CPUs aren't divided: each process has as many devices as XLA_FLAGS says.
    device = [_number(LOCAL_DEVICE, 0)] if os.environ.get(LOCAL_DEVICE) else None
    jax.distributed.initialize(coordinator, _number(COUNT, 1), _number(INDEX, 0), device)


def _number(name: str, least: int) -> int:
    text = os.environ.get(name, "")
    if not text.isdecimal() or int(text) < least:
        raise UsageError(
            "R376",
            f"With {COORDINATOR} set, {name} must be a whole number from {least} on.",
            f"Set {COUNT} to how many processes there are, and {INDEX} to which one this is.",
            text,
        )
    return int(text)


def is_primary() -> bool:
    """Returns whether this process speaks for all."""
    return jax.process_index() == 0


def agreed(decide: Callable[[], Any]) -> Any:
    """Returns, or raises, on every process what `decide` does on the primary one: JSON."""
    if jax.process_count() == 1:
        return decide()
    text = json.dumps(_answer(decide) if is_primary() else {}).encode()
    length = int(multihost_utils.broadcast_one_to_all(np.int32(len(text))))
    letters = np.frombuffer(text.ljust(length)[:length], np.uint8)
    return _value(bytes(np.asarray(multihost_utils.broadcast_one_to_all(letters))))


def jointly(do: Callable[[], Any]) -> list[Any]:
    """Returns, on every process, what `do` returns on each of them, JSON, in their order.

    Raises:
        RecsysError: That of the first process that has one, on every process.
    """
    if jax.process_count() == 1:
        return [do()]
    text = json.dumps(_answer(do)).encode()
    lengths = multihost_utils.process_allgather(np.int32(len(text)))
    letters = np.frombuffer(text.ljust(int(lengths.max())), np.uint8)
    return [_value(bytes(own)) for own in multihost_utils.process_allgather(letters)]


def in_shares(check: Callable[[int, int], None]) -> None:
    """Runs `check` on every process; all raise the error of the first one that does.

    Args:
        check: Takes the index of a process, and how many there are: which share is its.
    """
    jointly(lambda: check(jax.process_index(), jax.process_count()))


def _answer(decide: Callable[[], Any]) -> dict[str, Any]:
    """Returns the value of `decide`, or its error, as what another process can read."""
    try:
        return {"value": decide()}
    except RecsysError as error:
        return {"error": error.to_json()}
    except OSError as error:
        return {"error": storage_error(error).to_json()}


def _value(text: bytes) -> Any:
    """Returns or raises what `_answer` returned, as JSON, in some process."""
    answer = json.loads(text)
    if "error" in answer:
        raise RecsysError.from_json(answer["error"])
    return answer["value"]


@contextmanager
def failing_at_once() -> Iterator[None]:
    """Ends one of several processes as soon as it fails, after it has said why.

    JAX would have it wait at its end for the others, who wait for it.
    """
    try:
        yield
    except BaseException as error:
        if jax.process_count() == 1:
            raise
        traceback.print_exc()
        if isinstance(error, OSError):
            error = storage_error(error)
        if isinstance(error, RecsysError):
            print(json.dumps({"error": error.to_json()}))  # noqa: T201 as a stage says it
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(error.exit_code if isinstance(error, RecsysError) else 1)


_TOGETHER_S = 1.0


class StopSignals:
    """Counts signals to stop; those that arrive within a second are one.

    A signal often arrives twice: from the terminal or the service manager, which send it
    to all processes, and from the parent, which passes it on.

    Attributes:
        is_set: Whether there was a signal.
    """

    def __init__(self) -> None:
        self.is_set = False
        self._since = 0.0

    def add(self) -> bool:
        """Takes a signal; returns whether it is a second one, which asks to stop at once."""
        now = time.monotonic()
        if self.is_set:
            return now - self._since > _TOGETHER_S
        self.is_set, self._since = True, now
        return False


class StopRequest:
    """Whether the run was asked to stop, by SIGTERM or SIGINT.

    Asked again, the run ends without saving.
    """

    def __init__(self) -> None:
        self._signals = StopSignals()
        self._before: dict[int, Any] = {}

    def is_due(self, step: int) -> bool:
        """Returns whether to stop after `step`; the same in every process."""
        if jax.process_count() > 1:
            # JAX's own service hears the signal in any process, and names a step to all.
            return bool(multihost_utils.reached_preemption_sync_point(step))
        return self._signals.is_set

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Handles the signals while it is open; their earlier handlers do outside."""
        is_ours = threading.current_thread() is threading.main_thread()
        if jax.process_count() > 1 or not is_ours:
            yield
            return
        with signals_to(self._handle) as self._before:
            yield

    def _handle(self, signum: int, _frame: FrameType | None) -> None:
        if self._signals.add():
            signal.signal(signum, self._before[signum])
            signal.raise_signal(signum)
