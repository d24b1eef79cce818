"""Configs of the ranking models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import Field, NonNegativeFloat, PositiveInt

from recsys.data.label_config import LabelConfig
from recsys.models.config import Dropout, QueryConfig

Widths = tuple[PositiveInt, ...]


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
    FREE: ClassVar[frozenset[str]] = QueryConfig.FREE | {"label_weights"}

    dim: PositiveInt = 16
    """Width of the id tables [floats]."""
    feature_dim: PositiveInt = 16
    """Width of the feature tables of items, users, events and rows [floats]."""
    history_features: bool = True
    """Whether the model reads the features of the history's items."""
    labels: tuple[str, ...] = ()
    """Labels to learn, names of `data.interactions.labels`, the most important first; empty: all
    of them, in alphabetical order. A label stands after the one that it is `given`."""
    label_weights: dict[str, NonNegativeFloat] = Field(default={})
    """Weights of labels in the loss, 1 for the others: `{buy: 5}`."""

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

    def check_labels(self, labels: Mapping[str, LabelConfig]) -> None:
        """Raises `ValueError` if the model can't learn from the labels of the data."""
        self.learned(labels)


class FieldRankerConfig(RankingConfig):
    """Keys of the built-in rankers."""

    FREE: ClassVar[frozenset[str]] = RankingConfig.FREE | {"dropout"}

    pooling: Literal["mean", "target"] = "mean"
    """What the model reads of a history: `mean`, the mean of its events; `target`, a sum that
    attention weights for each candidate."""
    attention_widths: Annotated[Widths, Field(min_length=1)] = (64, 32)
    """Hidden widths of target attention [floats]."""
    widths: Widths = (128, 64)
    """Hidden widths of the layers above the features [floats]."""
    activation: Literal["silu", "relu", "gelu", "tanh"] = "relu"
    """Activation of the hidden layers."""
    dropout: Dropout = 0.1
    """Dropout rate of the activations [0..1)."""
    heads: Literal["shared", "mmoe", "ple"] = "shared"
    """What the labels share: `shared`, all layers but their towers; `mmoe`, experts that each label
    mixes; `ple`, experts for all labels and for each."""
    experts: PositiveInt = 4
    """Number of experts of `mmoe`; of `ple`, of each label and of all labels, half of it, at least
    one."""
    expert_widths: Annotated[Widths, Field(min_length=1)] = (64,)
    """Widths of the layers of an expert [floats]."""
    tower_widths: Widths = ()
    """Hidden widths of a label's own layers [floats]."""


class DcnV2Config(FieldRankerConfig):
    """Crosses of features, and layers (DCN-v2: Wang et al., WWW 2021)."""

    crosses: PositiveInt = 2
    """Number of cross layers: products of up to this many features, plus one."""
    rank: PositiveInt | None = None
    """Rank of the matrices of the cross layers; `null`: full matrices."""
    structure: Literal["parallel", "stacked"] = "parallel"
    """Whether the layers of `widths` read the features, beside the crosses, or the crosses."""
