"""Child processes that run together: each has an end, and none is left running."""

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
from recsys.system.signals import StopSignals, signals_to

_POLL_S = 0.1
_GONE_S = 60.0
"""How long a process that is killed may take to free its memory [s]."""


class Children:
    """Processes on this machine, as a context manager that leaves none running.

    Inside the context, a signal to stop is passed on to them; a second one kills them.

    Args:
        commands: The command of each.
        environments: Variables of each, on top of those of this process.
        scratch: Folder for what they print.
        by_stdin: Whether the end of its stdin asks a command to stop, which ssh passes on,
            rather than SIGTERM.
        relay: Reads the stderr of each until it ends; None: they share that of this process.

    Attributes:
        stop: The signals to stop that came.
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
                process_group=0,  # Ctrl-C comes to them through `_forward`.
            )
        self._children.append(child)
        if child.stdin is not None:
            with suppress(OSError):  # Without a first byte a stage doesn't listen to its stdin.
                child.stdin.write(b"\n")
        if self._relay is not None:
            relay = threading.Thread(target=self._relay, args=[child.stderr], daemon=True)
            relay.start()
            self._relays.append(relay)

    @property
    def codes(self) -> list[int | None]:
        """Exit codes; None for what runs."""
        return [child.poll() for child in self._children]

    def wait(self, grace_s: float, each: Callable[[], object] = lambda: None) -> list[int]:
        """Waits until all have ended.

        Args:
            grace_s: How long the others may go on once one has failed, which gives them the time
                for a reason; after twice as long they are killed [s].
            each: Is called all the while.

        Returns:
            Those that failed by themselves, the cause first: one that was killed, rather than
            one that gave up because of it.
        """
        failed: list[int] = []
        failed_at, is_asked = 0.0, False
        while True:
            codes = self.codes
            if not is_asked:
                failed += [
                    index for index, code in enumerate(codes) if code and index not in failed
                ]
            if None not in codes:
                break
            failed_at = failed_at or (time.monotonic() if failed else 0.0)
            late_s = time.monotonic() - failed_at if failed else 0.0
            if late_s > grace_s and not is_asked:
                is_asked = True
                self._ask()
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
            self._ask()

    def _ask(self) -> None:
        """Asks all to save and stop."""
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
            # One that hangs in the kernel ends after that.
            with suppress(subprocess.TimeoutExpired):
                child.wait(_GONE_S)
            for pipe in (child.stdin, child.stderr):
                if pipe is not None:
                    with suppress(OSError):
                        pipe.close()
