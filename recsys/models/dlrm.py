"""DLRM: dot products of all pairs of features."""

from __future__ import annotations

from typing import Any, ClassVar

import keras
from keras import ops

from recsys import registry
from recsys.models.field_ranker import POOLED, FieldRanker
from recsys.models.inputs import ModelSpec
from recsys.models.interactions import DotInteraction
from recsys.models.layers import Linear, Mlp
from recsys.models.ranking_config import DlrmConfig, RankingConfig
from recsys.models.terms import Tensors


@registry.register_model("dlrm")
class Dlrm(FieldRanker):
    """Dot products of all pairs of feature vectors (DLRM: Naumov et al., 2019).

    The numbers of a row pass through layers to one more vector, which the layers above the products
    read, too. Vectors of another width than `model.dim` are mapped to it.
    """

    Config: ClassVar[type[RankingConfig]] = DlrmConfig

    def __init__(self, spec: ModelSpec, **kwargs: Any) -> None:
        super().__init__(spec, **kwargs)
        config, seed = self.config, self.seed
        floats = {x.name for x in self.inputs_of_sides if x.dtype == "float32"}
        self.numbers = [name for name in self.field_names if name in floats]
        self.vectors = [name for name in self.field_names if name not in floats]
        widths = (*config.bottom_widths, config.dim)
        self.bottom = Mlp(widths, seed + 3000, config.activation, config.dropout, name="bottom")
        self.dot = DotInteraction(name="dot")
        self.top = Mlp(config.widths, seed + 4000, config.activation, config.dropout, name="top")
        others = {f.name: f.dim for f in spec.features} | {POOLED: self.item_width}
        self.maps = {
            name: Linear(config.dim, use_bias=False, seed=seed + 5000 + number, name=f"map_{name}")
            for number, name in enumerate((*self.vectors, POOLED))
            if others.get(name, config.dim) != config.dim
        }

    def interact(self, features: Tensors, training: bool) -> keras.KerasTensor:
        """Returns the last layer over the vector of the numbers and all products."""
        parts = {name: self.joined([features[name]], training) for name in self.vectors}
        if self.config.history:
            parts[POOLED] = self.pooled(features, training)
        vectors = [self.maps[name](x) if name in self.maps else x for name, x in parts.items()]
        bottom = []
        if self.numbers:
            numbers = self.joined([features[name] for name in self.numbers], training)
            bottom = [self.bottom(numbers, training=training)]
        products = self.dot(ops.stack([*bottom, *vectors], axis=1))
        return self.top(ops.concatenate([*bottom, products], axis=-1), training=training)
