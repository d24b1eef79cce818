"""An encoder of histories for the built-in two towers."""

import keras
from keras import ops
from pydantic import PositiveFloat

import recsys


@recsys.register_encoder("decaying")
class Decaying(recsys.HistoryEncoder):
    """The older an item, the less it says."""

    class Config(recsys.Strict):
        """How fast."""

        half_life: PositiveFloat = 5.0
        """Items after which one counts half as much."""

    def __init__(self, half_life, **kwargs):
        super().__init__(**kwargs)
        self.half_life = half_life

    def build(self, input_shape=None):
        self.scale = self.add_weight(name="scale", shape=(self.dim,), initializer="ones")

    def call(self, items, rows, training=False):
        age = ops.arange(self.length, dtype="float32")
        weights = ops.power(0.5, age / self.half_life) * ops.cast(rows > 0, "float32")
        total = ops.maximum(ops.sum(weights, axis=1, keepdims=True), 1e-6)
        return ops.sum(items * (weights / total)[..., None], axis=1) * self.scale

    def get_config(self):
        return {**super().get_config(), "half_life": self.half_life}


keras.saving.register_keras_serializable(package="my_recsys_plugin")(Decaying)
