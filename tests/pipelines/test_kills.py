"""Real runs that are killed, stopped, or started twice."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from crash_checks import breaches, killed_once, on_full_disks, started_twice, wait_until_ended
from crash_world import Kill, World
from webhook_server import Server

pytestmark = [pytest.mark.faults, pytest.mark.pipeline]


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    made = World(tmp_path_factory.mktemp("crash"))
    try:
        made.prepare()
        yield made
    finally:
        made.close()


@pytest.mark.parametrize(
    "point",
    [
        ("VocabularyGen", "inside", "group"),
        ("Trainer", "inside", "runner"),
        ("Trainer", "inside", "stage"),
        ("LatestBlessed", "after", "group"),
        ("Exporter", "after", "group"),
        ("Pusher", "after", "runner"),
        ("Pusher", "published", "group"),
    ],
)
def test_a_killed_run_is_finished_by_the_same_command(world, point):
    assert killed_once(world, Kill(*point, seed=1)) == []


def command(world, *words_, **environment):
    """Starts `recsys run`, as people do, and waits until its Trainer has begun."""
    world.put_back("Trainer")
    process, run = start(world, *words_, **environment)
    deadline = time.monotonic() + 300
    while not any("recsys.stages.train" in words(pid) for pid in world.processes()):
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.1)
    return process, run()


def start(world, *words_, **environment):
    """Starts `recsys run`; returns its process, and what gives the folder of its record."""
    before = set((world.root / "runs").iterdir())
    process = subprocess.Popen(
        [sys.executable, "-m", "recsys", "run", str(world.config), *words_],
        env={**os.environ, **world.environment, **environment},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    return process, lambda: (set((world.root / "runs").iterdir()) - before).pop()


def words(pid):
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


def test_nothing_outlives_a_command_that_is_killed(world):
    process, _ = command(world)
    process.kill()
    process.wait()
    assert wait_until_ended(world) == []
    again = world.run()
    assert again.code == 0
    assert again.model == world.digest
    assert breaches(world, 1) == []


@pytest.mark.parametrize("of_all", [True, False], ids=["command", "runner"])
def test_a_stopped_run_says_so_and_is_finished_by_the_same_command(world, of_all):
    process, run = command(world)
    (runner,) = (pid for pid in world.processes() if "local_runner" in words(pid))
    os.kill(process.pid if of_all else runner, signal.SIGTERM)
    code = process.wait(timeout=120)
    assert code == (128 + signal.SIGTERM if of_all else 1)
    assert wait_until_ended(world) == []
    assert json.loads((run / "run.json").read_text())["state"] == "stopped"
    again = world.run()
    assert again.code == 0
    assert again.model == world.digest
    assert breaches(world, 0) == []


def test_a_webhook_is_called_for_a_stopped_run_and_later_for_a_killed_one(world):
    asked = ("--set", "notify.webhook_env=NIGHT_HOOK")
    with Server(200) as server:
        hook = {"NIGHT_HOOK": f"http://{server.host}/"}
        stopped, first = command(world, *asked, **hook)
        stopped.terminate()
        assert stopped.wait(timeout=120) == 128 + signal.SIGTERM
        assert [(b["run"], b["state"]) for b in server.bodies] == [(first.name, "interrupted")]
        assert "stopped by SIGTERM in Trainer" in server.bodies[0]["text"]

        killed, second = command(world, *asked, **hook)
        killed.kill()
        killed.wait()
        assert wait_until_ended(world) == []
        again, third = start(world, *asked, **hook)
        assert again.wait(timeout=300) == 0
    told = [(body["run"], body["state"]) for body in server.bodies[1:]]
    assert told == [(second.name, "interrupted"), (third().name, server.bodies[2]["state"])]
    assert server.bodies[2]["state"] in ("blessed", "refused")


def test_of_two_runs_at_once_one_is_refused(world):
    assert list(started_twice(world, 3)) == [[]] * 3


@pytest.mark.skipif(os.getuid() != 0, reason="needs a file system of its own")
def test_a_full_disk_is_said_and_leaves_all_whole(world):
    results = list(on_full_disks(world, 4, 0))
    assert len(results) >= 3
    assert not any(results)
