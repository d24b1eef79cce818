"""DIN: attention of the candidate over the history."""

from __future__ import annotations

from typing import Any, ClassVar

import keras

from recsys import registry
from recsys.models.field_ranker import FieldRanker
from recsys.models.inputs import ModelSpec
from recsys.models.layers import Mlp
from recsys.models.ranking_config import DinConfig, RankingConfig
from recsys.models.terms import Tensors


@registry.register_model("din")
class Din(FieldRanker):
    """Layers over all features and a history that the candidate weights (Zhou et al., KDD 2018)."""

    Config: ClassVar[type[RankingConfig]] = DinConfig

    def __init__(self, spec: ModelSpec, **kwargs: Any) -> None:
        super().__init__(spec, **kwargs)
        config, seed = self.config, self.seed + 3000
        self.deep = Mlp(config.widths, seed, config.activation, config.dropout, name="deep")

    def interact(self, features: Tensors, training: bool) -> keras.KerasTensor:
        """Returns the last layer."""
        return self.deep(self.flat(features, training), training=training)
