"""What the built-in rankers share: vectors of events, the pooled history, and heads for labels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import keras
from keras import ops

from recsys.data.catalogue import of_history
from recsys.models.experts import LabelTowers, MixtureOfExperts, ProgressiveExtraction
from recsys.models.inputs import ModelSpec
from recsys.models.layers import InputDtypeLayer, Linear
from recsys.models.ranking_config import FieldRankerConfig, RankingConfig
from recsys.models.ranking_model import RETRIEVER, RankingModel
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

    @property
    def by_label(self) -> list[Any]:
        """The weights, if each has an axis of labels, its first, or doesn't depend on them."""
        if self.experts is None:
            return self.towers.weights
        is_mixed = isinstance(self.experts, ProgressiveExtraction)
        return [] if is_mixed else [*self.towers.weights, *self.experts.gate.weights]

    def call(self, x: keras.KerasTensor, training: bool = False) -> keras.KerasTensor:
        """Returns scores `[batch, labels]` float32 of states `[batch, in]`."""
        states = x if self.experts is None else self.experts(x, training=training)
        return self.towers(states, training=training)


class FieldRanker(RankingModel, makes_layers=False):
    """A ranker that reads every feature; a subclass makes a state of them with `interact`.

    The vector of an item joins its row and its features; the history has such vectors, too.

    Attributes:
        heads: Layer from the state `[rows, in]` to scores `[rows, labels]`.
    """

    Config: ClassVar[type[RankingConfig]] = FieldRankerConfig
    only_heads_score: ClassVar[bool] = True
    """Whether only the weights of `heads` depend on the labels."""

    def __init__(self, spec: ModelSpec, **kwargs: Any) -> None:
        super().__init__(spec, **kwargs)
        self.of_events = EventVectors(name="events") if spec.attributes else None
        self.attention = self.make_attention()
        self.heads: Any = self.make_heads()

    def make_attention(self) -> TargetAttention | None:
        """Returns the layer that weights a history for each candidate, if there is one."""
        config = self.config
        if config.pooling != "target" or not config.history:
            return None
        return TargetAttention(
            config.attention_widths,
            dropout=config.dropout,
            seed=self.seed + 1000,
            name="attention",
        )

    def make_heads(self) -> LabelHeads | None:
        """Returns the layer `heads`."""
        return LabelHeads(len(self.label_names), self.config, self.seed + 2000, name="heads")

    def build_layers(self) -> None:
        """Creates the variables of the layers, and names those with an axis of labels."""
        super().build_layers()
        weights = self.heads.by_label if self.only_heads_score else ()
        own: Any = {w.path.partition("/")[2]: ("labels", 0) for w in weights}
        self.weights_by_row = {**self.weights_by_row, **own}

    # --- the features of rows

    @property
    def field_names(self) -> list[str]:
        """Names of the features of users, context, items and rows, those of a list included."""
        spec, user = self.spec, ["user_row"] if self.config.user_id else []
        of_query = [f.name for f in (*spec.of_side("user"), *spec.context)]
        of_row = [f.name for f in (*spec.of_side("item"), *spec.of_side("row"))]
        of_list = [RETRIEVER] if self.config.stage_one else []
        return [*user, *of_query, "id_row", *of_row, *of_list]

    @property
    def item_width(self) -> int:
        """Width of the vectors of items, events and pooled histories."""
        widths = {f.name: f.dim for f in self.spec.of_side("item")}
        return self.config.dim + sum(widths[name] for name in self._item_features)

    @property
    def _item_features(self) -> list[str]:
        """Names of the items' features that their vectors have."""
        return [f.name for f in self.spec.of_side("item") if self.config.history_features]

    def joined(self, parts: Sequence[keras.KerasTensor], training: bool) -> keras.KerasTensor:
        """Returns the concatenation of features, in the dtype to compute in."""
        dtype = self.compute_dtype_of_training if training else "float32"
        return ops.cast(ops.concatenate(parts, axis=-1), dtype)

    def item_vector(self, features: Tensors, training: bool) -> keras.KerasTensor:
        """Returns the vectors of the rows' items `[rows, item_width]`."""
        return self.joined([features[n] for n in ("id_row", *self._item_features)], training)

    def flat(self, features: Tensors, training: bool) -> keras.KerasTensor:
        """Returns all features and the pooled history of each row as one vector `[rows, width]`."""
        own = self.joined([features[name] for name in self.field_names], training)
        if not self.config.history:
            return own
        return ops.concatenate([own, self.pooled(features, training)], axis=-1)

    # --- the history

    def encode_query(self, features: Tensors, training: bool = False) -> Tensors:
        """Returns the features with the vectors of the history's events, or their mean."""
        if not self.config.history:
            return features
        items = [features[name] for name in ("history", *map(of_history, self._item_features))]
        events = self.joined(items, training)
        if self.of_events is not None:
            own = [features[of_history(f.name)] for f in self.spec.attributes]
            events = self.of_events(events, self.joined(own, training))
        rest = {name: x for name, x in features.items() if name.partition(".")[0] != "history"}
        if self.config.pooling == "target":
            return {**rest, EVENTS: events}
        mask = ops.cast(features["history_rows"] > 0, events.dtype)[..., None]
        n = ops.maximum(ops.sum(mask, axis=1), 1.0)
        return {**rest, POOLED: ops.sum(events * mask, axis=1) / n}

    def pooled(self, features: Tensors, training: bool) -> keras.KerasTensor:
        """Returns the history of each row as one vector `[rows, item_width]`."""
        if self.attention is None:
            return features[POOLED]
        item, mask = self.item_vector(features, training), features["history_rows"] > 0
        return self.attention(item, features[EVENTS], mask, training=training)

    # --- scores

    def interact(self, features: Tensors, training: bool) -> keras.KerasTensor:
        """Returns the state of each row `[rows, width]`.

        Args:
            features: The features of rows, and what `encode_query` made of the history.
            training: Whether the model is trained.
        """
        raise NotImplementedError

    def score(self, features: Tensors, training: bool = False) -> keras.KerasTensor:
        """Returns scores `[rows, labels]` float32; see `RankingModel.score`."""
        return self.heads(self.interact(features, training), training=training)
