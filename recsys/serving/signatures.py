"""Asks a loaded SavedModel through its signatures, in raw ids."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from recsys.errors import RecsysError


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
