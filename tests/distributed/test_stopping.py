"""Signals to programs: the sender, and the stage that they wait for."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from recsys.errors import RecsysError
from recsys.system.process import StoppedError, raise_if_stopped, run_stage, signals_raised

_STAGE = """
import json, signal, sys, time
from recsys.errors import RecsysError
from recsys.system.process import stage_main

def stage():
    saved = []
    signal.signal(signal.SIGTERM, lambda *_: saved.append(1))
    open(sys.argv[1], "w").close()
    while not saved:
        time.sleep(0.01)
    if sys.argv[2] == "saved":
        raise RecsysError("R375", "It has saved where it is.", "Go on.")
    return {"made": 1}

if __name__ == "__main__":
    stage_main(stage)
"""
_PROGRAM = """
import sys, time
from recsys.system.process import run_stage
from recsys.system.process import StoppedError, signals_raised
try:
    with signals_raised():
        run_stage("planted_stage", sys.argv[1:], {})
except StoppedError as stopped:
    print(repr(stopped.__cause__), flush=True)
    sys.exit(stopped.exit_code)
"""


def test_a_signal_is_raised_and_its_number_is_the_exit_code(heard_signal):
    signum, before = heard_signal, signal.getsignal(heard_signal)
    with pytest.raises(StoppedError) as caught, signals_raised():
        signal.raise_signal(signum)
    assert caught.value.exit_code == 128 + signum
    assert caught.value.name == signal.Signals(signum).name
    assert signal.getsignal(signum) is before


def test_a_signal_that_is_ignored_stays_so():
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        with signals_raised():
            signal.raise_signal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_wish_whose_error_was_lost_is_remembered():
    class Swallows:
        def __del__(self):
            signal.raise_signal(signal.SIGTERM)

    heard = []
    with signals_raised(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "unraisablehook", heard.append)
        raise_if_stopped()
        Swallows()  # Its end raises where Python can't hand it on.
        assert [type(one.exc_value) for one in heard] == [StoppedError]
        with pytest.raises(StoppedError):
            raise_if_stopped()
    with signals_raised():
        raise_if_stopped()


def started(tmp_path, ends):
    (tmp_path / "planted_stage.py").write_text(_STAGE)
    path = os.pathsep.join([str(tmp_path), *sys.path])
    program = subprocess.Popen(
        [sys.executable, "-c", _PROGRAM, str(tmp_path / "begun"), ends],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    )
    deadline = time.monotonic() + 30
    while not (tmp_path / "begun").exists():
        assert time.monotonic() < deadline
        assert program.poll() is None
        time.sleep(0.01)
    return program


@pytest.mark.parametrize(("ends", "cause"), [("saved", "R375"), ("made", "None")])
def test_a_program_that_is_stopped_waits_for_its_stage_to_save(tmp_path, ends, cause):
    program = started(tmp_path, ends)
    program.terminate()
    said, _ = program.communicate(timeout=30)
    assert program.returncode == 128 + signal.SIGTERM
    assert cause in said


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_stage_ends_with_a_program_that_is_killed(tmp_path):
    program = started(tmp_path, "made")
    stage = int(Path(f"/proc/{program.pid}/task/{program.pid}/children").read_text())
    program.kill()
    program.communicate()
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline and Path(f"/proc/{stage}/cmdline").exists():
        if not Path(f"/proc/{stage}/cmdline").read_bytes():
            break  # It is dead, and waits for init.
        time.sleep(0.02)
    else:
        assert not Path(f"/proc/{stage}/cmdline").exists()


def test_a_stage_fails_as_before_without_a_request(tmp_path, monkeypatch):
    (tmp_path / "planted_stage.py").write_text("raise SystemExit(3)")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *sys.path]))
    with pytest.raises(RecsysError, match=r"R610.*exit code 3"), signals_raised():
        run_stage("planted_stage", [], {})
