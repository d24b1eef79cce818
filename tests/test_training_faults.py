"""Runs that are killed, stopped or damaged, and what they come to when started again."""

import os
import re
import signal
import time
from pathlib import Path

import numpy as np
import pytest
from training_runs import EVERY, STAGE, STEPS, Run, assert_same_bits, write_data

from recsys.errors import RecsysError
from recsys.process import last_json_line

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    write_data(folder)
    return folder


@pytest.fixture(scope="module")
def undisturbed(data, tmp_path_factory):
    run = Run(tmp_path_factory.mktemp("runs") / "undisturbed", data)
    run.finish()
    return run


def test_a_run_that_is_killed_twice_ends_with_the_same_bits_and_the_same_curve(
    undisturbed, data, tmp_path
):
    run = Run(tmp_path / "killed", data)
    for step in (30, 120):
        code, _ = run.stop_at(step, signal.SIGKILL)
        assert code == -signal.SIGKILL
        # What was told of is at most one interval ahead of what was saved; the last save
        # may still have been on its way.
        assert run.step() - max(run.saved(), default=0) <= 2 * EVERY
    run.finish()
    assert len(run.summary()["resumed_at"]) >= 1
    assert_same_bits(run, undisturbed)
    assert run.summary()["curve"] == undisturbed.summary()["curve"]
    assert run.summary()["steps"] == STEPS


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
    largest = max((p for p in folder.rglob("*") if p.is_file()), key=lambda p: p.stat().st_size)
    content = bytearray(largest.read_bytes())
    content[len(content) // 2] ^= 1
    largest.write_bytes(content)
    run.finish()
    assert run.summary()["resumed_at"] == [before]
    assert folder.with_name(f"{newest}.damaged").exists()
    assert_same_bits(run, undisturbed)


@pytest.mark.faults
def test_a_run_goes_on_on_fewer_devices_with_the_same_metrics(undisturbed, data, tmp_path):
    run = Run(tmp_path / "moved", data)
    run.stop_at(150, signal.SIGTERM)
    run.devices = 2
    run.finish()
    a, b = run.weights(), undisturbed.weights()
    for name in a:
        assert np.abs(a[name] - b[name]).max() < 1e-4
    losses = [[p["loss"] for p in r.summary()["curve"]] for r in (run, undisturbed)]
    assert np.abs(np.subtract(*losses)).max() < 1e-4


def test_numbers_that_go_off_stop_the_run_and_are_not_saved(data, tmp_path):
    train = {**STAGE["train"], "table_optimizer": "sgd", "table_learning_rate": 1e36}
    model = {**STAGE["model"], "similarity": "dot"}
    run = Run(tmp_path / "off", data, {"model": model, "train": train})
    with pytest.raises(RecsysError, match="R322"):
        run.finish()
    assert run.saved() == []


@pytest.mark.faults
def test_one_of_two_processes_is_killed_and_both_go_on(data, tmp_path):
    runs = [Run(tmp_path / name, data, processes=2) for name in ("whole", "broken")]
    runs[0].finish()
    broken = runs[1].start()
    while broken.poll() is None and runs[1].step() < 60:
        time.sleep(0.02)
    children = Path(f"/proc/{broken.pid}/task/{broken.pid}/children").read_text().split()
    os.kill(int(children[-1]), signal.SIGKILL)
    said = last_json_line(broken.communicate(timeout=300)[0])
    assert said["restarts"] == 1
    assert said["processes"] == 2
    assert_same_bits(*runs)
