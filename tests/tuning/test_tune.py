"""`recsys tune`: real studies of small trainings, killed and gone on with."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import optuna
import pytest
from commands import run_main
from optuna.trial import TrialState
from s3_server import s3, s3_address
from training_runs import on_devices

from benchmarks.public_splits import Csr, write_data_folder
from recsys.config import TrainStage
from recsys.config.load import load_config, load_stage
from recsys.data.dataset import open_data
from recsys.runs.index import write_index
from recsys.tasks.retrieval.training.auto import for_data
from recsys.training.stage import train
from recsys.tuning.trial_process import ValidationReporter
from recsys.tuning.tuning_study import TuneOptions, TuningStudy, open_study, seed_sampler, trial_of

__all__ = ["s3", "s3_address"]
CONFIG = """
name: tuned
root: root
data: {interactions: {files: none.csv, columns: {user: u, item: i, timestamp: t}}}
model: {dim: 8, history: 5, widths: null}
train:
  batch_size: 32
  uniform_negatives: 16
  epochs: 3
  validation: {like: last, metric: recall@10}
  checkpoint: {every_steps: 5}
"""
RANGES = ["train.table_learning_rate=log:0.001..0.5", "model.dim=[4, 8]"]


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A config, and data of 60 users who take neighbouring items."""
    here = tmp_path_factory.mktemp("tune")
    rng = np.random.default_rng(0)
    lists = [((rng.integers(0, 40) + rng.permutation(8)) % 40).tolist() for _ in range(60)]
    write_data_folder(Csr.of_lists(lists, 40), here / "data")
    (here / "config.yaml").write_text(CONFIG)
    return here


def words(world, *more, root="root"):
    ranges = [word for text in RANGES for word in ("--vary", text)]
    where = root if "://" in root else world / root
    here = ["--data", str(world / "data"), "--set", f"root={where}"]
    return ["tune", str(world / "config.yaml"), *here, *ranges, "--json", *more]


@pytest.fixture(scope="module")
def study(world):
    """An uninterrupted study of two trials."""
    command = [sys.executable, "-m", "recsys", *words(world, "--trials", "2")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), done.stderr


def record(world, root="root"):
    return json.loads((world / root / "tuning" / "study" / "trials.json").read_text())


def test_every_trial_is_recorded_the_config_itself_first(world, study):
    summary, shown = study
    found = optuna.load_study(study_name=None, storage=summary["storage"])
    assert [trial.state for trial in found.trials] == [TrialState.COMPLETE] * 2
    content = record(world)
    trials = content["trials"]
    assert [trial["number"] for trial in trials] == [0, 1]
    assert {trial["state"] for trial in trials} == {"complete"}
    assert trials[0]["parameters"] == {"train.table_learning_rate": 0.05, "model.dim": 8}
    assert all(len(trial["looks"]) == 3 for trial in trials)
    values = [trial["value"] for trial in trials]
    assert values == [max(look["value"] for look in trial["looks"]) for trial in trials]
    assert summary["best"] == max(trials, key=lambda trial: trial["value"])
    assert summary["seconds"] == content["seconds"] > 0
    assert [f"trial   {n}" in shown for n in range(2)] == [True] * 2
    # Finished trials leave no checkpoints.
    assert not list((world / "root" / "tuning" / "study" / "trials").iterdir())


def test_the_best_config_is_one_to_run_on_and_reaches_what_is_said(world, study, tmp_path):
    best = study[0]["best"]
    sets = [f"{key}={json.dumps(value)}" for key, value in best["parameters"].items()]
    root = f"root={world / 'root'}"
    config = load_config(study[0]["config"])
    assert config == load_config(world / "config.yaml", [*sets, root])
    stage = load_stage(world / "root" / "tuning" / "study" / "best.yaml", TrainStage)
    with on_devices(1):
        looks = train(stage, world / "data", tmp_path / "model")["validation"]
    assert max(look["recall@10"] for look in looks) == best["value"]


def test_the_index_of_the_runs_has_the_trials(world, study, capsys):
    assert run_main("runs", "--root", world / "root", "--json") == 0
    listed = json.loads(capsys.readouterr().out)["studies"]
    assert listed == [record(world)]
    run_main("runs", "--root", world / "root")
    assert "Trials of the study study" in capsys.readouterr().out
    assert "tuning/study/best.yaml" in write_index(world / "root").read_text()


@pytest.mark.faults
def test_a_study_that_was_killed_goes_on_as_one_that_was_not(world, study, capsys):
    root = "killed"
    command = [sys.executable, "-m", "recsys", *words(world, "--trials", "2", root=root)]
    folder = world / root / "tuning" / "study"
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 240
    while not list(folder.glob("trials/0001/checkpoints/*/last/*")):
        assert child.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    assert record(world, root)["trials"][1]["state"] == "running"
    assert run_main(*words(world, "--trials", "2", root=root)) == 0
    out, shown = capsys.readouterr()
    resumed = json.loads(out)
    ours, theirs = (record(world, r)["trials"] for r in (root, "root"))
    for one in (*ours, *theirs):
        del one["seconds"]
    assert ours == theirs
    assert resumed["best"]["value"] == study[0]["best"]["value"]
    # Marked if it is the best of all, including trials before the kill; without TensorFlow's
    # messages.
    is_best = ours[1]["value"] > ours[0]["value"]
    assert f"{'★' if is_best else ' '} trial   1" in shown
    assert not is_best
    assert "port.cc" not in study[1]


def test_a_study_whose_root_is_in_a_bucket_goes_on_on_another_machine(
    world, study, s3, tmp_path, monkeypatch, capsys
):
    monkeypatch.setenv("RECSYS_CACHE", str(tmp_path / "cache"))
    again = words(world, "--trials", "1", root=f"{s3}/runs")
    assert run_main(*again) == 0
    shutil.rmtree(tmp_path / "cache")
    first = json.loads(capsys.readouterr().out)
    assert run_main(*again) == 0
    out, shown = capsys.readouterr()
    assert json.loads(out) == first
    assert "Resuming after 1 trials" in shown
    shutil.rmtree(tmp_path / "cache")
    assert run_main("runs", "--root", f"{s3}/runs", "--json") == 0
    (trial,) = json.loads(capsys.readouterr().out)["studies"][0]["trials"]
    expected = record(world)["trials"][0]
    assert {**trial, "seconds": 0} == {**expected, "seconds": 0}


def test_data_that_are_not_there_begin_no_study(world, tmp_path, capsys):
    assert run_main(*words(world), "--data", tmp_path / "none", "--set", f"root={tmp_path}") == 1
    assert "R220" in capsys.readouterr().err
    # Otherwise the study would be one of no data, and refuse the right ones.
    assert not (tmp_path / "tuning" / "study" / "study.db").exists()


@pytest.mark.thorough
def test_a_config_that_cannot_be_trained_is_an_error_and_a_trial_that_cannot_is_none(world, capsys):
    assert run_main(*words(world, "--set", "train.batch_size=4096", root="large")) == 1
    assert "R320" in capsys.readouterr().err
    # With the config corrected, the study begins anew, with the config itself.
    assert run_main(*words(world, "--trials", "1", root="large")) == 0
    capsys.readouterr()
    assert [trial["state"] for trial in record(world, "large")["trials"]] == ["complete"]
    sizes = ["--vary", "train.batch_size=[32, 4096]", "--seed", "1", "--trials", "2"]
    assert run_main(*words(world, root="sizes"), *sizes) == 0
    capsys.readouterr()
    good, bad = record(world, "sizes")["trials"]
    assert (good["state"], good["parameters"]["train.batch_size"]) == ("complete", 32)
    assert (bad["state"], bad["parameters"]["train.batch_size"]) == ("failed", 4096)
    assert "R320" in bad["error"]


# --- pruning


class Stoppable:
    stop_training = False


@pytest.mark.parametrize(("pruner", "stops"), [("median", True), ("none", False)])
def test_a_trial_below_the_median_is_ended_at_its_second_look(tmp_path, pruner, stops):
    study = open_study(tmp_path, pruner)
    for _ in range(6):
        trial = study.ask()
        for step in (1, 2, 3):
            trial.report(0.5, step)
        study.tell(trial, 0.5)
    number = study.ask().number
    reporter = ValidationReporter(trial_of(open_study(tmp_path), number), "recall@10")
    reporter.set_model(Stoppable())
    reporter.on_epoch_end(0, {"loss": 1.0, "val_recall@10": 0.1})
    assert not reporter.model.stop_training
    reporter.on_epoch_end(1, {"loss": 1.0, "val_recall@10": 0.2})
    assert reporter.model.stop_training == stops
    # An epoch that is trained again says nothing new; one without a look nothing at all.
    again = ValidationReporter(trial_of(open_study(tmp_path), number), "recall@10")
    again.set_model(Stoppable())
    again.on_epoch_end(1, {"val_recall@10": 0.3})
    again.on_epoch_end(2, {"loss": 1.0})
    assert open_study(tmp_path).trials[number].intermediate_values == {1: 0.1, 2: 0.2}
    assert open_study(tmp_path).trials[number].user_attrs["seconds"] >= 0


def test_the_next_trial_depends_on_the_seed_and_the_earlier_trials(tmp_path):
    drawn = []
    for place in ("a", "b"):
        (tmp_path / place).mkdir()
        for number in range(8):
            study = open_study(tmp_path / place)  # As another process.
            seed_sampler(study, 7, number)
            trial = study.ask()
            study.tell(trial, -((trial.suggest_float("x", 0.0, 1.0) - 0.3) ** 2))
        drawn.append([trial.params["x"] for trial in study.trials])
    assert drawn[0] == drawn[1]
    assert len(set(drawn[0])) == 8


def test_a_study_of_a_config_without_a_model_begins_with_what_the_data_choose(world, tmp_path):
    text = "".join(line for line in CONFIG.splitlines(True) if not line.startswith("model:"))
    (tmp_path / "config.yaml").write_text(text)
    data, options = world / "data", TuneOptions(minutes=1)
    study = TuningStudy(tmp_path / "config.yaml", [], data, tmp_path / "study", {}, options)
    chosen = for_data(load_config(tmp_path / "config.yaml"), open_data(data))
    assert study.config.model == chosen.model
    assert study.config.train == chosen.train
    assert study.config.train.batch_size == 32  # As the config says.
