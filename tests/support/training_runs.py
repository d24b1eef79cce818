"""Trainings: processes that can be stopped, killed and started again, or in this process."""

import contextlib
import json
import os
import subprocess
import time

import keras
import numpy as np
import pytest

from benchmarks.public_splits import Csr, write_data_folder
from recsys.errors import RecsysError
from recsys.stages.train import main
from recsys.system.events import EventReader
from recsys.system.parent import child_command
from recsys.system.process import last_json_line

EVERY, EPOCHS, BATCH, USERS, PER_USER = 20, 16, 64, 80, 12
STEPS = EPOCHS * (USERS * PER_USER // BATCH)
STAGE = {
    "model": {"dim": 8, "history": 4, "widths": [8], "table_placement": "row", "dropout": 0.2},
    "train": {
        "batch_size": BATCH,
        "uniform_negatives": 32,
        "table_learning_rate": 0.2,
        "epochs": EPOCHS,
        "checkpoint": {"every_steps": EVERY},
    },
}


def write_data(folder):
    """Writes the data folder of some users who took items at random."""
    draw = np.random.default_rng(0)
    lists = [draw.choice(100, PER_USER, replace=False).tolist() for _ in range(USERS)]
    write_data_folder(Csr.of_lists(lists, 100), folder)


@contextlib.contextmanager
def on_devices(n):
    """Only the first devices of this process: a training would use all."""
    names = keras.distribution.list_devices()[:n]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(keras.distribution, "list_devices", lambda *_: names)
        try:
            yield
        finally:
            keras.distribution.set_distribution(None)


def train_here(stage, data, out, devices=1, words=()):
    """Runs the training's stage by its command line, in this process and on some devices."""
    out.parent.mkdir(exist_ok=True)
    config = out.parent / f"{out.name}.json"
    config.write_text(json.dumps(stage))
    words = ["--config", config, "--data", data, "--out", out, *words]
    with on_devices(devices):
        return main([str(word) for word in words])


class Run:
    """A training that can be started again and again."""

    def __init__(self, folder, data, stage=STAGE, devices=2, processes=1, base=None):
        self.folder, self.devices, self.processes = folder, devices, processes
        self._stage, self._data = stage, data
        folder.mkdir(exist_ok=True)
        (folder / "stage.json").write_text(json.dumps(stage))
        self._words = ["--config", folder / "stage.json", "--data", data, "--out", self.model]
        self._words += ["--processes", processes, *([] if base is None else ["--base", base])]

    @property
    def model(self):
        return self.folder / "model"

    def start(self):
        self.events.unlink(missing_ok=True)
        devices = self.devices // self.processes
        flags = f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count={devices}"
        own = {"KERAS_BACKEND": "jax", "XLA_FLAGS": flags, "RECSYS_EVENTS": str(self.events)}
        with (self.folder / "log.txt").open("ab") as log:
            return subprocess.Popen(
                child_command("recsys.stages.train", [*map(str, self._words)]),
                env={**os.environ, **own},
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )

    def start_until(self, step):
        """Starts the run; returns its process once it has reported `step`."""
        run = self.start()
        while run.poll() is None and self.step() < step:
            time.sleep(0.02)
        return run

    def finish(self):
        run = self.start()
        said = last_json_line(run.communicate(timeout=300)[0])
        if "error" in said:
            raise RecsysError.from_json(said["error"])
        return said

    def finish_here(self):
        """Trains in this process: where no signal is sent, that is what a process does."""
        return train_here(self._stage, self._data, self.model, self.devices)

    def stop_at(self, step, signum):
        """Sends a signal once the run has reported `step`; returns exit code and last output."""
        run = self.start_until(step)
        run.send_signal(signum)
        said, _ = run.communicate(timeout=120)
        return run.returncode, last_json_line(said)

    def step(self):
        done = [event.get("done") for event in EventReader(self.events)]
        return next((step for step in reversed(done) if step is not None), 0)

    @property
    def events(self):
        return self.folder / "events.jsonl"

    def saved(self):
        steps = self.folder.glob("checkpoints/*/last/*")
        return sorted(int(path.name) for path in steps if path.name.isdecimal())

    def weights(self):
        files = sorted((self.model / "weights").iterdir())
        return {file.name: np.load(file) for file in files}

    def summary(self):
        return json.loads((self.model / "training.json").read_text())


def flip_a_bit(folder):
    """Damages the largest file of a checkpoint, in its middle."""
    largest = max((p for p in folder.rglob("*") if p.is_file()), key=lambda p: p.stat().st_size)
    content = bytearray(largest.read_bytes())
    content[len(content) // 2] ^= 1
    largest.write_bytes(content)


def assert_same_bits(a, b):
    a, b = a.weights(), b.weights()
    assert a.keys() == b.keys()
    assert len(a) > 5
    for name, array in a.items():
        assert array.tobytes() == b[name].tobytes(), name
