"""Rows that go from worker to worker through files, and counts that add up."""

import os
import threading
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("apache_beam")

import apache_beam as beam

from recsys.data.ingest import read_rows, spills
from recsys.data.ingest.spills import SpillWriter, read_spills
from recsys.data.ingest.tasks import LOCAL_RUNNER, StepProgress, run_tasks
from recsys.errors import RecsysError

pytestmark = pytest.mark.pipeline


def spilled(folder, batches):
    """Returns the rows of each bucket, by the spills that a writer gave."""
    writer = SpillWriter(folder, 70_001)
    given_back = [pair for buckets, rows in batches for pair in writer.add(buckets, rows)]
    given_back += writer.flush()
    by_bucket = {}
    for bucket, spill in given_back:
        by_bucket.setdefault(bucket, []).append(spill)
    return {bucket: read_spills(some) for bucket, some in by_bucket.items()}


@given(st.lists(st.lists(st.tuples(st.integers(0, 70_000), st.text(max_size=3)), max_size=20)))
def test_every_row_comes_back_in_its_bucket_and_in_its_order(tmp_path_factory, batches):
    folder = tmp_path_factory.mktemp("spills")
    given_rows = [
        (np.array([bucket for bucket, _ in rows], np.int64), batch([text for _, text in rows]))
        for rows in batches
    ]
    found = spilled(folder, given_rows)
    expected = {}
    for bucket, text in (row for rows in batches for row in rows):
        expected.setdefault(bucket, []).append(text)
    assert {bucket: table["text"].to_pylist() for bucket, table in found.items()} == expected


def test_a_writer_that_is_full_goes_on_in_the_same_file(tmp_path, monkeypatch):
    monkeypatch.setattr(spills, "_MOST_BUFFER", 100)
    rows = [(np.array([i % 2]), batch([str(i)])) for i in range(100)]
    found = spilled(tmp_path, rows)
    assert found[0]["text"].to_pylist() == [str(i) for i in range(0, 100, 2)]
    assert len(list(tmp_path.iterdir())) == 1


def test_a_task_that_runs_twice_counts_once(tmp_path):
    first = list(SpillWriter(tmp_path, 1).add(np.array([0]), batch(["lost"])))
    assert first == []  # Nothing of a writer that died is referred to.
    found = spilled(tmp_path, [(np.array([0]), batch(["kept"]))])
    assert found[0]["text"].to_pylist() == ["kept"]


MEETING = threading.Barrier(2)


def wait_for_another(task):
    """Ends only if another task runs at the same time."""
    MEETING.wait(timeout=60)
    yield task


@pytest.mark.skipif(os.cpu_count() == 1, reason="needs two cores")
@pytest.mark.parametrize("like", [None, beam.Pipeline(LOCAL_RUNNER)], ids=["none", "local"])
def test_tasks_run_at_once_without_another_runner(tmp_path, like):
    assert sorted(run_tasks(like, range(2), wait_for_another, tmp_path)) == [0, 1]


def batch(texts):
    return pa.RecordBatch.from_pydict({"text": pa.array(texts, pa.string())})


def test_a_task_that_is_repeated_reports_the_broken_file_again(tmp_path, monkeypatch):
    def broken(piece):
        raise RecsysError("R250", "Whole.", "Repair it.", piece.file)

    monkeypatch.setattr(read_rows, "read_piece", broken)
    plan = read_rows.ReadPlan("S", tmp_path, tmp_path / "letters", (), 1, None, "user_id", None)
    progress = {"S": StepProgress(tmp_path / "S.done", "S", 1)}
    task = 0, 0, SimpleNamespace(file="a.csv")
    first, again = (
        [
            facts["failure"]
            for _, facts in read_rows._read_piece([plan], progress, tmp_path, task)
            if "failure" in facts
        ]
        for _ in range(2)
    )
    assert [failure["file"] for failure in first] == ["a.csv"]
    assert again == first
