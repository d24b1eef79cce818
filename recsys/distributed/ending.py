"""How one of several processes ends: with an error message, and within a time limit."""

from __future__ import annotations

import json
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, NoReturn, TypeGuard

import jax
from jax.experimental import multihost_utils

from recsys.distributed.coordination import client, n_processes, process_index
from recsys.errors import RecsysError, plugin_place
from recsys.system.process import answer, as_recsys_error, log_traceback
from recsys.system.signals import StopSignals, signals_to

HEARTBEAT_S = 20
"""Heartbeat timeout [s]. JAX notices a second or two later."""
STEP_S = 1200.0
"""Timeout for a computation of all processes [s]; the first one includes compilation."""
_OTHERS_S = 15.0
_LISTEN_S = 1.0
_PUBLISH_S = 10.0
_ENDED, _WAITED = "recsys/ended/", "recsys/waited/"
_is_over = threading.Event()
_listeners: list[threading.Thread] = []
"""The thread that waits for errors of other processes, after `listen`."""


@contextmanager
def calling_after(limit_s: float, end: Callable[[], NoReturn]) -> Iterator[None]:
    """Calls `end` in a thread if its block, which waits in C++, takes too long.

    Args:
        limit_s: Time limit of the block [s].
        end: Ends this process.
    """
    timer = threading.Timer(limit_s, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


@contextmanager
def ending_after(limit_s: float | None = None) -> Iterator[None]:
    """Ends this process with R389 if its block, which waits for the others, takes too long.

    Such a wait happens in C++, which no exception can interrupt. With gloo and NCCL it lasts as
    long as all are connected. JAX's heartbeats continue even if the main thread of a process
    hangs, for example on a disk that doesn't respond.

    Args:
        limit_s: Time limit of the block [s]; None: `STEP_S`.
    """
    if n_processes() == 1:
        yield
        return
    limit_s = STEP_S if limit_s is None else limit_s
    with calling_after(limit_s, lambda: _give_up(limit_s)):
        yield


class StepWatch:
    """Ends one of several processes with R389 if a step takes too long; see `ending_after`.

    Steps are asynchronous, so no block of code spans a whole step.

    Args:
        limit_s: Time limit of a step [s]; None: `STEP_S`.
        is_reading: Returns whether this process waits for its own batch, not for the others.
    """

    def __init__(
        self, limit_s: float | None = None, is_reading: Callable[[], bool] = lambda: False
    ) -> None:
        self._limit_s = STEP_S if limit_s is None else limit_s
        self._is_reading = is_reading
        self._since = math.inf  # Paused.
        self._is_over = threading.Event()

    def begin(self) -> None:
        """Starts the clock: a step begins."""
        self._since = time.monotonic()

    def pause(self) -> None:
        """Stops the clock until the next step begins."""
        self._since = math.inf

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watches inside the context, if there are several processes."""
        if n_processes() == 1:
            yield
            return
        thread = threading.Thread(target=self._watch, name="step watch", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._is_over.set()
            thread.join()

    def _watch(self) -> None:
        while not self._is_over.wait(min(1.0, self._limit_s)):
            if time.monotonic() - self._since > self._limit_s:
                _give_up(self._limit_s, is_waiting=not self._is_reading())


def _give_up(limit_s: float, is_waiting: bool = True) -> NoReturn:
    """Ends this process, which waited for too long, and names the ones that didn't wait.

    Args:
        limit_s: Time that it waited [s].
        is_waiting: Whether it waited for other processes.
    """
    with calling_after(2 * _OTHERS_S, lambda: _exit(_too_late(limit_s, []))):
        # The service may be gone, or not respond.
        busy: list[int] = []
        with suppress(jax.errors.JaxRuntimeError):
            busy = _not_waiting(is_waiting)
        end_process(_too_late(limit_s, busy))


def _not_waiting(is_waiting: bool) -> list[int]:
    """Returns the processes that haven't waited for the others as long as this one."""
    service = client()
    if service is None:
        return []
    if is_waiting:
        service.key_value_set(f"{_WAITED}{process_index()}", "")
    time.sleep(_OTHERS_S)  # The others time out at about the same time.
    waited = {int(key.rpartition("/")[2]) for key, _ in service.key_value_dir_get(_WAITED)}
    return sorted(set(range(n_processes())) - waited)


def _too_late(limit_s: float, busy: list[int]) -> RecsysError:
    return RecsysError(
        "R389",
        f"The processes of a run must answer each other within {limit_s:.0f} s; process"
        f" {process_index()} gave up.",
        "Check the log of what did not wait for the others, or else all logs, and whether the"
        " shared folders respond; with the same command a training resumes from its last"
        " checkpoint.",
        *([{"processes that did not wait": busy}] if busy else []),
    )


def end_process(error: BaseException) -> NoReturn:
    """Ends this process with an error, which is sent to the others; they end with it, too."""
    if _listeners and any(map(_is_of_jax, _causes(error))):
        # Another process may be the cause. Then it, or JAX, ends this process in the meantime.
        time.sleep(HEARTBEAT_S + _PUBLISH_S)
    # Other errors of JAX or of a broken connection aren't sent: all processes restart.
    if isinstance(error, OSError) or _is_of_plugin(error):
        error = as_recsys_error(error)
    _exit(error)


def _is_of_jax(error: BaseException) -> bool:
    """Returns whether a computation failed; gloo raises ValueError, too."""
    return isinstance(error, jax.errors.JaxRuntimeError) or "Gloo" in str(error)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _is_of_plugin(error: BaseException) -> TypeGuard[Exception]:
    """Returns whether a plugin raised the error; then every process raises it."""
    is_jax = isinstance(error, jax.errors.JaxRuntimeError)
    return isinstance(error, Exception) and not is_jax and plugin_place(error) is not None


def _publish(error: str) -> None:
    """Sends an error to the others; process 0, which runs the service, waits for their errors."""
    service, deadline = client(), time.monotonic() + _PUBLISH_S
    with suppress(jax.errors.JaxRuntimeError):
        service.key_value_set(f"{_ENDED}{process_index()}", error)
        while process_index() == 0 and time.monotonic() < deadline:
            if len(service.key_value_dir_get(_ENDED)) == n_processes():
                break
            time.sleep(0.1)


def listen() -> None:
    """Starts a thread that ends this process when another one reports an error."""
    _listeners.append(threading.Thread(target=_listen, daemon=True))
    _listeners[0].start()


def _listen() -> None:
    with suppress(jax.errors.JaxRuntimeError):
        while not _is_over.wait(_LISTEN_S):
            told = dict(client().key_value_dir_get(_ENDED))
            told.pop(f"{_ENDED}{process_index()}", None)
            for error in told.values():
                _exit(RecsysError.from_json(json.loads(error)))


def _exit(error: BaseException) -> NoReturn:
    """Ends this process at once, and sends the reason to the others."""
    with suppress(OSError):  # stdout and stderr may be files on a full disk.
        if isinstance(error, RecsysError):
            answer({"error": error.to_json()})
        sys.stdout.flush()
        sys.stderr.flush()
    if isinstance(error, RecsysError) and _listeners:
        teller = threading.Thread(target=_publish, args=[json.dumps(error.to_json())], daemon=True)
        teller.start()
        teller.join(_PUBLISH_S + 1.0)  # The service may not respond.
    os._exit(error.exit_code if isinstance(error, RecsysError) else 1)


@contextmanager
def failing_at_once() -> Iterator[None]:
    """Ends one of several processes with an error message as soon as any of them fails.

    Otherwise JAX would make it wait at its exit for the others, which wait for it.
    """
    try:
        yield
    except BaseException as error:
        if n_processes() == 1:
            raise
        log_traceback()
        end_process(error)
    finally:
        _is_over.set()
        for listener in _listeners:
            listener.join()


class StopRequest:
    """Handles SIGTERM and SIGINT as a request to stop the run.

    A second signal ends the run without saving.
    """

    def __init__(self) -> None:
        self._signals = StopSignals()
        self._before: dict[int, Any] = {}

    def is_due(self, step: int) -> bool:
        """Returns whether to stop after `step`; the same in every process."""
        if n_processes() > 1:
            # JAX's service detects the signal in any process, and agrees on a step with all.
            return bool(multihost_utils.reached_preemption_sync_point(step))
        return self._signals.is_set

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Handles the signals inside the context, and restores their handlers afterwards."""
        is_ours = threading.current_thread() is threading.main_thread()
        if n_processes() > 1 or not is_ours:
            yield
            return
        with signals_to(self._handle) as self._before:
            yield

    def _handle(self, signum: int, _frame: FrameType | None) -> None:
        if self._signals.add(signum):
            signal.signal(signum, self._before[signum])
            signal.raise_signal(signum)
