"""A model of one's own: users are their own vector and the mean of their history.

In a config: `plugins: [examples.custom_model]` and `model: {type: averaged, units: 32}`; the
pipeline then trains, proves, evaluates, exports and serves it. Here it is trained alone, by
plain Keras, on users who take items of one of two tastes: `python -m examples.custom_model`.
"""

import os

os.environ.setdefault("KERAS_BACKEND", "jax")

import keras
import numpy as np
from keras import ops
from pydantic import PositiveInt

import recsys
from recsys.embedding import Adagrad
from recsys.models import ModelSpec


@recsys.register_model("averaged")
class Averaged(recsys.RetrievalModel):
    """A dense layer over the user's vector and the mean of the history."""

    class Config(recsys.RetrievalConfig):
        """The model's options, beside those that every model has."""

        units: PositiveInt = 32
        """Width of the hidden layer [floats]."""

    def __init__(self, spec, **kwargs):
        super().__init__(spec, **kwargs)
        self.hidden = keras.layers.Dense(spec.config.units, activation="silu")
        self.out = keras.layers.Dense(spec.config.dim)

    def query(self, features, training=False):
        mask = ops.cast(features["history_rows"] > 0, "float32")[..., None]
        count = ops.maximum(ops.sum(mask, axis=1), 1.0)
        mean = ops.sum(features["history"] * mask, axis=1) / count
        return mean + self.out(self.hidden(features["user_row"] + mean))

    def candidate(self, features, training=False):
        return features["id_row"]


def batch(rng, size=64, items=40, history=5):
    """Returns what a step reads: users of an even row take even items, others odd ones."""
    user = rng.integers(1, 101, size)
    taken = rng.integers(1, items // 2, (size, history + 1)) * 2 + user[:, None] % 2
    item = taken[:, 0].astype("int32")
    rows = {"user_row": user, "history": taken[:, 1:], "id_row": item, "item_row": item}
    return {**rows, "log_q": np.zeros(size, "float32")}


def main():
    config = Averaged.Config(dim=16, history=5)
    spec = ModelSpec(config=config, user_rows=101, item_rows=42, features=())
    model = Averaged(spec, tables=Averaged.make_tables(spec, Adagrad(0.1)))
    model.build()
    model.compile(optimizer=keras.optimizers.Adam(0.01))
    rng = np.random.default_rng(0)
    steps = [model.train_on_batch(batch(rng), return_dict=True) for _ in range(60)]
    losses = [float(step["loss"]) for step in steps]
    print(f"loss: {losses[0]:.3f} at first, {losses[-1]:.3f} after {len(losses)} steps")
    return losses


if __name__ == "__main__":
    main()
