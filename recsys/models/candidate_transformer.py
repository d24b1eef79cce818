"""A transformer over the history and a candidate, which don't see other candidates."""

from __future__ import annotations

from typing import Any, ClassVar

import keras
from keras import ops

from recsys import registry
from recsys.models.din import Din
from recsys.models.field_ranker import EVENTS
from recsys.models.inputs import ModelSpec
from recsys.models.layers import Linear, Norm
from recsys.models.ranking_config import CandidateTransformerConfig, RankingConfig
from recsys.models.target_attention import CandidateBlock, TargetAttention
from recsys.models.terms import Tensors

_STATES = "states"


@registry.register_model("candidate_transformer")
class CandidateTransformer(Din):
    """Blocks of attention over the history, which the candidate attends to in each.

    The states of the history don't depend on the candidate, so they are computed once for all
    candidates of a query (M-FALCON: Zhai et al., ICML 2024). The layers above read the candidate's
    last state in place of DIN's weighted history.
    """

    Config: ClassVar[type[RankingConfig]] = CandidateTransformerConfig

    def __init__(self, spec: ModelSpec, **kwargs: Any) -> None:
        super().__init__(spec, **kwargs)
        config, seed = self.config, self.seed + 6000
        dim = config.block_dim
        self.of_event = Linear(dim, seed=seed, name="of_event")
        self.of_item = Linear(dim, seed=seed + 1, name="of_item")
        self.blocks = [
            CandidateBlock(
                dim,
                config.block_heads,
                2 * dim,
                config.dropout,
                seed=seed + 10 * (1 + number),
                name=f"block_{number}",
            )
            for number in range(config.blocks)
        ]
        self.norm = Norm(name="norm")

    def build_layers(self) -> None:
        """Creates the variables of the layers."""
        normal = keras.initializers.RandomNormal(stddev=0.05, seed=self.seed + 7000)
        shape = (self.config.history, self.config.block_dim)
        self.positions = self.add_weight(name="positions", shape=shape, initializer=normal)
        for block in self.blocks:
            block.build()
        super().build_layers()

    def make_attention(self) -> TargetAttention | None:
        """Returns None: the blocks take its place."""
        return None

    def encode_query(self, features: Tensors, training: bool = False) -> Tensors:
        """Returns the features with the states of the history that each block reads."""
        rest = super().encode_query(features, training)
        events = rest.pop(EVENTS)
        states = [self.of_event(events) + ops.cast(self.positions, events.dtype)]
        mask = features["history_rows"] > 0
        for block in self.blocks[:-1]:
            states.append(block.of_history(states[-1], mask, training))
        return {**rest, _STATES: ops.stack(states, axis=1)}

    def pooled(self, features: Tensors, training: bool) -> keras.KerasTensor:
        """Returns the last state of the candidate `[rows, block_dim]`."""
        state = self.of_item(self.item_vector(features, training))[:, None]
        mask, states = features["history_rows"] > 0, features[_STATES]
        for number, block in enumerate(self.blocks):
            state = block.of_candidates(states[:, number], state, mask, training)
        return self.norm(state[:, 0])
