"""A run that is asked to stop saves first; all processes of it at the same step."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import jax
from jax.experimental import multihost_utils

from recsys.errors import RecsysError

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class StopRequest:
    """Whether somebody asked the run to stop, by SIGTERM or SIGINT."""

    def __init__(self) -> None:
        self._is_asked = False

    def is_due(self, step: int) -> bool:
        """Returns whether to stop after `step`; the same in every process."""
        if jax.process_count() > 1:
            # JAX's own service hears the signal in any process, and names a step to all.
            return bool(multihost_utils.reached_preemption_sync_point(step))
        return self._is_asked

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Hears the signals while it is open; they are somebody else's outside."""
        is_ours = threading.current_thread() is threading.main_thread()
        if jax.process_count() > 1 or not is_ours:
            yield
            return
        before = {signum: signal.getsignal(signum) for signum in _SIGNALS}
        for signum in _SIGNALS:
            signal.signal(signum, self._ask)
        try:
            yield
        finally:
            for signum, handler in before.items():
                signal.signal(signum, handler)

    def _ask(self, _signum: int, _frame: FrameType | None) -> None:
        self._is_asked = True


def stopped(step: int, total: int) -> RecsysError:
    """Returns what to tell of a run that stopped because it was asked to."""
    return RecsysError(
        "R375",
        f"Training was asked to stop, and has saved where it is: step {step:,} of {total:,}.",
        "Run the same command again to go on from there.",
        "SIGTERM or SIGINT",
    )
