"""Handles SIGTERM and SIGINT: a program first ends its children."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any, NoReturn

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
