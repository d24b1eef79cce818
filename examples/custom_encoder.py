"""An encoder of one's own for the built-in two towers: newer items say more.

In a config: `plugins: [examples.custom_encoder]` and
`model: {pooling: {type: fading, half_life: 3.0}}`. `python -m examples.custom_encoder` trains
it alone, by plain Keras, on users who take items of one of two tastes.
"""

import os

os.environ.setdefault("KERAS_BACKEND", "jax")

import keras
import numpy as np
from keras import ops
from pydantic import PositiveFloat

import recsys
from examples.custom_model import batch
from recsys.embedding import Adagrad
from recsys.models import ModelSpec


@recsys.register_encoder("fading")
class Fading(recsys.HistoryEncoder):
    """A mean of the history in which an item counts half as much after some newer ones."""

    class Config(recsys.Strict):
        """The encoder's options; each is an argument of its constructor."""

        half_life: PositiveFloat = 5.0
        """Newer items after which one counts half as much."""

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


def main():
    encoder = {"type": "fading", "half_life": 3.0}
    config = recsys.TwoTowerConfig(dim=16, history=5, widths=(16,), pooling=encoder)
    spec = ModelSpec(config=config, user_rows=101, item_rows=42, features=())
    model = recsys.TwoTower(spec, tables=recsys.TwoTower.make_tables(spec, Adagrad(0.1)))
    model.build()
    model.compile(optimizer=keras.optimizers.Adam(0.01))
    rng = np.random.default_rng(0)
    steps = [model.train_on_batch(batch(rng), return_dict=True) for _ in range(60)]
    losses = [float(step["loss"]) for step in steps]
    print(f"loss: {losses[0]:.3f} at first, {losses[-1]:.3f} after {len(losses)} steps")
    return losses


if __name__ == "__main__":
    main()
