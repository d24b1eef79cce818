"""What all losses share: the mean over a batch, and what spoils it."""

from __future__ import annotations

import keras
from keras import ops


def shares(weight: keras.KerasTensor) -> keras.KerasTensor:
    """Returns the share of each query in the weighted mean `[batch]` float32.

    Args:
        weight: Weight of each query `[batch]`; all shares are 0 if they sum to 0.
    """
    weight = ops.cast(weight, "float32")
    total = ops.sum(weight)
    is_none = ops.equal(total, 0.0)
    # Divided by 1 where it isn't used: no NaN, in the gradient neither.
    return ops.where(is_none, 0.0, weight / ops.where(is_none, 1.0, total))


def nan_unless_finite(loss: keras.KerasTensor, *arrays: keras.KerasTensor) -> keras.KerasTensor:
    """Returns `loss`, or NaN if a number in `arrays` is infinite or NaN.

    A query whose scores are infinite could hide among the others' losses.
    """
    is_finite = [ops.all(ops.isfinite(x)) for x in arrays]
    return ops.where(ops.all(ops.stack(is_finite)), loss, float("nan"))
