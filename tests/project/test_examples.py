"""The examples of a model and a loss of one's own, and of the whole way in one program, run."""

import json

import nbformat
import numpy as np
import pytest
from data_folders import counted, event_table, write_data
from places import ROOT
from training_runs import on_devices, train_here

import recsys
from examples import (
    custom_encoder,
    custom_loss,
    custom_model,
    custom_row_optimizer,
    program,
    text_vectors,
)
from examples.notebooks import execute
from recsys.data.catalogue import FeatureBags
from recsys.tasks.model_folder import load_model


@pytest.mark.parametrize("example", [custom_model, custom_encoder, text_vectors])
def test_the_custom_model_and_encoder_learn(example):
    losses = example.main()
    assert losses[-1] < 0.8 * losses[0]


def test_the_custom_loss_is_a_hinge():
    assert custom_loss.main() == (0.0, 0.5)


def test_the_custom_row_optimizer_is_rmsprop_where_all_rows_are_read():
    start, ours, keras_own = custom_row_optimizer.main()
    assert np.abs(ours - start).min() > 0.01
    np.testing.assert_allclose(ours, keras_own, atol=1e-6)


def write_texts(folder, n_items, seed=0):
    """Writes events of items that have a token each, and the vectors of their texts."""
    rng = np.random.default_rng(seed)
    ids = [f"i{n}" for n in range(n_items)]
    taken = rng.integers(0, n_items - 2, 600)  # Two items have a text and no event.
    events = [(f"u{rng.integers(20)}", ids[item], time) for time, item in enumerate(taken)]
    users = counted([f"u{n}" for n in range(20)], [event[0] for event in events])
    items = counted(ids, [event[1] for event in events])
    tables = [event_table(part, users, items) for part in (events[:560], events[560:])]
    tokens = ["", *ids]
    bags = np.array([tokens.index(name) if name else 0 for name in items.names_of_rows()])
    text = FeatureBags("text", len(tokens), bags.astype(np.int32)[:, None], tokens)
    write_data(folder / "data", 560, *tables, users, items, features=[text])
    vectors = rng.normal(size=(n_items, 8)).astype(np.float32)
    np.savez(folder / "texts.npz", ids=np.array(ids), vectors=vectors)
    return vectors


@pytest.mark.slow
def test_the_model_of_two_losses_trains_on_a_file_of_vectors_that_stay(tmp_path):
    vectors, out = write_texts(tmp_path, 30), tmp_path / "out" / "model"
    model = {"type": "text_vectors", "vectors": str(tmp_path / "texts.npz"), "history": 3}
    train = {"batch_size": 64, "uniform_negatives": 16, "epochs": 2}
    stage = {
        "plugins": ["examples.text_vectors"],
        "model": {**model, "dim": 8, "feature_dim": 8},
        "train": train,
    }
    train_here(stage, tmp_path / "data", out)
    (tmp_path / "texts.npz").unlink()
    trained = load_model(out)
    rows = trained.model.tables["text"].read_rows()
    np.testing.assert_array_equal(rows[1:], vectors)
    assert rows[0].any() == 0
    for step in json.loads((out / "training.json").read_text())["curve"]:
        assert step["reconstruction"] > 0


@pytest.mark.slow
@pytest.mark.pipeline
def test_the_program_recommends_by_its_own_model(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(ROOT)  # What exports finds `examples` there.
    with on_devices(1):
        program.main(tmp_path)
    said = capsys.readouterr().out
    assert "model: Averaged" in said
    assert "items for user 'u" in said

    # Elsewhere the bundle is enough.
    bundle = recsys.load_bundle(tmp_path / "bundle")
    user = bundle.example_users[0]
    alone, (together, nobody) = (
        bundle.recommend(user, k=3),
        bundle.recommend(users=[user, "nobody"], k=3),
    )
    assert [item.id for item in alone.items] == [item.id for item in together.items]
    assert len(alone.items) == 3
    assert (alone.known, nobody.known, nobody.source) == (True, False, "popularity")


# --- notebooks


FOLDERS = ("/home/", "/tmp/", "/root/", "/work/")  # noqa: S108 what no output may name


# The quickstart calls on the shipped data what `examples.program` does on small ones; the ranking
# notebook what tests/tasks/ranking/serving do.
_THOROUGH = {"quickstart", "ranking", "pair", "own_data"}


@pytest.mark.slow
@pytest.mark.pipeline
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.thorough] * (name in _THOROUGH))
        for name in execute.NAMES
    ],
)
def test_each_notebook_runs_and_shows_what_is_stored(name):
    stored = nbformat.read(execute.FOLDER / f"{name}.ipynb", as_version=4)
    executed = execute.execute(name)
    for old, new in zip(stored.cells, executed.cells, strict=True):
        assert _kinds(old) == _kinds(new), f"run python -m examples.notebooks.execute: {old.source}"
    text = nbformat.writes(stored)
    assert [folder for folder in FOLDERS if folder in text] == []


@pytest.mark.slow
@pytest.mark.pipeline
def test_no_notebook_is_left_out():
    assert {path.stem for path in execute.FOLDER.glob("*.ipynb")} == set(execute.NAMES)


def _kinds(cell):
    """Returns the types of a code cell's outputs."""
    outputs = cell.get("outputs", ())
    return {(output.output_type, *sorted(output.get("data", ()))) for output in outputs}
