"""What a training run tells whoever watches it."""

from __future__ import annotations

import sys

from recsys.events import emit

_STEP = "Trainer"


def tell_progress(done: int | None, total: int | None, text: str) -> None:
    """Tells where the run is, for a bar.

    Args:
        done: Steps done; None if that isn't what is told of.
        total: Steps of the whole run; None like `done`.
        text: How it goes.
    """
    emit("progress", step=_STEP, done=done, total=total, text=text)


def note(sentence: str) -> None:
    """Tells what is no error and should be known, in the log too."""
    emit("note", step=_STEP, text=sentence)
    print(sentence, file=sys.stderr, flush=True)  # noqa: T201 the log of the run
