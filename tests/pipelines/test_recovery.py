"""A run cleans up after a killed one: stale executions, files, records, and nothing else."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

pytest.importorskip("tfx", reason="the pipeline's history lies in ML Metadata")

from metadata_nights import Store
from ml_metadata.proto import metadata_store_pb2 as proto

from pipelines import clean as module
from pipelines.clean import cancel, clean_up, find_orphans, record_killed
from pipelines.metadata_store import check_root
from recsys.errors import RecsysError
from recsys.report.runs import RunRecord, read_result
from recsys.runs.index import read_runs

STATE = proto.Execution


@pytest.fixture
def store():
    return Store()


def clear(tmp_path, store, pipeline=None):
    return clean_up(tmp_path, tmp_path / "serving" / "tiny", store.store, pipeline)


def test_executions_that_nobody_runs_are_failed_and_their_artifacts_abandoned(tmp_path, store):
    made = {"data": ("Data", {})}
    half = {"event": proto.Event.PENDING_OUTPUT, "artifact_state": proto.Artifact.PENDING}
    orphan, pending = store.execute("A", "1", state=STATE.RUNNING, made=made, **half)
    new, live = store.execute("B", "2", state=STATE.NEW, made=made)
    good = {
        state: store.execute("C", "1", state=state)[0]
        for state in (STATE.COMPLETE, STATE.CACHED, STATE.FAILED)
    }
    cleared = clear(tmp_path, store)
    assert cleared.executions == [orphan, new]
    assert "2 executions marked as failed" in cleared.text()
    assert store.state(orphan) == store.state(new) == STATE.FAILED
    assert {state: store.state(id_) for state, id_ in good.items()} == {s: s for s in good}
    states = store.states()
    assert states[pending["data"]] == proto.Artifact.ABANDONED
    assert states[live["data"]] == proto.Artifact.LIVE
    assert not clear(tmp_path, store)  # Nothing is left to do.


def test_a_root_that_was_moved_is_refused_until_a_link_leads_to_it(tmp_path):
    old, new = tmp_path / "old", tmp_path / "new"
    store = Store(old)
    store.night("1")
    check_root(store.store, "tiny", old)
    old.rename(new)
    with pytest.raises(RecsysError, match=f"R571.*{old}.*ln -s {new} {old}"):
        check_root(store.store, "tiny", new)
    check_root(store.store, "other", new)
    old.symlink_to(new)
    check_root(store.store, "tiny", new)


def test_a_root_whose_newest_folder_was_deleted_is_not_called_moved(tmp_path):
    store = Store(tmp_path / "root")
    (last,) = store.execute("A", "1", made={"data": ("Data", {})})[1].values()
    (tmp_path / "root" / "artifacts" / "A" / "data" / str(last) / "content").unlink()
    (tmp_path / "root" / "artifacts" / "A" / "data" / str(last)).rmdir()
    check_root(store.store, "tiny", tmp_path / "root")


def test_in_a_shared_database_only_the_pipeline_s_own_count(tmp_path, store):
    ours, _ = store.execute("A", "1", state=STATE.RUNNING)
    theirs, _ = store.execute("A", "2", state=STATE.RUNNING, pipeline="other")
    assert clear(tmp_path, store, "tiny").executions == [ours]
    assert store.state(theirs) == STATE.RUNNING
    assert clear(tmp_path, store, "nobody").executions == []


def test_a_stopped_run_is_cancelled_and_the_next_one_clears_up_after_it(tmp_path, store):
    id_, _ = store.execute("Step", "1", state=STATE.RUNNING)
    cancel(store.store, "tiny")
    assert store.state(id_) == STATE.CANCELED
    folder = tmp_path / "artifacts" / "Step" / "data" / str(id_)
    folder.mkdir(parents=True)
    assert clear(tmp_path, store).executions == [id_]
    assert not folder.exists()
    assert store.state(id_) == STATE.FAILED
    assert not clear(tmp_path, store)


def make(root, *names):
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x")


def files(root):
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


def test_only_what_a_dead_execution_wrote_and_what_is_half_written_goes(tmp_path, store):
    dead, _ = store.execute("Step", "1", state=STATE.RUNNING)
    good, _ = store.execute("Step", "1", state=STATE.COMPLETE)
    kept = [
        f"artifacts/Step/data/{good}/part-{dead}",
        f"artifacts/Step/data/{good}/.hidden",
        f"artifacts/Step/data/{dead}0/part",
        "artifacts/Step/data/notes.txt",
        "artifacts/Step/data/.keep",
        f"artifacts/Step/.system/executor_execution/{good}/executor_output.pb",
        f"artifacts/{dead}",
        "index.html",
        ".index.html.mine",
        "runs/r/run.json",
        "runs/r/steps.jsonl",
        "serving/tiny/1/saved_model.pb",
    ]
    debris = [
        f"artifacts/Step/data/{dead}/deep/part",
        f"artifacts/Other/more/{dead}/value",
        f"artifacts/Step/data/.{good}.partial/x",
        f"artifacts/Step/data/.{dead}-0123/x",
        f"artifacts/Step/.system/executor_execution/{dead}/.temp/x",
        f"artifacts/Step/.system/executor_execution/{good}/.temp/x",
        "artifacts/Step/.system/stateful_working_dir/0f0f/x",
        ".index.html.4711",
        "runs/r/.run.json.4711",
        "serving/tiny/.publish-2/x",
    ]
    make(tmp_path, *kept, *debris)
    cleared = clear(tmp_path, store)
    assert files(tmp_path) == sorted([*kept, "serving/tiny/.lock"])
    assert len(cleared.swept) == len(debris) - 1  # The publisher sweeps its own.


def test_a_sweep_that_is_killed_is_done_again(tmp_path, store, monkeypatch):
    dead, _ = store.execute("Step", "1", state=STATE.RUNNING)
    make(tmp_path, f"artifacts/Step/data/{dead}/x", "runs/r/steps.jsonl")

    def killed(*_):
        raise KeyboardInterrupt

    for name in ("mark_failed", "record_killed"):
        with monkeypatch.context() as patch:
            patch.setattr(module, name, killed)
            with pytest.raises(KeyboardInterrupt):
                clear(tmp_path, store)
        assert store.state(dead) == STATE.RUNNING
    assert clear(tmp_path, store).executions == [dead]
    assert find_orphans(store.store) == []


@pytest.mark.skipif(os.getuid() == 0, reason="root writes anywhere")
def test_what_can_not_be_removed_stops_no_run(tmp_path, store):
    dead, _ = store.execute("Step", "1", state=STATE.RUNNING)
    make(tmp_path, f"artifacts/Step/data/{dead}/x")
    (tmp_path / "artifacts/Step/data").chmod(0o500)
    assert clear(tmp_path, store).executions == [dead]


def test_a_killed_run_is_recorded_with_its_step_and_shown_as_over(tmp_path):
    finished, killed = (RunRecord(tmp_path / "runs" / name) for name in ("r1", "r2"))
    finished.start("tiny", ["A"], 1_000.0)
    finished.end({"name": "tiny", "state": "finished", "blessed": True})
    before = (tmp_path / "runs/r1/run.json").read_bytes()
    killed.start("tiny", ["A", "B", "C"], 2_000.0)
    killed.step("A", "ran", "first run", 5.0, 2_000.0)
    os.utime(tmp_path / "runs/r2/steps.jsonl", (2_007.0, 2_007.0))
    (tmp_path / "runs/empty").mkdir()
    assert record_killed(tmp_path) == ["r2"]
    result = read_result(tmp_path / "runs/r2")
    assert (result["state"], result["step"], result["seconds"]) == ("killed", "B", 7.0)
    assert "killed in B after 1 of 3 steps" in result["error"]
    assert (tmp_path / "runs/r1/run.json").read_bytes() == before
    (newest, older), damaged = read_runs(tmp_path)[0][:2], read_runs(tmp_path)[1]
    assert [run.summary["state"] for run in (newest, older)] == ["interrupted", "blessed"]
    assert newest.summary["error"]
    assert [name for name, _ in damaged] == ["runs/empty"]
    assert record_killed(tmp_path) == []


def test_a_record_that_was_cut_short_is_no_obstacle(tmp_path):
    make(tmp_path, "runs/r1/steps.jsonl")
    assert record_killed(tmp_path) == ["r1"]
    assert json.loads(Path(tmp_path, "runs/r1/run.json").read_text())["state"] == "killed"
