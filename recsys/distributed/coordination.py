"""How the processes of a run find, wait for and tell each other, and end together.

It uses JAX's coordination service and other parts of JAX that are not public.
The service runs in process 0. It has a key-value store and a barrier with a timeout of our
choice; collectives on devices give up after 30 s with gloo, and need equal programs. Its
heartbeats detect lost processes. The tests fail if a new version of JAX renames these parts.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
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
from typing import Any, NoReturn

import jax
import numpy as np
from jax._src import distributed
from jax.experimental import multihost_utils
from jax.extend.backend import register_backend_factory

from recsys.distributed.place import Place
from recsys.errors import RecsysError, UsageError, plugin_place
from recsys.ragged import slices
from recsys.system.events import note
from recsys.system.files import storage_error
from recsys.system.process import StopSignals, answer, as_recsys_error, log_traceback, signals_to


def n_processes() -> int:
    """Returns the number of processes that have joined; unlike JAX's, it needs no devices."""
    return int(distributed.global_state.num_processes)


def process_index() -> int:
    """Returns the index of this process; unlike JAX's, it needs no devices."""
    return int(distributed.global_state.process_id)


def client() -> Any:
    """Returns the client of the service; None if this process has not joined others."""
    return distributed.global_state.client


def detected(place: Place) -> Place:
    """Returns a place completed with what Slurm, Open MPI or Kubernetes provide.

    Raises:
        UsageError: No such scheduler is found (R376).
    """
    reason = "no Slurm, Open MPI or Kubernetes"
    try:
        from jax._src.clusters import ClusterEnv

        coordinator, count, index, devices = ClusterEnv.auto_detect_unset_distributed_params(
            None, None, None, None, None, round(place.wait_s)
        )
    except Exception as error:  # noqa: BLE001 whatever the clients of a scheduler raise
        coordinator, reason = None, str(error)
    if coordinator is None or count is None or index is None:
        raise UsageError(
            "R376",
            "--coordinator auto needs a scheduler that knows the processes.",
            "Give --coordinator HOST:PORT, --num-processes and --process-id.",
            reason,
        )
    shown = ",".join(map(str, devices or ()))
    return dataclasses.replace(
        place, coordinator=coordinator, n_processes=count, process=index, devices=shown
    )


def publish(address: str) -> None:
    """Sets the address that gloo, which connects JAX's CPUs, publishes for this process.

    By default it publishes the address of the machine's own name, often 127.0.1.1, which
    other machines cannot reach.
    """
    from jax._src import xla_bridge
    from jaxlib import _jax

    gloo = _jax.make_gloo_tcp_collectives(distributed_client=client(), hostname=address)
    cpu_client = functools.partial(xla_bridge.make_cpu_client, gloo)
    register_backend_factory("cpu", cpu_client, priority=0, fail_quietly=False)


# --- time limits and the end: with an error message, and within a time limit

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
    is_jax = isinstance(error, jax.errors.JaxRuntimeError)
    is_plugins = not is_jax and plugin_place(error) is not None  # Then every process raises it.
    if isinstance(error, Exception) and (isinstance(error, OSError) or is_plugins):
        error = as_recsys_error(error)
    _exit(error)


def _is_of_jax(error: BaseException) -> bool:
    """Returns whether a computation failed; gloo raises ValueError, too."""
    return isinstance(error, jax.errors.JaxRuntimeError) or "Gloo" in str(error)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


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


# --- values, errors and arrays, exchanged between the processes


_AGREE_S = 1800.0
_PIECE_BYTES = 1 << 26
_meetings = itertools.count()


def is_primary() -> bool:
    """Returns whether this is process 0, which acts for all of them."""
    return process_index() == 0


def meet() -> None:
    """Waits for the other processes; ends this one with an error message if they don't come."""
    exchange(None)


def exchange(value: Any, limit_s: float = _AGREE_S) -> list[Any]:
    """Returns the JSON values of all processes, in their order.

    They are exchanged through JAX's coordination service: collectives on devices would need a
    program, and gloo gives up after 30 s.

    Args:
        value: Value of this process.
        limit_s: Timeout, after which this process ends with an error message [s].
    """
    if n_processes() == 1:
        return [value]
    service, number = client(), next(_meetings)
    service.key_value_set(f"recsys/{number}/{process_index()}", json.dumps(value))
    with ending_after(limit_s):
        service.wait_at_barrier(f"recsys {number}", int(2000 * limit_s))
    values = dict(service.key_value_dir_get(f"recsys/{number}/"))
    if is_primary() and number:  # All processes have read the previous values.
        service.key_value_delete(f"recsys/{number - 1}/")
    return [json.loads(values[f"recsys/{number}/{index}"]) for index in range(n_processes())]


def agreed(decide: Callable[[], Any], limit_s: float = _AGREE_S) -> Any:
    """Returns the primary's result of `decide`, or raises its error, on every process.

    Args:
        decide: Function to call on the primary only; returns JSON.
        limit_s: Timeout of the others [s].
    """
    if n_processes() == 1:
        return decide()
    return _value(exchange(_answer(decide) if is_primary() else None, limit_s)[0])


def jointly(do: Callable[[], Any]) -> list[Any]:
    """Returns the results of `do` on all processes, in their order, on every process.

    Args:
        do: Function to call; returns JSON.

    Raises:
        RecsysError: The error of the first process that has one, on every process.
    """
    if n_processes() == 1:
        return [do()]
    return [_value(answer) for answer in exchange(_answer(do))]


def in_shares(check: Callable[[int, int], None]) -> None:
    """Runs `check` on every process; all raise the error of the first one that fails.

    Args:
        check: Function of the process' index and the number of processes, which checks the
            share of that process.
    """
    jointly(lambda: check(process_index(), n_processes()))


def _answer(decide: Callable[[], Any]) -> dict[str, Any]:
    """Returns the value of `decide`, or its error, as JSON for the other processes."""
    try:
        return {"value": decide()}
    except RecsysError as error:
        return {"error": error.to_json()}
    except OSError as error:
        return {"error": storage_error(error).to_json()}


def _value(answer: dict[str, Any]) -> Any:
    """Returns the value, or raises the error, that `_answer` returned in some process."""
    if "error" in answer:
        raise RecsysError.from_json(answer["error"])
    return answer["value"]


def from_primary(make: Callable[[], np.ndarray]) -> np.ndarray:
    """Calls `make` on the first process only, and returns its array on every process.

    Raises:
        RecsysError: The first process raised it.
    """
    own: list[np.ndarray] = []

    def described() -> tuple[str, list[int]]:
        own.append(np.ascontiguousarray(make()))
        return own[0].dtype.str, list(own[0].shape)

    kind, shape = agreed(described)
    array = own[0] if own else np.zeros(shape, kind)
    if n_processes() == 1 or not array.size:
        return array
    letters = _in_pieces(multihost_utils.broadcast_one_to_all, array)
    return letters.astype(np.uint8).view(kind).reshape(shape)


def _in_pieces(move: Callable[[np.ndarray], Any], array: np.ndarray) -> np.ndarray:
    """Returns the bytes `[…, n]` that a collective makes of those of an array, in pieces."""
    letters = array.reshape(-1).view(np.uint8)
    with ending_after(_AGREE_S):
        pieces = [np.asarray(move(letters[part])) for part in slices(len(letters), _PIECE_BYTES)]
    return np.concatenate(pieces, axis=-1)


def note_on_primary(sentence: str) -> None:
    """Reports a note, on the primary process only."""
    if is_primary():
        note(sentence)
