"""What a training run tells whoever watches it."""

from __future__ import annotations

import sys

from recsys.events import emit
from recsys.training.processes import is_primary

_STEP = "Trainer"


def tell_progress(done: int, total: int, text: str) -> None:
    """Tells where the run is, for a bar.

    Args:
        done: Steps done.
        total: Steps of the whole run.
        text: How it goes.
    """
    emit("progress", step=_STEP, done=done, total=total, text=text)


def note(sentence: str) -> None:
    """Tells what is no error and should be known, in the log too."""
    emit("note", step=_STEP, text=sentence)
    print(sentence, file=sys.stderr, flush=True)  # noqa: T201 the log of the run


def note_once(sentence: str) -> None:
    """Tells it in one of several processes that all know it."""
    if is_primary():
        note(sentence)
