"""`recsys.Trainer` in a program of one's own: callbacks, results, resume."""

import json
import sys

import keras
import numpy as np
import pytest
from places import ROOT
from training_runs import EVERY, STAGE, on_devices, write_data

from recsys.config import EvaluateStage, TrainStage
from recsys.data.dataset import open_data
from recsys.data.neighbours import graph_neighbours
from recsys.errors import RecsysError, UsageError
from recsys.models import TwoTower
from recsys.stages.export import export
from recsys.stages.train import write_model
from recsys.tasks.config import CheckpointConfig
from recsys.tasks.retrieval.judging.side import RetrievalJudging
from recsys.training.trainer import Trainer

EPOCHS = 4
SETTINGS = TrainStage.model_validate(
    {
        "model": {**STAGE["model"], "item_neighbours": 3},
        "train": {
            **STAGE["train"],
            "epochs": EPOCHS,
            "validation": {"share": 0.2, "metric": "recall@20", "patience": None},
        },
    }
)


@pytest.fixture(autouse=True, scope="module")
def one_device():
    """The results of a training don't depend on the number of devices."""
    with on_devices(1):
        yield


class EpochLog(keras.callbacks.Callback):
    """The calls that a user's callback gets."""

    def __init__(self, stop_after=None):
        super().__init__()
        self.begun, self.epochs, self.steps, self.ends = [], [], [], []
        self._stop_after = stop_after

    def on_epoch_begin(self, epoch, logs=None):
        self.begun.append(epoch)

    def on_train_batch_end(self, batch, logs=None):
        self.steps.append((batch, logs["loss"]))

    def on_epoch_end(self, epoch, logs=None):
        self.epochs.append((epoch, dict(logs)))
        self.model.stop_training = epoch == self._stop_after

    def on_train_end(self, logs=None):
        self.ends.append(dict(logs))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("data")
    write_data(path)
    return path


@pytest.fixture(scope="module")
def data(folder):
    return open_data(folder)


def fit(data, checkpoints, model=None, settings=SETTINGS, **options):
    model = model or TwoTower.from_config(settings, data)
    return Trainer(settings.train, checkpoints, verbose=0, **options).fit(model, data)


def weights(result):
    return {v.path: np.asarray(v.value) for v in result.model.variables}


def assert_same_bits(a, b):
    a, b = weights(a), weights(b)
    assert a.keys() == b.keys()
    for path, array in a.items():
        assert array.tobytes() == b[path].tobytes(), path


@pytest.fixture(scope="module")
def trained(data, tmp_path_factory):
    log = EpochLog()
    checkpoints = tmp_path_factory.mktemp("trained")
    return fit(data, checkpoints, callbacks=[log]), log, checkpoints


def test_a_model_has_the_neighbours_of_what_it_was_trained_on(trained):
    result, _, _ = trained
    graph = result.model.terms["item_neighbours"]
    rows, shares = graph_neighbours(result.events, graph.spec.item_rows, 3)
    assert rows.any()
    np.testing.assert_array_equal(graph.neighbours.value, rows)
    np.testing.assert_array_equal(graph.shares.value, shares)


def test_a_trained_model_is_measured_without_the_rows_that_only_validation_saw(data, tmp_path):
    train = STAGE["train"] | {"epochs": 1, "validation": {"share": 0.9}}
    settings = TrainStage.model_validate({"model": STAGE["model"], "train": train})
    result = fit(data, tmp_path, settings=settings)
    counts = result.events.item_counts(data.items.n_rows)
    is_unseen = data.items.has_id() & (counts == 0)
    assert is_unseen.any()
    side = RetrievalJudging(EvaluateStage(), data)
    candidates = side.open_model(result.model, "model").candidates
    # Without features all of them are what row 0 is.
    assert len(np.unique(candidates[is_unseen], axis=0)) == 1
    np.testing.assert_array_equal(candidates, side.open_model(result, "model").candidates)


def test_a_program_writes_the_folder_that_a_warm_start_goes_on_from(data, tmp_path):
    train = STAGE["train"] | {"epochs": 1}
    settings = TrainStage.model_validate({"model": STAGE["model"], "train": train})
    model = str(tmp_path / "model")
    first = fit(data, tmp_path / "first", settings=settings)
    write_model(model, first, data)
    second = fit(data, tmp_path / "second", settings=settings, base=model)
    assert second.cold is None
    assert second.progress.warm_start["steps_before"] == first.progress.step


def test_a_callback_sees_the_epochs_of_the_run_with_their_metrics(trained):
    result, log, _ = trained
    per_epoch = result.progress.step // EPOCHS
    assert log.begun == list(range(EPOCHS))
    assert [epoch for epoch, _ in log.epochs] == list(range(EPOCHS))
    assert [batch for batch, _ in log.steps] == list(range(per_epoch)) * EPOCHS
    assert log.ends == [log.epochs[-1][1]]
    for epoch, logs in log.epochs:
        look = result.progress.validations[epoch]
        assert logs["val_recall@20"] == look["recall@20"]
        # The loss of a batch is the mean since the last point of the curve; there is one a step.
        steps = [loss for _, loss in log.steps[epoch * per_epoch : (epoch + 1) * per_epoch]]
        assert logs["loss"] == pytest.approx(np.mean(steps), rel=1e-6)


def test_the_result_shows_its_history_and_its_curve(trained):
    result, log, checkpoints = trained
    assert result.history["loss"] == [logs["loss"] for _, logs in log.epochs]
    frame = result.to_pandas()
    assert frame["epoch"].tolist() == list(range(EPOCHS))
    assert frame["val_recall@20"].tolist() == result.history["val_recall@20"]
    assert result.checkpoints.parent == checkpoints
    assert "examples/s" in repr(result)
    page = result._repr_html_()
    assert page.count("<svg") == 1
    assert page.count(",") > len(result.curve)
    assert json.loads(json.dumps(result.summary()))["steps"] == result.progress.step


def test_a_run_that_has_ended_is_restored_and_not_trained_again(trained, data):
    result, _, checkpoints = trained
    log = EpochLog()
    again = fit(data, checkpoints, callbacks=[log])
    assert log.begun == log.steps == []
    assert again.history == result.history
    assert_same_bits(again, result)


class Killed(BaseException):
    """Stands for SIGKILL: no handler of an exception runs."""


def test_a_run_that_is_killed_in_an_epoch_ends_with_the_same_bits(trained, data, tmp_path):
    class Kill(EpochLog):
        def on_train_batch_end(self, batch, logs=None):
            if len(self.begun) == 2 and batch == 10:
                raise Killed

    checkpoint = CheckpointConfig(every_steps=EVERY, background=False)
    train = SETTINGS.train.model_copy(update={"checkpoint": checkpoint})
    settings = SETTINGS.model_copy(update={"train": train})
    with pytest.raises(Killed):
        fit(data, tmp_path, settings=settings, callbacks=[Kill()])
    (result, log, _), again = trained, fit(data, tmp_path, settings=settings)
    assert again.progress.resumed_at == [EVERY]
    assert EVERY % (len(log.steps) // EPOCHS)  # In the middle of an epoch.
    assert again.curve == result.curve
    assert again.history == result.history
    assert_same_bits(again, result)


def test_the_same_cell_of_a_notebook_may_be_run_twice(trained, data):
    result, _, checkpoints = trained
    before = weights(result)
    again = fit(data, checkpoints, model=result.model)
    assert again.model is result.model
    for path, array in weights(again).items():
        assert array.tobytes() == before[path].tobytes(), path


def test_a_built_model_of_another_run_is_refused(trained, data, tmp_path):
    with pytest.raises(UsageError, match=r"R382.*from_config"):
        fit(data, tmp_path, model=trained[0].model)


def test_a_model_for_other_data_is_refused(data, tmp_path):
    model = TwoTower.from_config(SETTINGS, data)
    model.spec = model.spec.model_copy(update={"user_rows": 7})
    with pytest.raises(UsageError, match=r"R382.*for the data"):
        fit(data, tmp_path, model=model)


def test_a_callback_ends_the_run_for_good(data, tmp_path):
    log = EpochLog(stop_after=1)
    result = fit(data, tmp_path, callbacks=[log])
    assert [epoch for epoch, _ in log.epochs] == [0, 1]
    assert result.progress.step == result.progress.epochs[-1]["step"]
    again = fit(data, tmp_path)
    assert again.progress.step == result.progress.step
    assert_same_bits(again, result)


def test_a_callback_that_stops_between_two_updates_stops_at_the_next_one(data, tmp_path):
    class StopAt(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            self.model.stop_training = batch == 3

    train = SETTINGS.train.model_copy(update={"accumulate": 3, "validation": None})
    settings = SETTINGS.model_copy(update={"train": train})
    result = fit(data, tmp_path, settings=settings, callbacks=[StopAt()])
    assert result.progress.step == 6


def test_a_save_that_is_waited_for_is_whole_before_the_next_step(data, tmp_path):
    newest = []

    class Look(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            saved = [path.name for path in tmp_path.glob("*/last/*")]
            newest.append(max([int(name) for name in saved if name.isdecimal()], default=0))
            assert not [name for name in saved if name.endswith(".writing")]

    checkpoint = CheckpointConfig(every_steps=2, background=False)
    train = SETTINGS.train.model_copy(update={"checkpoint": checkpoint, "validation": None})
    settings = SETTINGS.model_copy(update={"train": train})
    fit(data, tmp_path, settings=settings, callbacks=[Look()])
    assert len(newest) > 5
    assert all(step >= before // 2 * 2 for before, step in enumerate(newest))


def test_a_training_that_would_update_nothing_is_refused(data, tmp_path):
    train = STAGE["train"] | {"accumulate": 100_000}
    settings = TrainStage.model_validate({"model": STAGE["model"], "train": train})
    with pytest.raises(RecsysError, match=r"R320.*train\.accumulate"):
        fit(data, tmp_path, settings=settings)


def test_a_model_of_a_class_that_its_config_does_not_name_is_refused(data, tmp_path):
    class Own(TwoTower):
        pass

    with pytest.raises(UsageError, match=r"R382.*Own.*register_model"):
        fit(data, tmp_path, model=Own.from_config(SETTINGS, data))


@pytest.mark.parametrize(("asked", "repeats"), [(None, "include"), ("exclude", "exclude")])
def test_a_bundle_repeats_as_its_model_was_trained(tmp_path, monkeypatch, asked, repeats):
    stages = []
    monkeypatch.setattr(
        "recsys.stages.export.run_stage_with_config",
        lambda _, config, words, backend: stages.append(json.loads(config)),
    )
    told = {"stage": {"plugins": [], "repeats": "include"}}
    (tmp_path / "model.json").write_text(json.dumps(told))
    export(tmp_path, tmp_path, tmp_path / "bundle", repeats=asked)
    assert stages[0]["repeats"] == repeats


def test_a_model_that_was_not_trained_is_not_exported(tmp_path):
    with pytest.raises(UsageError, match=r"R536.*recsys\.Trainer.*"):
        export(object(), tmp_path, tmp_path / "bundle")


def test_a_model_of_a_class_of_a_script_is_not_exported(folder, tmp_path):
    stage = {"plugins": ["__main__"]}
    (tmp_path / "model.json").write_text(json.dumps({"stage": stage}))
    with pytest.raises(UsageError, match=r"R108.*Move it into a module"):
        export(tmp_path, folder, tmp_path / "bundle")


@pytest.mark.slow
def test_mlflow_tracks_the_epochs(folder, tmp_path):
    sys.path.insert(0, str(ROOT / "examples"))
    import mlflow
    import mlflow_tracking

    run_id = mlflow_tracking.train(folder, tmp_path / "checkpoints", tmp_path / "runs", SETTINGS)
    history = mlflow.MlflowClient().get_metric_history(run_id, "val_recall_at_20")
    assert [metric.step for metric in history] == list(range(EPOCHS))
