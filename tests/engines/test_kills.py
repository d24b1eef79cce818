"""Flink loses a process while its tasks read: the data folder is that of a local ingestion."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from places import ROOT
from waiting import wait_for

pytest.importorskip("apache_beam", reason="needs the extra `pipeline`")

import gated_source

from benchmarks import ingest_engines as bench
from benchmarks.measure import children_of
from recsys.config import Config
from recsys.stages.ingest import ingest

pytestmark = [
    pytest.mark.engines,
    pytest.mark.skipif(
        not (shutil.which("java") and shutil.which("mvn")), reason="needs java and mvn on PATH"
    ),
]


@pytest.fixture(scope="module")
def flink_folder(tmp_path_factory):
    return tmp_path_factory.mktemp("flink")


@pytest.fixture
def config(tmp_path):
    found = bench.write_case(tmp_path / "raw", bench.Case.files, 20_000)
    found["plugins"] = ["gated_source"]
    found["data"]["interactions"]["format"] = {"type": "gated", "folder": str(tmp_path)}
    return found


@pytest.fixture
def started(flink_folder, tmp_path, config, monkeypatch):
    """A cluster and a driver whose tasks read: config, processes by name, the driver."""
    plugins = os.pathsep.join([str(Path(gated_source.__file__).parent), os.environ["PYTHONPATH"]])
    monkeypatch.setenv("PYTHONPATH", plugins)
    with bench.started(bench.Name.flink, flink_folder) as (beam, pids):
        arguments = {"config": {**config, "beam": beam}, "out": str(tmp_path / "out")}
        words = ["benchmarks.measure", "benchmarks.ingest_engines", "ingested"]
        driver = subprocess.Popen(
            [sys.executable, "-m", *words, json.dumps(arguments)], cwd=ROOT, start_new_session=True
        )
        try:
            wait_for((tmp_path / "reached").exists, 120)
            yield arguments["config"], pids, driver
        finally:
            driver.kill()
            driver.wait()


def restart_pool(pids):
    words = Path(f"/proc/{pids['pool']}/cmdline").read_text().split("\0")[:-1]
    for pid in [pids["pool"], *children_of(pids["pool"])]:
        os.kill(pid, signal.SIGKILL)
    return subprocess.Popen([sys.executable, *words[1:]], stdout=subprocess.DEVNULL)


def kill_workers(pids):
    for server in children_of(pids["pool"]):
        for worker in children_of(server):
            os.kill(worker, signal.SIGKILL)


@pytest.mark.parametrize("fault", ["taskmanager", "silent", "workers", "pool"])
def test_a_job_goes_on_and_loses_no_row(fault, started, config, tmp_path):
    _, pids, driver = started
    if fault == "silent":  # For longer than the heartbeat's timeout.
        os.kill(pids["taskmanager-1"], signal.SIGSTOP)
    elif fault == "taskmanager":
        os.kill(pids["taskmanager-1"], signal.SIGKILL)
    elif fault == "workers":
        kill_workers(pids)
    pool = restart_pool(pids) if fault == "pool" else None
    (tmp_path / "open").touch()
    try:
        if fault == "silent":
            time.sleep(60)
            os.kill(pids["taskmanager-1"], signal.SIGCONT)
        assert driver.wait(300) == 0
    finally:
        if pool is not None:
            pool.kill()
            pool.wait()
    assert bench.folder_digest(tmp_path / "out") == local_digest(config, tmp_path)


@pytest.mark.parametrize("killed", ["jobserver", "driver"])
def test_a_run_that_ends_leaves_nothing_and_the_next_makes_all(killed, started, config, tmp_path):
    with_flink, pids, driver = started
    os.kill({**pids, "driver": driver.pid}[killed], signal.SIGKILL)
    assert driver.wait(60) != 0
    assert not (tmp_path / "out").exists()
    (tmp_path / "open").touch()
    again = with_flink if killed == "driver" else config
    ingest(Config.model_validate_json(json.dumps(again)), tmp_path / "out", progress=False)
    assert bench.folder_digest(tmp_path / "out") == local_digest(config, tmp_path)


def local_digest(config, folder):
    ingest(Config.model_validate_json(json.dumps(config)), folder / "local", progress=False)
    return bench.folder_digest(folder / "local")
