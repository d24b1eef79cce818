"""The time that is left of a training: told once there is something to tell it by."""

from __future__ import annotations

import json

import keras
import pytest

from recsys.training import recorder as module
from recsys.training.pace import Pace
from recsys.training.progress import Progress
from recsys.training.recorder import Recorder
from recsys.training.scalars import Scalars


def test_the_first_steps_compile_and_say_nothing_of_the_rest():
    pace = Pace()
    pace.add(10, 90.0)
    assert pace.seconds_of(990) is None
    pace.add(10, 1.0)
    assert pace.seconds_of(980) is None  # A second is too little to go by.
    pace.add(20, 3.0)
    assert pace.seconds_of(960) == pytest.approx(128.0)


def test_few_steps_are_too_few_however_long_they_take():
    pace = Pace()
    pace.add(1, 90.0)
    pace.add(2, 60.0)
    assert pace.seconds_of(100) is None
    pace.add(8, 240.0)
    assert pace.seconds_of(100) == pytest.approx(3000.0)


def test_progress_tells_no_time_left_before_the_compiled_steps_were_timed(tmp_path, monkeypatch):
    events, clock = tmp_path / "events.jsonl", [0.0]
    monkeypatch.setenv("RECSYS_EVENTS", str(events))
    monkeypatch.setattr(module.time, "perf_counter", lambda: clock[0])
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile(optimizer="sgd", loss="mse")
    progress = Progress()
    scalars = Scalars(tmp_path / "tensorboard", 0)
    recorder = Recorder(progress, 1000, 64, 0.0, scalars)
    # 100 s for a compiler and one step; then ten steps a second.
    for seconds in (100.0, 1.0, 4.0):
        progress.step += 1 if seconds == 100.0 else round(10 * seconds)
        clock[0] += seconds
        recorder.record(model, {"loss": 0.5}, 0.0)
    scalars.close()
    texts = [json.loads(line)["text"] for line in events.read_text().splitlines()]
    assert texts == ["loss 0.500", "loss 0.500", "loss 0.500 · 640 examples/s · 0:01:35 left"]
