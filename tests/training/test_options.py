"""Trainings with all options of a config, and stopped ones in processes."""

import json
import shutil

import numpy as np
import pytest
from training_runs import PER_USER, STAGE, USERS, Run, assert_same_bits, flip_a_bit

from recsys.data.neighbours import graph_neighbours
from recsys.data.store import InteractionStore
from recsys.errors import RecsysError
from recsys.models import ModelInputs
from recsys.models.inference import Inference
from recsys.registry import name_of
from recsys.tasks.model_folder import load_model
from recsys.tasks.retrieval.training.epoch_work import Validator
from recsys.tasks.training_side import trained_inputs, training_events

pytestmark = pytest.mark.slow

VALIDATED = {"share": 0.2, "metric": "recall@20", "patience": None}


def stage(model=(), **train):
    return {
        "model": {**STAGE["model"], **dict(model)},
        "train": {**STAGE["train"], "epochs": 8, **train},
    }


@pytest.mark.faults
def test_the_best_model_survives_a_stop_in_the_middle_of_an_epoch(data, tmp_path):
    asked = stage(
        validation=VALIDATED,
        known_positives=12,
        ema=0.9,
        schedule={"kind": "cosine", "warmup_steps": 10},
        clip_norm=5.0,
    )
    whole, stopped = (Run(tmp_path / name, data, asked) for name in ("whole", "stopped"))
    whole.finish()
    looks = whole.summary()["validation"]
    assert [look["step"] for look in looks] == [12 * epoch for epoch in range(1, 9)]
    best = max(looks, key=lambda look: look["recall@20"])
    assert whole.summary()["best_step"] == best["step"]

    code, _ = stopped.stop_at(42, 15)
    assert code == 1
    assert stopped.saved()[-1] % 12
    stopped.finish()
    assert_same_bits(stopped, whole)
    assert stopped.summary()["validation"] == looks
    assert (stopped.folder / "tensorboard").exists()


@pytest.mark.faults
def test_a_kill_between_two_updates_costs_no_gradients(data, tmp_path):
    """Epochs of 12 steps, an update each 11: every look falls between two updates."""
    asked = stage(validation=VALIDATED, accumulate=11, checkpoint={"every_steps": 1000})
    whole, killed = (Run(tmp_path / name, data, asked) for name in ("whole", "killed"))
    whole.finish()
    killed.stop_at(70, 9)
    assert killed.saved()
    assert all(step % 11 == 0 for step in killed.saved())
    killed.finish()
    assert_same_bits(killed, whole)
    assert killed.summary()["curve"] == whole.summary()["curve"]
    assert killed.summary()["validation"] == whole.summary()["validation"]


@pytest.mark.faults
def test_a_damaged_best_model_is_taken_from_the_checkpoint_of_its_step(data, tmp_path):
    asked = stage(validation=VALIDATED, ema=0.9, checkpoint={"every_steps": 1000, "keep": 20})
    run = Run(tmp_path / "run", data, asked)
    run.finish()
    before, best = run.weights(), run.summary()["best_step"]
    folder = next(run.folder.glob(f"checkpoints/*/best/{best}"))
    flip_a_bit(folder)
    run.finish()
    assert "taken from the run's own checkpoint" in (run.folder / "log.txt").read_text()
    after = run.weights()
    assert all(before[name].tobytes() == after[name].tobytes() for name in before)

    shutil.rmtree(folder.parent)
    shutil.rmtree(folder.parent.parent / "last" / str(best))
    with pytest.raises(RecsysError, match=r"R379.*Remove the folder .* to train from scratch"):
        run.finish()


def test_training_stops_when_validation_finds_nothing_better(data, tmp_path):
    # A rate of nearly zero: every look is like the first, so none is better.
    asked = stage(
        validation={**VALIDATED, "patience": 2},
        table_learning_rate=1e-12,
        tower_learning_rate=1e-12,
    )
    run = Run(tmp_path / "run", data, asked, devices=1)
    run.finish_here()
    assert [look["step"] for look in run.summary()["validation"]] == [12, 24, 36]
    assert run.summary()["best_step"] == 12
    assert run.summary()["steps"] == 36
    # Started again it finds that there is nothing to do, nor to read.
    run.finish_here()
    assert run.summary()["resumed_at"] == [36]


def test_the_model_that_is_kept_is_the_one_that_validation_saw(data, tmp_path):
    """Asked the same queries, it has the metrics of the look that was best."""
    model = {"id_dropout": 0.0, "new_user_share": 0.0}
    asked = stage(model, validation={**VALIDATED, "share": 0.6, "every_epochs": 3}, epochs=4)
    run = Run(tmp_path / "run", data, asked, devices=1)
    run.finish_here()
    steps_per_epoch = USERS * PER_USER * 4 // 10 // 64
    looks = run.summary()["validation"]
    # The last epoch is looked at too, whatever the interval.
    assert [look["step"] for look in looks] == [3 * steps_per_epoch, 4 * steps_per_epoch]
    saved = load_model(run.model)
    events = training_events(InteractionStore.open(data / "store").train, saved.stage.train)
    is_unseen = events.item_counts(saved.items.n_rows)[1:] == 0
    assert is_unseen.any()
    assert not saved.items.row_counts[1:][is_unseen].any()
    config = saved.stage.train.validation
    inputs = trained_inputs(ModelInputs.open(data), events)
    found = Validator(events, inputs, saved.stage.model, config).metrics(Inference(saved.model))
    best = max(looks, key=lambda look: look["recall@20"])
    assert found == pytest.approx({k: v for k, v in best.items() if k != "step"}, abs=1e-6)
    validation = Validator(events, inputs, saved.stage.model, config)
    queries = validation.queries
    history = queries.histories(saved.stage.model.history)
    ours, theirs = (
        Inference(saved.model).queries(queries.user_row, history, known)
        for known in (saved.inputs, inputs)
    )
    assert np.array_equal(ours, theirs)


@pytest.mark.parametrize(
    ("model", "train"),
    [
        pytest.param(
            {"pooling": "sasrec", "learn_temperature": True},
            {"compute_dtype": "bfloat16"},
            marks=pytest.mark.thorough,
        ),
        pytest.param(
            {"pooling": "attention", "similarity": "dot", "temperature": 1.0},
            {"loss": "bpr"},
            marks=pytest.mark.thorough,
        ),
        (
            {
                "user_id": False,
                "widths": None,
                "item_bias": True,
                "learn_temperature": True,
                "item_neighbours": 3,
            },
            {"loss": "full_softmax", "accumulate": 4, "table_regularisation": {"items": 1e-5}},
        ),
    ],
    ids=["sasrec", "bpr", "full-softmax"],
)
def test_every_kind_of_model_and_loss_learns_and_is_kept(data, tmp_path, model, train):
    run = Run(tmp_path / "run", data, stage(model, **{**train, "epochs": 10}), devices=1)
    run.finish_here()
    losses = [point["loss"] for point in run.summary()["curve"]]
    assert np.mean(losses[-20:]) < np.mean(losses[:20])
    saved = load_model(run.model)
    assert name_of("loss", saved.stage.train.loss) == train.get("loss", "sampled_softmax")
    described = json.loads((run.model / "model.json").read_text())
    has_users = any("/users/" in variable["path"] for variable in described["variables"])
    assert has_users == model.get("user_id", True)
    if model.get("item_bias"):
        assert np.load(run.model / "candidates.npy")[:, saved.model.config.dim].std() > 0.01
    if model.get("learn_temperature"):
        temperatures = [point["temperature"] for point in run.summary()["curve"]]
        assert temperatures[0] != temperatures[-1]
    if n := model.get("item_neighbours"):
        events = training_events(InteractionStore.open(data / "store").train, saved.stage.train)
        rows, shares = graph_neighbours(events, saved.items.n_rows, n)
        assert rows.any()
        np.testing.assert_array_equal(saved.model.terms["item_neighbours"].neighbours.value, rows)
        np.testing.assert_array_equal(saved.model.terms["item_neighbours"].shares.value, shares)
