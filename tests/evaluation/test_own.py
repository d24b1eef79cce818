"""Metrics and baselines of one's own, and evaluations from Python."""

import dataclasses
import json
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest
from evaluation_worlds import a_small_world
from registrations import undone

import recsys
from examples.custom_baseline import FadingPopularity
from examples.custom_metric import RareRecall
from recsys import compare, evaluate
from recsys.config import BlessConfig, EvaluateConfig, EvaluateStage
from recsys.data.dataset import Data
from recsys.errors import RecsysError
from recsys.evaluation.evaluator import open_systems, repeats_of
from recsys.evaluation.result import Comparison, EvaluationResult
from recsys.metrics import Items, PooledMetric, RankedLists
from recsys.report.figures import plot_metrics
from recsys.report.run_report import write_report
from recsys.tasks.model_folder import load_model

OPTIONS = {"baselines": ["popularity"], "k": [1, 3]}


@pytest.fixture(autouse=True)
def two_users_are_enough(monkeypatch):
    monkeypatch.setattr("recsys.evaluation.figures._FEWEST_USERS", 2)


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return a_small_world(tmp_path_factory.mktemp("world"))


@pytest.fixture(scope="module")
def result(world):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("recsys.evaluation.figures._FEWEST_USERS", 2)
        config = EvaluateConfig(
            k=(1, 3),
            resamples=100,
            metrics=("recall", "rare_recall", "mrr", "coverage"),
            baselines=("popularity", {"type": "fading_popularity", "half_life": 2.0}),
        )
        bless = BlessConfig(
            metric="rare_recall@3", over={"fading_popularity": 0.5}, sure_loss="allow"
        )
        stage = EvaluateStage(evaluate=config, bless=bless)
        return evaluate(world.model, world.data, config=stage, progress=False)


def test_a_metric_weighs_positives_by_the_bits_of_their_items():
    items = Items(np.array([0, 3, 0]), np.array([False, True, True]), np.ones((3, 2)))
    lists = RankedLists(np.array([1, 5]), np.zeros(2, int), 1, items=items, rows=np.array([1, 2]))
    common, rare = items.information[1:]
    [value] = RareRecall().per_query(lists, 3)
    assert value == pytest.approx(common / (common + rare))
    [plain] = RareRecall(power=0.0).per_query(lists, 3)
    assert plain == 0.5


def test_a_baseline_counts_the_newest_events_most():
    data = SimpleNamespace(
        train=SimpleNamespace(item_row=np.array([1, 2, 2, 0]), timestamp=np.array([9, 1, 2, 3])),
        is_item=np.array([False, True, True]),
    )
    fitted = FadingPopularity(half_life=1.0).fit(data)
    np.testing.assert_allclose(fitted.scores, [0.0, 1.0, 0.125 + 0.25])


def test_an_own_metric_and_baseline_go_through_intervals_slices_and_the_blessing(result):
    content = result.content
    assert {"rare_recall@1", "rare_recall@3"} <= content["metrics"].keys()
    assert "rare_recall@3" in content["intervals"]
    assert all("rare_recall@3" in part["metrics"] for part in content["slices"])
    assert content["baselines"].keys() == {"popularity", "fading_popularity"}
    rules = {rule["against"] for rule in content["verdict"]["rules"]}
    assert "fading_popularity" in rules
    assert any("fading popularity" in reason for reason in content["verdict"]["reasons"])


def test_the_report_has_their_titles_and_meanings(result, tmp_path):
    result.save(tmp_path)
    path = write_report(
        tmp_path,
        config={"name": "own", "bless": {"metric": "rare_recall@3"}},
        dead_letters={},
        data=tmp_path,
        model=tmp_path,
        evaluation=tmp_path,
        bundle=None,
        pushed=None,
    )
    page = path.read_text()
    for words in ("rare recall@3", "recall that counts rare items more", "fading popularity"):
        assert words in page


def test_a_rule_on_what_is_not_computed_names_what_is():
    with pytest.raises(ValueError, match=r"must be one of recall@5, rare_recall@5"):
        EvaluateStage(
            evaluate=EvaluateConfig(k=(5,), metrics=("recall", "rare_recall")),
            bless=BlessConfig(metric="ndcg@5"),
        ).of_task("retrieval")


def test_a_result_shows_itself(result, tmp_path):
    assert "fading popularity" in repr(result)
    assert "rare_recall@3" in repr(result)
    assert result.sentence in repr(result)
    assert "<table>" in result._repr_html_()
    frame = result.to_pandas()
    assert frame.loc["mrr", "model"] == result.metrics["mrr"]
    assert {"popularity", "fading popularity"} <= set(frame.columns)
    assert EvaluationResult.load(result.save(tmp_path).parent).metrics == result.metrics
    page = plot_metrics(result).save(tmp_path / "plot.html").read_text()
    assert "<svg" in page
    assert "<script" not in page


def test_models_in_memory_are_measured_as_their_folders_are(world):
    options = {**OPTIONS, "progress": False}
    by_folder = evaluate(world.model, world.data, **options)
    trained = load_model(world.model)
    for model in (trained, trained.model):
        assert evaluate(model, Data(world.data), **options).metrics == by_folder.metrics


def test_without_a_config_an_evaluation_repeats_as_its_model_was_trained(world, tmp_path):
    trained = load_model(world.model)
    stage = trained.stage.model_copy(update={"repeats": "include"})
    repeating = dataclasses.replace(trained, stage=stage)
    found = [
        evaluate(model, world.data, config=config, progress=False, **options).content["repeats"]
        for model, config, options in (
            (trained, None, OPTIONS),
            (repeating, None, OPTIONS),
            (repeating, EvaluateStage(), OPTIONS),
        )
    ]
    assert found == ["exclude", "include", "exclude"]
    assert compare(trained, repeating, world.data, k=[1], progress=False).content["repeats"] == (
        "include"
    )
    assert repeats_of(world.model) == "exclude"
    for file, told in (("manifest.json", {}), ("model.json", {"stage": {}})):
        for key in ("exclude", "include"):
            told.get("stage", told)["repeats"] = key
            (tmp_path / file).write_text(json.dumps(told))
            assert repeats_of(tmp_path) == key


def test_what_is_asked_for_drops_rules_on_what_is_not_measured(world):
    result = evaluate(
        world.model, world.data, baselines=["fading_popularity"], k=[2], progress=False
    )
    assert result.content["verdict"]["metric"] == "recall@2"
    assert list(result.baselines) == ["fading_popularity"]


def test_progress_is_reported_by_system(world):
    seen = []
    evaluate(world.model, world.data, **OPTIONS, progress=lambda *told: seen.append(told))
    assert {system for system, _, _ in seen} == {"model", "popularity"}
    assert all(0 < done <= total for _, done, total in seen)


def test_a_model_compared_with_itself_is_the_same(world, tmp_path):
    comparison = compare(world.model, world.model, world.data, k=[1, 3], progress=False)
    assert comparison.better is None
    assert "A and B are the same" in comparison.sentence
    assert "B over A" in repr(comparison)
    assert set(comparison.to_pandas().columns) >= {"a", "b", "difference"}
    assert json.loads(comparison.save(tmp_path).read_text())["metric"] == "recall@1"


def comparison_of(low, high=0.06, better="higher"):
    """A metric that is 0.3 for B and 0.2 for A, with the interval of their difference."""
    difference = {
        "relative": 0.03, "interval": (low, high), "difference": 0.006,
        "difference_interval": (0.2 * low, 0.2 * high),
    }  # fmt: skip
    evaluation = {
        "confidence": 0.95,
        "metrics": {"m@1": 0.3},
        "blessed_model": {"m@1": 0.2},
        "comparisons": {"blessed_model": {"m@1": difference}},
        "descriptions": {"metrics": {"m": {"title": "M", "meaning": "", "better": better}}},
    }
    return Comparison(evaluation, "m@1")


@pytest.mark.parametrize(("better", "which"), [("higher", "b"), ("lower", "a")])
def test_of_two_models_the_one_on_the_better_side_of_a_metric_is_better(better, which):
    assert comparison_of(0.2, 0.8, better).better == which


@pytest.mark.parametrize(
    ("low", "better", "end"),
    [(2e-4, "b", "+0.02 "), (2e-6, "b", "+0.0002 "), (1e-15, None, "±0 "), (-0.02, None, "−2.0 ")],
)
def test_an_interval_beside_the_better_model_never_begins_at_zero(low, better, end):
    comparison = comparison_of(low)
    assert comparison.better == better
    assert f"interval {end}" in comparison.sentence


def test_models_of_different_tasks_are_not_compared(world):
    model, other = (
        SimpleNamespace(spec=SimpleNamespace(config=SimpleNamespace(task=task)))
        for task in ("retrieval", "ranking")
    )
    with pytest.raises(RecsysError, match=r"R414.*retrieval.*ranking"):
        open_systems(EvaluateStage(), Data(world.data), model, other)


def test_a_pooled_metric_is_of_all_positives_and_of_those_of_a_slice(world):
    with undone():

        @recsys.register_metric("found")
        class Found(PooledMetric):
            """Share of all positives, of any user, at rank 1."""

            title: ClassVar[str] = "found"
            meaning: ClassVar[str] = "share at the first place"

            def of_users(self, answers):
                users, user = np.unique(answers.user, return_inverse=True)
                owner, n = user[answers.query], len(users)
                hits = np.bincount(owner, answers.ranks == 1, n)
                return np.stack([hits, np.bincount(owner, minlength=n)], axis=1)

            def of_sums(self, sums):
                return sums[..., 0] / np.where(sums[..., 1], sums[..., 1], np.nan)

        config = EvaluateConfig(
            k=(1,), resamples=100, metrics=("found", "recall"), baselines=("popularity",)
        )
        stage = EvaluateStage(evaluate=config, bless=BlessConfig(metric="found"))
        content = evaluate(world.model, world.data, config=stage, progress=False).content
    # One of three positives: zoe's, who is unknown to training; the item is in the tail.
    assert content["metrics"]["found"] == pytest.approx(1 / 3)
    assert content["intervals"]["found"] == [0.0, 1.0]
    found = {part["name"]: part["metrics"]["found"] for part in content["slices"]}
    assert (found["cold users"], found["users known to training"]) == (1.0, 0.0)
    assert (found["head"], found["tail"]) == (0.0, 1.0)
