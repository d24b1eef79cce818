"""Loads the SavedModel of a bundle, and says in a sentence why that can't be done."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from recsys.distribution import install_extra
from recsys.errors import RecsysError

_STDERR = 2


def load_saved_model(bundle: Path) -> Any:
    """Returns the SavedModel of `bundle`; TensorFlow's chatter on stderr is dropped.

    Raises:
        RecsysError: TensorFlow is missing (R542), or can't load it (R543).
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    try:
        with _without_chatter():
            import tensorflow as tf

            with _without_gradients():
                return tf.saved_model.load(str(bundle))
    except ImportError as error:
        raise RecsysError(
            "R542",
            "Asking a bundle needs TensorFlow.",
            install_extra("serve"),
            str(error),
        ) from None
    except Exception as error:  # noqa: BLE001 of a damaged file it raises what it comes to
        raise RecsysError(
            "R543",
            f"TensorFlow must be able to load the bundle {str(bundle)!r}.",
            "Run again with the TensorFlow that this project installs: recsys run.",
            f"{type(error).__name__}: {error}",
        ) from None


@contextlib.contextmanager
def _without_gradients() -> Iterator[None]:
    """Forgets the gradients that TensorFlow registers while it is open.

    It would never: a model that was loaded, and with it all its weights, would stay in memory
    for ever. Who serves takes no gradients.
    """
    from tensorflow.python.framework import ops

    known = getattr(getattr(ops, "gradient_registry", None), "_registry", {})
    before = set(known)
    yield
    for name in set(known) - before:
        del known[name]


@contextlib.contextmanager
def _without_chatter() -> Iterator[None]:
    """Drops what C++ code writes to stderr, which no log level stops at start-up."""
    kept = os.dup(_STDERR)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, _STDERR)
        yield
    finally:
        os.dup2(kept, _STDERR)
        os.close(nowhere)
        os.close(kept)
