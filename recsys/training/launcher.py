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
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from recsys.errors import RecsysError
from recsys.system.parent import as_parent, child_command
from recsys.system.process import last_json_line
from recsys.system.signals import signals_to
from recsys.training.checkpoint_files import steps_in
from recsys.training.distributed import COORDINATOR, COUNT, INDEX, LOCAL_DEVICE, StopSignals
from recsys.training.training_log import note

_POLL_S = 0.1
_TRIES_WITHOUT_A_STEP = 3


def launch(arguments: Sequence[str], n_processes: int, last: Sequence[Path]) -> dict[str, Any]:
    """Trains in `n_processes` processes, which are started again when one dies.

    Args:
        arguments: Command line of `python -m recsys.train` for each of them.
        n_processes: How many.
        last: Folders that the run's newest checkpoints may lie in, to see whether it gets
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
            saved = [_newest(folder) for folder in last]
            with _started(arguments, n_processes, Path(scratch)) as group:
                result = group.result()
            if result is not None:
                return {**result, "restarts": restarts}
            restarts += 1
            is_further = [_newest(folder) for folder in last] != saved
            without_progress = 0 if is_further else without_progress + 1
            if without_progress >= _TRIES_WITHOUT_A_STEP:
                raise RecsysError(
                    "R377",
                    "The processes of a training must live from one checkpoint to the next.",
                    "The log holds their last words; out of memory ends a process with -9."
                    " A lower train.checkpoint.every_steps loses less.",
                    {"restarts": restarts, "exit code": group.failure},
                )
            note(f"A process ended with {group.failure}: all start again from the last checkpoint.")


def _newest(folder: Path) -> int:
    """Returns the newest step that was saved in `folder`; -1 for none."""
    return max(steps_in(folder), default=-1)


class _Group:
    """The processes of one attempt."""

    def __init__(self, children: list[subprocess.Popen[bytes]], outputs: list[Path]) -> None:
        self._children, self._outputs = children, outputs
        self.failure: int | None = None
        self._signals = StopSignals()

    def result(self) -> dict[str, Any] | None:
        """Waits for the processes; returns the first one's result, None if one died.

        Raises:
            RecsysError: A process gave a reason not to go on.
        """
        while any(code is None for code in self._codes()):
            if any(self._codes()):  # One ended otherwise than with 0.
                break
            time.sleep(_POLL_S)
        codes = self._codes()
        failed = [i for i, code in enumerate(codes) if code]
        # Of several, one that was killed: the others may have failed because of it.
        first = min(failed, key=lambda i: (codes[i] or 0) > 0, default=None)
        if first is None:
            return last_json_line(self._outputs[0].read_text(errors="replace"))
        self.failure = self._children[first].returncode
        self._end()
        # An error of the others may come from its death.
        output = last_json_line(self._outputs[first].read_text(errors="replace"))
        if output is not None and "error" in output:
            raise RecsysError.from_json(output["error"])
        if self._signals.is_set:
            raise RecsysError(
                "R378",
                "The processes of a training save before they stop.",
                "Run the same command again; it goes on from the last checkpoint.",
                f"exit code {self.failure}",
            )
        return None

    def forward(self, _signum: int, _frame: FrameType | None) -> None:
        """Passes a signal to stop on to all processes, which save; on a second one they end."""
        signum = signal.SIGKILL if self._signals.add() else signal.SIGTERM
        for child in self._children:
            if child.poll() is None:
                child.send_signal(signum)

    def _codes(self) -> list[int | None]:
        return [child.poll() for child in self._children]

    def _end(self) -> None:
        """Ends what is left: without its peer it would wait for a minute or more."""
        deadline = time.monotonic() + 2.0  # Time to give a reason, where there is one.
        while time.monotonic() < deadline and None in self._codes():
            time.sleep(_POLL_S)
        _kill(self._children)


@contextmanager
def _started(arguments: Sequence[str], n_processes: int, scratch: Path) -> Iterator[_Group]:
    """Starts the processes; none of them is left at the end."""
    address = f"127.0.0.1:{_free_port()}"
    children: list[subprocess.Popen[bytes]] = []
    outputs = [scratch / f"{index}.out" for index in range(n_processes)]
    group = _Group(children, outputs)
    with signals_to(group.forward), _all_ended(children):
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
        yield group


@contextmanager
def _all_ended(children: list[subprocess.Popen[bytes]]) -> Iterator[None]:
    """Leaves none of `children` running."""
    try:
        yield
    finally:
        _kill(children)


def _kill(children: list[subprocess.Popen[bytes]]) -> None:
    for child in children:
        if child.poll() is None:
            child.kill()
        child.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
