"""Training and evaluation in several processes: join, agree, and stop together.

`recsys.training.launcher` is the parent on one machine, `recsys.training.hosts` on several.
"""

from __future__ import annotations

import functools
import itertools
import json
import math
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, NoReturn, TypeGuard

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.extend.backend import register_backend_factory

from recsys.errors import RecsysError
from recsys.system.disk import storage_error
from recsys.system.host_connections import loopback_in
from recsys.system.process import answer, as_told, log_traceback
from recsys.system.signals import signals_to
from recsys.system.unexpected import plugin_place
from recsys.training.processes import ADDRESS, COUNT, INDEX, LOCAL_DEVICE, SERVICE, StopSignals

# The parents of the processes notice the loss of a host sooner: these are for what they
# can't see, a process that stands still.
_JOIN_S = 300
_SILENT_S = 100
_LEAVE_S = 300
_AGREE_S = 1800.0
_ASK_S = 15.0
STEP_S = 1200.0
"""How long the devices of all processes may compute together [s]; the first time they compile."""
_PIECE_BYTES = 1 << 26
_meetings = itertools.count()


def join() -> None:
    """Joins the processes of the run, if the environment names any."""
    service = os.environ.get(SERVICE)
    if not service:
        return
    is_on_cpu = os.environ.get("JAX_PLATFORMS", "cpu") == "cpu"
    if is_on_cpu:  # Of no consequence on GPUs.
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
    # CPUs aren't divided: each process has as many devices as XLA_FLAGS says.
    devices = os.environ.get(LOCAL_DEVICE, "")
    is_here = loopback_in(service.rpartition(":")[0].strip("[]")) is not None
    jax.distributed.initialize(
        service,
        int(os.environ[COUNT]),
        int(os.environ[INDEX]),
        [int(device) for device in devices.split(",")] if devices else None,
        cluster_detection_method="deactivate",
        initialization_timeout=_JOIN_S,
        heartbeat_timeout_seconds=_SILENT_S,
        shutdown_timeout_seconds=_LEAVE_S,
        coordinator_bind_address=service if is_here else None,  # None: at all addresses.
    )
    if is_on_cpu and (address := os.environ.get(ADDRESS)):
        _publish(address)


def _publish(address: str) -> None:
    """Makes gloo, which JAX's CPUs talk by, name this process by an address.

    By default it names what the machine's own name resolves to, often 127.0.1.1, where
    processes of other machines can't reach it. JAX has no public option for it.

    Raises:
        RecsysError: JAX's private parts are others by now.
    """
    try:
        from jax._src import distributed, xla_bridge
        from jaxlib import _jax

        gloo = _jax.make_gloo_tcp_collectives(
            distributed_client=distributed.global_state.client, hostname=address
        )
        cpu_client = functools.partial(xla_bridge.make_cpu_client, gloo)
    except (ImportError, AttributeError, TypeError) as error:
        raise RecsysError(
            "R385",
            f"The name of this host, {socket.gethostname()!r}, must resolve to an address at"
            " which the other hosts find it, as this version of JAX accepts no other.",
            f"Write '{address} {socket.gethostname()}' into /etc/hosts.",
            str(error),
        ) from None
    register_backend_factory("cpu", cpu_client, priority=0, fail_quietly=False)


def is_joined() -> bool:
    """Returns whether a parent started this process as one of several, or as the only one."""
    return bool(os.environ.get(SERVICE))


def is_primary() -> bool:
    """Returns whether this process acts for all of them."""
    return jax.process_index() == 0


def agreed(decide: Callable[[], Any], limit_s: float = _AGREE_S) -> Any:
    """Returns, on every process, the JSON that the primary one gets from `decide`, or its error.

    Args:
        decide: Called on the primary process alone.
        limit_s: How long the others wait for it [s].
    """
    if jax.process_count() == 1:
        return decide()
    text = json.dumps(_answer(decide) if is_primary() else {}).encode()
    meet(limit_s)
    with ending_after(_AGREE_S):
        length = int(multihost_utils.broadcast_one_to_all(np.int32(len(text))))
        letters = np.frombuffer(text.ljust(length)[:length], np.uint8)
        answer = bytes(np.asarray(multihost_utils.broadcast_one_to_all(letters)))
    return _value(answer)


def jointly(do: Callable[[], Any]) -> list[Any]:
    """Returns, on every process, what `do` returns on each of them, JSON, in their order.

    Raises:
        RecsysError: That of the first process that has one, on every process.
    """
    if jax.process_count() == 1:
        return [do()]
    text = json.dumps(_answer(do)).encode()
    meet()
    with ending_after(_AGREE_S):
        lengths = multihost_utils.process_allgather(np.int32(len(text)))
        letters = np.frombuffer(text.ljust(int(lengths.max())), np.uint8)
        answers = [bytes(own) for own in multihost_utils.process_allgather(letters)]
    return [_value(own) for own in answers]


def in_shares(check: Callable[[int, int], None]) -> None:
    """Runs `check` on every process; all raise the error of the first one that does.

    Args:
        check: Takes the index of a process, and how many there are: which share is its.
    """
    jointly(lambda: check(jax.process_index(), jax.process_count()))


def _answer(decide: Callable[[], Any]) -> dict[str, Any]:
    """Returns the value of `decide`, or its error, as JSON for the other processes."""
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


def of_first(make: Callable[[], np.ndarray]) -> np.ndarray:
    """Returns, on every process, the array that `make` returns on the first one alone.

    Raises:
        RecsysError: As `agreed`.
    """
    own: list[np.ndarray] = []

    def described() -> tuple[str, list[int]]:
        own.append(np.ascontiguousarray(make()))
        return own[0].dtype.str, list(own[0].shape)

    kind, shape = agreed(described)
    if jax.process_count() == 1:
        return own[0]
    array = own[0] if own else np.zeros(shape, kind)
    letters = array.reshape(-1).view(np.uint8)
    with ending_after(_AGREE_S):
        pieces = [
            np.asarray(multihost_utils.broadcast_one_to_all(letters[start : start + _PIECE_BYTES]))
            for start in range(0, len(letters), _PIECE_BYTES)
        ]
    none = np.zeros(0, np.uint8)
    return np.concatenate([none, *pieces]).astype(np.uint8).view(kind).reshape(shape)


def stacked(make: Callable[[], np.ndarray]) -> np.ndarray:
    """Returns, on every process, the arrays `[processes, …]` that `make` returns on each.

    They are of one shape and type, and pass the devices, in pieces.

    Raises:
        RecsysError: As `jointly`.
    """
    own: list[np.ndarray] = []
    jointly(lambda: own.append(make()))
    count, array = jax.process_count(), own[0]
    if count == 1 or not array.size:
        return np.stack(own * count)
    letters = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    with ending_after(_AGREE_S):
        pieces = [
            multihost_utils.process_allgather(letters[start : start + _PIECE_BYTES])
            for start in range(0, len(letters), _PIECE_BYTES)
        ]
    return np.concatenate(pieces, axis=1).view(array.dtype).reshape(count, *array.shape)


def meet(limit_s: float = _AGREE_S) -> None:
    """Waits for the other processes, possibly for long.

    Uses the barrier of JAX's coordination service, because gloo's times out after 30 s. JAX has
    no public option for either.

    Args:
        limit_s: After how long this process ends, with a sentence [s].
    """
    if jax.process_count() == 1:
        return
    from jax._src import distributed

    with ending_after(limit_s):
        service: Any = distributed.global_state.client
        service.wait_at_barrier(f"recsys {next(_meetings)}", int(2000 * limit_s))


@contextmanager
def ending_after(limit_s: float | None = None) -> Iterator[None]:
    """Ends this process with R389 if its block, which waits for the others, takes too long.

    Such a wait happens in C++, which no exception can interrupt, and lasts with gloo and NCCL
    for as long as all are connected. JAX's service finds a process alive whose main thread
    stands still, as on a disk that doesn't answer.

    Args:
        limit_s: How long the block may take [s]; None: `STEP_S`.
    """
    if jax.process_count() == 1:
        yield
        return
    limit_s = STEP_S if limit_s is None else limit_s
    timer = threading.Timer(limit_s, _give_up, [limit_s])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


class StepWatch:
    """Ends one of several processes with R389 where a step takes too long; see `ending_after`.

    A step is started and not waited for, so that no block holds all of it.

    Args:
        limit_s: How long a step may take [s]; None: `STEP_S`.
        is_reading: Returns whether this process waits for its own batch, not for the others.
    """

    def __init__(
        self, limit_s: float | None = None, is_reading: Callable[[], bool] = lambda: False
    ) -> None:
        self._limit_s = STEP_S if limit_s is None else limit_s
        self._is_reading = is_reading
        self._since = math.inf  # Not yet, or not now.
        self._is_over = threading.Event()

    def begin(self) -> None:
        """Measures from now on: a step begins."""
        self._since = time.monotonic()

    def pause(self) -> None:
        """Measures nothing until the next step begins."""
        self._since = math.inf

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watches while it is open, if there are several processes."""
        if jax.process_count() == 1:
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
    """Ends this process, which waited for too long, and names those that didn't wait.

    Args:
        limit_s: How long it waited [s].
        is_waiting: Whether it waited for other processes.
    """
    last = threading.Timer(2 * _ASK_S, _end, [_too_late(limit_s, [])])
    last.daemon = True
    last.start()  # The service may not answer either.
    busy: list[int] = []
    # Without a service, or where JAX's private parts are others by now, none is named.
    with suppress(ImportError, AttributeError, TypeError, jax.errors.JaxRuntimeError):
        busy = _not_waiting(is_waiting)
    _end(_too_late(limit_s, busy))


def _not_waiting(is_waiting: bool) -> list[int]:
    """Returns the processes that haven't waited for the others as long as this one."""
    from jax._src import distributed

    service: Any = distributed.global_state.client
    if is_waiting:
        service.key_value_set(f"recsys/waited/{jax.process_index()}", "")
    time.sleep(_ASK_S)  # The others give up at about the same time.
    waited = {int(key.rpartition("/")[2]) for key, _ in service.key_value_dir_get("recsys/waited")}
    return sorted(set(range(jax.process_count())) - waited)


def _too_late(limit_s: float, busy: list[int]) -> RecsysError:
    return RecsysError(
        "R389",
        f"The processes of a run must answer each other within {limit_s:.0f} s; process"
        f" {jax.process_index()} gave up.",
        "Check the log of what did not wait for the others, or else all logs, and whether the"
        " shared folders respond; with the same command a training resumes from its last"
        " checkpoint.",
        *([{"processes that did not wait": busy}] if busy else []),
    )


def _end(error: BaseException) -> NoReturn:
    """Ends this process with an error message, without waiting for the others."""
    # What else JAX or a broken connection raises is no reason: all start again.
    if isinstance(error, OSError) or _is_of_plugin(error):
        error = as_told(error)
    with suppress(OSError):  # They may be files on a full disk.
        if isinstance(error, RecsysError):
            answer({"error": error.to_json()})
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(error.exit_code if isinstance(error, RecsysError) else 1)


def _is_of_plugin(error: BaseException) -> TypeGuard[Exception]:
    """Returns whether a plugin raised an error by itself, the same in every process."""
    is_jax = isinstance(error, jax.errors.JaxRuntimeError)
    return isinstance(error, Exception) and not is_jax and plugin_place(error) is not None


@contextmanager
def failing_at_once() -> Iterator[None]:
    """Ends one of several processes with an error message as soon as it fails.

    Otherwise JAX would make it wait at its exit for the others, which wait for it.
    """
    try:
        yield
    except BaseException as error:
        if jax.process_count() == 1:
            raise
        log_traceback()
        _end(error)


class StopRequest:
    """Whether the run was stopped by SIGTERM or SIGINT.

    A second signal ends the run without saving.
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
        """Handles the signals inside the context, and restores their handlers afterwards."""
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
