"""Runs stages in processes of their own, passes signals on and their errors back.

Training needs Keras on JAX, export needs Keras on TensorFlow, and TFX selects TensorFlow when it is
imported. So each stage is a process with an environment set by its parent. A stage prints its
result, or its error, as the last line of stdout; all other output goes to the log.
"""

from __future__ import annotations

import ctypes
import gc
import io
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import IO, Any, Literal, NoReturn, Self, TextIO

from recsys.errors import RecsysError, unexpected_error
from recsys.system.files import storage_error
from recsys.system.parent import as_parent, child_command

# --- signals: a program first ends its children

SIGNALS = (signal.SIGTERM, signal.SIGINT)
_TOGETHER_S = 1.0
_received: list[int] = []
"""Signals received by `signals_raised`."""


class StoppedError(BaseException):
    """A signal to end the program; not an `Exception`, so that no handler swallows it.

    Attributes:
        signum: The signal.
    """

    def __init__(self, signum: int) -> None:
        super().__init__(signal.Signals(signum).name)
        self.signum = signum

    @property
    def name(self) -> str:
        """Name of the signal."""
        return signal.Signals(self.signum).name

    @property
    def exit_code(self) -> int:
        """Exit code that a shell expects of a program ended by a signal."""
        return 128 + self.signum


@contextmanager
def signals_to(
    handler: Callable[[int, FrameType | None], Any], signals: Sequence[int] = SIGNALS
) -> Iterator[dict[int, Any]]:
    """Handles `signals` by `handler` inside the block; for the main thread only.

    Yields the earlier handlers, which are restored afterwards.
    """
    before: dict[int, Any] = {signum: signal.signal(signum, handler) for signum in signals}
    try:
        yield before
    finally:
        for signum, earlier in before.items():
            signal.signal(signum, earlier)


@contextmanager
def signals_raised(signals: Sequence[int] = SIGNALS) -> Iterator[None]:
    """Turns the signals that end a program into `StoppedError`; for the main thread only.

    Ignored signals, as under nohup, stay ignored.
    """
    _received.clear()
    heard = [signum for signum in signals if signal.getsignal(signum) is not signal.SIG_IGN]
    with signals_to(_raise, heard):
        yield


def is_raised(signum: int) -> bool:
    """Returns whether `signum` raises `StoppedError` at present."""
    return signal.getsignal(signum) is _raise


def raise_if_stopped() -> None:
    """Raises `StoppedError` if a signal's exception was lost, as in a callback from C."""
    if _received:
        raise StoppedError(_received[0])


def _raise(signum: int, _frame: FrameType | None) -> NoReturn:
    _received.append(signum)
    raise StoppedError(signum)


class StopSignals:
    """Counts signals to stop; signals within a second count as one.

    A signal often arrives twice: from the terminal or service manager, and from the parent.

    Attributes:
        received: The signals so far.
    """

    def __init__(self) -> None:
        self.received: list[int] = []
        self._since = 0.0

    @property
    def is_set(self) -> bool:
        """Whether there was a signal."""
        return bool(self.received)

    def add(self, signum: int) -> bool:
        """Counts a signal; returns whether it is a second one, which means to stop at once."""
        self.received.append(signum)
        now = time.monotonic()
        if len(self.received) > 1:
            return now - self._since > _TOGETHER_S
        self._since = now
        return False


# --- stages

# A training step allocates and frees large arrays. By default glibc returns each to the kernel and
# faults it in again, which takes half of a step's time on a CPU.
_ALLOCATOR = {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(2**34),
    "MALLOC_TOP_PAD_": str(2**26),
}


def stage_environment(keras_backend: str) -> dict[str, str]:
    """Returns the environment variables of a stage's process.

    Args:
        keras_backend: `jax` to compute, `tensorflow` to export.
    """
    allocator = _ALLOCATOR if keras_backend == "jax" else {}
    own = {name: value for name, value in allocator.items() if name not in os.environ}
    return {"KERAS_BACKEND": keras_backend, **own}


def run_stage(
    module: str,
    arguments: Sequence[str],
    environment: Mapping[str, str],
    log: IO[bytes] | None = None,
) -> dict[str, Any]:
    """Runs `python -m module arguments` and returns its result.

    The stage ends with this process, however that ends.

    Args:
        module: A module whose `__main__` calls `stage_main`.
        arguments: Command line of the stage.
        environment: Variables set on top of this process's own, such as
            `KERAS_BACKEND`.
        log: File for its stderr; this process's own by default.

    Raises:
        RecsysError: The stage failed; its own error if it printed one.
        StoppedError: This process was stopped, and signals are raised.
    """
    with (
        subprocess.Popen(
            child_command(module, arguments),
            env={**os.environ, **environment, **as_parent()},
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        ) as stage,
        signals_passed_to(stage.terminate) as passed_on,
    ):
        output, _ = stage.communicate()
    with raising_if_stopped(passed_on):
        return stage_result(module, stage.returncode, output, passed_on)


def run_stage_with_config(
    module: str,
    config: str,
    arguments: Sequence[str],
    backend: Literal["jax", "tensorflow"],
    log: IO[bytes] | None = None,
) -> dict[str, Any]:
    """Runs `python -m module --config FILE arguments` and returns its result.

    Args:
        module: As for `run_stage`.
        config: The stage's part of the config, as JSON.
        arguments: Further arguments.
        backend: Keras backend of the stage.
        log: File for its stderr; this process's own by default.

    Raises:
        RecsysError: As for `run_stage`.
    """
    with tempfile.TemporaryDirectory(prefix="recsys-stage-") as folder:
        file = Path(folder) / "config.json"
        file.write_text(config, encoding="utf-8")
        words = ["--config", str(file), *arguments]
        return run_stage(module, words, stage_environment(backend), log)


def stage_result(
    module: str, code: int, printed: str, passed_on: Sequence[int] = ()
) -> dict[str, Any]:
    """Returns the result of a stage's process that has ended.

    Args:
        module: The stage.
        code: Exit code of its process.
        printed: Its stdout.
        passed_on: Signals that were passed on to it.

    Raises:
        RecsysError: The stage failed; its own error if it printed one, else R610 or R611.
    """
    result = last_json_line(printed)
    if code == 0 and result is not None:
        return result
    if result is not None and "error" in result:
        raise RecsysError.from_json(result["error"])
    if passed_on:
        rule = f"The process of {module} was stopped before it had saved anything more."
        cure = "Run the same command again; training resumes from its last checkpoint."
        raise RecsysError("R611", rule, cure, signal.Signals(passed_on[0]).name)
    raise silent_end(f"The process of {module} must end with a result.", code)


class AskedStage:
    """A stage that is started early and answers requests until this object ends it.

    Starting doesn't block: the stage loads its libraries meanwhile.

    Args:
        module: A module whose `__main__` calls `stage_main`, and reads requests from stdin.
        arguments: Its command line.
        environment: Variables set on top of this process's own.
    """

    def __init__(
        self, module: str, arguments: Sequence[str], environment: Mapping[str, str]
    ) -> None:
        self._module = module
        self._process = subprocess.Popen(
            child_command(module, arguments),
            env={**os.environ, **environment, **as_parent()},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._end = weakref.finalize(self, _end, self._process)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def ask(self, question: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the answer to a request; both are a line of JSON.

        Raises:
            RecsysError: The stage's own error, or it ended without an answer (R610).
        """
        to, back = self._process.stdin, self._process.stdout
        if to is not None and back is not None:
            with suppress(BrokenPipeError):  # It may have printed an error before it ended.
                print(json.dumps(question), file=to, flush=True)
            for line in back:  # Other code may print too.
                answered = last_json_line(line)
                if answered is not None and "error" in answered:
                    raise RecsysError.from_json(answered["error"])
                if answered is not None:
                    return answered
        rule = f"The process of {self._module} must respond."
        raise silent_end(rule, self._process.wait())


def _end(process: subprocess.Popen[str]) -> None:
    process.kill()  # There is no state to save.
    with suppress(BrokenPipeError):
        process.communicate()


def silent_end(rule: str, code: int) -> RecsysError:
    """Returns the error of a process that ended without result or error (R610)."""
    cure = "See the end of the log."
    if code == -signal.SIGKILL:
        cure += " The system kills a process usually because memory ran out."
    elif code < 0:
        cure += f" Native code crashed: {signal.Signals(-code).name}."
    return RecsysError("R610", rule, cure, f"exit code {code}")


@contextmanager
def raising_if_stopped(passed_on: Sequence[int]) -> Iterator[None]:
    """Raises `StoppedError` at the end if a signal was passed on and signals are raised."""
    try:
        yield
    except RecsysError as error:
        if passed_on and is_raised(passed_on[0]):
            raise StoppedError(passed_on[0]) from error
        raise
    if passed_on and is_raised(passed_on[0]):
        raise StoppedError(passed_on[0])


@contextmanager
def signals_passed_to(terminate: Callable[[], object]) -> Iterator[list[int]]:
    """Passes signals to stop on to the stage, which may have state to save.

    Yields the signals so far.
    """
    passed_on: list[int] = []

    def ask(signum: int, _frame: FrameType | None) -> None:
        passed_on.append(signum)
        terminate()

    if threading.current_thread() is not threading.main_thread():
        yield passed_on
        return
    with signals_to(ask):
        yield passed_on


def stage_main(stage: Callable[[], dict[str, Any]]) -> None:
    """Runs `stage`, prints its result or its error, and exits."""
    _print_to_log()
    try:
        result = stage()
    except Exception as failure:  # noqa: BLE001 the parent reports it
        error = as_recsys_error(failure)
        log_traceback()
        answer({"error": error.to_json()})
        sys.exit(error.exit_code)
    answer(result)


def as_recsys_error(failure: Exception) -> RecsysError:
    """Returns the error that a stage reports for an exception."""
    if isinstance(failure, RecsysError):
        return failure
    return storage_error(failure) if isinstance(failure, OSError) else unexpected_error(failure)


_to_parent: TextIO | None = None
"""Original stdout of a stage; None outside of a stage."""


def _print_to_log() -> None:
    """Redirects stdout to stderr, also for plugins and libraries."""
    global _to_parent
    sys.stdout.flush()
    _to_parent = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)  # In order with stderr.


def answer(result: Mapping[str, Any]) -> None:
    """Sends a result or an error to the parent, as a line of JSON on the original stdout."""
    print(json.dumps(result), file=_to_parent or sys.stdout, flush=True)


def log_traceback() -> None:
    """Prints the traceback of the current exception on stderr, which may be on a full disk."""
    with suppress(OSError):
        traceback.print_exc()


def last_json_line(text: str) -> dict[str, Any] | None:
    """Returns the JSON object in the last line of `text`; None if there is none."""
    lines = text.strip().splitlines()
    try:
        result = json.loads(lines[-1]) if lines else None
    except ValueError:
        return None
    return result if isinstance(result, dict) else None


def release_freed() -> None:
    """Returns freed memory to the system, such as after compilation.

    Trims the pools of Arrow and of malloc (glibc only).
    """
    import pyarrow as pa  # Most processes don't import Arrow.

    gc.collect()
    pa.default_memory_pool().release_unused()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
