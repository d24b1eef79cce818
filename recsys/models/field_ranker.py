"""What the built-in rankers share: vectors of events, the pooled history, and heads for labels."""

from __future__ import annotations

from typing import Any, ClassVar

import keras
from keras import ops

from recsys.data.catalogue import of_history
from recsys.models.experts import LabelTowers, MixtureOfExperts, ProgressiveExtraction
from recsys.models.inputs import ModelSpec
from recsys.models.layers import InputDtypeLayer, Linear
from recsys.models.ranking_config import FieldRankerConfig, RankingConfig
from recsys.models.ranking_model import RankingModel
from recsys.models.target_attention import TargetAttention
from recsys.models.terms import Tensors

EVENTS, POOLED = "events", "pooled"
"""Names of what `encode_query` adds to the features: vectors of a history's events, their mean."""


@keras.saving.register_keras_serializable(package="recsys")
class EventVectors(InputDtypeLayer):
    """Vectors of a history's events, of their items and their attributes.

    For an item's vector v and its event's attributes a it is `v * (1 + G a) + M a`: an attribute
    such as a rating can turn what the item says of the user. G and M are initially 0.
    """

    def build(self, items_shape: Any, attributes_shape: Any) -> None:
        """Creates the weights for items and attributes `[..., width]`."""
        width = items_shape[-1]
        self.gate, self.shift = (
            Linear(width, use_bias=False, starts_at_zero=True, name=name)
            for name in ("gate", "shift")
        )
        for layer in (self.gate, self.shift):
            layer.build(attributes_shape)

    def call(self, items: keras.KerasTensor, attributes: keras.KerasTensor) -> keras.KerasTensor:
        """Returns vectors `[batch, history, width]`, of the shape and dtype of `items`."""
        return items * (1.0 + self.gate(attributes)) + self.shift(attributes)


@keras.saving.register_keras_serializable(package="recsys")
class LabelHeads(InputDtypeLayer):
    """Scores of labels: towers over one state, or over the states that experts make.

    Args:
        labels: Number of labels.
        config: Which experts there are, and their sizes.
        seed: Seed of the initial weights and of the dropout.
    """

    def __init__(
        self, labels: int, config: FieldRankerConfig, seed: int = 0, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        options: dict[str, Any] = {
            "activation": config.activation,
            "dropout": config.dropout,
            "seed": seed + 100,
            "name": "experts",
        }
        self.experts: Any = None
        if config.heads == "mmoe":
            self.experts = MixtureOfExperts(labels, config.experts, config.expert_widths, **options)
        if config.heads == "ple":
            n = max(1, config.experts // 2)
            self.experts = ProgressiveExtraction(
                labels, 2, n, n, widths=config.expert_widths, **options
            )
        self.towers = LabelTowers(
            labels, config.tower_widths, config.activation, config.dropout, seed, name="towers"
        )

    def call(self, x: keras.KerasTensor, training: bool = False) -> keras.KerasTensor:
        """Returns scores `[batch, labels]` float32 of states `[batch, in]`."""
        states = x if self.experts is None else self.experts(x, training=training)
        return self.towers(states, training=training)


class FieldRanker(RankingModel, makes_layers=False):
    """A ranker that reads every feature; a subclass makes a state of them with `interact`.

    Attributes:
        heads: Layer from the state `[rows, in]` to scores `[rows, labels]`.
    """

    Config: ClassVar[type[RankingConfig]] = FieldRankerConfig

    def __init__(self, spec: ModelSpec, **kwargs: Any) -> None:
        super().__init__(spec, **kwargs)
        config, seed = self.config, self.seed
        self.of_events = EventVectors(name="events") if spec.attributes else None
        self.attention: TargetAttention | None = None
        if config.pooling == "target":
            self.attention = TargetAttention(
                config.attention_widths, dropout=config.dropout, seed=seed + 1000, name="attention"
            )
        self.heads = LabelHeads(len(self.label_names), config, seed + 2000, name="heads")

    def interact(self, features: Tensors, training: bool) -> keras.KerasTensor:
        """Returns the state of each row `[rows, width]`, in the dtype of the features.

        Args:
            features: The features of rows, and what `encode_query` returned.
            training: Whether the model is trained.
        """
        raise NotImplementedError

    def score(self, features: Tensors, training: bool = False) -> keras.KerasTensor:
        """Returns scores `[rows, labels]` float32; see `RankingModel.score`."""
        return self.heads(self.interact(features, training), training=training)

    def encode_query(self, features: Tensors, training: bool = False) -> Tensors:
        """Returns the features with the vectors of the history's events, or their mean."""
        items = [features[name] for name in ("history", *map(of_history, self._item_features))]
        vectors = self._joined(items, training)
        if self.of_events is not None:
            own = [features[of_history(f.name)] for f in self.spec.attributes]
            vectors = self.of_events(vectors, self._joined(own, training))
        rest = {name: x for name, x in features.items() if name.partition(".")[0] != "history"}
        if self.attention is not None:
            return {**rest, EVENTS: vectors}
        mask = ops.cast(features["history_rows"] > 0, vectors.dtype)[..., None]
        n = ops.maximum(ops.sum(mask, axis=1), 1.0)
        return {**rest, POOLED: ops.sum(vectors * mask, axis=1) / n}

    @property
    def _item_features(self) -> list[str]:
        """Names of the items' features that the vector of an item has."""
        return [f.name for f in self.spec.of_side("item") if self.config.history_features]

    def _joined(self, parts: list[keras.KerasTensor], training: bool) -> keras.KerasTensor:
        """Returns the concatenation of features, in the dtype to compute in."""
        dtype = self.compute_dtype_of_training if training else "float32"
        return ops.cast(ops.concatenate(parts, axis=-1), dtype)

    def pooled(self, features: Tensors, training: bool) -> keras.KerasTensor:
        """Returns the history of each row as one vector `[rows, width]`."""
        if self.attention is None:
            return features[POOLED]
        item = self._joined([features[n] for n in ("id_row", *self._item_features)], training)
        mask = features["history_rows"] > 0
        return self.attention(item, features[EVENTS], mask, training=training)

    @property
    def _field_names(self) -> list[str]:
        """Names of the features of users, context, items and rows, tokens and numbers."""
        spec, user = self.spec, ["user_row"] if self.config.user_id else []
        of_query = [f.name for f in (*spec.of_side("user"), *spec.context)]
        of_row = [f.name for f in (*spec.of_side("item"), *spec.of_side("row"))]
        return [*user, *of_query, "id_row", *of_row]

    def flat(self, features: Tensors, training: bool) -> keras.KerasTensor:
        """Returns all features and the pooled history of each row as one vector `[rows, width]`."""
        own = self._joined([features[name] for name in self._field_names], training)
        return ops.concatenate([own, self.pooled(features, training)], axis=-1)
