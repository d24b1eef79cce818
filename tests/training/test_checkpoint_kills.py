"""A run that is killed at any moment goes on from a checkpoint that is whole."""

import os
import random
import signal
import subprocess
import sys
import time

import pytest
from places import SUPPORT

pytestmark = [pytest.mark.slow, pytest.mark.faults]

SCRIPT = SUPPORT / "killed.py"
KILLS = 10


class Run:
    """The output of a forked run that was killed some time after a number of checkpoints."""

    def __init__(self, forker, checkpoints, alive_s):
        forker.stdin.write("go\n")
        forker.stdin.flush()
        self.said = []
        self._read(forker, until="pid")
        self.pid = self.said[-1][1]
        self._read(forker, until="restored")
        self.restored = self.said[-1][1]
        for _ in range(checkpoints):
            self.said.append(("", 0))
            self._read(forker, until="whole")
        time.sleep(alive_s)
        os.kill(self.pid, signal.SIGKILL)
        self._read(forker, until="dead")
        self.whole = max([step for word, step in self.said if word == "whole"], default=0)

    def _read(self, forker, until):
        while not self.said or self.said[-1][0] != until:
            word, *rest = forker.stdout.readline().split()
            assert word in {"pid", "restored", "whole", "dead"}, (word, rest)
            self.said.append((word, *map(int, rest), 0)[:2])


def test_a_killed_run_continues_from_what_it_announced(tmp_path):
    rng = random.Random(5)
    folder = tmp_path / "checkpoints"
    forker = subprocess.Popen(
        [sys.executable, SCRIPT, folder], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    announced, stopped_in_the_middle = 0, 0
    try:
        for _ in range(KILLS):
            run = Run(forker, rng.randrange(3), alive_s=rng.uniform(0, 0.3))
            assert run.restored >= announced
            announced = max(run.restored, run.whole)
            stopped_in_the_middle += any("writing" in p.name for p in folder.iterdir())
    finally:
        forker.kill()
        forker.communicate()
    assert announced > 0
    assert stopped_in_the_middle > 0
