"""The same store by threads and by two processes of Beam's local runner."""

import json
import random
import subprocess
import sys

import pyarrow.parquet as pq
import pytest
from places import ROOT

from benchmarks.peers.ingest_digest import digest

pytest.importorskip("apache_beam")

pytestmark = [pytest.mark.pipeline, pytest.mark.slow]

OURS = ["-m", "benchmarks.measure", "benchmarks.ingest", "ours"]
PROCESSES = ["--direct_num_workers=2", "--direct_running_mode=multi_processing"]
GOOD, BAD, TWICE = 20_000, 30, 50


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Three files: good rows, damaged ones, and rows of the first again."""
    folder = tmp_path_factory.mktemp("events")
    chance = random.Random(7)
    events = [
        f"u{chance.randrange(400)},i{chance.randrange(90)},{1_700_000_000 + 97 * n}"
        for n in range(GOOD)
    ]
    damaged = ["u1,i1,never", "u1,i1", ",i1,1700000001"] * (BAD // 3)
    third = GOOD // 3
    parts = [events[:third], damaged + events[third:], events[:TWICE]]
    for number, rows in enumerate(parts):
        text = "\n".join(["user,item,timestamp", *rows])
        (folder / f"{number}.csv").write_text(text + "\n")
    return folder


def run(files, out, beam):
    arguments = {"file": str(files / "*.csv"), "out": str(out), "beam": beam}
    done = subprocess.run(
        [sys.executable, *OURS, json.dumps(arguments)],
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT), "PATH": "", "HOME": str(out.parent)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    result = json.loads(done.stdout.splitlines()[-1])
    users = pq.read_table(out / "vocabulary" / "users.parquet")
    letters = pq.read_table(out / "letters" / "dead_letters").sort_by(
        [("file", "ascending"), ("line", "ascending")]
    )
    counts = {name: result[name] for name in ("read", "good", "rejected", "duplicates")}
    return digest(out / "store"), counts, users, letters


@pytest.fixture(scope="module")
def one_process(files, tmp_path_factory):
    return run(files, tmp_path_factory.mktemp("one") / "out", [])


@pytest.mark.engines
def test_two_processes_of_beam_make_the_same_store(files, one_process, tmp_path):
    assert run(files, tmp_path / "out", PROCESSES) == one_process


def test_every_row_is_accounted_for(one_process):
    _, counts, _, letters = one_process
    read = GOOD + BAD + TWICE
    assert counts == {"read": read, "good": GOOD, "rejected": BAD, "duplicates": TWICE}
    assert letters.num_rows == BAD
    assert letters["line"].to_pylist() == list(range(2, 2 + BAD))
