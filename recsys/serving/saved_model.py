"""A bundle's SavedModel: loaded without TensorFlow's messages, and asked by signature."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

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
    except Exception as error:  # noqa: BLE001 any failure of a damaged bundle, or of a request, is reported
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


def ask(model: Any, signature: str, **inputs: Any) -> dict[str, np.ndarray]:
    """Returns what a signature answers; raw columns of the users are the stored ones.

    Args:
        model: A loaded SavedModel.
        signature: Name of the signature.
        inputs: Its inputs; `user_id` `[n]` among them.

    Raises:
        RecsysError: The SavedModel has no such signature (R543).
    """
    import tensorflow as tf

    function = model.signatures.get(signature)
    if function is None:
        raise RecsysError(
            "R543",
            f"The SavedModel of a bundle must have the signature {signature!r}.",
            "Export the model again: recsys export.",
            sorted(model.signatures),
        )
    n = len(inputs["user_id"])
    # Padding stands for what is stored.
    raw = set(function.structured_input_signature[1]) - set(inputs)
    tensors = {name: tf.constant(value) for name, value in inputs.items()}
    tensors.update({name: tf.fill([n, 1], "") for name in raw})
    return {name: value.numpy() for name, value in function(**tensors).items()}


def needed(answer: Mapping[str, np.ndarray], signature: str, name: str) -> np.ndarray:
    """Returns an output of a signature.

    Raises:
        RecsysError: The bundle is older than this output (R543).
    """
    if name not in answer:
        raise RecsysError(
            "R543",
            f"The signature {signature!r} of a bundle must answer with {name!r}.",
            "Export the model again: recsys export.",
            sorted(answer),
        )
    return answer[name]
