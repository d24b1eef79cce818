"""A model whose layers are plain Keras."""

from typing import ClassVar

import keras
from keras import ops
from pydantic import PositiveInt

import recsys


@recsys.register_model("gated")
class Gated(recsys.RetrievalModel):
    """A gate decides how much a user's history says beside the user's own vector."""

    class Config(recsys.RetrievalConfig):
        """The options of the gate."""

        summary: ClassVar[str] = "A gated retrieval model: a gate weighs a user's history."
        units: PositiveInt = 16
        """Width of the hidden layer [floats]."""

    def __init__(self, spec, **kwargs):
        super().__init__(spec, **kwargs)
        dim = spec.config.dim
        self.gate = keras.layers.Dense(dim, activation="sigmoid")
        self.item = keras.Sequential(
            [keras.layers.Dense(spec.config.units, activation="silu"), keras.layers.Dense(dim)]
        )

    def query(self, features, training=False):
        mask = ops.cast(features["history_rows"] > 0, "float32")[..., None]
        total = ops.sum(features["history"] * mask, axis=1)
        mean = total / ops.maximum(ops.sum(mask, axis=1), 1.0)
        known = ops.concatenate([features["user_row"], mean], axis=-1)
        return features["user_row"] + mean * self.gate(known)

    def candidate(self, features, training=False):
        known = [features[name] for name in self.names_of_side("item")]
        return features["id_row"] + self.item(ops.concatenate(known, axis=-1))
