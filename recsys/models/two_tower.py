"""The two-tower model: a user tower and an item tower, compared by cosine or dot product.

Two-tower retrieval with in-batch softmax: Yi et al., "Sampling-Bias-Corrected
Neural Modeling for Large Corpus Item Recommendations", RecSys 2019.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

import keras
import numpy as np
from keras import ops

from recsys import registry
from recsys.data.catalogue import of_history
from recsys.data.event_log import PLACE
from recsys.errors import UsageError
from recsys.models.config import RetrievalConfig, TwoTowerConfig
from recsys.models.layers import Linear, Tower
from recsys.models.retrieval_model import RetrievalModel
from recsys.models.terms import Tensors


@registry.register_model("two_tower")
class TwoTower(RetrievalModel):
    """The two-tower model: a user tower and an item tower that share the item table."""

    Config: ClassVar[type[RetrievalConfig]] = TwoTowerConfig

    @property
    def averages_history(self) -> bool:
        """Whether the encoder only returns weights of the history's items."""
        return self._encoder_type.only_weighs

    def history_weights(self, rows: keras.KerasTensor) -> keras.KerasTensor | None:
        """Returns the weights `[batch, history]` of the items of histories."""
        return self.encoder(rows)

    def build_layers(self) -> None:
        """Creates the encoder, the towers and their variables."""
        config, spec, dtype = self.config, self.spec, self.compute_dtype_of_training
        if config.history_tower and self.averages_history:
            raise UsageError(
                "R348",
                "model.history_tower must go with an encoder that reads items one by one.",
                "Set model.history_tower to false, or only_weighs of the encoder to False.",
                self._encoder_type.__qualname__,
            )
        self.encoder = self._encoder_type(
            **config.encoder.model_dump(),
            length=config.history,
            dim=config.dim,
            seed=self.seed + 3000,
            training_dtype=dtype,
            name="history",
        )
        self.query_tower = self._tower("query_tower", self.seed + 1000)
        self.candidate_tower = self._tower("candidate_tower", self.seed + 2000)
        self.encoder.build()
        if not config.user_id:
            # Anchor of users without id and history if there is no row 0 of the user table.
            normal = keras.initializers.RandomNormal(stddev=0.05, seed=self.seed + 4000)
            self.nobody = self.add_weight(name="nobody", shape=(config.dim,), initializer=normal)
        of_user, of_item, of_context, of_event = (
            sum(feature.dim for feature in features)
            for features in (
                spec.of_side("user"),
                spec.of_side("item"),
                spec.context,
                spec.attributes,
            )
        )
        self.query_tower.build((None, (1 + config.user_id) * config.dim + of_user + of_context))
        self.candidate_tower.build((None, config.dim + of_item))
        self.attribute_map: Linear | None = None
        if of_event:
            # From 0 on, so that training starts from the items alone.
            self.attribute_map = Linear(
                config.dim, use_bias=False, starts_at_zero=True, name="attributes"
            )
            self.attribute_map.build((None, of_event))

    @property
    def _encoder_type(self) -> Any:
        return registry.class_of("encoder", self.config.encoder)

    def _tower(self, name: str, seed: int) -> Tower:
        config = self.config
        return Tower(
            config.widths,
            config.dim,
            seed,
            activation=config.activation,
            dropout=config.dropout,
            training_dtype=self.compute_dtype_of_training,
            name=name,
        )

    def query(self, features: Tensors, training: bool = False) -> keras.KerasTensor:
        """Returns query vectors `[batch, dim]` float32; see `RetrievalModel.query`."""
        own = [feature.name for feature in (*self.spec.of_side("user"), *self.spec.context)]
        rest = [features[name] for name in ("user_row", *own) if name in features]
        if not self.config.trains_on_history:
            return self._solved(features, rest, training)
        pooled = self._pooled(features, training)
        rows, at = features["history_rows"], features.get("at")
        if self.config.user_id:
            # The anchor includes the user's embedding: without it, a new user with an empty history
            # would start from a zero vector, whose direction is noise.
            anchor = pooled + rest[0]
        else:
            has_any = ops.any(rows > 0, axis=1) if at is None else ops.reshape(at >= 0, (-1,))
            has_any = has_any[:, None]
            anchor = pooled = ops.where(has_any, pooled, ops.convert_to_tensor(self.nobody))
        inputs = ops.concatenate([pooled, *rest], axis=-1)
        return self.query_tower(anchor, inputs, training=training)

    def _pooled(self, features: Tensors, training: bool) -> keras.KerasTensor:
        """Returns the encoded histories `[batch, dim]` float32."""
        rows, items = features["history_rows"], features["history"]
        if self.averages_history:  # The map of the mean is the mean of the mapped attributes.
            return self._with_attributes(items, features)
        if self.config.history_features:
            items = self._items(items, features, training)
        more: Tensors = {x: features[x] for x in ("segment", "at") if x in features}
        if PLACE in features:  # The items are unique.
            if self._encoder_type.uses_positions and self.attribute_map is None:
                more["place"] = features[PLACE]
            else:
                items = ops.take(items, features[PLACE], axis=0)
        items = self._with_attributes(items, features)
        return self.encoder(items, rows, training=training, **more)

    def _with_attributes(self, items: keras.KerasTensor, features: Tensors) -> keras.KerasTensor:
        """Returns the history's items `[…, dim]` plus the mapped attributes of their events."""
        if self.attribute_map is None:
            return items
        own = [features[of_history(feature.name)] for feature in self.spec.attributes]
        return items + self.attribute_map(ops.concatenate(own, axis=-1))

    def _solved(
        self, features: Tensors, rest: list[keras.KerasTensor], training: bool
    ) -> keras.KerasTensor:
        """Returns the solved vectors `[batch, dim]`, and the rows of users without a history.

        In training all users are represented by their rows.

        Args:
            features: See `query`.
            rest: Rows and features of the users.
            training: Whether the model is trained.
        """
        inputs = ops.concatenate([ops.zeros_like(rest[0]), *rest], axis=-1)
        own = self.query_tower(rest[0], inputs, training=training)
        if "history" not in features:
            return own
        has_any = ops.any(features["history_rows"] > 0, axis=1, keepdims=True)
        return ops.where(has_any, self._pooled(features, training), own)

    def settle(self, vectors: Iterable[np.ndarray]) -> None:
        """Passes the item vectors to an encoder that solves users; see `RetrievalModel.settle`."""
        if not self.config.trains_on_history:
            self.encoder.settle(vectors)

    def _items(
        self, items: keras.KerasTensor, features: Tensors, training: bool
    ) -> keras.KerasTensor:
        """Returns the history items' vectors, with features, by the candidate tower."""
        bags = [features[of_history(f.name)] for f in self.spec.of_side("item")]
        inputs = ops.concatenate([items, *bags], axis=-1)
        return self.candidate_tower(items, inputs, training=training)

    def candidate(self, features: Tensors, training: bool = False) -> keras.KerasTensor:
        """Returns candidate vectors `[candidates, dim]` float32."""
        own, *bags = (features[name] for name in self.names_of_side("item"))
        inputs = ops.concatenate([own, *bags], axis=-1)
        return self.candidate_tower(own, inputs, training=training)
