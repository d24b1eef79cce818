"""The two towers: users on one side, items on the other, a cosine or a dot between them.

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

from typing import Any, Literal

import keras
from keras import ops

from recsys import losses
from recsys.config import ModelConfig
from recsys.embedding import SparseModel, TableConfig, embedding_layer
from recsys.model.pooling import AttentionPooling, PlaceWeights
from recsys.model.sequence import SequenceEncoder
from recsys.model.spec import ModelSpec
from recsys.model.tables import model_features, model_tables
from recsys.model.temperature import Latest, LogTemperature
from recsys.model.tower import Tower

Tensors = dict[str, keras.KerasTensor]
Loss = Literal["sampled_softmax", "full_softmax", "bpr"]


class TwoTower(SparseModel):
    """A user tower and an item tower that share the item table.

    Args:
        spec: What the model is.
        tables: The tables by name, as `model_tables` returns them.
        seed: Seed of the initial weights and of the dropout.
        loss: What training minimises.
        compute_dtype: What the towers compute in while they train, `float32` or
            `bfloat16`. Weights, loss and lengths are float32 in any case, and whatever
            is no training step is computed in float32.

    Raises:
        UsageError: The model can't be what its spec says.
    """

    def __init__(
        self,
        spec: ModelSpec,
        tables: dict[str, TableConfig] | None = None,
        seed: int = 0,
        loss: Loss = "sampled_softmax",
        compute_dtype: str = "float32",
    ) -> None:
        super().__init__(name="two_tower")
        spec.check()
        self.spec, self.seed, self.training_loss = spec, seed, loss
        config = spec.config
        tables = model_tables(spec, optimizer=None) if tables is None else tables
        self.embedding = embedding_layer(model_features(spec, tables), seed=seed, name="embedding")
        self.pooling = _pooling(config, seed + 3000, compute_dtype)
        self.query_tower = _tower(config, seed + 1000, compute_dtype, "query_tower")
        self.candidate_tower = _tower(config, seed + 2000, compute_dtype, "candidate_tower")
        self.temperature: LogTemperature | None = None
        if config.learn_temperature:
            self.temperature = LogTemperature(config.temperature, name="temperature")
            self.temperature_log = Latest(name="temperature")

    def build(self, input_shape: Any = None) -> None:
        """Creates every variable, in a fixed order."""
        config, spec = self.spec.config, self.spec
        self.embedding.build()
        self.pooling.build()
        if not config.user_id:
            # What a user without id and history starts from, where no row 0 can stand in.
            normal = keras.initializers.RandomNormal(stddev=0.05, seed=self.seed + 4000)
            self.nobody = self.add_weight(name="nobody", shape=(config.dim,), initializer=normal)
        of_user, of_item = (sum(f.dim for f in spec.of_side(side)) for side in ("user", "item"))
        self.query_tower.build((None, (1 + config.user_id) * config.dim + of_user))
        self.candidate_tower.build((None, config.dim + of_item))
        if self.temperature is not None:
            self.temperature.build()
        self.built = True

    def embed_query(self, inputs: Tensors) -> keras.KerasTensor:
        """Returns vectors `[batch, dim]` float32 of `user_row`, `history`, the features.

        They are of length 1 where the similarity is a cosine. `user_row` isn't read by a
        model without the users' ids.
        """
        found = self._looked_up(inputs, self._query_inputs)
        return self._query(found, inputs["history"], training=False)

    def embed_candidate(self, inputs: Tensors) -> keras.KerasTensor:
        """Returns vectors `[batch, dim]` float32 of `id_row` and the features."""
        return self._candidate(self._looked_up(inputs, self._candidate_inputs), training=False)

    def call(self, inputs: Tensors, training: bool = False) -> Tensors:
        """Returns `query` `[batch, dim]` and `candidate` `[candidates, dim]`, float32."""
        found = self._looked_up(inputs, (*self._query_inputs, *self._candidate_inputs))
        return {
            "query": self._query(found, inputs["history"], training),
            "candidate": self._candidate(found, training),
        }

    @property
    def _query_inputs(self) -> tuple[str, ...]:
        own = ("user_row",) if self.spec.config.user_id else ()
        return ("history", *own, *(f.name for f in self.spec.of_side("user")))

    @property
    def _candidate_inputs(self) -> tuple[str, ...]:
        return ("id_row", *(f.name for f in self.spec.of_side("item")))

    def _looked_up(self, inputs: Tensors, names: tuple[str, ...]) -> Tensors:
        """Returns the embeddings `[batch, dim]` of some inputs.

        Those of a history are `[batch, history, dim]` if its items are read one by one.
        """
        config = self.spec.config
        asked = {name: inputs[name] for name in names}
        weights: dict[str, Any] = dict.fromkeys(names)
        for feature in self.spec.features:
            if feature.name in asked:
                # Row 0 of a feature's table is padding.
                weights[feature.name] = ops.cast(inputs[feature.name] > 0, "float32")
        if "history" not in asked:
            return self.embedding(asked, weights=weights)
        if config.pooling == "mean":
            weights["history"] = self.pooling(inputs["history"])
            return self.embedding(asked, weights=weights)
        # Single ids go to the device that has them, and not all of them to every device.
        asked["history"] = ops.reshape(inputs["history"], (-1,))
        found = self.embedding(asked, weights=weights)
        items = ops.reshape(found["history"], (-1, config.history, config.dim))
        return {**found, "history": items}

    def _query(
        self, found: Tensors, history: keras.KerasTensor, training: bool
    ) -> keras.KerasTensor:
        config = self.spec.config
        pooled, *rest = (found[name] for name in self._query_inputs)
        if config.pooling != "mean":
            pooled = self.pooling(pooled, history, training=training)
        if config.user_id:
            # The user's own embedding is in the guess too: without it a new user, with
            # an empty history, would start from a zero vector, whose direction is noise.
            anchor = pooled + rest[0]
        else:
            has_any = ops.any(history > 0, axis=1, keepdims=True)
            anchor = pooled = ops.where(has_any, pooled, ops.convert_to_tensor(self.nobody))
        inputs = ops.concatenate([pooled, *rest], axis=-1)
        return self.query_tower(anchor, inputs, training=training)

    def _candidate(self, found: Tensors, training: bool) -> keras.KerasTensor:
        own, *bags = (found[name] for name in self._candidate_inputs)
        inputs = ops.concatenate([own, *bags], axis=-1)
        return self.candidate_tower(own, inputs, training=training)

    def compute_loss(
        self,
        x: Tensors | None = None,
        y: Any = None,
        y_pred: Tensors | None = None,
        sample_weight: Any = None,
        training: bool = True,
    ) -> keras.KerasTensor:
        """Returns the loss, a scalar.

        `x` has `item_row` and `log_q` beside the inputs; `weight` `[batch]`, that of each
        example in the loss, where the events have one; and `known` where items that a
        user is known to like are to be no negatives. See `recsys.losses`.
        """
        if x is None or y_pred is None:
            raise ValueError("The loss needs the inputs and the embeddings.")
        given: dict[str, Any] = {
            "item_row": x["item_row"],
            "temperature": self._temperature(),
            "sample_weight": x.get("weight"),
        }
        if "known" in x:
            given["known"] = x["known"]
        if self.training_loss == "bpr":
            return losses.bpr(y_pred["query"], y_pred["candidate"], **given)
        return losses.sampled_softmax(
            y_pred["query"], y_pred["candidate"], log_q=x["log_q"], **given
        )

    def _temperature(self) -> Any:
        """Returns what the similarity is divided by; one that is learned is logged too."""
        if self.temperature is None:
            return self.spec.config.temperature
        temperature = self.temperature.temperature()
        self.temperature_log.update_state(temperature)
        return temperature


def _pooling(config: ModelConfig, seed: int, training_dtype: str) -> keras.layers.Layer:
    """Returns what turns a history into one vector; for `mean`, into weights of its items."""
    if config.pooling == "mean":
        return PlaceWeights(config.history, name="history")
    kind: dict[str, Any] = {
        "length": config.history,
        "dim": config.dim,
        "seed": seed,
        "training_dtype": training_dtype,
        "name": "history",
    }
    if config.pooling == "attention":
        return AttentionPooling(**kind)
    sequence = config.sequence
    return SequenceEncoder(
        n_blocks=sequence.layers,
        heads=sequence.heads,
        width=sequence.width,
        dropout=sequence.dropout,
        **kind,
    )


def _tower(config: ModelConfig, seed: int, training_dtype: str, name: str) -> Tower:
    return Tower(
        config.widths,
        config.dim,
        seed,
        activation=config.activation,
        dropout=config.dropout,
        is_unit=config.similarity == "cosine",
        training_dtype=training_dtype,
        name=name,
    )
