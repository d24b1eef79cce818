"""Processes of a run that meet: how they are placed, what they must agree on, how they end."""

import argparse
import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from places import SUPPORT

from recsys.distributed.coordination import detected
from recsys.distributed.join import is_loopback, own_address
from recsys.distributed.local import free_port
from recsys.distributed.place import Place, add_process_options, place_of
from recsys.errors import UsageError
from recsys.system.process import last_json_line

SCRIPT = SUPPORT / "joining.py"
EXPLICIT = ("--num-processes", "{n}", "--process-id", "{index}")
SCHEDULERS = {
    "slurm": {
        "SLURM_JOB_ID": "4242",
        "SLURM_STEP_NODELIST": "localhost",
        "SLURM_NTASKS": "{n}",
        "SLURM_PROCID": "{index}",
        "SLURM_LOCALID": "0",
    },
    "open mpi": {
        "OMPI_MCA_orte_hnp_uri": "1531576320.0;tcp://127.0.0.1:34911",
        "OMPI_COMM_WORLD_SIZE": "{n}",
        "OMPI_COMM_WORLD_RANK": "{index}",
        "OMPI_COMM_WORLD_LOCAL_RANK": "0",
    },
    "environment": {
        "RECSYS_COORDINATOR": "localhost:{port}",
        "RECSYS_PROCESSES": "{n}",
        "RECSYS_PROCESS": "{index}",
    },
}


# --- the place of a process


def parsed(*words):
    parser = argparse.ArgumentParser()
    add_process_options(parser)
    return place_of(parser.parse_args([str(word) for word in words]))


@pytest.fixture(autouse=True)
def _no_scheduler(monkeypatch):
    for name in ("RECSYS_COORDINATOR", "RECSYS_PROCESSES", "RECSYS_PROCESS", "RECSYS_LOCAL_DEVICE"):
        monkeypatch.delenv(name, raising=False)


def test_options_and_the_environment_place_a_process(monkeypatch):
    assert parsed() is None
    words = ["--coordinator", "[fd00::1]:8476", "--num-processes", 3, "--process-id", 2]
    place = parsed(*words, "--wait", 7)
    assert place == Place("[fd00::1]:8476", 3, 2, wait_s=7.0)
    assert place.address == ("fd00::1", 8476)
    for name, value in {"COORDINATOR": "a:80", "PROCESSES": "2", "PROCESS": "0"}.items():
        monkeypatch.setenv(f"RECSYS_{name}", value)
    monkeypatch.setenv("RECSYS_LOCAL_DEVICE", "1")
    assert parsed() == Place("a:80", 2, 0, "1")


@pytest.mark.parametrize(
    "words",
    [
        ["--coordinator", "a"],
        ["--coordinator", "a:x", "--num-processes", "2", "--process-id", "0"],
        ["--coordinator", ":80", "--num-processes", "2", "--process-id", "0"],
        ["--coordinator", "a:80"],
        ["--coordinator", "a:80", "--num-processes", "2"],
        ["--coordinator", "a:80", "--num-processes", "2", "--process-id", "2"],
        ["--coordinator", "a:80", "--num-processes", "0", "--process-id", "0"],
        ["--coordinator", "a:80", "--num-processes", "2", "--process-id", "0", "--processes", "2"],
    ],
)
def test_incomplete_or_wrong_options_are_refused(words):
    with pytest.raises(UsageError, match="R376"):
        parsed(*words)


def test_a_scheduler_must_know_the_processes():
    with pytest.raises(UsageError, match="R376"):
        detected(parsed("--coordinator", "auto"))


def test_slurm_knows_the_first_host_and_the_gpu_of_a_process(monkeypatch):
    for name, value in SCHEDULERS["slurm"].items():
        monkeypatch.setenv(name, value.format(n=2, index=1))
    monkeypatch.setenv("SLURM_STEP_NODELIST", "node[3-4]")
    place = detected(parsed("--coordinator", "auto"))
    assert (place.address[0], place.n_processes, place.process) == ("node3", 2, 1)
    assert place.devices == "0"


def test_the_address_of_this_machine_is_that_on_the_way_to_another():
    assert own_address("127.0.0.1", 80) == "127.0.0.1"
    assert own_address("no-such-host.invalid", 80) == "127.0.0.1"
    assert [is_loopback(host) for host in ("::1", "127.1.2.3", "localhost")] == [True] * 3
    assert not is_loopback(socket.gethostname())  # It may mean another address elsewhere.


# --- real processes


class Group:
    """Processes of the stage `joining`."""

    def __init__(self, stack, folder):
        self._stack, self._folder = stack, folder
        self.port, self.running = free_port(), []

    def start(self, index, *words, n=2, coordinator=None, own=(), wait_s=60, placed=EXPLICIT):
        if coordinator is None:
            coordinator = f"127.0.0.1:{self.port}"
        fields = {"n": n, "index": index, "port": self.port}
        options = ["--wait", wait_s, *(word.format(**fields) for word in placed)]
        options += ["--coordinator", coordinator] if coordinator else []
        environment = {name: value.format(**fields) for name, value in dict(own).items()}
        with (self._folder / f"log{index}.txt").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, str(SCRIPT), *map(str, [*words, *options])],
                env={**os.environ, "PYTHONPATH": str(SCRIPT.parent), **environment},
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        self._stack.enter_context(process)
        self._stack.callback(process.kill)
        self.running.append(process)

    def child(self, number):
        pid = self.running[number].pid
        return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])

    def ends(self):
        """Returns what the processes said last."""
        return [last_json_line(each.communicate(timeout=120)[0]) for each in self.running]

    def errors(self):
        return [said["error"] for said in self.ends()]


@pytest.fixture
def group(tmp_path):
    with contextlib.ExitStack() as stack:
        yield Group(stack, tmp_path)


@pytest.mark.parametrize(
    "by",
    [
        "options",
        "slurm",
        *(pytest.param(name, marks=pytest.mark.thorough) for name in ("open mpi", "environment")),
    ],
)
def test_processes_meet_and_agree_however_they_are_placed(by, group, tmp_path):
    for index in (0, 1):
        words = ["--folder", tmp_path / "a" / "b", "--facts", '{"config.dim": 8}']
        if by == "options":
            group.start(index, *words)
        elif by == "environment":
            group.start(index, *words, own=SCHEDULERS[by], placed=(), coordinator="")
        else:
            own = {**SCHEDULERS[by], "JAX_COORDINATOR_PORT": "{port}"}
            group.start(index, *words, own=own, placed=(), coordinator="auto")
    ends = group.ends()
    assert [end["seen"] for end in ends] == [[0, 2], [1, 2]]
    assert [end["all"] for end in ends] == [[[0, 2], [1, 2]]] * 2
    assert list((tmp_path / "a" / "b").iterdir()) == []


def test_other_facts_are_named_on_all_processes(group):
    group.start(0, "--facts", '{"config.dim": 8, "the code": "a"}')
    group.start(1, "--facts", '{"config.dim": 16, "the code": "a"}')
    for error in group.errors():
        assert error["code"] == "R387"
        assert "process 1 (" in error["rule"]
        assert "config.dim" in error["rule"]
        assert error["received"] == "{1: 16, 0: 8}"


def test_another_folder_of_the_same_name_is_named_on_all_processes(group, tmp_path):
    group.start(0, "--folder", tmp_path / "shared", "--folder", tmp_path / "a")
    group.start(1, "--folder", tmp_path / "shared", "--folder", tmp_path / "b")
    for error in group.errors():
        assert error["code"] == "R386"
        assert "process 1 (" in error["rule"]


def test_an_error_of_one_process_ends_all_with_it(group):
    group.start(0, "--fate", "waits")
    group.start(1, "--fate", "fails")
    assert [error["code"] for error in group.errors()] == ["R322"] * 2


@pytest.mark.parametrize(
    ("victim", "signum"),
    [
        pytest.param(0, signal.SIGKILL, id="first-killed"),
        pytest.param(1, signal.SIGKILL, id="second-killed", marks=pytest.mark.faults),
        pytest.param(1, signal.SIGSTOP, id="second-stopped", marks=pytest.mark.faults),
    ],
)
def test_a_lost_process_is_named_by_the_others(victim, signum, group, tmp_path):
    for index in (0, 1):
        file = tmp_path / f"met{index}"
        group.start(index, "--heartbeat", 3, "--fate", "waits", "--file", file)
    while len(list(tmp_path.glob("met*"))) < 2:
        time.sleep(0.05)
        assert [process.poll() for process in group.running] == [None, None]
    os.kill(group.child(victim), signum)
    other = last_json_line(group.running[1 - victim].communicate(timeout=30)[0])["error"]
    assert other["code"] == "R388"
    assert f"process {victim} (" in other["rule"]
    if signum == signal.SIGKILL:
        own = last_json_line(group.running[victim].communicate(timeout=30)[0])["error"]
        assert own["code"] == "R388"
        assert f"process {victim} (" in own["rule"]
        assert "SIGKILL" in own["received"]
    log = (tmp_path / f"log{1 - victim}.txt").read_text()
    assert "Check failure stack trace" not in log


def test_a_process_that_waits_alone_ends_with_a_sentence(group):
    group.start(0, wait_s=4)
    (error,) = group.errors()
    assert error["code"] == "R384"


@pytest.mark.parametrize(
    ("host", "reason"),
    [
        pytest.param("no-such-host.invalid", "isn't known here", marks=pytest.mark.thorough),
        ("127.0.0.1", "refused"),
    ],
)
def test_a_first_process_that_cannot_be_reached_is_named(host, reason, group):
    group.start(1, wait_s=4, coordinator=f"{host}:{group.port}")
    (error,) = group.errors()
    assert error["code"] == "R383"
    assert host in error["rule"]
    assert reason in error["received"]


def test_a_taken_port_is_named(group):
    with socket.create_server(("", group.port)):
        group.start(0, wait_s=1)
        (error,) = group.errors()
    assert error["code"] == "R383"
    assert str(group.port) in error["rule"]


@pytest.mark.thorough
def test_an_index_beyond_the_number_of_processes_is_refused(group):
    group.start(0, wait_s=10)
    group.start(2, n=3, wait_s=10)
    first, second = group.errors()
    assert (first["code"], second["code"]) == ("R384", "R376")


def test_a_signal_while_it_waits_ends_a_process(group, tmp_path):
    group.start(0)
    time.sleep(3)
    group.running[0].send_signal(signal.SIGTERM)
    (error,) = group.errors()
    assert error["code"] == "R611"
