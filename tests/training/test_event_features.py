"""Training with features of events: what context and attributes decide, devices, resuming."""

import numpy as np
import pyarrow as pa
import pytest
from training_runs import Run, assert_same_bits

from benchmarks.stores import save_catalogue, write_store
from recsys.data.catalogue import Catalogue
from recsys.data.config import read_event_feature
from recsys.data.dataset import open_data
from recsys.data.event_features import FOLDER, LearnedFeature, save_event_features
from recsys.data.vocabulary import Vocabulary
from recsys.models.inference import embed_queries
from recsys.tasks.model_folder import load_model
from recsys.tasks.training_side import DataShape

pytestmark = pytest.mark.slow

USERS, HISTORY, DEVICES = 120, 8, ("phone", "desktop")


def write_data(folder, lists, n_items, **features):
    """Writes a data folder of users' items in order; a feature is its options and its tokens."""
    ids = {
        "users": [f"u{n}" for n in range(len(lists))],
        "items": [f"i{n}" for n in range(n_items)],
    }
    user = np.repeat(np.arange(len(lists)), [len(own) for own in lists])
    item, time = np.concatenate(lists), np.concatenate([np.arange(len(own)) for own in lists])
    columns = {
        "user_id": pa.array(ids["users"]).take(pa.array(user)),
        "user_row": (user + 1).astype(np.int32),
        "item_row": (item + 1).astype(np.int32),
        "timestamp": 60 * time,
    }
    learned = []
    for name, (options, tokens) in features.items():
        feature = read_event_feature({"name": name, "column": name, **options})
        values, counts = np.unique(tokens, return_counts=True)
        counted = pa.table({"value": pa.array(values), "count": counts})
        learned.append(LearnedFeature(feature, feature.learn(counted, None)))
        rows = learned[-1].encode(pa.array(tokens))
        columns[f"feature:{name}"] = pa.array([*rows.astype(np.uint8)])
    table = pa.table(columns)
    write_store(folder / "store", int(60 * time.max()) + 1, table, table.slice(0, 0))
    save_event_features(folder / FOLDER, learned)
    (folder / "vocabulary").mkdir(parents=True)
    for side, rows in (("users", user), ("items", item)):
        counts = np.bincount(rows, minlength=len(ids[side]))
        Vocabulary(pa.array(ids[side]), counts).save(folder / "vocabulary" / f"{side}.parquet")
    names = ["", *ids["items"]]
    save_catalogue(Catalogue(names, names, ()), folder / "catalogue")


def stage(k, **model):
    options = {"dim": 16, "feature_dim": 8, "history": HISTORY, "widths": [32], "user_id": False}
    train = {"batch_size": 64, "uniform_negatives": 32, "table_learning_rate": 0.2, "epochs": 30}
    validation = {"like": "newest", "share": 0.1, "metric": f"recall@{k}", "every_epochs": 30}
    return {
        "model": {**options, "table_placement": "row", "id_dropout": 0.0, **model},
        "train": {**train, "tower_learning_rate": 0.01, "validation": validation},
        "repeats": "include",
    }


def found(run, k):
    (look,) = run.summary()["validation"]
    return look[f"recall@{k}"]


# --- context decides

GROUPS, SET = 4, 24


@pytest.fixture(scope="module")
def of_context(tmp_path_factory):
    """Users of one taste who want other items on a phone than on a desktop."""
    folder, draw = tmp_path_factory.mktemp("context"), np.random.default_rng(0)
    lists, devices = [], []
    for user in range(USERS):
        own = draw.integers(0, 2, 14)
        sets = [draw.permutation(SET) + SET * (2 * (user % GROUPS) + n) for n in range(2)]
        lists.append([int(sets[device][place]) for place, device in enumerate(own)])
        devices += [DEVICES[device] for device in own]
    device = {"kind": "category", "context": True}, devices
    write_data(folder / "told", lists, 2 * GROUPS * SET, device=device)
    write_data(folder / "untold", lists, 2 * GROUPS * SET)
    return folder


@pytest.fixture(scope="module")
def told(of_context, tmp_path_factory):
    run = Run(tmp_path_factory.mktemp("told"), of_context / "told", stage(SET), devices=1)
    run.finish_here()
    return run


def test_one_user_gets_other_items_on_a_phone_than_on_a_desktop(of_context, told):
    shapes = [DataShape.of(open_data(of_context / name)) for name in ("told", "untold")]
    assert [shape.has_features for shape in shapes] == [True, False]  # `auto` needs layers.
    # Without the device, half of the best SET items would be of the other one.
    assert found(told, SET) > 0.8
    # Without a device the model answers as one that knows none: with both kinds of items.
    saved = load_model(told.model)
    history = np.arange(1, 1 + HISTORY, dtype=np.int32)[None] + np.int32([[0], [2 * SET]])
    asked = saved.model, np.zeros(2, np.int32), history, saved.inputs
    items = np.load(told.model / "candidates.npy")
    by_device = [embed_queries(*asked, {"device": np.full((2, 1), n)}) for n in (1, 2)]
    tops = [
        np.argsort(-(q @ items.T), axis=1)[:, :SET] for q in (*by_device, embed_queries(*asked))
    ]
    assert all(len(np.intersect1d(a, b)) < SET // 2 for a, b in zip(tops[0], tops[1], strict=True))
    with np.load(told.model / "probe.npz") as probe:
        assert set(probe["device"].ravel().tolist()) == {0, 1, 2}


@pytest.mark.thorough
def test_one_and_eight_devices_learn_alike(of_context, tmp_path):
    few, curves = stage(SET), []
    few["train"] |= {"epochs": 4, "validation": None}
    for devices in (1, 8):
        run = Run(tmp_path / f"{devices}", of_context / "told", few, devices)
        run.finish_here()
        curves.append([point["loss"] for point in run.summary()["curve"]])
    np.testing.assert_allclose(*curves, rtol=2e-3)


# --- attributes decide

ITEMS = 40


def after(item, act):
    return (7 * item + 3) % ITEMS if act == "view" else (11 * item + 5) % ITEMS


@pytest.fixture(scope="module")
def of_attributes(tmp_path_factory):
    """Users whose next item depends on what they did with the last one."""
    folder, draw = tmp_path_factory.mktemp("attributes"), np.random.default_rng(2)
    lists, acts = [], []
    for _ in range(2 * USERS):
        own = draw.choice(["view", "buy"], 12).tolist()
        walk = [int(draw.integers(ITEMS))]
        for act in own[:-1]:
            walk.append(after(walk[-1], act))
        lists.append(walk)
        acts += own
    write_data(folder / "told", lists, ITEMS, act=({"kind": "category", "outcome": True}, acts))
    return folder


def stage_of_attributes():
    pooling = {"type": "sasrec", "layers": 1, "heads": 2, "dropout": 0.1, "add_mean": False}
    asked = stage(1, pooling=pooling, widths=None)
    asked["train"] |= {"batch_size": 96, "tower_learning_rate": 0.005, "seed": 1}
    asked["train"]["checkpoint"] = {"every_steps": 100}
    return asked


@pytest.fixture(scope="module")
def acted(of_attributes, tmp_path_factory):
    folder = tmp_path_factory.mktemp("acted")
    run = Run(folder, of_attributes / "told", stage_of_attributes(), devices=1)
    run.finish_here()
    return run


@pytest.mark.thorough
def test_what_was_done_with_the_last_item_predicts_the_next_one(acted):
    # Without it, the next item is one of two.
    assert found(acted, 1) > 0.9


@pytest.mark.faults
def test_a_run_that_was_stopped_ends_with_the_same_bits(of_attributes, acted, tmp_path):
    stopped = Run(tmp_path / "stopped", of_attributes / "told", stage_of_attributes(), devices=1)
    code, _ = stopped.stop_at(133, 15)
    assert code == 1
    stopped.finish()
    assert_same_bits(stopped, acted)
