"""The record of a run, and its end: the summary, the cleaning, and the message."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ml_metadata", reason="needs the extra `pipeline`")

from metadata_nights import config_of
from ml_metadata.proto.metadata_store_pb2 import Execution

from pipelines import run_record
from pipelines.clean import record_killed
from pipelines.run_record import Outputs, Recorder, after_run, new_run_id, report_killed
from recsys.errors import RecsysError
from recsys.report.runs import RunRecord

RUN = "2026-02-03T01-00-00.000000Z"


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Records the calls of cleaning and notification."""
    seen: dict[str, Any] = {"cleaned": 0, "told": []}

    def clean(_config: Any) -> dict[str, int]:
        seen["cleaned"] += 1
        return {"removed": 3, "freed": 10, "failed": 0}

    def tell(night: dict[str, Any], _config: Any) -> dict[str, Any]:
        seen["told"].append(json.loads(json.dumps(night)))
        return {"host": "h", "sent": True, "attempts": 1, "error": None}

    monkeypatch.setattr("pipelines.run_record.clean_after_run", clean)
    monkeypatch.setattr(run_record, "send_summary", tell)
    return seen


def test_a_run_that_ended_is_reported_with_its_record_after_the_cleaning(
    tmp_path, calls, monkeypatch
):
    monkeypatch.setenv("RECSYS_EVENTS", str(tmp_path / "events"))
    RunRecord(tmp_path / "runs" / RUN).start("tiny", ["A"], 1.0)
    RunRecord(tmp_path / "runs" / RUN).end({"name": "tiny", "blessed": True, "state": "finished"})
    night = after_run(config_of(tmp_path), RUN)
    assert (night["state"], night["run"]) == ("blessed", RUN)
    assert night["cleaned"]["removed"] == 3
    assert night["webhook"]["sent"] is True
    (told,) = calls["told"]
    assert told["cleaned"]["removed"] == 3
    texts = [json.loads(line)["text"] for line in (tmp_path / "events").read_text().splitlines()]
    assert texts == ["h was notified (1 attempt)"]


@pytest.mark.parametrize("run_id", [None, RUN, "gone"])
def test_a_run_that_failed_is_reported_and_nothing_is_cleaned(tmp_path, calls, run_id):
    RunRecord(tmp_path / "runs" / RUN).start("tiny", ["A"], 1.0)
    night = after_run(config_of(tmp_path), run_id, RecsysError("R201", "No file.", "Mend."), "A")
    assert (night["state"], night["step"]) == ("failed", "A")
    assert night["error"] == "[R201] No file. Mend."
    assert calls["cleaned"] == 0
    assert calls["told"][0]["state"] == "failed"


def test_a_run_that_was_stopped_is_reported_as_such_in_ten_seconds_at_most(tmp_path, monkeypatch):
    limits = []

    def tell(night: dict[str, Any], notify: Any) -> None:
        limits.append((night["state"], notify.total_s))

    monkeypatch.setattr(run_record, "send_summary", tell)
    stopped = RecsysError("R606", "The run was stopped.", "Go on.")
    for run_id in (None, RUN):
        night = after_run(config_of(tmp_path), run_id, stopped, "A", "stopped")
        assert (night["state"], night["cleaned"]) == ("interrupted", None)
    assert limits == [("interrupted", 10.0)] * 2


def test_runs_that_were_killed_are_reported_by_the_next_one(tmp_path, calls):
    for name in (RUN, "b"):
        RunRecord(tmp_path / "runs" / name).start("tiny", ["A"], 1.0)
    ended = record_killed(tmp_path)
    (tmp_path / "runs" / "b" / "run.json").write_text("{")  # What it was is known all the same.
    report_killed(config_of(tmp_path), ended)
    assert [(night["run"], night["state"]) for night in calls["told"]] == [
        (RUN, "interrupted"),
        ("b", "interrupted"),
    ]
    assert "The run was killed in A after 0 of 1 steps" in calls["told"][0]["error"]


def test_a_killed_run_that_cant_be_told_of_is_no_failure_of_the_next_one(tmp_path, monkeypatch):
    monkeypatch.setattr(run_record, "send_summary", lambda *_: 1 / 0)
    report_killed(config_of(tmp_path), [RUN, "b"])


def test_a_damaged_record_fails_no_run(tmp_path, calls):
    record = RunRecord(tmp_path / "runs" / RUN)
    record.start("tiny", ["A"], 1.0)
    (record.folder / "run.json").write_text("{")
    assert after_run(config_of(tmp_path), RUN)["state"] == "no verdict"


def test_whatever_goes_wrong_afterwards_is_no_failure_of_the_run(tmp_path, calls, monkeypatch):
    def fail(*_: Any) -> None:
        raise RuntimeError("no connection")

    monkeypatch.setattr(run_record, "send_summary", fail)
    assert after_run(config_of(tmp_path), None, RecsysError("R201", "No file.", "Mend.")) is None


class History:
    """Replaces ML Metadata: each output has its own folder."""

    def __init__(self, folder: Path, state: int = Execution.COMPLETE) -> None:
        self._folder, self._state = folder, state

    def folder(self, execution: int, key: str) -> Path:
        return self._folder / key

    def execution(self, execution: int) -> Execution:
        return Execution(id=execution, last_known_state=self._state)

    def record(self, step: str, key: str, file: str, content: Any) -> dict[str, Any]:
        (self._folder / key).mkdir(parents=True)
        (self._folder / key / file).write_text(json.dumps(content))
        (self._folder / key / "summary.json").write_text("{}")
        return Outputs(self, {step: 1}).record(self._folder)


@pytest.mark.parametrize("is_cached", [False, True])
def test_spans_that_were_simply_read_are_left_out(tmp_path, is_cached):
    spans = [
        {"name": "1", "state": "reused", "new": False, "late": False},
        {"name": "2", "state": "empty", "new": False, "late": False},
        {"name": "3", "state": "read", "new": True, "late": True},
    ]
    history = History(tmp_path, Execution.CACHED if is_cached else Execution.COMPLETE)
    record = history.record("InteractionGen", "dead_letters", "spans.json", spans)
    # Data that were new to the run that read them are not new to a run from the cache.
    assert [each["name"] for each in record["spans"]] == (["2"] if is_cached else ["2", "3"])
    assert "spans" not in Outputs(history, {}).record(tmp_path)


def test_what_breaks_a_schema_or_moved_too_far_is_recorded(tmp_path):
    moved = {"column": "rating", "kind": "drift", "value": 0.31, "limit": 0.1}
    validation = {
        "what": "interactions",
        "anomalies": [{"column": "", "split": "train", "text": "No examples."}],
        "comparisons": [{**moved, "exceeds": True}, {**moved, "exceeds": False}],
    }
    step = ("DriftValidator.Interactions", "validation", "validation.json")
    assert History(tmp_path).record(*step, validation)["anomalies"] == [
        {"of": "interactions", "kind": "schema", "text": "train: No examples."},
        {"of": "interactions", "kind": "drift", "text": "rating: 0.31 is more than 0.1"},
    ]


# --- the recorder, which never fails a run


def recorded(root):
    """Returns what the one record under `root` holds."""
    (folder,) = (root / "runs").iterdir()
    return json.loads((folder / "run.json").read_text())


def test_a_run_that_ended_well_is_recorded_and_listed(tmp_path):
    recorder = Recorder(tmp_path, new_run_id(), "tiny")
    recorder.start(["A"])
    recorder.step("A", "ran", "first run", 0.5)
    assert recorder.end(lambda: {"blessed": True, "sentence": "good"}) == tmp_path / "index.html"
    result = recorded(tmp_path)
    assert (result["name"], result["state"], result["blessed"]) == ("tiny", "finished", True)
    assert "error" not in result
    assert "good" in (tmp_path / "index.html").read_text()


def test_a_failure_is_recorded_with_its_step_and_what_was_known(tmp_path):
    recorder = Recorder(tmp_path, new_run_id(), "tiny")
    recorder.start(["A", "B"])
    recorder.end(lambda: {"rejected": {}}, RecsysError("R241", "Too many.", "Mend it."), "B")
    result = recorded(tmp_path)
    assert (result["state"], result["step"]) == ("failed", "B")
    assert result["error"] == "[R241] Too many. Mend it."
    assert result["rejected"] == {}


def test_what_can_not_be_told_is_left_out_and_the_rest_is_kept(tmp_path):
    recorder = Recorder(tmp_path, new_run_id(), "tiny")
    recorder.start(["A"])
    assert recorder.end(lambda: {}["absent"]) is not None
    assert recorded(tmp_path)["state"] == "finished"


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
