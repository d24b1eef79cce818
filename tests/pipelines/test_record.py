"""A run keeps its record, and never fails over it."""

import json

import pytest

pytest.importorskip("tfx", reason="needs the extra `pipeline`")

from pipelines.run_record import Recorder, new_run_id
from recsys.errors import RecsysError


def record(root):
    """Returns what the one record under `root` holds."""
    (folder,) = (root / "runs").iterdir()
    return json.loads((folder / "run.json").read_text())


def test_a_run_that_ended_well_is_recorded_and_listed(tmp_path):
    recorder = Recorder(tmp_path, new_run_id(), "tiny")
    recorder.start(["A"])
    recorder.step("A", "ran", "first run", 0.5)
    assert recorder.end(lambda: {"blessed": True, "sentence": "good"}) == tmp_path / "index.html"
    result = record(tmp_path)
    assert (result["name"], result["state"], result["blessed"]) == ("tiny", "finished", True)
    assert "error" not in result
    assert "good" in (tmp_path / "index.html").read_text()


def test_a_failure_is_recorded_with_its_step_and_what_was_known(tmp_path):
    recorder = Recorder(tmp_path, new_run_id(), "tiny")
    recorder.start(["A", "B"])
    recorder.end(lambda: {"rejected": {}}, RecsysError("R241", "Too many.", "Mend it."), "B")
    result = record(tmp_path)
    assert (result["state"], result["step"]) == ("failed", "B")
    assert result["error"] == "[R241] Too many. Mend it."
    assert result["rejected"] == {}


def test_what_can_not_be_told_is_left_out_and_the_rest_is_kept(tmp_path):
    recorder = Recorder(tmp_path, new_run_id(), "tiny")
    recorder.start(["A"])
    assert recorder.end(lambda: {}["absent"]) is not None
    assert record(tmp_path)["state"] == "finished"


def test_a_root_that_can_not_be_written_fails_no_run(tmp_path):
    (tmp_path / "runs").write_text("a file where a folder should be")
    recorder = Recorder(tmp_path, new_run_id(), "tiny")
    recorder.start(["A"])
    recorder.step("A", "ran", "first run", 0.5)
    assert recorder.end(dict) == tmp_path / "index.html"
    assert "There are no records of runs yet." in (tmp_path / "index.html").read_text()
    (tmp_path / "index.html").unlink()
    (tmp_path / "index.html").mkdir()
    assert recorder.end(dict) is None


def test_ids_sort_as_the_runs_do():
    ids = [new_run_id() for _ in range(5)]
    assert ids == sorted(ids)
