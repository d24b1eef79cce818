"""The time left of a training is shown once it can be estimated."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys

import keras
import pytest
from tensorboardX.proto.event_pb2 import Event

from recsys.training import training_result as module
from recsys.training.training_result import Progress, TensorBoardWriter, TrainingLog


def test_progress_reports_no_time_left_before_the_compiled_steps_were_timed(tmp_path, monkeypatch):
    events, clock = tmp_path / "events.jsonl", [0.0]
    monkeypatch.setenv("RECSYS_EVENTS", str(events))
    monkeypatch.setattr(module.time, "perf_counter", lambda: clock[0])
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile(optimizer="sgd", loss="mse")
    progress = Progress()
    writer = TensorBoardWriter(tmp_path / "tensorboard", 0)
    recorder = TrainingLog(progress, 1000, 64, 0.0, writer)
    # 100 s for a compiler and one step; then ten steps a second.
    for seconds in (100.0, 1.0, 4.0):
        progress.step += 1 if seconds == 100.0 else round(10 * seconds)
        clock[0] += seconds
        recorder.record(model, {"loss": 0.5}, 0.0)
    writer.close()
    texts = [json.loads(line)["text"] for line in events.read_text().splitlines()]
    assert texts == ["loss 0.500", "loss 0.500", "loss 0.500 · 640 examples/s · 0:01:35 left"]


def events_in(folder):
    """Reads TFRecords: length, checksum, bytes, checksum."""
    found = []
    for path in sorted(folder.glob("events*")):
        content = path.read_bytes()
        while content:
            size = int.from_bytes(content[:8], "little")
            found.append(Event.FromString(content[12 : 12 + size]))
            content = content[16 + size :]
    return found


def test_each_call_is_on_the_disk_when_it_returns(tmp_path):
    writer = TensorBoardWriter(tmp_path, 0)
    writer.write(7, {"train/loss": 0.5, "memory/peak": 3.0})
    version, event = events_in(tmp_path)
    assert version.file_version == "brain.Event:2"
    assert event.step == 7
    values = {value.tag: value.simple_value for value in event.summary.value}
    assert values == {"train/loss": 0.5, "memory/peak": 3.0}
    writer.close()
    writer.close()


def test_a_run_that_goes_on_has_later_steps_forgotten(tmp_path):
    TensorBoardWriter(tmp_path, 40).close()
    start = events_in(tmp_path)[1]
    assert start.step == 41
    assert start.session_log.status == start.session_log.START


@pytest.mark.skipif(not hasattr(resource, "RLIMIT_FSIZE"), reason="no limit of files' sizes")
def test_a_full_disk_ends_the_writing_and_not_the_run(tmp_path):
    script = """if True:
        import resource, signal, sys
        from pathlib import Path
        from recsys.training.training_result import TensorBoardWriter
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
        writer = TensorBoardWriter(Path(sys.argv[1]), 0)
        for step in range(1000):
            writer.write(step, {"train/loss": 1.0})
        writer.close()
        print("done")
    """
    done = subprocess.run(
        [sys.executable, "-c", script, tmp_path],
        env=os.environ,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert done.stdout == "done\n"
    assert done.stderr.count("Nothing more is written for TensorBoard: File too large.") == 1


def test_a_folder_that_cannot_be_made_is_reported_once(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    writer = TensorBoardWriter(tmp_path / "file" / "tensorboard", 3)
    writer.write(4, {"train/loss": 1.0})
    writer.close()
    assert capsys.readouterr().err.count("Nothing more is written") == 1
