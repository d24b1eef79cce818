"""The temperature of the loss, fixed or learned."""

from __future__ import annotations

import math
from typing import Any

import keras
from keras import ops

from recsys.config import LEARNED_TEMPERATURE


@keras.saving.register_keras_serializable(package="recsys")
class LogTemperature(keras.layers.Layer):
    """A temperature that training learns, by its logarithm.

    After each step it is put back into `LEARNED_TEMPERATURE`. A bound inside the loss
    would leave it without a gradient, and for good, once it is over.

    Args:
        start: The temperature to begin with, in `LEARNED_TEMPERATURE`.
    """

    def __init__(self, start: float, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.start = start

    def build(self, input_shape: Any = None) -> None:
        """Creates the logarithm, a scalar."""
        self.log = self.add_weight(
            name="log",
            shape=(),
            initializer=keras.initializers.Constant(math.log(self.start)),
            constraint=Between(*(math.log(bound) for bound in LEARNED_TEMPERATURE)),
        )

    def temperature(self) -> keras.KerasTensor:
        """Returns the temperature, a scalar float32."""
        return ops.exp(self.log)

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments."""
        return {**super().get_config(), "start": self.start}


@keras.saving.register_keras_serializable(package="recsys")
class Between(keras.constraints.Constraint):
    """Puts weights back between two bounds.

    Args:
        low: The lower one.
        high: The upper one.
    """

    def __init__(self, low: float, high: float) -> None:
        self.low, self.high = low, high

    def __call__(self, w: Any) -> Any:
        """Returns the weights, bounded."""
        return ops.clip(w, self.low, self.high)

    def get_config(self) -> dict[str, float]:
        """Returns the constructor's arguments."""
        return {"low": self.low, "high": self.high}


@keras.saving.register_keras_serializable(package="recsys")
class Latest(keras.metrics.Metric):
    """Shows the last value that it was given."""

    def __init__(self, name: str = "latest", **kwargs: Any) -> None:
        super().__init__(name=name, **kwargs)
        self.value = self.add_variable((), "zeros", name="value")

    def update_state(self, value: Any, *_: Any, **__: Any) -> None:
        """Takes `value`, a scalar."""
        self.value.assign(value)

    def result(self) -> Any:
        """Returns the value, float32."""
        return ops.convert_to_tensor(self.value)
