"""Launchers: a stage in several processes, or by a command for each host; how it ends."""

import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from launching import STAGES, launch, lives
from places import ROOT, SUPPORT

from recsys.config.load import load_config
from recsys.distributed import launchers
from recsys.distributed.launchers import CommandLauncher, LocalLauncher
from recsys.distributed.local import devices_of
from recsys.errors import ConfigError, RecsysError, UsageError
from recsys.system import events

CONFIG = ROOT / "configs" / "movielens_small.yaml"
WORDS = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1)


def commands(*argv, n=2, **more):
    hosts = tuple(f"host{index}" for index in range(n))
    return CommandLauncher(argv=argv, hosts=hosts, folder=str(STAGES), **more)


@pytest.fixture(name="emitted")
def _emitted(tmp_path, monkeypatch):
    file = tmp_path / "events.jsonl"
    monkeypatch.setenv(events.ENVIRONMENT_VARIABLE, str(file))
    return lambda: list(events.EventReader(file))


# --- the config


def test_by_default_a_stage_is_one_process_of_this_machine():
    assert load_config(CONFIG).launcher == LocalLauncher(processes=1)
    assert load_config(CONFIG, ["launcher.processes=4"]).launcher == LocalLauncher(processes=4)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{kind: slurm}", "must be one of local, command"),
        ("{kind: local, hosts: [a]}", "there is no key 'launcher.hosts'"),
        ("{processes: 0}", "greater than or equal to 1"),
        ("{kind: command, hosts: [a]}", "'launcher.argv' is required"),
        ('{kind: command, argv: [ssh, "{host}"], hosts: [a]}', "either {command} or {line}"),
        ('{kind: command, argv: [ssh, "{hots}", "{line}"], hosts: [a]}', "a placeholder is"),
        ('{kind: command, argv: ["{host}", "{line}"], hosts: [a]}', "begin with a program"),
        ('{kind: command, argv: [ssh, "{line}"], hosts: [a, a]}', "name each host once"),
        ('{kind: command, argv: [ssh, "{line}"], hosts: ["-oProxyCommand=x"]}', "match pattern"),
    ],
)
def test_what_starts_nothing_is_refused_with_its_key(text, problem):
    with pytest.raises(ConfigError, match=problem):
        load_config(CONFIG, [f"launcher={text}"])


def test_a_program_that_is_not_here_is_reported_before_the_run():
    with pytest.raises(UsageError, match=r"R394.*no-such-program"):
        commands("no-such-program", "{command}").check()
    commands("sh", "-c", "{line}").check()


# --- the command of a host


@given(words=st.lists(WORDS, min_size=1, max_size=4))
def test_words_reach_the_stage_as_they_are_whatever_is_in_them(words):
    launcher = commands("ssh", "{host}", "{line}", address="10.0.0.1", python="/opt/python")
    *ssh, line = launcher.command(["stage", *words], 1, Path("/shared/events"))
    assert ssh == ["ssh", "host1"]
    by_words = commands("srun", "{command}", address="10.0.0.1", python="/opt/python")
    srun, *command = by_words.command(["stage", *words], 1, Path("/shared/events"))
    assert srun == "srun"
    assert shlex.split(line) == command
    place = command.index("stage")
    assert command[place + 1 : place + 1 + len(words)] == words
    assert command[place + 1 + len(words) :] == [
        *("--coordinator", "10.0.0.1:8476", "--wait", "300.0"),
        *("--num-processes", "2", "--process-id", "1"),
    ]


def test_the_first_host_alone_writes_the_events_and_is_found_by_its_name():
    launcher = CommandLauncher(argv=("ssh", "{host}", "{command}"), hosts=("me@a", "me@b"))
    first, second = (launcher.command(["stage"], i, Path("/shared/events")) for i in (0, 1))
    assert "RECSYS_EVENTS=/shared/events" in first
    assert "RECSYS_EVENTS=" in second
    assert second[second.index("--coordinator") + 1] == "a:8476"


# --- what it comes to


@pytest.mark.parametrize("argv", [("env", "{command}"), ("sh", "-c", "{line}")])
def test_the_result_is_the_first_ones_and_its_progress_is_seen(argv, tmp_path, emitted):
    folder = tmp_path / 'it\'s a "folder" of $HOME'
    result = launch(commands(*argv), folder, "ends", "ends")
    assert result["process_id"] == 0
    assert result["folder"] == str(STAGES)
    assert (result["coordinator"], result["num_processes"]) == ("host0:8476", "2")
    assert {path.name for path in folder.glob("*.pid")} == {"0.pid", "1.pid"}
    assert [event["done"] for event in emitted()] == [0]


def test_processes_of_this_machine_are_an_option_of_the_stage(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(STAGES))
    assert launch(LocalLauncher(processes=3), tmp_path, "ends")["processes"] == 3
    assert launch(LocalLauncher(), tmp_path, "ends")["processes"] == 1


def test_one_that_fails_ends_all_with_its_error(tmp_path, monkeypatch):
    monkeypatch.setattr(launchers, "_GRACE_S", 0.3)
    with pytest.raises(RecsysError, match="R322"):
        launch(commands("env", "{command}"), tmp_path, "waits", "fails")
    assert not any(lives(tmp_path, index) for index in (0, 1))


def test_one_that_ends_without_a_word_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(launchers, "_GRACE_S", 0.3)
    with pytest.raises(RecsysError, match=r"R394.*'host1'.*exit code 7"):
        launch(commands("env", "{command}"), tmp_path, "waits", "dies")


def test_a_lost_host_is_started_again_as_often_as_the_config_says(tmp_path):
    with pytest.raises(RecsysError, match="R388"):
        launch(commands("env", "{command}", n=1), tmp_path / "never", "lost once")
    launch(commands("env", "{command}", n=1, restarts=1), tmp_path / "once", "lost once")


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGKILL])
def test_all_end_with_the_run_and_save_where_they_can(signum, tmp_path):
    text = "import sys; sys.path += sys.argv[2:]\n"
    text += "from pathlib import Path; import test_launchers as t\n"
    text += "launcher = t.commands('sh', '-c', '{line}')\n"
    text += "try: t.launch(launcher, Path(sys.argv[1]), 'waits', 'waits')\n"
    text += "except t.RecsysError as error: print(error.code)"
    words = [sys.executable, "-c", text, str(tmp_path), str(Path(__file__).parent), str(SUPPORT)]
    run = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    while not (tmp_path / "1.pid").exists() or not (tmp_path / "0.pid").exists():
        time.sleep(0.02)
        assert run.poll() is None
    time.sleep(0.5)
    run.send_signal(signum)
    printed, _ = run.communicate(timeout=20)
    assert printed.split() == (["R375"] if signum == signal.SIGTERM else [])
    deadline = time.monotonic() + 10
    while any(lives(tmp_path, index) for index in (0, 1)):
        assert time.monotonic() < deadline
        time.sleep(0.02)


# --- the share of a process


@pytest.mark.parametrize(
    ("visible", "shares"),
    [
        ("0,1,2,3,4,5,6,7", ["0,1", "2,3", "4,5", "6,7"]),
        ("GPU-a,GPU-b,GPU-c,GPU-d", ["0", "1", "2", "3"]),
        ("0", ["0", "1", "2", "3"]),
        ("", ["0", "1", "2", "3"]),
    ],
)
def test_each_process_takes_as_many_gpus(visible, shares, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert [devices_of(index, 4) for index in range(4)] == shares
