"""Stages that run in a process of their own, and how their errors come back.

Training needs Keras on JAX, export needs Keras on TensorFlow, and importing TFX
decides for TensorFlow: so each is a process whose environment its parent sets.
A stage prints its result, or its error, as the last line of its stdout.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import IO, Any, NoReturn

from recsys.errors import RecsysError

# A training step takes and frees arrays of many megabytes. By default glibc gives each
# back to the kernel and faults it in anew: half of a step's time on a CPU.
_ALLOCATOR = {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(2**34),
    "MALLOC_TOP_PAD_": str(2**26),
}


def stage_environment(keras_backend: str) -> dict[str, str]:
    """Returns the variables that a stage's process is started with.

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
    """Runs `python -m module arguments` and returns what it printed last.

    Args:
        module: A module whose `__main__` calls `stage_main`.
        arguments: Command line of the stage.
        environment: Variables set on top of this process's own, such as
            `KERAS_BACKEND`.
        log: File for its stderr; this process's own by default.

    Raises:
        RecsysError: The stage failed; its own error where it gave one.
    """
    with (
        subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            env={**os.environ, **environment},
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        ) as stage,
        _signals_passed_to(stage) as passed_on,
    ):
        said, _ = stage.communicate()
    result = last_json_line(said)
    if stage.returncode == 0 and result is not None:
        return result
    if result is not None and "error" in result:
        raise RecsysError.from_json(result["error"])
    raise _no_result(module, stage.returncode, passed_on)


def _no_result(module: str, code: int, passed_on: Sequence[int]) -> RecsysError:
    if passed_on:
        return RecsysError(
            "R611",
            f"The process of {module} was stopped where it had nothing to save.",
            "Run the same command again; training goes on from its last checkpoint.",
            signal.Signals(passed_on[0]).name,
        )
    return RecsysError(
        "R610",
        f"The process of {module} must end with a result.",
        "The log holds its last words; out of memory ends a process with -9.",
        f"exit code {code}",
    )


@contextmanager
def stop_signals_to(handler: Callable[[int, FrameType | None], None]) -> Iterator[dict[int, Any]]:
    """Gives SIGTERM and SIGINT to `handler` while it is open; the main thread alone may.

    Yields who had them before, and has them again afterwards.
    """
    before: dict[int, Any] = {
        signum: signal.signal(signum, handler) for signum in (signal.SIGTERM, signal.SIGINT)
    }
    try:
        yield before
    finally:
        for signum, earlier in before.items():
            signal.signal(signum, earlier)


@contextmanager
def _signals_passed_to(stage: subprocess.Popen[str]) -> Iterator[list[int]]:
    """Passes on what asks this process to stop: the stage may have something to save.

    Yields the signals so far.
    """
    passed_on: list[int] = []

    def ask(signum: int, _frame: FrameType | None) -> None:
        passed_on.append(signum)
        stage.terminate()

    if threading.current_thread() is not threading.main_thread():
        yield passed_on
        return
    with stop_signals_to(ask):
        yield passed_on


def stage_main(stage: Callable[[], dict[str, Any]]) -> None:
    """Runs `stage`, prints its result or its error as JSON, and exits."""
    try:
        result = stage()
    except RecsysError as error:
        _fail(error)
    except OSError as error:
        _fail(storage_error(error))
    print(json.dumps(result), flush=True)


def storage_error(error: OSError) -> RecsysError:
    """Returns what to tell of a file that couldn't be read or written."""
    what = "its files" if error.filename is None else repr(str(error.filename))
    return RecsysError(
        "R603",
        f"The program must be able to read and write {what}.",
        "Free some space or mend the permissions, and run again; what was served still is.",
        error.strerror or str(error),
    )


def _fail(error: RecsysError) -> NoReturn:
    traceback.print_exc()
    print(json.dumps({"error": error.to_json()}), flush=True)
    sys.exit(error.exit_code)


def last_json_line(text: str) -> dict[str, Any] | None:
    """Returns the JSON object in the last line of `text`; None if there is none."""
    lines = text.strip().splitlines()
    try:
        result = json.loads(lines[-1]) if lines else None
    except ValueError:
        return None
    return result if isinstance(result, dict) else None
