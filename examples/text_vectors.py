"""A model with two losses and frozen vectors of the items' texts, which a file holds.

The vectors are the rows of a feature's table: a `category` of the item id gives each item a token
of its own. In a config:

    plugins: [examples.text_vectors]
    data: {items: {features: [{name: text, column: item_id, kind: category}], …}}
    model: {type: text_vectors, vectors: texts.npz, feature_dim: 24}

`texts.npz` has `ids` `[n]` and `vectors` `[n, feature_dim]`. `python -m examples.text_vectors`
trains the model alone, by plain Keras, on users who take items of one of two tastes.
"""

import os
from typing import ClassVar

os.environ.setdefault("KERAS_BACKEND", "jax")

import keras
import numpy as np
from keras import ops
from pydantic import NonNegativeFloat

import recsys
from examples.custom_model import batch
from recsys.embedding import Adagrad
from recsys.models import FeatureSpec, ModelSpec


@recsys.register_model("text_vectors")
class TextVectors(recsys.RetrievalModel):
    """Users by their rows, items by their rows and the code of an autoencoder of their texts."""

    class Config(recsys.RetrievalConfig):
        """The model's options, beside those that every model has."""

        FREE: ClassVar = recsys.RetrievalConfig.FREE | {"vectors"}  # Each night has new items.

        vectors: recsys.File | None = None
        """A file of NumPy with `ids` and `vectors`; `null`: the texts say nothing."""
        reconstruction: NonNegativeFloat = 0.1
        """Weight of the second loss, by which the code has to keep what the text says."""

    def __init__(self, spec, **kwargs):
        super().__init__(spec, **kwargs)
        self.encode = keras.layers.Dense(spec.config.dim)
        self.decode = keras.layers.Dense(spec.config.feature_dim)
        self.lengths = keras.metrics.Mean(name="user_length")

    @classmethod
    def make_tables(cls, spec, optimizer=None, user_optimizer=None):
        tables = super().make_tables(spec, optimizer, user_optimizer)
        tables["text"].optimizer = None  # No step changes its rows.
        tables["text"].initializer = keras.initializers.Zeros()
        return tables

    def adapt(self, events, inputs):
        super().adapt(events, inputs)
        if self.config.vectors is None:
            return
        file = np.load(self.config.vectors)
        vector_of = dict(zip(map(str, file["ids"]), file["vectors"], strict=True))
        [text] = [feature for feature in inputs.catalogue.features if feature.name == "text"]
        known = {row: vector_of[id_] for row, id_ in enumerate(text.tokens) if id_ in vector_of}
        self.tables["text"].assign_rows([*known], [*known.values()])

    def query(self, features, training=False):
        return features["user_row"]

    def candidate(self, features, training=False):
        code = self.encode(features["text"])
        error = ops.mean(ops.square(self.decode(code) - features["text"]))
        self.add_auxiliary("reconstruction", error, weight=self.config.reconstruction)
        return features["id_row"] + code

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        self.lengths.update_state(ops.norm(y_pred["query"], axis=-1))
        return super().compute_loss(x, y, y_pred, sample_weight, training)


def main():
    text = FeatureSpec(name="text", side="item", rows=42, width=1, dim=8)
    config = TextVectors.Config(dim=16, feature_dim=8, history=5)
    spec = ModelSpec(config=config, user_rows=101, item_rows=42, features=(text,))
    model = TextVectors(spec, tables=TextVectors.make_tables(spec, Adagrad(0.1)))
    model.build()
    rng = np.random.default_rng(0)
    texts = rng.normal(size=(42, 8)) + (np.arange(42) % 2)[:, None]  # They tell the taste.
    model.tables["text"].assign_rows(np.arange(42), texts)
    model.compile(optimizer=keras.optimizers.Adam(0.01))
    logs = []
    for _ in range(60):
        x = batch(rng)
        x["text"] = x["item_row"][:, None]
        logs.append(model.train_on_batch(x, return_dict=True))
    for name in ("loss", "reconstruction"):
        print(f"{name}: {logs[0][name]:.3f} at first, {logs[-1][name]:.3f} after {len(logs)} steps")
    np.testing.assert_allclose(model.tables["text"].read_rows(), texts, rtol=1e-6)
    return [float(log["loss"]) for log in logs]


if __name__ == "__main__":
    main()
