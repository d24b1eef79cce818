"""Child processes that run together; none is left running."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from types import FrameType
from typing import IO, Self

from recsys.system.parent import as_parent
from recsys.system.process import StopSignals, signals_to

_POLL_S = 0.1
_GONE_S = 60.0
"""Timeout for a killed process to end and free its memory [s]."""


class Children:
    """Runs processes on this machine, as a context manager that leaves none running.

    Inside the context, a signal to stop is passed on to them; a second one kills them.

    Args:
        commands: Commands, one for each process.
        environments: Variables of each process in addition to this one's.
        scratch: Folder for the files with their output.
        by_stdin: Whether a process is stopped by closing its stdin, which ssh passes on,
            rather than by SIGTERM.
        relay: Reads the stderr of each process until it ends; None: stderr is inherited.

    Attributes:
        stop: The received signals to stop.
    """

    def __init__(
        self,
        commands: Sequence[Sequence[str]],
        environments: Sequence[Mapping[str, str]],
        scratch: Path,
        *,
        by_stdin: bool = False,
        relay: Callable[[IO[bytes]], None] | None = None,
    ) -> None:
        self.stop = StopSignals()
        self._starts = list(zip(commands, environments, strict=True))
        self._outputs = [scratch / f"{index}.out" for index in range(len(commands))]
        self._by_stdin, self._relay = by_stdin, relay
        self._children: list[subprocess.Popen[bytes]] = []
        self._relays: list[threading.Thread] = []
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.callback(self._end)
            if threading.current_thread() is threading.main_thread():
                stack.enter_context(signals_to(self._forward))
            for start, output in zip(self._starts, self._outputs, strict=True):
                self._start(*start, output)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def _start(self, command: Sequence[str], own: Mapping[str, str], output: Path) -> None:
        with output.open("wb") as file:
            child = subprocess.Popen(
                command,
                env={**os.environ, **own, **as_parent()},
                stdin=subprocess.PIPE if self._by_stdin else subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.PIPE if self._relay else None,
                bufsize=0,
                process_group=0,  # `_forward` passes Ctrl-C on.
            )
        self._children.append(child)
        if child.stdin is not None:
            with suppress(OSError):  # A stage listens to its stdin only after a first byte.
                child.stdin.write(b"\n")
        if self._relay is not None:
            relay = threading.Thread(target=self._relay, args=[child.stderr], daemon=True)
            relay.start()
            self._relays.append(relay)

    @property
    def codes(self) -> list[int | None]:
        """Exit codes; None for a process that is running."""
        return [child.poll() for child in self._children]

    def wait(self, grace_s: float, each: Callable[[], object] = lambda: None) -> list[int]:
        """Waits until all processes have ended.

        Args:
            grace_s: Time that the others have to end after one has failed [s], so that they
                can report a reason; after twice as long they are killed.
            each: Called repeatedly while waiting.

        Returns:
            Indices of the processes that failed without being stopped, the likeliest cause
            first: a process that was killed comes before one that failed because of it.
        """
        failed: list[int] = []
        failed_at, is_stopping = 0.0, False
        while True:
            codes = self.codes
            if not is_stopping:
                failed += [
                    index for index, code in enumerate(codes) if code and index not in failed
                ]
            if None not in codes:
                break
            failed_at = failed_at or (time.monotonic() if failed else 0.0)
            late_s = time.monotonic() - failed_at if failed else 0.0
            if late_s > grace_s and not is_stopping:
                is_stopping = True
                self._request_stop()
            if late_s > 2 * grace_s:
                self._kill()
            each()
            time.sleep(_POLL_S)
        each()
        for relay in self._relays:
            relay.join(_POLL_S)
        return sorted(failed, key=lambda index: (codes[index] or 0) > 0)

    def printed(self, index: int) -> str:
        """Returns what a process wrote to its stdout."""
        return self._outputs[index].read_text(errors="replace")

    def _forward(self, signum: int, _frame: FrameType | None) -> None:
        if self.stop.add(signum):
            self._kill()
        else:
            self._request_stop()

    def _request_stop(self) -> None:
        """Asks all processes to save and stop."""
        for child in self._children:
            if child.stdin is not None:
                with suppress(OSError):
                    child.stdin.close()
            elif child.poll() is None:
                child.send_signal(signal.SIGTERM)

    def _kill(self) -> None:
        for child in self._children:
            if child.poll() is None:
                child.kill()

    def _end(self) -> None:
        self._kill()
        for child in self._children:
            # A process that hangs in the kernel may end later.
            with suppress(subprocess.TimeoutExpired):
                child.wait(_GONE_S)
            for pipe in (child.stdin, child.stderr):
                if pipe is not None:
                    with suppress(OSError):
                        pipe.close()
