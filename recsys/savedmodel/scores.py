"""A module that scores rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from recsys.savedmodel.signatures import SCORE


class Scores(tf.Module):
    """Has the signature `score`, a function of rows.

    Args:
        score: Returns scores `[n]` float32 of its inputs, which it takes by name. It may call a
            Keras model.
        inputs: Its inputs `[n, ...]`.
        reads: Variables that it reads, and modules that hold such, but no Keras model: see
            `recsys.savedmodel.tables.variables_of`.
    """

    def __init__(
        self,
        score: Callable[..., tf.Tensor],
        inputs: Mapping[str, tf.TensorSpec],
        reads: list[Any],
    ) -> None:
        super().__init__(name="scores")
        self._reads = reads

        def traced(**rows: tf.Tensor) -> dict[str, tf.Tensor]:
            return {SCORE: score(**rows)}

        self._traced = tf.function(traced, autograph=False).get_concrete_function(**inputs)

    def signatures(self) -> dict[str, Any]:
        """Returns the functions to save, by the name of their signature."""
        return {SCORE: self._traced}
