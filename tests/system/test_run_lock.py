"""The lock of a root: who holds it, who may take it over, and who finds out."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time

import pytest
from waiting import wait_for

from recsys.errors import BusyError, RecsysError
from recsys.system import run_lock as run_lock_module
from recsys.system.process import signals_to
from recsys.system.run_lock import LOCK_NAME, SILENT_S, Owner, is_local, refuse_if_held, run_lock

_HOLD = """
import sys, pathlib
from recsys.system.run_lock import run_lock
with run_lock(pathlib.Path(sys.argv[1])) as lock:
    print("held", flush=True)
    sys.stdin.read()
"""


def hold(root):
    process = subprocess.Popen(
        [sys.executable, "-c", _HOLD, str(root)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert process.stdout.readline() == "held\n"
    return process


def end(process):
    process.kill()
    process.communicate()


@pytest.fixture
def other_run(tmp_path):
    process = hold(tmp_path)
    yield process
    end(process)


@pytest.fixture
def shared(monkeypatch):
    """The file system counts as shared by machines; the timeouts are short."""
    monkeypatch.setattr(run_lock_module, "is_local", lambda _: False)
    monkeypatch.setattr(run_lock_module, "_SETTLE_S", 0.05)


def sign(root, owner, silent=0.0):
    """Writes an owner into the lock that is not locked, as a file server shows it."""
    path = root / LOCK_NAME
    path.write_text(owner if isinstance(owner, str) else owner.model_dump_json())
    then = time.time() - silent
    os.utime(path, (then, then))


ELSEWHERE = Owner.this().model_copy(update={"machine": "another", "host": "another-host"})


def test_a_second_run_is_refused_with_pid_host_age_and_the_last_heartbeat(tmp_path, other_run):
    who = rf"process {other_run.pid} on {socket.gethostname()}"
    told = rf"R601.*{who}, for [\d.]+ m?s, .*life [\d.]+ m?s ago"
    with pytest.raises(BusyError, match=told) as caught, run_lock(tmp_path):
        pass
    assert caught.value.exit_code == 75
    assert type(RecsysError.from_json(caught.value.to_json())) is BusyError
    with pytest.raises(BusyError, match=rf"process {other_run.pid} "):
        refuse_if_held(tmp_path)


def test_a_killed_holder_is_taken_over_from_and_named(tmp_path, other_run):
    end(other_run)
    refuse_if_held(tmp_path)
    with run_lock(tmp_path) as lock:
        assert lock.taken_over.pid == other_run.pid
        lock.check()
    with run_lock(tmp_path) as lock:
        assert lock.taken_over is None  # It was given back.


@pytest.mark.parametrize(
    "content",
    ["", "no json", "[]", '{"pid": 1}', '{"pid": "1", "host": "h", "started": 0}', "\0" * 50],
)
def test_damage_in_the_file_means_no_holder(tmp_path, content):
    sign(tmp_path, content)
    refuse_if_held(tmp_path)
    with run_lock(tmp_path) as lock:
        assert lock.taken_over is None


def test_a_holder_on_another_machine_is_alive_until_it_is_silent(tmp_path, shared):
    sign(tmp_path, ELSEWHERE, silent=SILENT_S / 2)
    with (
        pytest.raises(BusyError, match=r"on another-host, .*last sign of life 1 min 0 s ago"),
        run_lock(tmp_path),
    ):
        pass
    refuse_if_held(tmp_path)  # From here nobody can see whether it lives.
    sign(tmp_path, ELSEWHERE, silent=SILENT_S + 5)
    with run_lock(tmp_path) as lock:
        assert lock.taken_over == ELSEWHERE


def test_on_a_disk_of_this_machine_the_kernel_alone_decides(tmp_path):
    sign(tmp_path, ELSEWHERE)
    with run_lock(tmp_path) as lock:
        assert lock.taken_over == ELSEWHERE


def test_on_a_shared_disk_a_dead_process_of_this_machine_needs_no_waiting(tmp_path, shared):
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    for pid, born in ((gone.pid, 1), (os.getpid(), 1)):  # Gone; and its pid came again.
        sign(tmp_path, Owner.this().model_copy(update={"pid": pid, "born": born}))
        with run_lock(tmp_path) as lock:
            assert lock.taken_over.pid == pid


def test_on_a_shared_disk_where_flock_fails_a_living_process_is_unchanged(
    tmp_path, shared, monkeypatch
):
    monkeypatch.setattr(run_lock_module, "_flocked", lambda *_: False)
    sign(tmp_path, Owner.this(), silent=10 * SILENT_S)
    with pytest.raises(BusyError), run_lock(tmp_path):
        pass


def test_the_same_pid_in_another_container_is_another_process():
    assert Owner.this().is_alive() is True
    assert ELSEWHERE.is_alive() is None


def test_of_two_that_sign_at_once_the_later_one_has_it(tmp_path, shared, monkeypatch):
    settled = time.sleep

    def meanwhile(seconds):
        settled(seconds)
        sign(tmp_path, ELSEWHERE)

    monkeypatch.setattr(run_lock_module.time, "sleep", meanwhile)
    with pytest.raises(BusyError, match="another-host"), run_lock(tmp_path):
        pass
    assert Owner.read(tmp_path / LOCK_NAME) == ELSEWHERE


def test_a_holder_that_was_taken_over_from_finds_out_and_gives_nothing_back(tmp_path):
    with run_lock(tmp_path) as lock:
        sign(tmp_path, ELSEWHERE)
        with pytest.raises(RecsysError, match=r"R604.*process \d+ on another-host"):
            lock.check()
    assert Owner.read(tmp_path / LOCK_NAME) == ELSEWHERE


def test_a_holder_gives_signs_of_life_and_stops_when_the_lock_is_gone(tmp_path, monkeypatch):
    monkeypatch.setattr(run_lock_module, "BEAT_S", 0.05)
    interrupted = []
    heard = signals_to(lambda signum, _: interrupted.append(signum))
    with heard, run_lock(tmp_path) as lock:
        os.utime(tmp_path / LOCK_NAME, (0, 0))
        wait_for(lambda: (tmp_path / LOCK_NAME).stat().st_mtime > 0)
        assert interrupted == []
        (tmp_path / LOCK_NAME).unlink()
        wait_for(lambda: interrupted)
        with pytest.raises(RecsysError, match="R604"):
            lock.check()


def test_what_is_no_file_system_of_this_kernel_counts_as_shared(monkeypatch, tmp_path):
    mounts = tmp_path / "mounts"
    inside = tmp_path / "a b" / "c"
    inside.mkdir(parents=True)
    root = "/dev/sda / ext4 rw 0 0\n"
    nested = str(tmp_path / "a b").replace(" ", "\\040")
    monkeypatch.setattr(run_lock_module, "_MOUNTS", mounts)
    for kind, expected in (("nfs4", False), ("fuse.gcsfuse", False), ("xfs", True)):
        mounts.write_text(f"{root}x {nested} {kind} rw 0 0\n")
        assert is_local(inside) is expected
        assert is_local(tmp_path)


def test_a_root_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "file").touch()
    with (
        pytest.raises(RecsysError, match=r"R602.*Not a directory"),
        run_lock(tmp_path / "file" / "x"),
    ):
        pass
