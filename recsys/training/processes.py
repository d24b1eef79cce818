"""What the processes of a run and their parents share: variables, notes and signals to stop.

The parent that starts a process names the others to it through the environment:

    RECSYS_SERVICE       host:port where JAX's service of the first one listens
    RECSYS_PROCESSES     how many there are
    RECSYS_PROCESS       which one this is, from 0
    RECSYS_LOCAL_DEVICE  the GPUs of this machine that it takes, as 0 or 0,1; all if not set
    RECSYS_ADDRESS       the address at which the others find it, where its name won't do

Parents import neither JAX nor Keras, and so neither does this module.
"""

from __future__ import annotations

import sys
import time
from contextlib import suppress

from recsys.system.events import emit

SERVICE, COUNT, INDEX = "RECSYS_SERVICE", "RECSYS_PROCESSES", "RECSYS_PROCESS"
LOCAL_DEVICE, ADDRESS = "RECSYS_LOCAL_DEVICE", "RECSYS_ADDRESS"
STEP = "Trainer"
"""The step of the pipeline whose notes and progress these are."""

_TOGETHER_S = 1.0


def note(sentence: str) -> None:
    """Reports a note, which is no error, also in the log."""
    emit("note", step=STEP, text=sentence)
    with suppress(OSError):  # It may be a file on a full disk.
        print(sentence, file=sys.stderr, flush=True)  # noqa: T201 the log of the run


class StopSignals:
    """Counts signals to stop; those that arrive within a second are one.

    A signal often arrives twice: from the terminal or the service manager, which send it
    to all processes, and from the parent, which passes it on.

    Attributes:
        is_set: Whether there was a signal.
    """

    def __init__(self) -> None:
        self.is_set = False
        self._since = 0.0

    def add(self) -> bool:
        """Counts a signal; returns whether it is a second one, which means to stop at once."""
        now = time.monotonic()
        if self.is_set:
            return now - self._since > _TOGETHER_S
        self.is_set, self._since = True, now
        return False
