"""docs/walk.md lists the files that a row, a batch and a request pass through, and no others."""

import contextlib
import re
import sys
import threading
from pathlib import Path

import keras
import numpy as np
import pytest
from training_runs import on_devices

import recsys
from benchmarks.public_splits import Csr, write_data_folder
from recsys import kernels

sys.path.append(str(Path(__file__).parent / "test_serve_scripts"))

ROOT = Path(__file__).parent.parent


def walk(title):
    """Returns the files in the table of a walk, and those that the page names below it.

    A file that is named without its folder is in that of the file before.
    """
    section = (ROOT / "docs" / "walk.md").read_text().split(f"## {title}")[1].split("\n## ")[0]
    listed, below, folder = set(), set(), ""
    for line in section.splitlines():
        for path in re.findall(r"`([\w/]+\.py)`", line):
            folder, _, name = path.rpartition("/") if "/" in path else (folder, "", path)
            (listed if line.startswith("|") else below).add(f"{folder}/{name}")
    assert all((ROOT / path).is_file() for path in listed | below)
    return listed, below


def _file(frame):
    """Returns the file of a frame, where it is one of recsys."""
    path = frame.f_code.co_filename.removeprefix(f"{ROOT}/")
    return path if path.startswith("recsys/") else None


def _is_import(frame):
    """Whether a module of recsys is imported: what runs then is no part of a walk."""
    while frame is not None:
        if frame.f_code.co_name == "<module>" and _file(frame):
            return True
        if _file(frame) == "recsys/system/lean_imports.py":
            return True
        frame = frame.f_back
    return False


class Profile:
    """The files of recsys of which a function runs, here and in threads that start meanwhile."""

    def __init__(self):
        self.files, self.is_on = set(), True
        threading.setprofile(self._note)
        sys.setprofile(self._note)

    def _note(self, frame, event, _):
        if self.is_on and event == "call" and _file(frame) and not _is_import(frame):
            self.files.add(_file(frame))

    def stop(self):
        sys.setprofile(None)
        threading.setprofile(None)
        self.is_on = False


@pytest.fixture
def profile():
    with contextlib.ExitStack() as stack:

        def start():
            started = Profile()
            stack.callback(started.stop)
            return started

        yield start


@pytest.mark.pipeline
def test_a_row_passes_the_files_of_its_walk(tmp_path, profile):
    from recsys.config import DataConfig, InteractionColumns, InteractionsConfig
    from recsys.data.ingest import ingest

    rows = [f"u{n % 3},i{n % 4},{1_700_006_400 + n * 86_400}" for n in range(12)]
    (tmp_path / "events.csv").write_text("\n".join(["user,item,time", *rows, rows[0]]) + "\n")
    columns = InteractionColumns(user="user", item="item", timestamp="time")
    interactions = InteractionsConfig(files=str(tmp_path / "events.csv"), columns=columns)
    config = DataConfig(interactions=interactions, eval_share=0.25)
    running = profile()
    ingest(config, tmp_path / "out", progress=False)
    running.stop()
    listed, below = walk("A row")
    assert listed <= running.files <= listed | below


class Steps(keras.callbacks.Callback):
    """Profiles the first steps of a training, then stops it."""

    def __init__(self, profile):
        super().__init__()
        self.profile, self.running = profile, None

    def on_train_begin(self, logs=None):
        self.running = self.profile()

    def on_train_batch_end(self, batch, logs=None):
        self.running.stop()
        self.model.stop_training = True


@pytest.mark.parametrize("devices", [1, 2])
def test_a_batch_passes_the_files_of_its_walk(devices, tmp_path, profile):
    draw = np.random.default_rng(0)
    lists = [draw.choice(40, 30, replace=False).tolist() for _ in range(20)]
    write_data_folder(Csr.of_lists(lists, 40), tmp_path / "data", {"genre": [["a"]] * 40})
    data = recsys.open_data(tmp_path / "data")
    auto = recsys.load_config(ROOT / "configs" / "movielens_small.yaml")
    config = recsys.for_data(auto, data)
    steps = Steps(profile)
    with on_devices(devices):
        model = recsys.TwoTower.from_config(config, data.spec)
        recsys.Trainer(config.train, tmp_path / "ckpt", callbacks=[steps], verbose=0).fit(
            model, data
        )
    listed, below = walk("A batch")
    of_several = {"collectives.py", "embedding/traffic.py", "embedding/device_order.py"}
    several = {f"recsys/{name}" for name in (*of_several, "embedding/row_exchange.py")}
    more = several if devices > 1 else set()
    assert several <= below
    assert listed | more <= steps.running.files <= listed | below


def test_a_request_passes_the_files_of_its_walk(profile):
    pytest.importorskip("fastapi", reason="needs the extra `serve`")
    import requesting
    from serving import FakeRecommender, Running

    running = profile()
    with Running(versions=(1,), kind=FakeRecommender) as server:
        running.files.clear()
        wish = {"version": 1, "k": 2, "user": "u1"}
        assert requesting.post(f"{server.url}/api/recommend", json=wish).status_code == 200
        running.is_on = False
    listed, below = walk("A request")
    # The graph is a fake one, and kernels are there where a compiler was.
    others = {"recsys/serving/saved_model.py", "recsys/bundles/graph.py"}
    others |= set() if kernels.available() else {"recsys/kernels/rank_jobs.py"}
    assert listed - others <= running.files <= listed | below
