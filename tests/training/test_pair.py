"""Training of a pair: its parts, resumed after a kill, warm, and forgotten."""

import shutil

import numpy as np
import pyarrow as pa
import pytest
from training_runs import on_devices

from recsys.config import PairStage
from recsys.data.dataset import Data
from recsys.data.hold_out import newest_share
from recsys.data.vocabulary import Vocabulary
from recsys.embedding.layout import tables_of
from recsys.embedding.table import logical_order
from recsys.errors import UsageError
from recsys.forget.files import Names
from recsys.forget.model_folder import forget_in_model
from recsys.models import model_class
from recsys.models.summary import SUMMARY, read_summary
from recsys.pair.config import ranker_stage, retriever_stage
from recsys.pair.folder import RANKER, ranker_of, read_pair
from recsys.tasks.model_folder import load_model
from recsys.tasks.ranking.probe import read_probe
from recsys.tasks.training_side import training_events
from recsys.training import pair
from recsys.training.optimization import saved_variables
from recsys.training.stage import train
from recsys.training.trainer import Trainer

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


@pytest.fixture(autouse=True, scope="module")
def one_device():
    """The results of a training don't depend on the number of devices."""
    with on_devices(1):
        yield


def stage(**ranker):
    config = {**STAGE, "ranker": {**STAGE["ranker"], **ranker}}
    return PairStage.model_validate(config, strict=False)


class Killed(BaseException):
    """Stands for SIGKILL: no handler of an exception runs."""


def killed(*_):
    raise Killed


def make_world(folder, data, **ranker):
    own = stage(**ranker)
    train(retriever_stage(own), data, folder / "retriever")
    folders = (data, folder / "pair", folder / "checkpoints")
    pair.train_pair(own, *folders, retriever=folder / "retriever")
    return folder


@pytest.fixture(scope="module")
def world(tmp_path_factory, pair_data):
    """A folder with a `retriever`, and the `pair` that was trained for it at once."""
    return make_world(tmp_path_factory.mktemp("pair"), pair_data)


@pytest.fixture(scope="module")
def shared(tmp_path_factory, pair_data):
    """The same, with shared tables: the retriever is the inner one."""
    return make_world(tmp_path_factory.mktemp("shared"), pair_data, share_tables=True)


def weights(folder):
    return [read_summary(part)["variables"] for part in (folder, ranker_of(folder))]


@pytest.mark.parametrize(
    ("name", "parts", "trainings"),
    [
        ("world", [], [".inner", ".inner", RANKER, RANKER]),
        pytest.param(
            "shared",
            ["_continued", "_read_tables"],
            [*[RANKER] * 4, *["final"] * 3],
            marks=pytest.mark.faults,
        ),
    ],
)
def test_a_killed_training_goes_on_and_makes_the_same_pair(
    name, parts, trainings, pair_data, tmp_path, monkeypatch, request
):
    world, trained = request.getfixturevalue(name), []
    own = stage(share_tables=name == "shared")

    def recorded(stage, data, out, *rest, **more):
        trained.append(out.name)
        return train(stage, data, out, *rest, **more)

    for part in ("commit_folder", "draw", "ranker_stage", *parts, "write_pair", None):
        with monkeypatch.context() as patched:
            patched.setattr(pair, "train", recorded)
            if part is not None:
                patched.setattr(pair, part, killed)
            folders = (pair_data, tmp_path / "pair", tmp_path / "checkpoints")
            try:
                pair.train_pair(own, *folders, retriever=world / "retriever")
            except Killed:
                assert not (tmp_path / "pair" / SUMMARY).exists()
    assert sorted(trained) == sorted(trainings)
    assert weights(tmp_path / "pair") == weights(world / "pair")
    assert read_pair(ranker_of(tmp_path / "pair")) == own.ranker
    probes = [read_probe(folder / "pair" / RANKER).scores["click"] for folder in (world, tmp_path)]
    np.testing.assert_array_equal(*probes)


def test_the_inner_retriever_learns_only_from_the_older_events(world, pair_data):
    (inner,) = (world / "checkpoints").glob("*/inner")
    trained, store = load_model(inner), Data(pair_data).store
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


def test_another_score_trains_nothing(world, pair_data, tmp_path):
    out = shutil.copytree(world / "pair", tmp_path / "pair")
    before = weights(out)
    again = stage(score="click * click", deadline_ms=5.0)
    folders = (pair_data, out, world / "checkpoints")
    result = pair.train_pair(again, *folders, retriever=world / "retriever")
    assert weights(out) == before
    assert not result["ranker"]["resumed_at"]  # It was finished.
    assert read_pair(ranker_of(out)).score == "click * click"
    assert len([*(world / "checkpoints").glob("*/candidates-*")]) == 1


@pytest.mark.parametrize("base", ["pair", pytest.param("retriever", marks=pytest.mark.thorough)])
def test_a_ranker_continues_from_that_of_a_pair(world, pair_data, tmp_path, base):
    config = PairStage.model_validate({**STAGE, "warm_start": {}}, strict=False)
    folders = (pair_data, tmp_path / "pair", tmp_path / "checkpoints", world / base)
    result = pair.train_pair(config, *folders)
    assert result["warm_start"]["base"] == str(world / base)
    warm = result["ranker"]["warm_start"]
    assert warm is None if base == "retriever" else warm["base"] == str(world / "pair" / RANKER)
    assert {path.name for path in tmp_path.iterdir()} == {"checkpoints", "pair", "tensorboard"}


def rows_of(folder, name):
    """Returns a table's rows, read from its file."""
    variables = read_summary(folder)["variables"]
    (number,) = (n for n, v in enumerate(variables) if v["path"].endswith(f"/{name}/embeddings"))
    return np.load(folder / "weights" / f"{number}.npy")


def test_a_ranker_learns_from_newer_rows_with_the_tables_of_the_inner_retriever(
    shared, pair_data, tmp_path
):
    """These don't move, have no slots, and are in no checkpoint."""
    (work,) = (path.parent for path in (shared / "checkpoints").glob("*/inner"))
    (candidates,) = work.glob("candidates-*")
    data, inner = Data(pair_data, candidates=candidates), load_model(work / "inner")
    own = ranker_stage(stage(share_tables=True).model_copy(update={"model": inner.stage.model}))
    model = model_class(own.model).from_config(own, data)
    trainer = Trainer.of_stage(own, tmp_path / "checkpoints", verbose=0)
    events = trainer.fit(model, data).events
    assert (model.spec.config.dim, model.shared_tables) == (4, {"users", "items"})
    for table in tables_of(model):
        if table.name in model.shared_tables:
            now = logical_order(table, table.embeddings)
            np.testing.assert_array_equal(now, rows_of(work / "inner", table.name))
            assert table.slots == []
            assert table.embeddings.path not in saved_variables(model)
    assert any(table.slots and int(table.steps.value) for table in tables_of(model))
    kept = np.delete(np.arange(len(events.rows)), events.held)
    np.testing.assert_array_equal(kept, data.store.candidates.rows)
    # What is served are the tables of the final retriever, in one copy.
    assert np.abs(rows_of(shared / "pair", "users") - rows_of(work / "inner", "users")).max() > 1e-3
    trained = load_model(shared / "pair" / RANKER)
    for table in tables_of(trained.model):
        if table.name in model.shared_tables:
            now = logical_order(table, table.embeddings)
            np.testing.assert_array_equal(now, rows_of(shared / "pair", table.name))
    paths = [v["path"] for v in read_summary(shared / "pair" / RANKER)["variables"]]
    saved = {path.split("/")[-2] for path in paths if path.endswith("/embeddings")}
    assert saved == {table.name for table in tables_of(model)} - model.shared_tables
    counts = [load_model(part).users.row_counts for part in (shared / "pair", trained.folder)]
    np.testing.assert_array_equal(*counts)


def test_only_a_retriever_without_the_newest_events_shares_its_tables(world, pair_data, tmp_path):
    folders = (pair_data, tmp_path / "pair", tmp_path / "checkpoints")
    with pytest.raises(UsageError, match=r"R391.*newest 30%"):
        pair.train_pair(stage(share_tables=True), *folders, retriever=world / "retriever")


@pytest.mark.parametrize("name", ["world", "shared"])
def test_a_user_is_forgotten_in_both_models_and_nowhere_else(name, tmp_path, request):
    world = request.getfixturevalue(name)
    folder = shutil.copytree(world / "pair", tmp_path / "pair", copy_function=pair._copy)
    (row,) = Vocabulary.load(folder / "vocabulary/users.parquet").rows(pa.array(["u3"]))
    assert forget_in_model(folder, Names(["u3"])) == 1
    for part in (folder, ranker_of(folder)):
        assert "u3" not in Vocabulary.load(part / "vocabulary/users.parquet").own_ids.to_pylist()
        table = load_model(part).model.tables["users"]
        assert not table.read_rows([row]).any()
        assert table.read_rows([row + 1]).any()
    kept = Vocabulary.load(world / "retriever" / "vocabulary/users.parquet")
    assert "u3" in kept.own_ids.to_pylist()
    load_model(world / "retriever")
