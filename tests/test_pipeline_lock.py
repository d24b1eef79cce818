"""One run at a time on one root, and a root that can't be written is refused."""

import os
import subprocess
import sys

import pytest

from pipelines.lock import run_lock
from recsys.errors import RecsysError

_HOLD = """
import sys, pathlib
from pipelines.lock import run_lock
with run_lock(pathlib.Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def other_run(tmp_path):
    with subprocess.Popen(
        [sys.executable, "-c", _HOLD, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    ) as process:
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_a_second_run_is_told_who_holds_the_root(tmp_path, other_run):
    with (
        pytest.raises(RecsysError, match=rf"R601.*process {other_run.pid} on .*, for \d+ s"),
        run_lock(tmp_path),
    ):
        pass


def test_a_killed_run_leaves_no_lock_behind(tmp_path, other_run):
    other_run.kill()
    other_run.wait()
    with run_lock(tmp_path):
        pass


def test_a_root_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "file").touch()
    with (
        pytest.raises(RecsysError, match=r"R602.*Not a directory"),
        run_lock(tmp_path / "file" / "x"),
    ):
        pass
