"""Trainings that go on from an earlier model, as processes."""

import json

import numpy as np
import pytest
from training_runs import Run, assert_same_bits
from warm_worlds import DAY, STAGE, Folder, World, save_base, stage

from recsys.config import TrainStage
from recsys.training.stage import train

pytestmark = pytest.mark.slow

USERS = [f"u{n}" for n in range(30)]
ITEMS = [f"i{n}" for n in range(20)]
GENRES = {id_: "abc"[n % 3] for n, id_ in enumerate(ITEMS)}
OLD = World(USERS, ITEMS, GENRES)
NEW = World([*USERS, "u30", "u31"], [*ITEMS, "i20"], {**GENRES, "i20": "b"})
EPOCHS = 3


def asked(**train):
    """A stage as JSON, whose warm start makes three passes of 120 steps."""
    parts = {
        **STAGE,
        "train": {**STAGE["train"], "checkpoint": {"every_steps": 20}, **train},
        "warm_start": {"epochs": EPOCHS},
    }
    return json.loads(json.dumps(parts))


def as_stage(parts):
    return TrainStage.model_validate_json(json.dumps(parts))


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Yesterday's model, of random numbers, and today's data."""
    folder = tmp_path_factory.mktemp("worlds")
    old = OLD.save(folder / "old")
    base = save_base(folder / "base", old, OLD, stage(), until=5 * DAY, cut=6 * DAY)
    other = save_base(folder / "other", old, OLD, stage(), until=5 * DAY, cut=6 * DAY, steps=31)
    late = save_base(folder / "late", old, OLD, stage(), until=11 * DAY, cut=12 * DAY)
    return base, NEW.save(folder / "new", per_user=30), other, late


def test_a_warm_run_makes_its_own_passes_and_reports_what_it_took_over(folders, tmp_path):
    """In this process, on eight devices."""
    base, data, *_ = folders
    of_config = asked(
        schedule={"kind": "linear", "warmup_steps": 10, "end": 0.0},
        batch_size=64,
        checkpoint={"every_steps": 1000},
    )
    told = train(as_stage(of_config), data, tmp_path / "model", base=base)
    steps = EPOCHS * (32 * 30 // 64)
    assert (told["steps"], told["cold"], told["devices"]) == (steps, None, 8)
    warm = told["warm_start"]
    assert warm["base"] == str(base)
    assert (warm["epochs"], warm["warm_starts"], warm["cut"]) == (EPOCHS, 1, 6 * DAY)
    counts = [warm["carried"]["users"][k] for k in ("kept", "new", "reset", "dropped")]
    assert counts == [30, 2, 0, 0]
    assert json.loads((tmp_path / "model" / "training.json").read_text())["warm_start"] == warm
    after = Folder(tmp_path / "model")
    assert (after.state["updates"], after.state["steps"]) == (30 + steps, 30 + steps)
    assert after.state["trained_until"] > 9 * DAY
    assert not np.array_equal(after.table("items")[:21], Folder(base).table("items"))
    assert (after.slot("items")[:21] >= Folder(base).slot("items")).all()


@pytest.mark.thorough
def test_a_base_that_can_not_be_used_gives_the_model_of_a_cold_start(folders, tmp_path):
    _, data, _, late = folders
    short = asked(epochs=1)
    cold = Run(tmp_path / "cold", data, short, devices=1)
    given = Run(tmp_path / "given", data, short, devices=1, base=late)
    cold.finish()
    given.finish()
    assert_same_bits(cold, given)
    assert given.summary()["warm_start"] is None
    assert "seen the answers" in given.summary()["cold"]
    assert cold.summary()["cold"] is None


@pytest.mark.faults
def test_a_killed_warm_run_continues_from_its_own_checkpoint(folders, tmp_path):
    base, data, other, _ = folders
    all_of_it = asked(ema=0.9, schedule={"kind": "linear"})
    whole, killed = (
        Run(tmp_path / name, data, all_of_it, base=base) for name in ("whole", "killed")
    )
    whole.finish()
    killed.stop_at(50, 9)
    assert killed.saved()
    killed.finish()
    assert killed.summary()["resumed_at"]
    assert_same_bits(killed, whole)
    kept = [run.model / "training_state" / "manifest.json" for run in (killed, whole)]
    assert kept[0].read_bytes() == kept[1].read_bytes()
    assert killed.summary()["warm_start"] == whole.summary()["warm_start"]
    # Another base, of the same numbers, is another training.
    another = Run(tmp_path / "killed", data, all_of_it, base=other)
    another.finish()
    assert another.summary()["resumed_at"] == []


@pytest.mark.faults
def test_two_processes_take_over_what_one_does(folders, tmp_path):
    base, data, *_ = folders
    one, two = (
        Run(tmp_path / str(n), data, asked(batch_size=64), devices=2, processes=n, base=base)
        for n in (1, 2)
    )
    one.finish()
    two.finish()
    assert two.summary()["warm_start"] == one.summary()["warm_start"]
    for name, array in one.weights().items():
        assert two.weights()[name] == pytest.approx(array, abs=1e-3), name
