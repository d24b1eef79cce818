"""A metric that counts, exactly."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

_LIMB = 2**30


@keras.saving.register_keras_serializable(package="recsys")
class ExactCount(keras.metrics.Metric):
    """Sums int32 counts; a float32 sum would stop growing at 2²⁴.

    The result is float32, which shows counts past 2²⁴ rounded, but not stuck.
    """

    def __init__(self, name: str = "count", **kwargs: Any) -> None:
        super().__init__(name=name, **kwargs)
        self.low = self.add_variable((), "zeros", dtype="int32", name="low")
        self.high = self.add_variable((), "zeros", dtype="int32", name="high")

    def update_state(self, count: Any, *_: Any, **__: Any) -> None:
        """Adds `count`, a scalar int32 below 2³⁰."""
        total = self.low + ops.cast(count, "int32")
        self.high.assign(self.high + total // _LIMB)
        self.low.assign(total % _LIMB)

    def result(self) -> Any:
        """Returns the count, float32."""
        return ops.cast(self.high, "float32") * float(_LIMB) + ops.cast(self.low, "float32")
