"""Trainings on hosts of their own: network namespaces, that are killed and cut off."""

import contextlib
import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from training_runs import STAGE, USERS, Run, assert_same_bits, flip_a_bit

from benchmarks.namespaces import Hosts, can_have_hosts
from benchmarks.public_splits import Csr, write_data_folder
from recsys.distributed.launchers import CommandLauncher, launching_by, run_launched
from recsys.system.process import last_json_line

pytestmark = [
    pytest.mark.hosts,
    pytest.mark.skipif(not can_have_hosts(), reason="network namespaces need root and iproute2"),
]
TRAINING = {**STAGE, "train": {**STAGE["train"], "epochs": 10}}
PORT = 8476
LOST_WITHIN_S = 30


def one_device():
    """The environment of a process with one device."""
    flags = os.environ["XLA_FLAGS"].replace("device_count=8", "device_count=1")
    return {"KERAS_BACKEND": "jax", "XLA_FLAGS": flags}


class HostsRun(Run):
    """A training on several hosts, each of which can be started again."""

    def __init__(self, folder, data, hosts, stage=TRAINING):
        super().__init__(folder, data, stage)
        self.hosts, self.running = hosts, {}

    def start_host(self, host, *words, name=None, n=None):
        placed = ["--coordinator", f"{self.hosts.address(0)}:{PORT}"]
        placed += ["--num-processes", n or self.hosts.n, "--process-id", host]
        own = one_device()
        if host == 0:
            self.events.unlink(missing_ok=True)
            own["RECSYS_EVENTS"] = str(self.events)
        command = [sys.executable, "-m", "recsys.stages.train", *self._words, "--wait", 90]
        with self.log(host).open("ab") as log:
            self.running[host] = self.hosts.start(
                host,
                [*command, *placed, *words],
                name,
                env={**os.environ, **own},
                stdout=subprocess.PIPE,
                stderr=log,
            )

    def start_all(self, *words):
        for host in range(self.hosts.n):
            self.start_host(host, *words)

    def process(self, host):
        """Returns the number of what trains on a host, a child of its command."""
        command = self.running[host].pid
        children = Path(f"/proc/{command}/task/{command}/children").read_text().split()
        return int(children[0])

    def log(self, host):
        return self.folder / f"host{host}.txt"

    def reach(self, step):
        while self.step() < step:
            time.sleep(0.05)
            assert self.running[0].poll() is None, self.log(0).read_text()

    def end(self, host, timeout=400):
        """Returns what a host said last."""
        return last_json_line(self.running[host].communicate(timeout=timeout)[0])

    def error(self, host, timeout=400):
        return self.end(host, timeout)["error"]

    def finish_all(self):
        ended = [self.end(host) for host in range(self.hosts.n)]
        assert ["error" in said for said in ended] == [False] * self.hosts.n, ended
        return ended


@pytest.fixture(scope="module")
def undisturbed(data, tmp_path_factory):
    """The result of two processes on one machine."""
    run = Run(tmp_path_factory.mktemp("runs") / "local", data, TRAINING, processes=2)
    run.finish()
    return run


@pytest.fixture
def two_hosts():
    with Hosts(2) as hosts:
        yield hosts


@pytest.mark.parametrize("victim", [0, 1])
def test_a_killed_host_is_named_and_the_same_commands_end_with_the_same_bits(
    victim, undisturbed, data, two_hosts, tmp_path
):
    run = HostsRun(tmp_path / "run", data, two_hosts)
    run.start_all()
    run.reach(40)
    two_hosts.kill(victim)
    error = run.error(1 - victim, timeout=LOST_WITHIN_S)
    assert error["code"] == "R388"
    assert f"process {victim} ('node{victim}', {two_hosts.address(victim)})" in error["rule"]
    run.start_all()
    run.finish_all()
    assert run.summary()["resumed_at"]
    assert_same_bits(run, undisturbed)


@pytest.mark.parametrize("victim", [0, 1])
@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_a_killed_or_suspended_process_is_named(victim, signum, data, two_hosts, tmp_path):
    """Its own command stays alive, and reports the end of a killed process."""
    run = HostsRun(tmp_path / "run", data, two_hosts)
    run.start_all()
    run.reach(40)
    os.kill(run.process(victim), signum)
    for host in (1 - victim, victim)[: 1 if signum == signal.SIGSTOP else 2]:
        error = run.error(host, timeout=LOST_WITHIN_S)
        assert error["code"] == "R388"
        assert f"; process {victim} ('node{victim}', " in error["rule"]


def test_a_short_cut_is_survived_and_a_long_one_ends_both_sides(
    undisturbed, data, two_hosts, tmp_path
):
    run = HostsRun(tmp_path / "run", data, two_hosts)
    run.start_all()
    run.reach(20)
    two_hosts.cut(1)
    time.sleep(5)
    two_hosts.mend(1)
    run.reach(max(60, run.step() + 10))
    two_hosts.cut(1)
    errors = [run.error(host, timeout=LOST_WITHIN_S + 5) for host in (0, 1)]
    assert [error["code"] for error in errors] == ["R388"] * 2
    for host, error in enumerate(errors):
        assert f"; process {1 - host} ('node{1 - host}', " in error["rule"]
    two_hosts.mend(1)
    run.start_all()
    run.finish_all()
    assert run.summary()["resumed_at"]
    assert_same_bits(run, undisturbed)


@pytest.mark.parametrize("is_of_all", [True, False])
def test_a_full_disk_is_one_sentence_and_with_room_the_bits_are_the_same(
    is_of_all, undisturbed, data, two_hosts, tmp_path
):
    """The disk that all share, or what one host may write: a limit on the size of its files."""
    with disk(tmp_path / "disk") as give_room:
        run = HostsRun(tmp_path / "disk", data, two_hosts)
        for host in (0, 1):
            run.start_host(host)
        run.reach(40)
        if is_of_all:
            filler = tmp_path / "disk" / "filler"
            with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
                while file.write(bytes(1 << 16)):
                    pass
        else:
            for pid in two_hosts.pids(1):
                resource.prlimit(pid, resource.RLIMIT_FSIZE, (1 << 10, resource.RLIM_INFINITY))
        errors = [run.error(host) for host in (0, 1)]
        for error in errors:
            # The order of writes: a checkpoint, or the events, first.
            assert error["code"] in {"R330", "R603"}
            assert str(run.folder) in error["rule"]
        give_room()
        for host in (0, 1):
            run.start_host(host)
        run.finish_all()
        assert run.summary()["resumed_at"]
        assert_same_bits(run, undisturbed)


@contextlib.contextmanager
def disk(folder):
    """Mounts a small file system; yields what makes it larger."""
    folder.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", "size=24m", "recsys-test", str(folder)]
    subprocess.run(words, check=True)
    larger = ["mount", "-o", "remount,size=512m", str(folder)]
    try:
        yield lambda: subprocess.run(larger, check=True)
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.mark.parametrize("is_missing", [False, True])
def test_a_part_that_is_missing_or_flipped_leaves_the_checkpoint_before(
    is_missing, undisturbed, data, two_hosts, tmp_path
):
    run = HostsRun(tmp_path / "run", data, two_hosts)
    run.start_all()
    run.reach(60)
    run.running[1].send_signal(signal.SIGTERM)
    errors = [run.error(host) for host in (0, 1)]
    assert {error["code"] for error in errors} <= {"R375", "R611"}
    before, newest = run.saved()[-2:]
    folder = next(run.folder.glob(f"checkpoints/*/last/{newest}"))
    parts = [path for path in folder.glob("ocdbt.process_1/**/*") if path.is_file()]
    largest = max(parts, key=lambda path: path.stat().st_size)
    if is_missing:
        largest.unlink()
    else:
        flip_a_bit(folder / "ocdbt.process_1")
    run.start_all()
    run.finish_all()
    assert run.summary()["resumed_at"] == [before]
    assert folder.with_name(f"{newest}.damaged").exists()
    assert_same_bits(run, undisturbed)


def test_fewer_hosts_resume_within_the_tolerance(undisturbed, data, two_hosts, tmp_path):
    run = HostsRun(tmp_path / "run", data, two_hosts)
    run.start_all()
    run.reach(60)
    two_hosts.kill(1)
    assert run.error(0, timeout=LOST_WITHIN_S)["code"] == "R388"
    run.start_host(0, n=1)
    assert run.end(0)["processes"] == 1
    assert run.summary()["resumed_at"]
    losses = [[point["loss"] for point in r.summary()["curve"]] for r in (run, undisturbed)]
    assert np.abs(np.subtract(*losses)).max() < 1e-4


def test_another_folder_or_config_ends_all_before_the_first_step(data, two_hosts, tmp_path):
    run = HostsRun(tmp_path / "run", data, two_hosts)
    run.start_host(0)
    run.start_host(1, "--checkpoints", tmp_path / "elsewhere")
    for host in (0, 1):
        error = run.error(host)
        assert error["code"] == "R386"
        assert f"process 1 ('node1', {two_hosts.address(1)})" in error["rule"]
    other = tmp_path / "other.json"
    other.write_text(json.dumps({**TRAINING, "train": {**TRAINING["train"], "batch_size": 128}}))
    run.start_host(0)
    run.start_host(1, "--config", other)
    for host in (0, 1):
        error = run.error(host)
        assert error["code"] == "R387"
        assert "config.train.batch_size" in error["rule"]
        assert error["received"] == "{1: 128, 0: 64}"
    assert run.saved() == []


@pytest.mark.parametrize("victim", [0, 1])
def test_a_lost_host_ends_an_evaluation_that_has_written_nothing(
    victim, undisturbed, two_hosts, tmp_path
):
    data, out, config = tmp_path / "data", tmp_path / "out", tmp_path / "config.json"
    write_data_folder(Csr.drawn(USERS, 100, 9), data, later=Csr.drawn(USERS, 100, 2))
    config.write_text(json.dumps({"evaluate": {"baselines": []}, "bless": {"over": {}}}))
    folders = ["--config", config, "--model", undisturbed.model, "--data", data, "--out", out]

    def start(host):
        words = ["--coordinator", f"{two_hosts.address(0)}:{PORT}", "--num-processes", 2]
        command = [sys.executable, "-m", "recsys.stages.evaluate", *folders, *words]
        with (tmp_path / f"host{host}.txt").open("w") as log:
            return two_hosts.start(
                host,
                [*command, "--process-id", host, "--wait", 90],
                env={**os.environ, **one_device()},
                stdout=subprocess.PIPE,
                stderr=log,
            )

    running = [start(0), start(1)]
    while "have met" not in (tmp_path / "host0.txt").read_text():
        assert running[0].poll() is None
        time.sleep(0.05)
    two_hosts.kill(victim)
    said, _ = running[1 - victim].communicate(timeout=LOST_WITHIN_S)
    error = last_json_line(said)["error"]
    assert error["code"] == "R388"
    assert f"process {victim} ('node{victim}'" in error["rule"]
    assert not list(out.glob("*.json"))
    running = [start(0), start(1)]
    said = [last_json_line(process.communicate(timeout=400)[0]) for process in running]
    written = json.loads((out / "evaluation.json").read_text())
    assert [one["metrics"]["ndcg@10"] for one in said] == 2 * [written["metrics"]["ndcg@10"]]
    assert [path.name for path in out.iterdir()] == ["evaluation.json"]


def test_the_commands_of_a_launcher_start_again_after_a_lost_host(
    undisturbed, data, two_hosts, tmp_path, monkeypatch
):
    run = Run(tmp_path / "run", data, TRAINING)
    monkeypatch.setenv("RECSYS_EVENTS", str(run.events))

    def kill():
        while run.step() < 40:
            time.sleep(0.05)
        two_hosts.kill(1)

    killer = threading.Thread(target=kill, daemon=True)
    killer.start()
    launcher = CommandLauncher(
        argv=("ip", "netns", "exec", "{host}", "{command}"),
        hosts=tuple(two_hosts.namespace(host) for host in (0, 1)),
        address=two_hosts.address(0),
        restarts=1,
    )
    folders = ["--data", str(data), "--out", str(run.model)]
    with launching_by(launcher, tmp_path / "root"):
        result = run_launched("recsys.stages.train", json.dumps(TRAINING), folders)
    assert result["processes"] == 2
    assert run.summary()["resumed_at"]
    assert_same_bits(run, undisturbed)
    assert two_hosts.wire_bytes(1) > 100_000


def test_a_host_whose_name_is_its_loopback_is_reached_by_its_address(data, two_hosts, tmp_path):
    short = {**TRAINING, "train": {**TRAINING["train"], "epochs": 2}}
    run = HostsRun(tmp_path / "run", data, two_hosts, short)
    for host in (0, 1):
        run.start_host(host, name="localhost")
    run.finish_all()
    assert two_hosts.wire_bytes(1) > 100_000
