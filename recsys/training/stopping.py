"""A run that is asked to stop saves first; all processes of it at the same step."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import jax
from jax.experimental import multihost_utils

from recsys.errors import RecsysError
from recsys.stopping import signals_to

_TOGETHER_S = 1.0


class Wish:
    """The wish that a run stops.

    One wish often comes twice: from the terminal or the service manager, which tell all
    processes, and from the parent, which passes on what it was told.

    Attributes:
        is_there: Whether somebody asked.
    """

    def __init__(self) -> None:
        self.is_there = False
        self._since = 0.0

    def insists(self) -> bool:
        """Takes a wish; returns whether it is a second one, of somebody who won't wait."""
        now = time.monotonic()
        if self.is_there:
            return now - self._since > _TOGETHER_S
        self.is_there, self._since = True, now
        return False


class StopRequest:
    """Whether somebody asked the run to stop, by SIGTERM or SIGINT.

    Asked again, the run ends without saving.
    """

    def __init__(self) -> None:
        self._wish = Wish()
        self._before: dict[int, Any] = {}

    def is_due(self, step: int) -> bool:
        """Returns whether to stop after `step`; the same in every process."""
        if jax.process_count() > 1:
            # JAX's own service hears the signal in any process, and names a step to all.
            return bool(multihost_utils.reached_preemption_sync_point(step))
        return self._wish.is_there

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Hears the signals while it is open; they are somebody else's outside."""
        is_ours = threading.current_thread() is threading.main_thread()
        if jax.process_count() > 1 or not is_ours:
            yield
            return
        with signals_to(self._ask) as self._before:
            yield

    def _ask(self, signum: int, _frame: FrameType | None) -> None:
        if self._wish.insists():
            signal.signal(signum, self._before[signum])
            signal.raise_signal(signum)


def stopped(step: int, total: int) -> RecsysError:
    """Returns what to tell of a run that stopped because it was asked to."""
    return RecsysError(
        "R375",
        f"Training was asked to stop, and has saved where it is: step {step:,} of {total:,}.",
        "Run the same command again to go on from there.",
        "SIGTERM or SIGINT",
    )
