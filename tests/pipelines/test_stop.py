"""A runner that is asked to stop, or loses its lock, in the midst of a step."""

from __future__ import annotations

import json
import os
import signal
from contextlib import nullcontext
from types import SimpleNamespace

import pytest

pytest.importorskip("tfx", reason="needs the extra `pipeline`")

import ml_metadata as mlmd
from metadata_nights import Store
from ml_metadata.proto import metadata_store_pb2 as proto

from pipelines import runner as module
from pipelines.run_record import Recorder, as_recsys_error
from recsys.errors import RecsysError
from recsys.system.process import StoppedError
from recsys.system.run_lock import LOCK_NAME, run_lock


@pytest.fixture
def store():
    return Store()


class Steps(module.Runner):
    """A runner whose steps are given, in place of TFX's."""

    def __init__(self, root, store, steps):
        super().__init__(root, root / "serving")
        self.steps, self.root = steps, root
        recorder = Recorder(root, "r1", "tiny")
        recorder.start(list(steps))
        nodes = [
            SimpleNamespace(pipeline_node=SimpleNamespace(node_info=SimpleNamespace(id=name)))
            for name in steps
        ]
        pipeline = SimpleNamespace(nodes=nodes, pipeline_info=SimpleNamespace(id="tiny"))
        connection = nullcontext(SimpleNamespace(store=store.store))
        self.parts = (pipeline, None, connection, recorder)

    def _run_step(self, node, run):
        self.step = node.node_info.id
        self.steps[self.step]()
        return 0

    def start(self):
        with run_lock(self.root) as lock, module._stop_signals_raised():
            self._run_steps(module.Run(*self.parts, lock))

    def result(self):
        return json.loads((self.root / "runs/r1/run.json").read_text())


def test_a_run_that_is_stopped_says_so_in_its_record_and_in_the_metadata(
    tmp_path, store, heard_signal
):
    signum, running = heard_signal, store.execute("B", "r1", state=proto.Execution.RUNNING)[0]
    runner = Steps(
        tmp_path, store, {"A": int, "B": lambda: os.kill(os.getpid(), signum), "C": pytest.fail}
    )
    with pytest.raises(StoppedError) as stopped:
        runner.start()
    assert stopped.value.exit_code == 128 + signum
    result = runner.result()
    assert (result["state"], result["step"]) == ("stopped", "B")
    assert f"[R606] The run was stopped by {signal.Signals(signum).name} in B" in result["error"]
    assert store.state(running) == proto.Execution.CANCELED


def test_a_run_whose_lock_was_taken_over_stops_before_the_next_step(tmp_path, store):
    runner = Steps(tmp_path, store, {"A": (tmp_path / LOCK_NAME).unlink, "B": pytest.fail})
    with pytest.raises(RecsysError, match="R604"):
        runner.start()
    assert runner.result()["state"] == "failed"


def test_a_full_disk_is_reported_with_its_place_and_room_whoever_met_it(tmp_path):
    beam = RuntimeError(
        f"OSError: [Errno 28] No space left on device: '{tmp_path}/a/part-0' [while running 'x']"
    )
    (tmp_path / "a").mkdir()
    wrapped = ValueError("the step")
    wrapped.__cause__ = beam
    for error, place in (
        (wrapped, f"{tmp_path}/a/part-0"),
        (mlmd.errors.InternalError("database or disk is full"), str(tmp_path)),
        (OSError(28, "No space left on device"), str(tmp_path)),
        (OSError(28, "No space left on device", f"{tmp_path}/b"), f"{tmp_path}/b"),
    ):
        told = as_recsys_error(error, "Step", tmp_path)
        assert told.code == "R603"
        assert f"'{place}'; " in told.rule
        assert "bytes are free there" in told.rule
    assert as_recsys_error(ValueError("else"), "Step", tmp_path).code == "R600"


def test_an_unexplained_error_on_a_full_disk_is_reported_as_such(tmp_path, monkeypatch):
    rolled_back = mlmd.errors.InternalError("cannot commit - no transaction is active")
    assert as_recsys_error(rolled_back, "Step", tmp_path).code == "R600"
    monkeypatch.setattr("recsys.system.files.free_bytes", lambda _: 4096)
    assert as_recsys_error(rolled_back, "Step", tmp_path).code == "R603"
