"""The moving averages of the towers' weights, put in their place for a while."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import keras


@contextmanager
def averaged(model: keras.Model) -> Iterator[None]:
    """Gives the dense weights their moving averages while it is open, if there are any.

    Args:
        model: A compiled model whose variables hold their values.
    """
    optimizer = model.optimizer
    if not getattr(optimizer, "use_ema", False) or not optimizer.built:
        yield
        return
    variables = model.trainable_variables
    own = [variable.value for variable in variables]
    optimizer.finalize_variable_values(variables)
    try:
        yield
    finally:
        for variable, value in zip(variables, own, strict=True):
            variable.assign(value)


def finalize(model: keras.Model) -> None:
    """Gives the dense weights their moving averages for good, if there are any."""
    if getattr(model.optimizer, "use_ema", False):
        model.optimizer.finalize_variable_values(model.trainable_variables)
