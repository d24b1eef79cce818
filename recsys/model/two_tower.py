"""The two towers: users on one side, items on the other, a cosine between them.

Written with `keras.ops` alone, so that the same class trains on JAX and is exported
on TensorFlow. Inputs are rows, never ids:

    user_row   [b]            row of the user table; 0 for a user without one
    history    [b, history]   rows of the item table, the newest first; 0 is padding
    id_row     [b]            row of the item table; 0 for an item without one
    <feature>  [b, width]     token rows of the user or of the item; 0 is padding

Two-tower retrieval with in-batch softmax: Yi et al., "Sampling-Bias-Corrected
Neural Modeling for Large Corpus Item Recommendations", RecSys 2019.
"""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from recsys.embedding import FeatureConfig, SparseModel, TableConfig, embedding_layer
from recsys.embedding.optimizers import RowOptimizer
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


@keras.saving.register_keras_serializable(package="recsys")
class PlaceWeights(keras.layers.Layer):
    """Weighs the entries of a history by their place in it, the newest first.

    Args:
        length: Entries of a history; each place has a weight that is learned.
    """

    def __init__(self, length: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.length = length

    def build(self, input_shape: Any = None) -> None:
        """Creates the weights of the places `[length]`, all of them equal at first."""
        self.place = self.add_weight(name="place", shape=(self.length,), initializer="zeros")

    def call(self, rows: keras.KerasTensor) -> keras.KerasTensor:
        """Returns the weights `[batch, length]` of `rows`; 0, and not in the bag, for row 0."""
        return ops.cast(rows > 0, "float32") * ops.softplus(self.place)

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments."""
        return {**super().get_config(), "length": self.length}


class TwoTower(SparseModel):
    """A user tower and an item tower that share the item table.

    Args:
        spec: What the model is.
        tables: The tables by name, as `model_tables` returns them.
        seed: Seed of the initial weights.
    """

    def __init__(
        self, spec: ModelSpec, tables: dict[str, TableConfig] | None = None, seed: int = 0
    ) -> None:
        super().__init__(name="two_tower")
        self.spec = spec
        config = spec.config
        tables = model_tables(spec, optimizer=None) if tables is None else tables
        self.embedding = embedding_layer(_features(spec, tables), seed=seed, name="embedding")
        self.recent = PlaceWeights(config.history, name="history")
        self.query_tower = Tower(config.widths, config.dim, seed + 1000, name="query_tower")
        self.candidate_tower = Tower(config.widths, config.dim, seed + 2000, name="candidate_tower")

    def build(self, input_shape: Any = None) -> None:
        """Creates every variable, in a fixed order."""
        config, spec = self.spec.config, self.spec
        self.embedding.build()
        self.recent.build()
        of_user, of_item = (sum(f.dim for f in spec.of_side(side)) for side in ("user", "item"))
        self.query_tower.build((None, 2 * config.dim + of_user))
        self.candidate_tower.build((None, config.dim + of_item))
        self.built = True

    def embed_query(self, inputs: Tensors) -> keras.KerasTensor:
        """Returns unit vectors `[batch, dim]` float32 of `user_row`, `history`, the features."""
        return self._query(self._looked_up(inputs, self._query_inputs))

    def embed_candidate(self, inputs: Tensors) -> keras.KerasTensor:
        """Returns unit vectors `[batch, dim]` float32 of `id_row` and the features."""
        return self._candidate(self._looked_up(inputs, self._candidate_inputs))

    def call(self, inputs: Tensors) -> Tensors:
        """Returns `query` `[batch, dim]` and `candidate` `[candidates, dim]`, float32."""
        found = self._looked_up(inputs, (*self._query_inputs, *self._candidate_inputs))
        return {"query": self._query(found), "candidate": self._candidate(found)}

    @property
    def _query_inputs(self) -> tuple[str, ...]:
        return ("user_row", "history", *(f.name for f in self.spec.of_side("user")))

    @property
    def _candidate_inputs(self) -> tuple[str, ...]:
        return ("id_row", *(f.name for f in self.spec.of_side("item")))

    def _looked_up(self, inputs: Tensors, names: tuple[str, ...]) -> Tensors:
        """Returns the embeddings `[batch, dim]` of some inputs."""
        weights: dict[str, Any] = dict.fromkeys(names)
        features = {feature.name for feature in self.spec.features}
        for name in names:
            if name == "history":
                weights[name] = self.recent(inputs[name])
            elif name in features:
                # Row 0 of a feature's table is padding.
                weights[name] = ops.cast(inputs[name] > 0, "float32")
        return self.embedding({name: inputs[name] for name in names}, weights=weights)

    def _query(self, found: Tensors) -> keras.KerasTensor:
        user, pooled, *bags = (found[name] for name in self._query_inputs)
        # The user's own embedding is in the guess too: without it a new user, with
        # an empty history, would start from a zero vector, whose direction is noise.
        return self.query_tower(pooled + user, ops.concatenate([pooled, user, *bags], axis=-1))

    def _candidate(self, found: Tensors) -> keras.KerasTensor:
        own, *bags = (found[name] for name in self._candidate_inputs)
        return self.candidate_tower(own, ops.concatenate([own, *bags], axis=-1))

    def compute_loss(
        self,
        x: Tensors | None = None,
        y: Any = None,
        y_pred: Tensors | None = None,
        sample_weight: Any = None,
        training: bool = True,
    ) -> keras.KerasTensor:
        """Returns the sampled softmax loss, a scalar.

        `x` has `item_row` and `log_q` beside the inputs, and `weight` `[batch]`, that of
        each example in the loss, where the events have one.
        """
        if x is None or y_pred is None:
            raise ValueError("The loss needs the inputs and the embeddings.")
        return sampled_softmax(
            y_pred["query"],
            y_pred["candidate"],
            item_row=x["item_row"],
            log_q=x["log_q"],
            temperature=self.spec.config.temperature,
            sample_weight=x.get("weight"),
        )


def model_tables(spec: ModelSpec, optimizer: RowOptimizer | None) -> dict[str, TableConfig]:
    """Returns the tables of a model by name.

    Args:
        spec: What the model is.
        optimizer: Optimizer of the tables; None for a model that is only read.
    """
    sizes = {
        "users": (spec.user_rows, spec.config.dim),
        "items": (spec.item_rows, spec.config.dim),
        **{f.name: (f.rows, f.dim) for f in spec.features},
    }
    return {
        name: TableConfig(
            name,
            rows,
            dim,
            initializer=keras.initializers.RandomNormal(stddev=0.05),
            optimizer=optimizer,
            combiner="mean",
            placement=spec.config.table_placement,
            dtype=spec.config.table_dtype,
        )
        for name, (rows, dim) in sizes.items()
    }


def _features(spec: ModelSpec, tables: dict[str, TableConfig]) -> dict[str, FeatureConfig]:
    """Returns the features by the name of their input, each with its table and shape."""
    shapes: dict[str, tuple[str, tuple[int | None, ...]]] = {
        "user_row": ("users", (None,)),
        "history": ("items", (None, spec.config.history)),
        "id_row": ("items", (None,)),
        **{f.name: (f.name, (None, f.width)) for f in spec.features},
    }
    return {
        name: FeatureConfig(name, tables[table], shape, (None, tables[table].embedding_dim))
        for name, (table, shape) in shapes.items()
    }


def _normalize(x: keras.KerasTensor) -> keras.KerasTensor:
    # An epsilon inside the root: a zero vector stays zero, with a finite gradient.
    return x / ops.sqrt(ops.sum(ops.square(x), axis=-1, keepdims=True) + 1e-12)
