"""Defaults of a task in a config: its loss, metrics, baselines and thresholds."""

import json
from typing import ClassVar

import pytest
from pydantic import ValidationError

import recsys
from recsys.config import Config, EvaluateStage, TrainConfig, TrainStage
from recsys.config import stage_of as part_of
from recsys.losses import SampledSoftmax
from recsys.registry import name_of
from recsys.tasks import Task


@recsys.register_task("scored_here")
class Scored(Task):
    loss: ClassVar[str] = "scored_here"


@recsys.register_loss("scored_here")
class Scale(recsys.ScoreLoss):
    task: ClassVar[str] = "scored_here"
    factor: float = 2.0


@recsys.register_model("scored_here")
class Model(recsys.LookupModel):
    class Config(recsys.ModelConfig):
        task: ClassVar[str] = "scored_here"


@recsys.register_task("without_losses")
class WithoutLosses(Task):
    pass


@recsys.register_model("without_losses")
class Free(recsys.LookupModel):
    class Config(recsys.ModelConfig):
        task: ClassVar[str] = "without_losses"


def stage_of(model, **train):
    return TrainStage.model_validate({"model": model, "train": train})


def test_a_config_without_a_loss_has_that_of_its_task():
    stage = stage_of("scored_here", epochs=3)
    assert (stage.train.loss, stage.train.epochs) == (Scale(), 3)
    assert stage_of("without_losses").train.loss == SampledSoftmax()
    assert stage_of("two_tower").train.loss == SampledSoftmax()
    # A saved config names it, and `auto` may still choose one.
    read = TrainStage.model_validate_json(stage.model_dump_json())
    assert read == stage
    assert "loss" not in TrainStage().model.keep


@pytest.mark.parametrize(
    ("model", "loss", "expected"),
    [
        ("scored_here", "bpr", "task, scored_here: scored_here; received bpr, of retrieval"),
        ("two_tower", "binary", r"task, retrieval: .*bpr, .*; received binary, of ranking"),
        ("auto", "listwise", r"task, retrieval: .*; received listwise, of ranking"),
    ],
)
def test_a_loss_of_another_task_is_refused_with_those_that_fit(model, loss, expected):
    with pytest.raises(
        ValidationError, match=f"train.loss must be a loss of the model's {expected}"
    ):
        stage_of(model, loss=loss)


def test_the_trainer_takes_a_config_of_another_task(tmp_path):
    trainer = recsys.Trainer(TrainConfig(loss=Scale()), tmp_path)
    assert trainer.stage.train.loss == Scale()


RANKING = {
    "root": "r",
    "name": "n",
    "task": "ranking",
    "data": {
        "interactions": {
            "files": "events.csv",
            "columns": {"user": "u", "item": "i", "timestamp": "t"},
            "labels": {"like": {"column": "rating", "at_least": 4}},
        }
    },
}


def ranking(**more):
    return Config.model_validate_json(json.dumps({**RANKING, **more}))


def test_an_evaluation_has_the_defaults_of_the_task():
    config = ranking(bless={"over_blessed": 0.95})
    assert config.bless.metric == "roc_auc"
    assert (config.bless.over, config.bless.over_blessed) == ({"item_mean": 1.0}, 0.95)
    assert [rule.sure_loss for rule in config.bless.rules] == ["refuse"]
    assert config.evaluate.baseline_names == ["constant", "item_mean", "logistic_regression"]
    # A stage's file has them, and the rule of a metric that isn't computed is left out.
    assert EvaluateStage.model_validate_json(part_of(config, EvaluateStage).model_dump_json())
    assert not ranking(evaluate={"metrics": ["roc_auc", "gauc"]}).bless.rules
    retrieval = EvaluateStage()
    assert retrieval.of_task("retrieval") == retrieval


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        (
            {"evaluate": {"metrics": ["recall"]}},
            "metrics must be .* roc_auc, .*'recall'",
        ),
        ({"evaluate": {"metrics": ["auc"]}}, "metrics must be .* roc_auc, .*'auc'"),
        ({"train": {"validation": {"metric": "mrr"}}}, "metric must be .* roc_auc, .*'mrr'"),
        ({"evaluate": {"baselines": ["ials"]}}, "baselines must be .* constant, item_mean, .*ials"),
        ({"bless": {"metric": "recall@10"}}, "one of roc_auc, gauc, .*; received 'recall@10'"),
        ({"bless": {"over": {"popularity": 1.0}}}, "bless.over must name baselines"),
    ],
)
def test_what_another_task_judges_by_is_refused_with_what_fits(more, expected):
    with pytest.raises(ValidationError, match=expected):
        ranking(**more)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], ("dcn_v2", 16)),
        (["model={dim: 8}"], ("dcn_v2", 8)),
        (["model={type: din, dim: 8}"], ("din", 8)),
        (["task={type: retrieval}", "model={dim: 8}"], ("two_tower", 8)),
        (["model={type: two_tower}"], "R107"),
    ],
)
def test_a_task_has_a_default_model(words, expected):
    try:
        model = recsys.load_config("configs/movielens_ranking.yaml", words).model
        found = name_of("model", model), model.dim
    except recsys.RecsysError as error:
        found = error.code
    assert found == expected
