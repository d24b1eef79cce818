"""Configs of a pair: the key `ranker`, and the stage that trains the ranker of a retriever."""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from recsys.data.config import ValidationConfig
from recsys.models.ranking_config import RankingConfig
from recsys.pair.score import Score
from recsys.registry import Choice, name_of
from recsys.registry.choice import stage_of
from recsys.strict import Share, Strict
from recsys.tasks.config import TrainConfig, TrainStage, of_task

_TASK = RankingConfig.task
_OTHER_OUTPUTS = frozenset(
    {"candidate_ids", "known", "retriever", "score", "scores", "source", "stage"}
)
"""Names of other outputs of a pair's bundle."""


class RankerConfig(Strict):
    """The second stage of a pair: a ranker that orders the retriever's candidates."""

    model: Annotated[Any, Choice("model")]
    """The ranking model, such as `{type: dcn_v2}`, or one of a plugin. Its `labels` and
    `label_weights` are those of `ranker.labels`."""
    labels: Annotated[dict[str, PositiveFloat], Field(min_length=1)]
    """Labels that the ranker learns, names of `data.interactions.labels`, with their weights in the
    loss; the first is the most important: `{click: 1.0, like: 2.0}`."""
    candidates: PositiveInt = 500
    """Number of the retriever's items that the ranker orders [items]."""
    score: Annotated[str, Field(max_length=1000)] = ""
    """Formula of the score that orders candidates, of labels, numbers, `+`, `-`, `*`, `^` and
    parentheses: `click * like ^ 0.5`. A label is the probability for a shown item, its `given`
    multiplied out, or the expected amount. Empty: the first label."""
    train: TrainConfig = TrainConfig()
    """The ranker's training loop, as in `train`, with the defaults of the task `ranking`."""
    held_back: Annotated[Share, Field(gt=0.0, lt=1.0)] = 0.2
    """Newest share of the training events whose candidates come from a retriever that was trained
    on the older ones (0..1)."""
    share_tables: bool = False
    """Whether the ranker reads the retriever's tables of users, items and their features, which it
    doesn't train, with the retriever's `dim`, `feature_dim` and `table_dtype`; else it has its
    own."""
    negatives: Annotated[int, Field(ge=2)] = 8
    """Without impressions: number of negatives of a row, half of them drawn from the retriever's
    candidates, half from all items."""
    deadline_ms: PositiveFloat = 50.0
    """Time after which a request is answered with the retriever's list [ms]."""
    diversity: Annotated[Share, Field(lt=1.0)] = 0.0
    """Weight of the similarity to the items above, which lowers an item's place (maximal marginal
    relevance); 0: none [0..1)."""
    max_per_value: dict[str, PositiveInt] = Field(default={})
    """Highest number of listed items with the same value of an item feature: `{brand: 3}`."""
    only: dict[str, tuple[str, ...]] = Field(default={})
    """Values of item features that candidates must have: `{in_stock: ["1"]}`."""

    @model_validator(mode="after")
    def _is_a_ranker(self) -> Self:
        if self.model.task != _TASK:
            raise ValueError(
                f"ranker.model must be a model of the task {_TASK}; received"
                f" {name_of('model', self.model)}, a model of {self.model.task}"
            )
        if taken := _OTHER_OUTPUTS & {*self.labels}:
            raise ValueError(
                f"ranker.labels must have another name than {min(taken)}: a bundle has an output of"
                " this one"
            )
        # A config whose keys were sorted still has the order of the labels in the model.
        order = self.model.labels or tuple(self.labels)
        if {*order} != {*self.labels} or self.model.label_weights:
            raise ValueError(
                "ranker.model must have no labels and no label_weights: ranker.labels has them"
            )
        self.__dict__.update(  # It is frozen.
            labels={name: self.labels[name] for name in order},
            model=self.model.model_copy(update={"labels": order}),
            train=of_task(self.train, _TASK),
        )
        try:
            _ = self.formula
        except ValueError as error:
            raise ValueError(f"ranker.score {error}") from None
        self.model.check(self.train)
        return self

    @property
    def formula(self) -> Score:
        """The score, parsed."""
        return Score.parse(self.score, tuple(self.labels))

    @property
    def learner(self) -> Any:
        """Config of the ranking model, with its labels and the retriever's results as inputs."""
        return self.model.model_copy(update={"label_weights": self.labels, "stage_one": True})


class PairStage(TrainStage):
    """The parts of a config that the training of a pair needs."""

    ranker: RankerConfig
    """The second stage of a pair."""


def retriever_stage(config: Any) -> TrainStage:
    """Returns the config of the retriever's own training.

    With `ranker.share_tables` it is of the retriever that the ranker learns from, without the
    newest events; the final one continues it.

    Args:
        config: A whole config, or a `PairStage`.
    """
    stage, ranker = stage_of(config, TrainStage), config.ranker
    if ranker is None or not ranker.share_tables:
        return stage
    own = stage.train.validation or ValidationConfig(patience=None)
    held: dict[str, Any] = {"like": "newest", "share": ranker.held_back, "refit": False}
    validation = own.model_copy(update={**held, "last": 1, "popularity": None})
    train = stage.train.model_copy(update={"validation": validation})
    return stage.model_copy(update={"train": train, "warm_start": None})


def ranker_stage(stage: PairStage) -> TrainStage:
    """Returns the config of the ranker's own training, for the retriever `stage.model`.

    `layout` names the retriever's weights, so the ranker's have no rules.
    """
    model, retriever = stage.ranker.learner, stage.model
    if stage.ranker.share_tables:
        widths = {name: getattr(retriever, name) for name in ("dim", "feature_dim", "table_dtype")}
        ids = ("users", "items") if retriever.user_id else ("items",)
        model = model.model_copy(update={**widths, "shared_tables": ids})
    return TrainStage(
        plugins=stage.plugins,
        repeats=stage.repeats,
        model=model,
        train=stage.ranker.train,
        mesh=stage.mesh,
        warm_start=stage.warm_start,
    )
