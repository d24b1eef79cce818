"""Processes that end with the one that started them, and what they leave in /tmp."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from recsys.system import files
from recsys.system.files import PREFIX, scratch_folder, sweep, temporary_files_in
from recsys.system.parent import VARIABLE

_CHILD = """
import time
from recsys.system.parent import end_with_parent
end_with_parent()
print("ready", flush=True)
time.sleep(60)
"""
_PARENT = """
import os, subprocess, sys, time
from recsys.system.parent import as_parent
child = subprocess.Popen([sys.executable, "-c", sys.argv[1]],
    env={**os.environ, **(as_parent() if sys.argv[2] == "bound" else {})}, stdout=subprocess.PIPE)
child.stdout.readline()
print(child.pid, flush=True)
time.sleep(60)
"""


def family(how):
    """Starts a parent with a child; returns the parent, and the child's pid."""
    parent = subprocess.Popen(
        [sys.executable, "-c", _PARENT, _CHILD, how],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    return parent, int(parent.stdout.readline())


def lives(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def is_gone_within(pid, seconds):
    deadline = time.monotonic() + seconds
    while lives(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not lives(pid)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_child_ends_with_a_parent_that_is_killed():
    parent, pid = family("bound")
    assert lives(pid)
    parent.kill()
    parent.communicate()
    assert is_gone_within(pid, 5.0)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_process_that_is_unbound_goes_on(tmp_path):
    parent, pid = family("free")
    parent.kill()
    parent.communicate()
    try:
        assert not is_gone_within(pid, 0.5)
    finally:
        os.kill(pid, signal.SIGKILL)


def test_a_parent_that_is_dead_already_ends_the_child_at_once():
    code = "from recsys.system.parent import end_with_parent; end_with_parent(); print('on')"
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), VARIABLE: str(dead.pid)}
    child = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, check=False
    )
    assert (child.returncode, child.stdout) == (-signal.SIGKILL, b"")


def test_the_parent_s_name_goes_no_further(monkeypatch):
    monkeypatch.setenv(VARIABLE, "no number")
    from recsys.system.parent import end_with_parent

    end_with_parent()
    assert VARIABLE not in os.environ


_LEAVE = """
import os, signal, tempfile
from recsys.system.files import scratch_folder, temporary_files_in
with scratch_folder() as folder, temporary_files_in(folder):
    open(os.path.join(tempfile.mkdtemp(), "debris"), "w").close()
    print(folder, flush=True)
    {then}
"""


def leave(tmp_path, then):
    process = subprocess.Popen(
        [sys.executable, "-c", _LEAVE.format(then=then)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={
            **os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "TMPDIR": str(tmp_path),
        },
    )  # fmt: skip
    return process, Path(process.stdout.readline().strip())


def test_what_a_killed_program_left_is_removed_and_what_a_living_one_has_stays(
    tmp_path, monkeypatch
):
    living, held = leave(tmp_path, "input()")
    killed, left = leave(tmp_path, "os.kill(os.getpid(), signal.SIGKILL)")
    killed.communicate()
    link = tmp_path / f"{PREFIX}{'0' * 12}"
    link.symlink_to(tmp_path / "other")
    (tmp_path / "other").mkdir()
    assert left.is_dir()
    monkeypatch.setattr(files.tempfile, "tempdir", str(tmp_path))
    with scratch_folder() as mine:
        assert not left.exists()
        assert len(list(held.glob("*/debris"))) == 1
        assert mine.parent == tmp_path
        assert sweep(tmp_path) == []
    living.communicate("\n")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["other", link.name]


def test_temporary_files_go_to_the_given_folder_and_back(tmp_path):
    before = os.environ.get("TMPDIR")
    with temporary_files_in(tmp_path):
        assert files.tempfile.gettempdir() == os.environ["TMPDIR"] == str(tmp_path)
    assert os.environ.get("TMPDIR") == before
