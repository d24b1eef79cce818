"""The two towers: users on one side, items on the other, a cosine between them.

Written with `keras.ops` alone, so that the same class trains on JAX and is exported
on TensorFlow. Inputs are rows, never ids:

    user_row   [b]            row of the user table; 0 for a user without one
    history    [b, history]   rows of the item table, the newest first; 0 is padding
    id_row     [b]            row of the item table; 0 for an item without one
    <feature>  [b, width]     token rows of the item; 0 is padding

Two-tower retrieval with in-batch softmax: Yi et al., "Sampling-Bias-Corrected
Neural Modeling for Large Corpus Item Recommendations", RecSys 2019.
"""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from recsys.embedding import Bag, TableLookup
from recsys.losses import sampled_softmax
from recsys.model.spec import ModelSpec

Tensors = dict[str, keras.KerasTensor]


@keras.saving.register_keras_serializable(package="recsys")
class Tower(keras.layers.Layer):
    """Maps what is known of one side to a unit vector; replicated on every device.

    Args:
        widths: Hidden widths [floats].
        dim: Width of the output [floats].
        seed: Seed of the initial weights.
    """

    def __init__(self, widths: tuple[int, ...], dim: int, seed: int = 0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.widths, self.dim, self.seed = tuple(widths), dim, seed
        self.hidden = [
            keras.layers.Dense(
                width,
                activation="silu",
                kernel_initializer=keras.initializers.GlorotUniform(seed=seed + i),
                name=f"hidden_{i}",
            )
            for i, width in enumerate(self.widths)
        ]
        self.out = keras.layers.Dense(
            dim,
            use_bias=False,
            kernel_initializer=keras.initializers.GlorotUniform(seed=seed + len(self.widths)),
            name="out",
        )

    def build(self, input_shape: Any) -> None:
        """Creates the weights for inputs `[batch, in]`."""
        width_in = input_shape[-1]
        for layer in (*self.hidden, self.out):
            layer.build((None, width_in))
            width_in = layer.units

    def call(self, anchor: keras.KerasTensor, inputs: keras.KerasTensor) -> keras.KerasTensor:
        """Returns unit vectors `[batch, dim]` float32.

        Args:
            anchor: A first guess `[batch, dim]`; the tower learns what to add.
            inputs: All that is known `[batch, in]`.
        """
        x = inputs
        for layer in self.hidden:
            x = layer(x)
        return _normalize(anchor + self.out(x))

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments."""
        config = {"widths": self.widths, "dim": self.dim, "seed": self.seed}
        return {**super().get_config(), **config}


class TwoTower(keras.Model):
    """A user tower and an item tower that share the item table.

    Args:
        spec: What the model is.
        n_shards: Devices that the tables are split over.
        seed: Seed of the initial weights.
    """

    def __init__(self, spec: ModelSpec, n_shards: int = 1, seed: int = 0) -> None:
        super().__init__(name="two_tower")
        self.spec = spec
        config = spec.config
        place = {"n_shards": n_shards, "seed": seed}
        self.users = TableLookup(spec.user_rows, config.dim, name="users", **place)
        self.items = TableLookup(
            spec.item_rows, config.dim, name="items", **{**place, "seed": seed + 1}
        )
        self.features = {
            f.name: TableLookup(f.rows, f.dim, name=f.name, **{**place, "seed": seed + 2 + i})
            for i, f in enumerate(spec.features)
        }
        self.recent = Bag(config.history, name="history")
        self.tokens = Bag(name="tokens")
        self.query_tower = Tower(config.widths, config.dim, seed + 1000, name="query_tower")
        self.candidate_tower = Tower(config.widths, config.dim, seed + 2000, name="candidate_tower")

    def build(self, input_shape: Any = None) -> None:
        """Creates every variable, in a fixed order."""
        config, features = self.spec.config, self.spec.features
        tables = (self.users, self.items, *self.features.values())
        layers: list[keras.layers.Layer] = [*tables, self.recent, self.tokens]
        for layer in layers:
            layer.build(None)
        self.query_tower.build((None, 2 * config.dim))
        self.candidate_tower.build((None, config.dim + sum(f.dim for f in features)))
        self.built = True

    def embed_query(self, inputs: Tensors) -> keras.KerasTensor:
        """Returns unit vectors `[batch, dim]` float32 of `user_row` and `history`."""
        pooled = self.recent(inputs["history"], self.items(inputs["history"]))
        user = self.users(inputs["user_row"])
        # The user's own embedding is in the guess too: without it a new user, with
        # an empty history, would start from a zero vector, whose direction is noise.
        return self.query_tower(pooled + user, ops.concatenate([pooled, user], axis=-1))

    def embed_candidate(self, inputs: Tensors) -> keras.KerasTensor:
        """Returns unit vectors `[batch, dim]` float32 of `id_row` and the features."""
        own = self.items(inputs["id_row"])
        bags = [
            self.tokens(inputs[name], table(inputs[name])) for name, table in self.features.items()
        ]
        return self.candidate_tower(own, ops.concatenate([own, *bags], axis=-1))

    def call(self, inputs: Tensors) -> Tensors:
        """Returns `query` `[batch, dim]` and `candidate` `[candidates, dim]`, float32."""
        return {
            "query": self.embed_query(inputs),
            "candidate": self.embed_candidate(inputs),
        }

    def compute_loss(
        self,
        x: Tensors | None = None,
        y: Any = None,
        y_pred: Tensors | None = None,
        sample_weight: Any = None,
        training: bool = True,
    ) -> keras.KerasTensor:
        """Returns the sampled softmax loss, a scalar; needs `item_row` and `log_q` in `x`."""
        if x is None or y_pred is None:
            raise ValueError("The loss needs the inputs and the embeddings.")
        return sampled_softmax(
            y_pred["query"],
            y_pred["candidate"],
            item_row=x["item_row"],
            log_q=x["log_q"],
            temperature=self.spec.config.temperature,
        )


def _normalize(x: keras.KerasTensor) -> keras.KerasTensor:
    # An epsilon inside the root: a zero vector stays zero, with a finite gradient.
    return x / ops.sqrt(ops.sum(ops.square(x), axis=-1, keepdims=True) + 1e-12)
