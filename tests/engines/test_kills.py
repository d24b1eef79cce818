"""Flink loses a process while its tasks read: the data folder is that of a local ingestion."""

import contextlib
import functools
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
from benchmarks.namespaces import Hosts, can_have_hosts
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


@pytest.fixture(autouse=True)
def plugin(monkeypatch):
    plugins = os.pathsep.join([str(Path(gated_source.__file__).parent), os.environ["PYTHONPATH"]])
    monkeypatch.setenv("PYTHONPATH", plugins)


@pytest.fixture
def started(flink_folder, tmp_path, config):
    """A cluster and a driver whose tasks read: config, processes by name, the driver."""
    with bench.started(bench.Name.flink, flink_folder) as (beam, pids):
        config = {**config, "beam": beam}
        with reading(config, tmp_path, subprocess.Popen) as driver:
            yield config, pids, driver


@contextlib.contextmanager
def reading(config, folder, start):
    arguments = json.dumps({"config": config, "out": str(folder / "out")})
    words = ["benchmarks.measure", "benchmarks.ingest_engines", "ingested", arguments]
    driver = start([sys.executable, "-m", *words], cwd=ROOT, start_new_session=True)
    try:
        wait_for((folder / "reached").exists, 300)
        yield driver
    finally:
        driver.kill()
        driver.wait()


def words_of(pid):
    return Path(f"/proc/{pid}/cmdline").read_text().split("\0")[:-1]


def restart_pool(pids):
    words = words_of(pids["pool"])
    for pid in [pids["pool"], *children_of(pids["pool"])]:
        os.kill(pid, signal.SIGKILL)
    return subprocess.Popen([sys.executable, *words[1:]], stdout=subprocess.DEVNULL)


def kill_workers(pids):
    for server in children_of(pids["pool"]):
        for worker in children_of(server):
            os.kill(worker, signal.SIGKILL)


@pytest.mark.parametrize("fault", ["taskmanager", "workers", "pool"])
def test_a_job_goes_on_and_loses_no_row(fault, started, config, tmp_path):
    _, pids, driver = started
    if fault == "taskmanager":
        os.kill(pids["taskmanager-1"], signal.SIGKILL)
    elif fault == "workers":
        kill_workers(pids)
    pool = restart_pool(pids) if fault == "pool" else None
    (tmp_path / "open").touch()
    try:
        assert driver.wait(300) == 0
    finally:
        if pool is not None:
            pool.kill()
            pool.wait()
    assert bench.folder_digest(tmp_path / "out") == local_digest(config, tmp_path)


@pytest.mark.skipif(not can_have_hosts(), reason="network namespaces need root and iproute2")
@pytest.mark.parametrize("read", ["down", "up"])
def test_a_taskmanager_whose_link_is_down_for_a_minute(read, flink_folder, config, tmp_path):
    """Its worker goes on, and reads its rows while the link is down, or after it."""
    with Hosts(2) as hosts:
        start = functools.partial(hosts.start, name="localhost")
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        own = {**os.environ, "ADDRESS": hosts.address(0), "PATH": path}
        script = [ROOT / "deploy" / "flink" / "local.sh", "start", flink_folder]
        assert start(0, script, env=own, stdout=subprocess.DEVNULL).wait(300) == 0
        beam, pids = bench.of_cluster(flink_folder)
        manager, pool = (words_of(pids[name]) for name in ("taskmanager-2", "pool"))
        os.kill(pids["taskmanager-2"], signal.SIGTERM)
        with (tmp_path / "host-1.log").open("w") as log:
            output = {"stdout": log, "stderr": log}
            start(1, [sys.executable, *pool[1:]], **output)
            wait_for(lambda: "worker pool at" in Path(log.name).read_text(), 300)
            keys = "taskmanager.host", "taskmanager.bind-host"
            here = [word for key in keys for word in ("-D", f"{key}={hosts.address(1)}")]
            start(1, [*manager, *here], **output)

        def is_registered():
            text = "from urllib.request import *; print(urlopen(URL).read())"
            url = f"'http://{beam['cluster']}/taskmanagers'"
            asked = start(
                0, [sys.executable, "-c", text.replace("URL", url)], stdout=subprocess.PIPE
            )
            return hosts.address(1) in asked.communicate()[0]

        wait_for(is_registered, 120)
        with reading({**config, "beam": beam}, tmp_path, functools.partial(start, 0)) as driver:
            hosts.cut(1)
            ends = time.monotonic() + 60
            if read == "down":
                (tmp_path / "open").touch()
            wait_for(lambda: not is_registered(), 60)
            time.sleep(max(0.0, ends - time.monotonic()))
            hosts.mend(1)
            wait_for(is_registered, 60)
            (tmp_path / "open").touch()
            assert driver.wait(300) == 0
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
