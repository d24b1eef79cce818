"""Ray as the launcher: a stage on its hosts, which are lost, replaced and stopped."""

import json
import os
import signal
import threading
import time
from pathlib import Path

import pytest
from training_runs import STAGE, Run, assert_same_bits

from recsys.config.load import load_config
from recsys.distributed.launchers import launching_by, run_launched
from recsys.distributed.ray_launcher import RayLauncher
from recsys.errors import ConfigError

CONFIG = Path(__file__).parent.parent / "configs" / "movielens_small.yaml"


def processes(*texts):
    """Returns the processes of this machine whose command line has all texts."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
        if all(text in words for text in texts):
            found.append(int(folder.name))
    return found


def ended(text, within_s):
    """Returns whether no process has a text in its command line, soon enough."""
    deadline = time.monotonic() + within_s
    while processes(text):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


@pytest.fixture(scope="module")
def undisturbed(data, tmp_path_factory):
    run = Run(tmp_path_factory.mktemp("runs") / "local", data, processes=2)
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


def train_on(launcher, run, data):
    folders = ["--data", str(data), "--out", str(run.model)]
    with launching_by(launcher, run.folder):
        return run_launched("recsys.train", json.dumps(STAGE), folders)


def test_a_killed_process_is_replaced_and_the_bits_are_the_same(
    undisturbed, data, tmp_path, capfd, monkeypatch
):
    monkeypatch.setenv("XLA_FLAGS", os.environ["XLA_FLAGS"].replace("count=8", "count=1"))
    monkeypatch.setenv("RECSYS_EVENTS", str(tmp_path / "events.jsonl"))
    run = Run(tmp_path, data)

    def kill():
        while run.step() < 40:
            time.sleep(0.05)
        os.kill(min(processes(str(run.model), "--process-id 1")), signal.SIGKILL)

    killer = threading.Thread(target=kill, daemon=True)
    killer.start()
    result = train_on(RayLauncher(hosts=2), run, data)
    assert result["processes"] == 2
    assert run.summary()["resumed_at"]
    assert "All start again" in capfd.readouterr().err
    assert_same_bits(run, undisturbed)
