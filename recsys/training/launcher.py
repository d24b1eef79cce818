"""`--processes N`: the parent of the processes of a run on this machine.

A process whose peer died can't go on, and can't tell whether it will come back. So the
parent ends all of them when one dies, and starts all again: they go on from the last
checkpoint.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from recsys.errors import RecsysError
from recsys.system.parent import as_parent, child_command
from recsys.system.process import last_json_line
from recsys.system.signals import signals_to
from recsys.training.distributed import COORDINATOR, COUNT, INDEX, LOCAL_DEVICE, StopSignals
from recsys.training.training_log import note

_POLL_S = 0.1
_LAST_WORDS_S = 2.0
_TRIES_WITHOUT_A_STEP = 3


def launch(arguments: Sequence[str], n_processes: int, checkpoints: Path) -> dict[str, Any]:
    """Trains in `n_processes` processes, which are started again when one dies.

    Args:
        arguments: Command line of `python -m recsys.train` for each of them.
        n_processes: How many.
        checkpoints: Folder of the checkpoints of all runs, to see whether this one gets
            anywhere.

    Returns:
        The result of the first process, with `restarts`.

    Raises:
        RecsysError: A process refused to go on, or they died several times without a
            new checkpoint between.
    """
    restarts, without_progress = 0, 0
    with tempfile.TemporaryDirectory(prefix="recsys-processes-") as scratch:
        while True:
            saved = _saved(checkpoints)
            result, code = _attempt(arguments, n_processes, Path(scratch))
            if result is not None:
                return {**result, "restarts": restarts}
            restarts += 1
            is_further = _saved(checkpoints) != saved
            without_progress = 0 if is_further else without_progress + 1
            if without_progress >= _TRIES_WITHOUT_A_STEP:
                raise RecsysError(
                    "R377",
                    "The processes of a training must live from one checkpoint to the next.",
                    "The log holds their last words; out of memory ends a process with -9."
                    " A lower train.checkpoint.every_steps loses less.",
                    {"restarts": restarts, "exit code": code},
                )
            note(f"A process ended with {code}: all start again from the last checkpoint.")


def _saved(checkpoints: Path) -> set[Path]:
    return {path for path in checkpoints.glob("*/last/*") if path.name.isdecimal()}


def _attempt(
    arguments: Sequence[str], n_processes: int, scratch: Path
) -> tuple[dict[str, Any] | None, int]:
    """Runs the processes once; leaves none of them running.

    Returns:
        The first one's result, None if one died; and the exit code of that one.

    Raises:
        RecsysError: A process gave a reason not to go on, or the run was asked to stop.
    """
    stop, children = StopSignals(), list[subprocess.Popen[bytes]]()

    def forward(_signum: int, _frame: FrameType | None) -> None:
        """Passes a signal to stop on to all, which save; on a second one they end."""
        signum = signal.SIGKILL if stop.add() else signal.SIGTERM
        for child in children:
            if child.poll() is None:
                child.send_signal(signum)

    outputs = [scratch / f"{index}.out" for index in range(n_processes)]
    address = f"127.0.0.1:{_free_port()}"
    try:
        with signals_to(forward):
            for index, output in enumerate(outputs):
                own = {COORDINATOR: address, COUNT: str(n_processes), INDEX: str(index)}
                own[LOCAL_DEVICE] = str(index)
                with output.open("wb") as file:
                    children.append(
                        subprocess.Popen(
                            child_command("recsys.train", arguments),
                            env={**os.environ, **own, **as_parent()},
                            stdin=subprocess.DEVNULL,
                            stdout=file,
                            process_group=0,  # Ctrl-C comes to them through `forward`.
                        )
                    )
            failed = _first_failed(children)
            if failed is None:
                return last_json_line(outputs[0].read_text(errors="replace")), 0
            code = children[failed].returncode
            # The others get time to give a reason, where there is one: without their peer
            # they would wait for a minute or more.
            deadline = time.monotonic() + _LAST_WORDS_S
            while time.monotonic() < deadline and None in [child.poll() for child in children]:
                time.sleep(_POLL_S)
    finally:
        for child in children:
            if child.poll() is None:
                child.kill()
            child.wait()
    # An error of the others may come from its death.
    output_of_failed = last_json_line(outputs[failed].read_text(errors="replace"))
    if output_of_failed is not None and "error" in output_of_failed:
        raise RecsysError.from_json(output_of_failed["error"])
    if stop.is_set:
        raise RecsysError(
            "R378",
            "The processes of a training save before they stop.",
            "Run the same command again; it goes on from the last checkpoint.",
            f"exit code {code}",
        )
    return None, code


def _first_failed(children: Sequence[subprocess.Popen[bytes]]) -> int | None:
    """Waits until a process fails and returns which; None when all have ended well."""
    while True:
        codes = [child.poll() for child in children]
        if any(codes):
            # Of several, one that was killed: the others may have failed because of it.
            failed = [index for index, code in enumerate(codes) if code]
            return min(failed, key=lambda index: (codes[index] or 0) > 0)
        if None not in codes:
            return None
        time.sleep(_POLL_S)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
