"""The two towers: what they read, and how they turn it into vectors."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from recsys.strict import Strict

Dropout = Annotated[float, Field(ge=0.0, lt=1.0)]
LEARNED_TEMPERATURE = (0.01, 10.0)
"""What a learned temperature stays in. CLIP bounds its own below, by 0.01 (Radford et al.,
ICML 2021, section 2.5); a mean of losses is least sharp long before 10."""


class SequenceConfig(Strict):
    """The self-attention over a history (SASRec: Kang and McAuley, ICDM 2018)."""

    layers: PositiveInt = 2
    """Blocks of attention and a feed-forward layer, one after the other."""
    heads: PositiveInt = 2
    """Heads of the attention; must divide `model.dim`."""
    width: PositiveInt | None = None
    """Width of the feed-forward layers; `null`: `model.dim` [floats]."""
    dropout: Dropout = 0.2
    """Share of activations that training drops [0..1)."""


class ModelConfig(Strict):
    """The two towers."""

    dim: PositiveInt = 64
    """Width of the id tables and of both towers' output [floats]."""
    feature_dim: PositiveInt = 32
    """Width of the tables of the items' and users' features [floats]."""
    user_id: bool = True
    """Whether the user tower reads a row of the user's own; without, users are their
    histories and features."""
    history: PositiveInt = 20
    """Newest positives of a user that the user tower sees [items]."""
    history_of: Literal["past", "others"] | None = None
    """What a training example's history holds: `past`, what the user did before it;
    `others`, what else the user did; `null`: `past` where the data have an order, else
    `others`."""
    pooling: Literal["mean", "attention", "sequence"] = "mean"
    """How a history becomes one vector: `mean`, weighted by learned weights of its places;
    `attention`, weighted by what the items are too; `sequence`, self-attention."""
    sequence: SequenceConfig = SequenceConfig()
    """The self-attention of `pooling: sequence`."""
    widths: tuple[PositiveInt, ...] | None = (128,)
    """Hidden widths of both towers [floats]; `[]`: a linear layer; `null`: no layer, the
    vectors are the embeddings themselves, without features."""
    activation: Literal["silu", "relu", "gelu", "tanh"] = "silu"
    """Activation of the hidden layers."""
    dropout: Dropout = 0.0
    """Share of the towers' inputs and activations that training drops [0..1)."""
    similarity: Literal["cosine", "dot"] = "cosine"
    """How a query and a candidate are compared."""
    temperature: PositiveFloat = 0.15
    """Divides the similarity in the loss."""
    learn_temperature: bool = False
    """Whether training goes on from `temperature` to a better one."""
    id_dropout: Dropout = 0.1
    """Share of training ids read as unknown, so that row 0 learns to stand in for
    users and items without one [0..1)."""
    history_dropout: Dropout = 0.0
    """Share of the items of a history that training leaves out [0..1)."""
    new_user_share: Dropout = 0.1
    """Share of training examples whose user is shown as a new one, without id and
    history, so that the model learns what to recommend to them [0..1)."""
    init_stddev: PositiveFloat = 0.05
    """Standard deviation of the tables' first weights."""
    user_init_stddev: PositiveFloat | None = None
    """That of the users' rows: small, so that users start as their histories; `null`: as the
    others'."""
    table_placement: Literal["auto", "row", "column", "replicated"] = "auto"
    """How a table lies on several devices: `row` and `column` split it, `replicated`
    repeats it; `auto` splits by rows from 50,000 rows on."""
    table_dtype: Literal["float32", "bfloat16"] = "float32"
    """Type of the tables' weights; `bfloat16` halves them and rounds stochastically."""

    @model_validator(mode="after")
    def _temperature_can_be_learned(self) -> Self:
        low, high = LEARNED_TEMPERATURE
        if self.learn_temperature and not low <= self.temperature <= high:
            raise ValueError(
                f"a temperature that is learned starts between {low:g} and {high:g}; received"
                f" {self.temperature}"
            )
        return self

    @model_validator(mode="after")
    def _heads_divide(self) -> Self:
        if self.pooling == "sequence" and self.dim % self.sequence.heads:
            raise ValueError(
                f"sequence.heads must divide dim; received {self.sequence.heads} and {self.dim}"
            )
        return self
