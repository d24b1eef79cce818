"""FinalMLP: two streams of layers over gated features, and a bilinear fusion."""

from __future__ import annotations

from typing import Any, ClassVar

import keras
from keras import ops

from recsys import registry
from recsys.models.field_ranker import FieldRanker, LabelHeads
from recsys.models.inputs import ModelSpec
from recsys.models.interactions import BilinearFusion, FeatureGate
from recsys.models.layers import Mlp
from recsys.models.ranking_config import FinalMlpConfig, RankingConfig
from recsys.models.terms import Tensors


@registry.register_model("final_mlp")
class FinalMlp(FieldRanker):
    """Two streams over features that gates weight (FinalMLP: Mao et al., AAAI 2023).

    The first gate depends on the query, the second on the item. The scores are the fusion of both
    streams; with experts or towers of labels, plus theirs over both streams.
    """

    Config: ClassVar[type[RankingConfig]] = FinalMlpConfig
    only_heads_score: ClassVar[bool] = False

    def __init__(self, spec: ModelSpec, **kwargs: Any) -> None:
        super().__init__(spec, **kwargs)
        config, seed = self.config, self.seed
        options: Any = {"activation": config.activation, "dropout": config.dropout}
        sides = ("query", "item")
        self.gates = [
            FeatureGate(config.gate_widths, seed + 3000 + 100 * n, name=f"{side}_gate")
            for n, side in enumerate(sides)
        ]
        self.streams = [
            Mlp(config.widths, seed + 4000 + 100 * n, name=f"{side}_stream", **options)
            for n, side in enumerate(sides)
        ]
        n_labels = len(self.label_names)
        self.fusion = BilinearFusion(n_labels, config.fusion_heads, seed + 5000, name="fusion")

    def make_heads(self) -> LabelHeads | None:
        """Returns the heads, if there are experts or towers."""
        has_any = self.config.heads != "shared" or self.config.tower_widths
        return super().make_heads() if has_any else None

    def score(self, features: Tensors, training: bool = False) -> keras.KerasTensor:
        """Returns scores `[rows, labels]` float32; see `RankingModel.score`."""
        pooled = [self.pooled(features, training)] if self.config.history else []
        of_item = [f.name for f in self.spec.of_side("item")]
        names = [n for n in self.field_names if n not in ("id_row", *of_item)]
        query = [self.joined([features[name]], training) for name in names] + pooled
        item = self.joined([features[name] for name in ("id_row", *of_item)], training)
        contexts = (ops.concatenate(query, axis=-1) if query else None, item)
        x = ops.concatenate([*query, item], axis=-1)
        first, second = (
            stream(gate(x, context), training=training)
            for gate, stream, context in zip(self.gates, self.streams, contexts, strict=True)
        )
        scores = ops.cast(self.fusion(first, second), "float32")
        if self.heads is None:
            return scores
        both = ops.concatenate([first, second], axis=-1)
        return scores + self.heads(both, training=training)
