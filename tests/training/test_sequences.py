"""Training over whole sequences, as a process: what it learns, on several devices, resumed."""

import numpy as np
import pytest
from training_runs import Run, assert_same_bits

from benchmarks.public_splits import Csr, write_data_folder
from recsys.errors import RecsysError

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
def test_a_run_that_was_stopped_ends_with_the_same_bits(data, tmp_path):
    few = stage()
    few["train"] |= {"epochs": 7}
    whole = Run(tmp_path / "whole", data, few, devices=1)
    whole.finish_here()
    stopped = Run(tmp_path / "stopped", data, few, devices=1)
    code, _ = stopped.stop_at(33, 15)
    assert code == 1
    assert stopped.saved()
    stopped.finish()
    assert_same_bits(stopped, whole)


def test_events_without_an_order_are_refused_before_training(data, tmp_path):
    run = Run(tmp_path / "run", data, stage(history_of="others"), devices=1)
    with pytest.raises(RecsysError, match="R336"):
        run.finish_here()
