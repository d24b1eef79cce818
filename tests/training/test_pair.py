"""Training of a pair: its parts, resumed after a kill, warm, and forgotten."""

import shutil

import numpy as np
import pytest
from pair_worlds import make_data

from recsys.config import PairStage, TrainStage, stage_of
from recsys.data.dataset import Data
from recsys.data.hold_out import newest_share
from recsys.data.vocabulary import Vocabulary
from recsys.forget.files import Names
from recsys.forget.model_folder import forget_in_model
from recsys.models.summary import SUMMARY, read_summary
from recsys.pair.folder import RANKER, ranker_of, read_pair
from recsys.tasks.model_folder import load_model
from recsys.tasks.training_side import training_events
from recsys.training import pair
from recsys.training.stage import train

STAGE = {
    "model": {"type": "two_tower", "dim": 4, "history": 3, "widths": []},
    "train": {"batch_size": 64, "epochs": 4, "validation": {"patience": None}},
    "ranker": {
        "model": {"type": "dcn_v2", "dim": 4, "history": 3, "widths": [8]},
        "labels": {"click": 1.0},
        "candidates": 10,
        "held_back": 0.3,
        "negatives": 4,
        "train": {"batch_size": 64, "epochs": 2, "validation": None},
    },
}


def stage(**ranker):
    config = {**STAGE, "ranker": {**STAGE["ranker"], **ranker}}
    return PairStage.model_validate(config, strict=False)


class Killed(BaseException):
    """Stands for SIGKILL: no handler of an exception runs."""


def killed(*_):
    raise Killed


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A folder with `data`, a `retriever`, and the `pair` that was trained for it at once."""
    folder = tmp_path_factory.mktemp("pair")
    data = make_data(folder)
    train(stage_of(stage(), TrainStage), data.folder, folder / "retriever")
    folders = (data.folder, folder / "pair", folder / "checkpoints")
    pair.train_pair(stage(), *folders, retriever=folder / "retriever")
    return folder


def weights(folder):
    return [read_summary(part)["variables"] for part in (folder, ranker_of(folder))]


def test_a_killed_training_goes_on_and_makes_the_same_pair(world, tmp_path, monkeypatch):
    trained = []

    def recorded(stage, data, out, *rest, **more):
        trained.append(out.name)
        return train(stage, data, out, *rest, **more)

    for part in ("commit_folder", "draw", "ranker_stage", "write_pair", None):
        with monkeypatch.context() as patched:
            patched.setattr(pair, "train", recorded)
            if part is not None:
                patched.setattr(pair, part, killed)
            folders = (world / "data", tmp_path / "pair", tmp_path / "checkpoints")
            try:
                pair.train_pair(stage(), *folders, retriever=world / "retriever")
            except Killed:
                assert not (tmp_path / "pair" / SUMMARY).exists()
    assert trained == [".inner", ".inner", RANKER, RANKER]
    assert weights(tmp_path / "pair") == weights(world / "pair")
    assert read_pair(ranker_of(tmp_path / "pair")) == stage().ranker


def test_the_inner_retriever_learns_only_from_the_older_events(world):
    (inner,) = (world / "checkpoints").glob("*/inner")
    trained, store = load_model(inner), Data(world / "data").store
    held = training_events(store.train, trained.stage.train, store.split).held
    np.testing.assert_array_equal(held, newest_share(store.train, 0.3))
    older = np.delete(np.asarray(store.train.item_row), held)
    counts = np.bincount(older, minlength=trained.items.n_rows)
    np.testing.assert_array_equal(trained.items.row_counts, counts)


def test_it_has_as_many_epochs_as_the_retriever_needed(world, tmp_path):
    folder = shutil.copytree(world / "retriever", tmp_path / "retriever")
    text = (folder / "training.json").read_text()
    steps = [point["step"] for point in pair.read_json(folder / "training.json")["validation"]]
    best = pair.read_json(folder / "training.json")["best_step"]
    for epoch, step in enumerate(steps, start=1):
        changed = text.replace(f'"best_step": {best}', f'"best_step": {step}')
        (folder / "training.json").write_text(changed)
        assert pair.inner_stage(stage(), folder).train.epochs == epoch


def test_another_score_trains_nothing(world, tmp_path):
    out = shutil.copytree(world / "pair", tmp_path / "pair")
    before = weights(out)
    again = stage(score="click * click", deadline_ms=5.0)
    folders = (world / "data", out, world / "checkpoints")
    result = pair.train_pair(again, *folders, retriever=world / "retriever")
    assert weights(out) == before
    assert not result["ranker"]["resumed_at"]  # It was finished.
    assert read_pair(ranker_of(out)).score == "click * click"
    assert len([*(world / "checkpoints").glob("*/candidates-*")]) == 1


@pytest.mark.parametrize("base", ["pair", "retriever"])
def test_a_ranker_continues_from_that_of_a_pair(world, tmp_path, base):
    config = PairStage.model_validate({**STAGE, "warm_start": {}}, strict=False)
    folders = (world / "data", tmp_path / "pair", tmp_path / "checkpoints", world / base)
    result = pair.train_pair(config, *folders)
    assert result["warm_start"]["base"] == str(world / base)
    warm = result["ranker"]["warm_start"]
    assert warm is None if base == "retriever" else warm["base"] == str(world / "pair" / RANKER)
    assert {path.name for path in tmp_path.iterdir()} == {"checkpoints", "pair", "tensorboard"}


def test_a_user_is_forgotten_in_both_models_and_nowhere_else(world, tmp_path):
    folder = shutil.copytree(world / "pair", tmp_path / "pair", copy_function=pair._copy)
    assert forget_in_model(folder, Names(["u3"])) == 1
    for part in (folder, ranker_of(folder)):
        assert "u3" not in Vocabulary.load(part / "vocabulary/users.parquet").own_ids.to_pylist()
        load_model(part)
    kept = Vocabulary.load(world / "retriever" / "vocabulary/users.parquet")
    assert "u3" in kept.own_ids.to_pylist()
    load_model(world / "retriever")
