"""How `recsys run` and its runner end: with each other, busy, or without room for a word."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys

import pytest
from rich.console import Console

from recsys.cli import main
from recsys.cli.follow import RunView, follow, new_log
from recsys.errors import RecsysError
from recsys.system.files import PREFIX
from recsys.system.parent import VARIABLE, child_command
from recsys.system.run_lock import run_lock


@pytest.fixture
def followed(tmp_path, monkeypatch):
    """Returns a function that follows a planted child to its end."""
    (tmp_path / "modules").mkdir()
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "modules"))

    def run(body):
        (tmp_path / "modules" / "planted_end.py").write_text(f"import os, sys\n{body}\n")
        log = new_log(tmp_path / "root")
        return follow(["planted_end"], log, RunView(Console(file=io.StringIO())))

    return run


def test_a_runner_is_a_child_of_the_command_and_does_not_pass_the_parents_name_on(followed):
    body = (
        "from recsys.system.events import emit\n"
        "summary = {'parent': os.getppid(), 'events': os.environ['RECSYS_EVENTS'],"
        f" 'passed_on': {VARIABLE!r} in os.environ}}\n"
        "emit('finished', summary=summary)"
    )
    summary = followed(body)
    assert summary["parent"] == os.getpid()
    assert summary["passed_on"] is False
    assert f"/{PREFIX}" in summary["events"]


@pytest.mark.parametrize("module", ["pipelines.local_runner", "recsys.train"])
def test_runner_and_stages_bind_themselves_before_all_else(module):
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    ended = subprocess.run(
        child_command(module),
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), VARIABLE: str(dead.pid)},
        check=False,
    )
    assert ended.returncode == -signal.SIGKILL


def test_a_busy_root_is_no_failure_and_leaves_no_log(tmp_path, monkeypatch, capsys):
    root = tmp_path / "root"
    with run_lock(root):
        monkeypatch.setattr("recsys.system.run_lock.os.getpid", lambda: -1)  # As another process.
        with pytest.raises(SystemExit) as ended:
            main(["run", "--set", f"root={root}"])
    assert ended.value.code == 75
    assert "R601" in capsys.readouterr().err
    assert sorted(path.name for path in root.iterdir()) == ["run.lock"]


def test_a_child_that_had_no_room_for_a_word_is_told_so(followed, monkeypatch):
    with pytest.raises(RecsysError, match=r"R903"):
        followed("sys.exit(1)")
    monkeypatch.setattr("recsys.system.disk.free_bytes", lambda _: 4096)
    with pytest.raises(RecsysError, match=r"R603.*No space left on device"):
        followed("sys.exit(1)")
