"""Runs that are killed, stopped or damaged, and what they come to when started again."""

import os
import re
import signal
import time
from pathlib import Path

import numpy as np
import pytest
from training_runs import EVERY, STAGE, STEPS, Run, assert_same_bits, flip_a_bit

from recsys.errors import RecsysError
from recsys.system.process import last_json_line

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def undisturbed(data, tmp_path_factory):
    run = Run(tmp_path_factory.mktemp("runs") / "undisturbed", data)
    run.finish_here()
    return run


@pytest.mark.faults
@pytest.mark.parametrize("steps", [(60,), (30, 120)])
def test_a_run_that_is_killed_ends_with_the_same_bits_and_the_same_curve(
    undisturbed, data, tmp_path, steps
):
    run = Run(tmp_path / "killed", data)
    for step in steps:
        code, _ = run.stop_at(step, signal.SIGKILL)
        assert code == -signal.SIGKILL
        # The reported step is at most one interval ahead of the saved one; the last save may not
        # have been complete.
        assert run.step() - max(run.saved(), default=0) <= 2 * EVERY
    run.finish()
    assert len(run.summary()["resumed_at"]) >= 1
    assert_same_bits(run, undisturbed)
    assert run.summary()["curve"] == undisturbed.summary()["curve"]
    assert run.summary()["steps"] == STEPS


@pytest.mark.faults
def test_a_run_that_is_asked_to_stop_saves_its_very_step(undisturbed, data, tmp_path):
    run = Run(tmp_path / "stopped", data)
    code, said = run.stop_at(50, signal.SIGTERM)
    assert code == 1
    assert said["error"]["code"] == "R375"
    step = int(re.search(r"step (\d+)", said["error"]["rule"])[1])
    assert run.saved()[-1] == step
    run.finish()
    assert run.summary()["resumed_at"] == [step]
    assert_same_bits(run, undisturbed)


@pytest.mark.faults
def test_a_damaged_checkpoint_is_set_aside_and_the_one_before_serves(undisturbed, data, tmp_path):
    run = Run(tmp_path / "damaged", data)
    run.stop_at(100, signal.SIGTERM)
    before, newest = run.saved()[-2:]
    folder = next(run.folder.glob(f"checkpoints/*/last/{newest}"))
    flip_a_bit(folder)
    run.finish()
    assert run.summary()["resumed_at"] == [before]
    assert folder.with_name(f"{newest}.damaged").exists()
    assert_same_bits(run, undisturbed)


@pytest.mark.faults
def test_a_run_goes_on_on_another_number_of_devices_with_the_same_metrics(
    undisturbed, data, tmp_path
):
    run = Run(tmp_path / "moved", data)
    run.stop_at(150, signal.SIGTERM)
    run.devices = 8
    run.finish()
    a, b = run.weights(), undisturbed.weights()
    for name in a:
        assert np.abs(a[name] - b[name]).max() < 1e-4
    losses = [[p["loss"] for p in r.summary()["curve"]] for r in (run, undisturbed)]
    assert np.abs(np.subtract(*losses)).max() < 1e-4


@pytest.mark.faults
def test_numbers_that_go_off_stop_the_run_and_are_not_saved(data, tmp_path):
    train = {**STAGE["train"], "table_optimizer": "sgd", "table_learning_rate": 1e36}
    model = {**STAGE["model"], "similarity": "dot"}
    run = Run(tmp_path / "off", data, {"model": model, "train": train})
    with pytest.raises(RecsysError, match="R322"):
        run.finish()
    assert run.saved() == []


@pytest.fixture(scope="module")
def by_two(data, tmp_path_factory):
    run = Run(tmp_path_factory.mktemp("by_two") / "undisturbed", data, processes=2)
    run.finish()
    return run


def started(run, step):
    """Starts a run; returns its parent and its processes once it has reported `step`."""
    parent = run.start_until(step)
    children = Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text().split()
    return parent, [int(child) for child in children]


@pytest.mark.parametrize(
    "placement", ["row", pytest.param("replicated", marks=pytest.mark.thorough)]
)
def test_two_processes_train_what_one_does_on_as_many_devices(placement, data, tmp_path):
    """Each builds its half of every batch and validates a half."""
    train = {**STAGE["train"], "epochs": 3, "validation": {"share": 0.1, "patience": None}}
    model = {**STAGE["model"], "table_placement": placement, "item_neighbours": 3}
    stage = {"model": model, "train": train}
    one, two = Run(tmp_path / "one", data, stage), Run(tmp_path / "two", data, stage, processes=2)
    one.finish_here()
    two.finish()
    alone, first = one.summary(), two.summary()
    assert (alone["processes"], first["processes"]) == (1, 2)
    ours, theirs = ([point["loss"] for point in s["curve"]] for s in (first, alone))
    assert ours == pytest.approx(theirs, rel=1e-4)
    assert len(alone["validation"]) == 3
    for our_metrics, their_metrics in zip(first["validation"], alone["validation"], strict=True):
        assert our_metrics == pytest.approx(their_metrics, rel=1e-3)
    # Size of a batch: users and histories of 4 items; and positives: the first process has 48 of
    # the 64 in its half of 64 + 32 candidates.
    steps_per_epoch = alone["steps"] // 3
    assert alone["input_bytes_per_epoch"] == 4 * (64 * (1 + 4) + 64) * steps_per_epoch
    assert first["input_bytes_per_epoch"] == 4 * (32 * (1 + 4) + 48) * steps_per_epoch


@pytest.mark.faults
@pytest.mark.parametrize("victim", [0, 1])
def test_one_of_two_processes_is_killed_and_both_go_on(victim, by_two, data, tmp_path):
    run = Run(tmp_path / "broken", data, processes=2)
    parent, children = started(run, 60)
    os.kill(children[victim], signal.SIGKILL)
    said = last_json_line(parent.communicate(timeout=300)[0])
    assert said["restarts"] == 1
    assert said["processes"] == 2
    assert_same_bits(run, by_two)


@pytest.mark.faults
def test_one_that_is_killed_while_both_write_the_model_lets_them_write_it_anew(
    by_two, data, tmp_path
):
    run = Run(tmp_path / "written", data, processes=2)
    parent, children = started(run, STEPS)
    while parent.poll() is None and not (run.model / "weights").exists():
        time.sleep(0.001)
    os.kill(children[1], signal.SIGKILL)
    said = last_json_line(parent.communicate(timeout=300)[0])
    assert said["restarts"] == 1
    assert_same_bits(run, by_two)


@pytest.mark.faults
@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_two_processes_that_are_asked_to_stop_save_the_same_step(signum, by_two, data, tmp_path):
    run = Run(tmp_path / "stopped", data, processes=2)
    parent, _ = started(run, 60)
    parent.send_signal(signum)
    said = last_json_line(parent.communicate(timeout=120)[0])
    assert said["error"]["code"] in {"R375", "R611"}
    step = run.saved()[-1]
    assert step >= 60
    assert step % EVERY
    run.finish()
    assert run.summary()["resumed_at"] == [step]
    assert_same_bits(run, by_two)


@pytest.mark.faults
def test_an_error_of_both_processes_is_reported_and_ends_them(data, tmp_path):
    train = {**STAGE["train"], "table_optimizer": "sgd", "table_learning_rate": 1e36}
    stage = {"model": {**STAGE["model"], "similarity": "dot"}, "train": train}
    with pytest.raises(RecsysError, match="R322"):
        Run(tmp_path / "off", data, stage, processes=2).finish()
