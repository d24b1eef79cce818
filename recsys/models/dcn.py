"""DCN-v2: explicit crosses of all features, beside or below layers."""

from __future__ import annotations

from typing import Any, ClassVar

import keras
from keras import ops

from recsys import registry
from recsys.models.field_ranker import FieldRanker
from recsys.models.inputs import ModelSpec
from recsys.models.interactions import CrossNetwork
from recsys.models.layers import Mlp
from recsys.models.ranking_config import DcnV2Config, RankingConfig
from recsys.models.terms import Tensors


@registry.register_model("dcn_v2")
class DcnV2(FieldRanker):
    """A cross network and layers over all features (DCN-v2: Wang et al., WWW 2021)."""

    Config: ClassVar[type[RankingConfig]] = DcnV2Config

    def __init__(self, spec: ModelSpec, **kwargs: Any) -> None:
        super().__init__(spec, **kwargs)
        config, seed = self.config, self.seed
        self.cross = CrossNetwork(config.crosses, config.rank, seed + 3000, name="cross")
        self.deep = Mlp(config.widths, seed + 4000, config.activation, config.dropout, name="deep")

    def interact(self, features: Tensors, training: bool) -> keras.KerasTensor:
        """Returns the crosses and the last layer, or the last layer over the crosses."""
        x = self.flat(features, training)
        crossed = self.cross(x)
        if self.config.structure == "stacked":
            return self.deep(crossed, training=training)
        return ops.concatenate([crossed, self.deep(x, training=training)], axis=-1)
