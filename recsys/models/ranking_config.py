"""Configs of the ranking models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal, Self

from pydantic import (
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    model_validator,
)

from recsys.data.label_config import LabelConfig
from recsys.models.config import Dropout, QueryConfig
from recsys.strict import Name

Widths = tuple[PositiveInt, ...]
SomeWidths = Annotated[Widths, Field(min_length=1)]


class RankingConfig(QueryConfig):
    """Keys that every ranking model has. A model's own config is a subclass.

    Data loading, evaluation and serving depend on these keys.
    """

    task: ClassVar[str] = "ranking"
    reads_labels: ClassVar[bool] = True
    summary: ClassVar[str] = (
        "A ranking model: from a user with history and features, the context, and an item with its"
        " features, it predicts the labels of their event."
    )
    FREE: ClassVar[frozenset[str]] = QueryConfig.FREE | {"labels", "label_weights"}

    dim: PositiveInt = 16
    """Width of the id tables [floats]."""
    feature_dim: PositiveInt = 16
    """Width of the feature tables of items, users, events and rows [floats]."""
    init_stddev: PositiveFloat = 0.0001
    """Standard deviation of the initial values of the tables: so small that an id without training
    rows has no effect."""
    id_dropout: Dropout = 0.0
    """Share of ids that training replaces by the unknown id; at 0 an unknown id has no effect
    [0..1)."""
    new_user_share: Dropout = 0.1
    """Share of training examples that are trained as new users, without id, history and statistics
    of the user [0..1)."""
    history: NonNegativeInt = 20
    """Maximum length of a history: the newest events of a user are kept; 0: the model reads no
    history [items]."""
    history_features: bool = True
    """Whether the model reads the features of the history's items."""
    labels: tuple[str, ...] = ()
    """Labels to learn, names of `data.interactions.labels`, the most important first; empty: all
    of them, in alphabetical order. A label comes after the one that it is `given`."""
    label_weights: dict[str, NonNegativeFloat] = Field(default={})
    """Weights of labels in the loss, 1 for the others: `{buy: 5}`."""
    position_feature: Name | None = None
    """Context feature of the position in an impression. Training reads it; validation, judging and
    serving give each row the value of the first position, so that a score doesn't depend on where
    the item is shown. `null`: none."""

    stage_one: bool = False
    """Whether the model reads what a retriever says of an item: its rank in the retriever's list,
    and its score there. `ranker` sets it."""
    shared_tables: tuple[Literal["users", "items"], ...] = ()
    """Whose ids' tables, and tables of features, are a retriever's, which training doesn't change.
    `ranker.share_tables` sets it."""

    @property
    def reads_attributes(self) -> bool:
        """Whether the model reads the attributes of a history's events."""
        return self.history > 0

    def learned(self, labels: Mapping[str, LabelConfig]) -> tuple[str, ...]:
        """Returns the names of the labels that the model learns, each after its `given`.

        Args:
            labels: Labels of the data by name, each after its `given`.

        Raises:
            ValueError: Keys of the config and labels of the data don't fit.
        """
        if not labels:
            raise ValueError(
                "a ranking model learns labels, and data.interactions.labels has none: add one,"
                " such as {like: {column: rating, at_least: 4}}"
            )
        names = list(self.labels or labels)
        unknown = [name for name in (*names, *self.label_weights) if name not in labels]
        if unknown:
            key = "labels" if unknown[0] in names else "label_weights"
            raise ValueError(
                f"model.{key} must name labels of the data ({', '.join(labels)}); received"
                f" {unknown[0]!r}"
            )
        if len({*names}) < len(names):
            raise ValueError(f"model.labels must not repeat names; received {names}")
        if taken := {"known", "known_items", "order"}.intersection(names):
            raise ValueError(
                f"the label {min(taken)} must have another name: a bundle has an output of this one"
            )
        for name in names:
            if (given := labels[name].given) and given not in names:
                raise ValueError(
                    f"model.labels must have {given} too, which {name} is given; received {names}"
                )
        unused = [name for name in self.label_weights if name not in names]
        if unused:
            raise ValueError(
                f"model.label_weights must name labels of model.labels ({', '.join(names)});"
                f" received {unused[0]!r}"
            )
        if not any(self.label_weights.get(name, 1.0) for name in names):
            raise ValueError("model.label_weights must leave a label with a weight above 0")
        ordered: list[str] = []
        while len(ordered) < len(names):
            rest = [name for name in names if name not in ordered]
            ordered.append(next(n for n in rest if labels[n].given in (*ordered, None)))
        return tuple(ordered)


class FieldRankerConfig(RankingConfig):
    """Keys of the built-in rankers."""

    FREE: ClassVar[frozenset[str]] = RankingConfig.FREE | {"dropout"}

    pooling: Literal["mean", "target"] = "mean"
    """What the model reads of a history: `mean`, the mean of its events; `target`, a sum that
    attention weights for each candidate."""
    attention_widths: SomeWidths = (64, 32)
    """Hidden widths of target attention [floats]."""
    widths: SomeWidths = (128, 64)
    """Widths of the layers above the features [floats]."""
    activation: Literal["silu", "relu", "gelu", "tanh"] = "relu"
    """Activation of the hidden layers."""
    dropout: Dropout = 0.3
    """Dropout rate of the activations [0..1)."""
    heads: Literal["shared", "mmoe", "ple"] = "shared"
    """What the labels share: `shared`, all layers but their towers; `mmoe`, experts that each label
    mixes; `ple`, some experts, while each label has others of its own."""
    experts: PositiveInt = 4
    """Number of experts of `mmoe`. `ple` has half as many, at least one, that labels share, and as
    many of each label, at each of two levels."""
    expert_widths: SomeWidths = (64,)
    """Widths of the layers of an expert [floats]."""
    tower_widths: Widths = ()
    """Hidden widths of a label's own layers [floats]."""


class DlrmConfig(FieldRankerConfig):
    """Dot products of all pairs of features (DLRM: Naumov et al., 2019)."""

    bottom_widths: Widths = (64,)
    """Hidden widths of the layers of the numbers, whose last layer has `model.dim` [floats]."""


class DcnV2Config(FieldRankerConfig):
    """Crosses of features, and layers (DCN-v2: Wang et al., WWW 2021)."""

    crosses: PositiveInt = 1
    """Number of cross layers: n make products of up to n + 1 features."""
    rank: PositiveInt | None = None
    """Rank of the matrices of the cross layers; `null`: full matrices."""
    structure: Literal["parallel", "stacked"] = "parallel"
    """What the layers of `widths` read: `parallel`, the features; `stacked`, the crosses."""


class FinalMlpConfig(FieldRankerConfig):
    """Two streams of layers, and a bilinear fusion (FinalMLP: Mao et al., AAAI 2023)."""

    gate_widths: Widths = ()
    """Hidden widths of the gates of the streams [floats]."""
    fusion_heads: PositiveInt = 1
    """Number of heads of the fusion; must divide the last of `widths`."""

    @model_validator(mode="after")
    def _heads_divide(self) -> Self:
        if self.widths[-1] % self.fusion_heads:
            raise ValueError(
                f"fusion_heads must divide the last of widths; received {self.fusion_heads} and"
                f" {self.widths[-1]}"
            )
        return self


class DinConfig(FieldRankerConfig):
    """Attention of the candidate over the history (DIN: Zhou et al., KDD 2018)."""

    history: PositiveInt = 20
    """Maximum length of a history: the newest events of a user are kept [items]."""
    pooling: Literal["target"] = "target"
    """What the model reads of a history: a sum that attention weights for each candidate."""


class CandidateTransformerConfig(DinConfig):
    """Blocks of attention over the history and a candidate (M-FALCON: Zhai et al., ICML 2024)."""

    blocks: PositiveInt = 2
    """Number of blocks, each of attention and a feed-forward layer."""
    block_dim: PositiveInt = 32
    """Width of an event and of the candidate in the blocks [floats]."""
    block_heads: PositiveInt = 2
    """Number of attention heads; must divide `block_dim`."""

    @model_validator(mode="after")
    def _heads_divide(self) -> Self:
        if self.block_dim % self.block_heads:
            raise ValueError(
                f"block_heads must divide block_dim; received {self.block_heads} and"
                f" {self.block_dim}"
            )
        return self
