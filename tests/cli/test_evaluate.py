"""`recsys evaluate` and `recsys compare`: what they start, and what they say of what came."""

import json
import re
from pathlib import Path

import pytest
from commands import SMALL, run_main

from recsys.config import BlessConfig, BlessRule, EvaluateStage
from recsys.config.load import load_stage

CONFIG = SMALL + (
    "evaluate: {k: [5, 10]}\n"
    "bless: {metric: recall@5, over: {item_knn: 1.5}, rules: [{metric: mrr, at_least: 0.1}]}\n"
)
RESULT = {
    "blessed": True,
    "sentence": "Surely better; blessed",
    "reasons": ["recall@5 is 0.5"],
    "warning": "Worse than popularity",
}


def difference(relative, interval, size, size_interval):
    return {
        "relative": relative,
        "interval": interval,
        "difference": size,
        "difference_interval": size_interval,
    }


EVALUATION = {
    "query": "each_moment",
    "queries": 51,
    "users": 7,
    "candidates": 1234,
    "sampled_negatives": None,
    "confidence": 0.9,
    "metrics": {"recall@5": 0.5, "recall@10": 0.75, "ndcg@5": 0.25, "mrr": 0.2, "auc": 0.625},
    "intervals": {"recall@5": [0.4, 0.6], "mrr": [0.1, 0.3]},
    "baselines": {"popularity": {"recall@5": 0.125, "mrr": 0.0625}},
    "baselines_left_out": {"ials": "there are too few events"},
    "blessed_model": {"recall@5": 0.4, "recall@10": 0.8, "ndcg@5": 0.25, "mrr": 0.0, "auc": 0.6},
    "comparisons": {
        "blessed_model": {
            "recall@5": difference(0.25, [0.1, 0.4], 0.1, [0.04, 0.16]),
            "recall@10": difference(-0.0625, [-0.1, -0.02], -0.05, [-0.08, -0.02]),
            "ndcg@5": difference(0.0, [0.0, 0.0], 0.0, [0.0, 0.0]),
            "mrr": difference(None, None, 0.2, [0.1, 0.3]),
            "auc": difference(0.04, [-0.1, 0.2], 0.025, [-0.0625, 0.125]),
        }
    },
    "verdict": {
        "blessed": True,
        "sentence": "Surely better; blessed",
        "reasons": [],
        "rules": [],
        "warning": "Worse than popularity",
    },
}


@pytest.fixture
def stage(monkeypatch):
    """Stands for the stage's process: keeps what it was started with, and writes `writes`."""

    class Stage:
        writes = EVALUATION
        placed = None

        def __call__(self, module, arguments, environment, log):
            assert (module, environment["KERAS_BACKEND"]) == ("recsys.stages.evaluate", "jax")
            self.given = dict(zip(arguments[::2], arguments[1::2], strict=True))
            self.config = load_stage(Path(self.given.pop("--config")), EvaluateStage)
            file = Path(self.given["--out"]) / "evaluation.json"
            file.parent.mkdir(exist_ok=True)
            verdict = {"metric": self.config.bless.metric, **self.writes["verdict"]}
            file.write_text(json.dumps({**self.writes, "verdict": verdict}))
            return {
                "evaluation": str(file),
                "metrics": {"recall@5": 0.5},
                **RESULT,
                **(self.placed or {}),
            }

    started = Stage()
    monkeypatch.setattr("recsys.system.process.run_stage", started)
    return started


@pytest.fixture
def run(tmp_path, capsys):
    """Runs a command in `tmp_path` and returns its JSON and what it said."""
    (tmp_path / "small.yaml").write_text(CONFIG)

    def command(*words, exit_code=0):
        given = [*words, "--data", str(tmp_path / "d"), "--config", str(tmp_path / "small.yaml")]
        assert run_main(*given) == exit_code
        printed = capsys.readouterr()
        return json.loads(printed.out) if printed.out else None, printed.err

    return command


def test_a_model_is_measured_and_its_report_written(stage, run, tmp_path):
    out, said = run("evaluate", tmp_path / "b", "--out", tmp_path / "o", "--set", "evaluate.k=[5]")
    folders = {"--data": "d", "--model": "b", "--out": "o"}
    assert stage.given == {name: str(tmp_path / folder) for name, folder in folders.items()}
    assert stage.config.evaluate.k == (5,)
    assert out == {
        "evaluation": str(tmp_path / "o" / "evaluation.json"),
        "report": str(tmp_path / "o" / "report.html"),
        "metrics": {"recall@5": 0.5},
        **RESULT,
    }
    report = (tmp_path / "o" / "report.html").read_text()
    assert "item: i" in report  # All of CONFIG.
    assert not re.search("<h[23][^>]*>(Validation|Training|Steps of the run|Neighbours)", report)
    for words in ("51 queries of 7 users", "1,234 items", *RESULT["reasons"], out["report"]):
        assert words in said
    row = next(line.split() for line in said.splitlines() if line.startswith("recall@5 "))
    assert row == [
        "recall@5", "0.5000", "0.400", "…", "0.600", "0.1250", "0.4000",
    ]  # fmt: skip


def test_the_model_may_be_an_option_and_json_may_be_requested(stage, run, tmp_path):
    first = run("evaluate", tmp_path / "b", "--out", tmp_path / "o")
    assert run("evaluate", "--model", tmp_path / "b", "--out", tmp_path / "o", "--json") == first


@pytest.mark.parametrize("command", [["evaluate", "b", "--out", "o"], ["compare", "a", "b"]])
def test_a_terminal_shows_only_the_table_and_json_on_request(
    stage, run, tmp_path, monkeypatch, capsys, command
):
    monkeypatch.chdir(tmp_path)
    in_a_pipe, said = run(*command)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert run(*command, "--json") == (in_a_pipe, said)
    words = [*command, "--data", tmp_path / "d", "--config", tmp_path / "small.yaml"]
    assert run_main(*words) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    assert "51 queries of 7 users" in printed.out


def test_another_model_replaces_the_last_blessed_one(stage, run, tmp_path):
    words = ["evaluate", tmp_path / "b", "--out", tmp_path / "o", "--against", tmp_path / "a"]
    _, said = run(*words)
    assert stage.given["--blessed"] == str(tmp_path / "a")
    assert "was not compared" not in said
    stage.writes = {**EVALUATION, "blessed_model": None}
    _, said = run(*words)
    assert "The model was not compared" in said
    assert "last blessed" not in said.split("Nothing")[0]


def test_process_0_writes_the_report(stage, run, tmp_path):
    placed = {"--coordinator": "a:1", "--num-processes": "2", "--process-id": "1"}
    words = ["evaluate", tmp_path / "b", "--out", tmp_path / "o"]
    words += [word for pair in placed.items() for word in pair]
    for number, is_written in ((1, False), (0, True)):
        stage.placed = {"process": number}
        out, said = run(*words)
        assert placed.items() <= stage.given.items()
        assert ("report" in out) == (tmp_path / "o" / "report.html").exists() == is_written
        assert ("Surely better; blessed" in said) == is_written
        assert "process" not in out


@pytest.mark.parametrize("command", ["evaluate", "compare"])
def test_without_a_config_the_defaults_apply_and_not_those_of_other_data(
    stage, tmp_path, monkeypatch, capsys, command
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "model.json").write_text('{"stage": {"repeats": "include"}}')
    models = ["b"] if command == "evaluate" else ["a", "b"]
    words = [command, *models, "--data", "d", "--out", "o"]

    def said(*more):
        assert run_main(*words, *more) == 0
        return capsys.readouterr().err

    text = said("--set", "evaluate.k=[10, 20]")
    assert stage.config.repeats == "include"
    assert stage.config.evaluate.k == (10, 20)
    if command == "evaluate":
        assert stage.config.bless == BlessConfig()
        assert "the defaults and --set, as no --config is given" in text
    (tmp_path / "recsys.yaml").write_text(CONFIG)
    text = said()
    assert stage.config.repeats == "exclude"
    assert stage.config.bless.metric == "recall@5"
    assert ("those of recsys.yaml" in text) == (command == "evaluate")


def test_without_a_config_a_key_of_another_stage_is_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert run_main("evaluate", "m", "--data", "d", "--out", "o", "--set", "train.seed=1") == 2
    allowed = ", ".join(sorted(EvaluateStage.model_fields))
    assert f"'train'. Received: {{'seed': 1}}. Allowed here: {allowed}." in capsys.readouterr().err


@pytest.mark.parametrize("named", [[], ["a", "--model", "b"]], ids=["none", "two"])
def test_an_evaluation_is_of_one_model(run, named, tmp_path):
    out, said = run("evaluate", *named, "--out", tmp_path / "o", exit_code=2)
    assert out is None
    assert said.startswith("[R905] ")


def test_two_models_are_measured_against_each_other_and_nothing_else(stage, run, tmp_path):
    out, _ = run("compare", tmp_path / "a", tmp_path / "b", "--out", tmp_path / "o")
    assert (stage.given["--blessed"], stage.given["--model"]) == (
        str(tmp_path / "a"),
        str(tmp_path / "b"),
    )
    assert stage.config.evaluate.baselines == ()
    assert stage.config.bless.all_rules() == (BlessRule(metric="recall@5", over_blessed=1.0),)
    assert not Path(stage.given["--out"]).exists()
    assert json.loads((tmp_path / "o" / "comparison.json").read_text()) == out
    assert [path.name for path in (tmp_path / "o").iterdir()] == ["comparison.json"]


@pytest.mark.parametrize(
    ("metric", "better", "figures"),
    [
        ("recall@5", "b", ["+25.0 %", "+10.0 … +40.0 %"]),
        ("recall@10", "a", ["−6.2 %", "−10.0 … −2.0 %"]),
        ("ndcg@5", None, []),
        ("mrr", "b", ["+0.2000", "+0.1000 … +0.3000"]),
        ("auc", None, ["+4.0 %", "−10.0 … +20.0 %"]),
    ],
)
def test_the_better_model_is_named_with_its_interval(stage, run, tmp_path, metric, better, figures):
    out, said = run(
        "compare", "a", "b", "--set", f"bless.metric={metric}", "--set", "bless.rules=[]"
    )
    found = out["metrics"][metric]
    compared = (found["a"], found["b"], found["better"])
    assert compared == (EVALUATION["blessed_model"][metric], EVALUATION["metrics"][metric], better)
    assert all(figure in out["sentence"] for figure in figures)
    assert found["text"] == out["sentence"]
    assert out["sentence"] in said


def test_too_few_users_decide_nothing(stage, run):
    few = difference(0.25, None, 0.1, None)
    stage.writes = {**EVALUATION, "comparisons": {"blessed_model": {"recall@5": few}}}
    out, said = run("compare", "a", "b")
    assert out["metrics"]["recall@5"]["better"] is None
    assert out["sentence"] == "recall@5: too few users to compare A and B."
    assert out["sentence"] in said
