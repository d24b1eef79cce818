"""Ray as the launcher: a stage on its hosts, which are lost, replaced and stopped."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from launching import STAGES, lives
from places import ROOT
from training_runs import STAGE, Run

from benchmarks.hosts import RayTraining, write_world
from benchmarks.measure import children_of
from benchmarks.namespaces import RayHosts, can_have_hosts, command
from recsys.config.load import load_config
from recsys.distributed.launchers import RayLauncher, launching_by, run_launched
from recsys.errors import ConfigError

PROC = Path("/proc")
PROGRAM = f"""
import sys
from pathlib import Path
sys.path += [{str(STAGES)!r}]
from launching import launch
from recsys.distributed.launchers import RayLauncher
from recsys.errors import RecsysError
try:
    launch(RayLauncher(hosts=2, restarts=0), Path(sys.argv[1]), "waits", "waits")
except RecsysError as error:
    print(error.code)
"""
CONFIG = ROOT / "configs" / "movielens_small.yaml"
TRAINING = {**STAGE, "train": {**STAGE["train"], "epochs": 6}}


def processes(*texts):
    """Returns the processes of this machine whose command line has all texts."""
    found = {int(folder.name): command(int(folder.name)) for folder in PROC.glob("[0-9]*")}
    return [pid for pid, words in found.items() if all(text in words for text in texts)]


@pytest.fixture(scope="module")
def undisturbed(data, tmp_path_factory):
    run = Run(tmp_path_factory.mktemp("runs") / "local", data, TRAINING, processes=2)
    run.finish()
    return run


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{kind: ray, hosts: 2, min_hosts: 3}", "min_hosts must be at most hosts"),
        ("{kind: ray, address: here}", "match pattern"),
        ("{kind: ray, resources: {}}", "at least 1"),
    ],
)
def test_impossible_settings_are_refused_with_their_key(text, problem):
    with pytest.raises(ConfigError, match=problem):
        load_config(CONFIG, [f"launcher={text}"])


@pytest.mark.faults
def test_a_killed_process_is_replaced_and_the_weights_agree(
    undisturbed, data, tmp_path, capfd, monkeypatch
):
    monkeypatch.setenv("XLA_FLAGS", os.environ["XLA_FLAGS"].replace("count=8", "count=1"))
    monkeypatch.setenv("RECSYS_EVENTS", str(tmp_path / "events.jsonl"))
    run = Run(tmp_path, data, TRAINING)

    def kill():
        while run.step() < 40:
            time.sleep(0.05)
        os.kill(min(processes(str(run.model), "--process-id 1")), signal.SIGKILL)

    threading.Thread(target=kill, daemon=True).start()
    folders = ["--data", str(data), "--out", str(run.model)]
    with launching_by(RayLauncher(hosts=2), run.folder):
        result = run_launched("recsys.stages.train", json.dumps(TRAINING), folders)
    assert result["processes"] == 2
    assert run.summary()["resumed_at"]
    assert "All start again" in capfd.readouterr().err
    # Bits are compared on nodes of a cluster of their own (marker `hosts`).
    for name, array in undisturbed.weights().items():
        np.testing.assert_allclose(run.weights()[name], array, atol=1e-5, err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("signum", "victim", "code"),
    [
        (signal.SIGTERM, "the run", "R375"),
        *(
            pytest.param(signal.SIGKILL, *of, marks=pytest.mark.faults)
            for of in [("raylet/raylet", "R388"), ("ray::Host", "R388"), ("the run", "")]
        ),
    ],
)
def test_nothing_that_was_started_outlives_ray_or_the_run(signum, victim, code, tmp_path):
    run = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    while not all((tmp_path / f"{index}.pid").exists() for index in (0, 1)):
        time.sleep(0.05)
        assert run.poll() is None
    pids = [int((tmp_path / f"{index}.pid").read_text()) for index in (0, 1)]
    priorities = {os.getpriority(os.PRIO_PROCESS, pid) for pid in (*pids, run.pid)}
    assert len(priorities) == 1, "Ray's workers run at a niceness of 15 by default"
    ours = children_of(run.pid)
    victims = [pid for pid in ours if victim in command(pid)] or [run.pid]
    os.kill(victims[0], signum)
    deadline = time.monotonic() + 5
    while signum == signal.SIGKILL and any(lives(tmp_path, index) for index in (0, 1)):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    printed, _ = run.communicate(timeout=60)
    assert printed.strip() == code
    assert not any(lives(tmp_path, index) for index in (0, 1))


@pytest.mark.hosts
@pytest.mark.skipif(not can_have_hosts(), reason="network namespaces need root and iproute2")
def test_a_lost_node_is_replaced_or_left_out_and_a_cut_link_is_a_sentence(tmp_path):
    """Logs the seconds until it is noticed, which docs/benchmarks.md has."""
    write_world(tmp_path, 8, 64, 60, 10)
    with RayHosts(2, tmp_path / "compiled") as network:
        undisturbed = RayTraining(tmp_path, "undisturbed", network)
        undisturbed.end()
        replaced = RayTraining(tmp_path, "replaced", network, restarts=1)
        replaced.lose(1, 20)
        network.replace(1)
        replaced.end()
        assert replaced.weights() == undisturbed.weights()

        fewer = RayTraining(tmp_path, "fewer", network, restarts=1, min_hosts=1, wait_s=60)
        fewer.lose(1, 20)
        fewer.end()
        assert fewer.summary["processes"] == 1
        losses = [[point["loss"] for point in t.summary["curve"]] for t in (fewer, undisturbed)]
        assert losses[0] == pytest.approx(losses[1], rel=1e-4)
        network.replace(1)

        cut = RayTraining(tmp_path, "cut", network, restarts=0)
        cut.cut(1, 20)  # Fails if the run ends with anything but R388.
        network.replace(1)
        cut.start()
        cut.end()
        assert cut.weights() == undisturbed.weights()
