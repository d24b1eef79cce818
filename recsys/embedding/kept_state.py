"""The variables of a model whose training step fails before it runs.

`fit` of Keras on JAX takes the values out of all variables, hands them to the step, and
puts back what the last good step returned. Where the first one fails while it is traced
or checked there is none, and the model would be left without values: its next use ends
in "'NoneType' object is not callable".
"""

from __future__ import annotations

import types
from typing import Any

import keras

_PARTS = (
    "trainable_variables",
    "non_trainable_variables",
    "optimizer_variables",
    "metrics_variables",
)


def put_back(model: keras.Model, state: Any) -> None:
    """Has `fit` end with `state` in the variables of `model`.

    Args:
        model: The model that is being fitted.
        state: What its step was called with; no step has taken it in yet.
    """
    if any(variable._value is None for variable in model.variables):
        # What Keras itself syncs from, whatever `fit` ends with.
        model._jax_state = dict(zip(_PARTS, state, strict=True))


def put_back_in(frame: types.FrameType | None) -> None:
    """Does so for the `fit` of Keras that `frame`, or one that called it, is of."""
    while frame is not None:
        names = frame.f_locals
        if frame.f_code.co_name == "fit" and "state" in names:
            put_back(names["self"], names["state"])
            return
        frame = frame.f_back
