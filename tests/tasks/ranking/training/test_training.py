"""Trainings of a ranking model: what they learn, resume, and write beside the weights."""

import json
import signal

import jax
import numpy as np
import pyarrow as pa
import pytest
from row_worlds import ingested, shown
from training_runs import Run, assert_same_bits, train_here

from recsys.errors import RecsysError
from recsys.metrics.scores import RocAuc, ScoredRows
from recsys.models.inference import ScoreInference
from recsys.tasks.model_folder import load_model
from recsys.tasks.ranking.calibration_file import load_calibration
from recsys.tasks.ranking.probe import read_probe
from recsys.tasks.ranking.rows import Rows, model_inputs

MODEL = {"type": "dcn_v2", "dim": 4, "feature_dim": 4, "history": 4, "widths": [8]}
TRAIN = {
    "batch_size": 64,
    "epochs": 12,
    "validation": {"share": 0.2},
    "tower_learning_rate": 0.001,
    "table_optimizer": "adagrad",
    "table_learning_rate": 0.2,
}


def stage(model=None, **train):
    return {"model": {**MODEL, **(model or {})}, "train": {**TRAIN, **train}}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    rows = shown(n_users=60, n_items=20, n=10)
    features = [
        {"name": "device", "column": "device", "kind": "category"},
        {"name": "place", "column": "position", "kind": "category", "context": True},
    ]
    return ingested(tmp_path_factory.mktemp("data"), rows, features=features)


def scores_of(folder, data, part="eval"):
    """Returns log odds `[n, labels]` and what was read of the rows of a part."""
    trained = load_model(folder)
    config = trained.model.spec.config
    rows = Rows.of(data.store, part, trained.inputs, config)
    read = rows.read(np.arange(len(rows.log)))

    def of(at):
        return model_inputs({k: x[at] for k, x in read.items()}, trained.inputs, config)

    blocks = ScoreInference(trained.model).blocks(of, len(rows.log))
    return np.concatenate([*blocks]), read, trained


def auc(score, label):
    known = ~np.isnan(label)
    user = np.zeros(known.sum(), int)
    return RocAuc().statistics(ScoredRows(score[known], label[known], None, user, 1)).value


@pytest.mark.parametrize(
    "kind", ["temperature", pytest.param("isotonic", marks=pytest.mark.thorough)]
)
def test_a_training_learns_and_calibrates_what_the_source_thinned(data, tmp_path, kind):
    model = {"position_feature": "place"}
    options = stage(model, calibration=kind, negative_share=0.5)
    train_here(options, data.folder, tmp_path / "model")
    scores, read, trained = scores_of(tmp_path / "model", data)
    assert auc(scores[:, 0], read["label.click"]) > 0.7
    summary = json.loads((tmp_path / "model" / "training.json").read_text())
    best = min(summary["validation"], key=lambda look: look["log_loss"])
    assert best["step"] == summary["best_step"]
    # All rows are learned, for the best number of epochs.
    epochs = 1 + summary["validation"].index(best)
    again = {**options, "train": {**options["train"], "validation": None, "epochs": epochs}}
    train_here(again, data.folder, tmp_path / "again")
    np.testing.assert_array_equal(scores_of(tmp_path / "again", data)[0], scores)
    assert load_calibration(tmp_path / "again", trained.model.label_names) == {}
    maps = load_calibration(tmp_path / "model", trained.model.label_names)
    assert {name: one.kind for name, one in maps.items()} == {"click": kind, "buy": kind}
    click, rate = read["label.click"], read["rate"]
    p = maps["click"].apply(scores[:, 0])
    # Half of the rows without a click were not kept: there are as many again.
    assert np.average(p, weights=1 / rate) == pytest.approx(
        np.average(click, weights=1 / rate), abs=0.08
    )
    # The position isn't read when a row is judged: any other gives the same score.
    inputs = model_inputs(read, trained.inputs, trained.model.spec.config)
    moved = {**inputs, "place": inputs["place"][::-1].copy()}
    model = jax.jit(trained.model)
    own, other = (model(x)["click"] for x in (inputs, moved))
    np.testing.assert_array_equal(own, other)
    # It is the first one.
    (place,) = (f for f in trained.inputs.event_features if f.name == "place")
    np.testing.assert_array_equal(trained.model.position, place.encode(pa.array(["0"]))[0])
    probe = read_probe(tmp_path / "model")
    again = trained.model.joint_scores(
        model(model_inputs(probe.rows, trained.inputs, trained.model.spec.config))
    )
    for name, score in probe.scores.items():
        np.testing.assert_allclose(score, again[name], atol=1e-5)


@pytest.mark.parametrize("loss", ["listwise", pytest.param("pairwise", marks=pytest.mark.thorough)])
def test_losses_over_impressions_learn(data, tmp_path, loss):
    options = stage({"history": 0}, loss=loss, epochs=8, validation=None)
    train_here(options, data.folder, tmp_path / "model")
    scores, read, _ = scores_of(tmp_path / "model", data)
    assert auc(scores[:, 0], read["label.click"]) > 0.68


def test_a_warm_start_goes_on(data, tmp_path):
    base = tmp_path / "base"
    options = stage(epochs=1, validation=None)
    train_here(options, data.folder, base)
    train_here(options, data.folder, tmp_path / "next", words=["--base", base])
    summary = json.loads((tmp_path / "next" / "training.json").read_text())
    assert summary["warm_start"]["warm_starts"] == 1


@pytest.mark.faults
def test_a_killed_training_of_two_processes_ends_with_the_same_bits(data, tmp_path):
    options = stage(epochs=6, negative_share=0.5, checkpoint={"every_steps": 5}, validation=None)
    runs = [Run(tmp_path / name, data.folder, options, processes=2) for name in ("a", "b")]
    runs[0].finish()
    process = runs[1].start_until(8)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=60)
    runs[1].finish()
    assert runs[1].summary()["resumed_at"]
    assert_same_bits(*runs)


@pytest.mark.parametrize(
    ("labels", "train", "code"),
    [
        (["never"], {}, "R393"),
        (["click"], {"loss": "listwise"}, "R398"),
        (["click"], {"batch_size": 10_000}, "R320"),
        (["seconds"], {}, "R398"),
        (["seconds"], {"validation": None, "negative_share": 0.5}, "R398"),
    ],
    ids=["constant", "no impressions", "few rows", "metric of an amount", "thinned amounts"],
)
def test_what_cannot_be_learned_is_named(plain, tmp_path, labels, train, code):
    with pytest.raises(RecsysError) as error:
        train_here(stage({"labels": labels}, **train), plain.folder, tmp_path / "model")
    assert error.value.code == code


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    columns = {"user": "user", "item": "item", "timestamp": "time"}
    labels = {
        "click": {"column": "click", "at_least": 1},
        "never": {"column": "click", "at_least": 5},
        "seconds": {"column": "position"},
    }
    return ingested(tmp_path_factory.mktemp("plain"), shown(20), labels=labels, columns=columns)
