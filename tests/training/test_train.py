"""Training as a user starts it, on one device and on eight."""

import json
import subprocess
import sys

import keras
import numpy as np
import pyarrow as pa
import pytest
from data_folders import write_data
from training_runs import train_here

from recsys.config import EvaluateStage
from recsys.data.catalogue import FeatureBags
from recsys.data.vocabulary import Vocabulary
from recsys.errors import RecsysError
from recsys.evaluation.evaluation_file import evaluate
from recsys.models import TwoTower
from recsys.system.process import last_json_line
from recsys.tasks.model_folder import load_model

pytestmark = pytest.mark.slow

N_USERS, N_ITEMS, N_TASTES = 60, 90, 3
STAGE = {
    "model": {
        "dim": 16,
        "feature_dim": 4,
        "history": 5,
        "widths": [16],
        "table_placement": "row",
    },
    "train": {"batch_size": 64, "uniform_negatives": 32, "epochs": 8, "table_learning_rate": 0.2},
}


def events_of(rng, users, days):
    """Each user takes items of one taste; items of a taste are every third row."""
    user = np.repeat(users, 30)
    item = 1 + rng.integers(0, N_ITEMS // N_TASTES, len(user)) * N_TASTES + user % N_TASTES
    return user, item, rng.integers(days[0] * 86400, days[1] * 86400, len(user))


def events_table(user, user_row, item_row, timestamp):
    """Events of users whose ids are `u1` and so on."""
    ids = [f"u{n + 1}" for n in user]
    rows = user_row.astype(np.int32), item_row.astype(np.int32)
    columns = [pa.array(ids), *rows, timestamp.astype(np.int64)]
    return pa.table(columns, names=["user_id", "user_row", "item_row", "timestamp"])


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    rng = np.random.default_rng(0)
    users = np.arange(1, N_USERS + 1)
    user, item, time = events_of(rng, users, (10, 90))
    train = events_table(user - 1, user, item, time)
    user, item, time = events_of(rng, np.arange(0, N_USERS + 5), (90, 99))
    rows = np.where(np.arange(N_USERS + 5) < N_USERS, np.arange(1, N_USERS + 6), 0)
    # Index i is user row i + 1, so an evaluation user has the same taste as in training.
    item = 1 + (item - 1) // N_TASTES * N_TASTES + (user + 1) % N_TASTES
    held_out = events_table(user, rows[user], item, time)
    ids = [f"u{n + 1}" for n in range(N_USERS + 5)]
    counts = np.bincount(train["user_row"], minlength=N_USERS + 1)[1:]
    users = Vocabulary(pa.array(ids[:N_USERS]), counts)
    counts = np.bincount(train["item_row"], minlength=N_ITEMS + 1)[1:]
    items = Vocabulary(pa.array([f"i{n}" for n in range(N_ITEMS)]), counts)
    bags = np.concatenate([[0], 1 + np.arange(N_ITEMS) % 2])[:, None].astype(np.int32)
    colour = FeatureBags("colour", 3, bags)
    write_data(folder, 90 * 86400, train, held_out, users, items, [colour])
    return folder


WITHOUT_TENSORFLOW = """
import json, sys
sys.modules["tensorflow"] = sys.modules["tfx"] = None
from recsys.stages.train import main
result = main(sys.argv[1:])
imported = sorted({"tensorflow.python", "tfx.types", "apache_beam"} & set(sys.modules))
print(json.dumps({**result, "imported": imported}))
"""


def start(data, out):
    """Trains in a process of one device, where TensorFlow can't be imported."""
    config = out.with_suffix(".json")
    config.write_text(json.dumps(STAGE))
    # Checkpoints of its own: the same training elsewhere must not find what this one saved.
    words = ["--config", config, "--data", data, "--out", out, "--checkpoints", f"{out}.saved"]
    ended = subprocess.run(
        [sys.executable, "-c", WITHOUT_TENSORFLOW, *map(str, words)],
        check=True, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    return last_json_line(ended.stdout)


@pytest.fixture(scope="module")
def models(data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    one, eight = folder / "1", folder / "8"
    return {1: (one, start(data, one)), 8: (eight, train_here(STAGE, data, eight, 8))}


def curve(folder):
    points = json.loads((folder / "training.json").read_text())["curve"]
    return np.array([point["loss"] for point in points])


def test_one_and_eight_devices_have_the_same_loss_curve(models):
    one, eight = (curve(models[n][0]) for n in (1, 8))
    assert len(one) > 100
    assert one[-20:].mean() < one[:20].mean() - 0.3
    assert np.abs(one - eight).max() < 1e-4


@pytest.mark.thorough
@pytest.mark.parametrize("shape", [(4, 2), (8, 1), (2, 4), (1, 8)], ids=str)
def test_every_mesh_has_the_same_loss_curve(models, data, tmp_path, shape):
    stage = {**STAGE, "mesh": {"data": 8, "model": 2}}  # The command line overrides it.
    options = ["--mesh", f"data={shape[0]},model={shape[1]}"]
    summary = train_here(stage, data, tmp_path / "model", 8, options)
    assert {table["shards"] for table in summary["sharding"]} == {shape[1]}
    assert np.abs(curve(tmp_path / "model") - curve(models[1][0])).max() < 1e-4


@pytest.mark.thorough
def test_groups_of_negatives_and_short_numbers_change_what_devices_send(models, data, tmp_path):
    def curve_of(name, devices, **train):
        stage = {**STAGE, "train": {**STAGE["train"], "epochs": 2, **train}}
        folder = tmp_path / name / "model"  # With checkpoints of its own.
        summary = train_here(stage, data, folder, devices)
        return curve(folder), summary["step"]["collectives"]

    four, sent = curve_of("four", 4, negative_groups=2)
    short, sent_short = curve_of("short", 4, negative_groups=2, negatives_dtype="bfloat16")
    # Half of the negatives make the positive easier to find.
    assert four[:5].mean() < curve(models[1][0])[:5].mean() - 0.3
    assert 0 < np.abs(short - four).max() < 0.02
    # Two devices gather 24 candidates each of the other, in half of the bytes.
    assert sent["all-gather"] - sent_short["all-gather"] == 48 * 16 * 2


def test_the_result_says_what_each_device_holds(models):
    table = {p["table"]: p for p in models[8][1]["sharding"]}
    assert list(table) == ["users", "items", "colour"]
    assert table["items"] == {
        "table": "items",
        "placement": "row",
        "rows": 91,
        "padded_rows": 3840,
        "dim": 16,
        "shards": 8,
        "bytes_per_device": 480 * 16 * 4,
        "slot_bytes_per_device": 480 * 16 * 4,
    }


def test_the_result_says_what_the_compiled_step_holds(models):
    one, eight = (models[n][1]["step"] for n in (1, 8))
    assert one["collectives"] == {}
    kinds = {"all-to-all", "reduce-scatter", "all-gather", "all-reduce"}
    assert kinds == set(eight["collectives"])
    # Tables and Adagrad's slots of as many bytes, of which each device changes its eighth.
    assert one["state_bytes"] > 2 * 4 * 3840 * (16 + 16 + 4)
    assert eight["state_bytes"] < one["state_bytes"] / 4


def test_a_trained_model_finds_the_users_taste_and_popularity_does_not(models, data, tmp_path):
    result = evaluate(EvaluateStage(), models[1][0], data, tmp_path)
    # 30 of 90 items are of a user's taste: 10 of them are a third.
    assert result["at_cut"]["metrics"]["recall@10"] > 0.25
    assert result["at_cut"]["baselines"]["popularity"]["recall@10"] < 0.15
    assert json.loads((tmp_path / "evaluation.json").read_text()) == result
    assert result["slices"][1]["name"] == "cold users"
    assert result["slices"][1]["users"] == 5


def test_tables_and_towers_learn_at_their_own_rates_from_the_seeds_weights(data, tmp_path):
    """Towers that barely move, tables that do, and row 0 of users and items by dropped ids."""
    model = {**STAGE["model"], "id_dropout": 0.5, "new_user_share": 0.0}
    rates = {"table_learning_rate": 0.2, "tower_learning_rate": 1e-12}
    stage = {"model": model, "train": {"batch_size": 64, "epochs": 1, "seed": 3, **rates}}
    train_here(stage, data, tmp_path / "model")
    after = load_model(tmp_path / "model").model
    before = TwoTower(after.spec, seed=3)
    before.build()
    for old, new in zip(before.trainable_variables, after.trainable_variables, strict=True):
        assert np.abs(np.asarray(new.value) - np.asarray(old.value)).max() < 1e-6, old.path
    tables = (m.embedding.get_embedding_tables() for m in (before, after))
    for (name, old), new in zip(next(tables).items(), next(tables).values(), strict=True):
        moved = np.abs(new - old)
        assert np.median(moved[1:]) > 0.01, name
        if name in ("users", "items"):
            assert moved[0].max() > 0.01, name


def test_the_probe_asks_for_the_unknown_user_and_for_one_without_a_history(models):
    with np.load(models[1][0] / "probe.npz") as probe:
        assert len(probe["query"]) == 1000
        assert probe["user_row"][0] == 0
        assert not probe["history"][1].any()
        assert probe["history"][2:].any()


def test_training_imports_no_tensorflow(models):
    assert models[1][1]["imported"] == []


def test_a_batch_that_does_not_divide_over_the_devices_names_one_that_does(data, tmp_path):
    stage = {**STAGE, "train": {"batch_size": 60}}
    with pytest.raises(RecsysError, match=r"R321.*multiple of 8,.*Use 64"):
        train_here(stage, data, tmp_path / "model", devices=8)


def test_another_backend_is_refused(data, tmp_path, monkeypatch):
    monkeypatch.setattr(keras.backend, "backend", lambda: "numpy")
    with pytest.raises(RecsysError, match=r"R323.*KERAS_BACKEND=jax"):
        train_here(STAGE, data, tmp_path / "model")
