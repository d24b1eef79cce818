"""Checkpoints of a run of several processes, joined by jax.distributed."""

import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time

import keras
import numpy as np
import pytest
from places import SUPPORT

from recsys.errors import RecsysError
from recsys.training.checkpoint import CheckpointStore

pytestmark = pytest.mark.slow

SCRIPTS = SUPPORT
PROCESSES = 2
COUNTED = np.arange(64, dtype=np.float32).reshape(16, 4)


def started(script, folder, stderr):
    """Returns the processes of a run that have just begun."""
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = probe.getsockname()[1]
    return [
        subprocess.Popen(
            [sys.executable, SCRIPTS / script, folder, str(n), str(PROCESSES), str(port)],
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        )
        for n in range(PROCESSES)
    ]


def run(folder):
    """Returns what each process ended with."""
    processes = started("checkpoint_processes.py", folder, subprocess.PIPE)
    outputs = [process.communicate(timeout=180) for process in processes]
    for process, (_, errors) in zip(processes, outputs, strict=True):
        assert process.returncode == 0, errors[-2000:]
    return [json.loads(out.splitlines()[-1]) for out, _ in outputs]


def restored(folder, rows=16, width=4):
    """Returns the step and the table that one process restores, and what was damaged."""
    table = keras.Variable(np.zeros((rows, width), np.float32))
    variables = {"table": table}
    if (rows, width) == COUNTED.shape:
        variables["iterations"] = keras.Variable(np.float32(0))
    store = CheckpointStore(folder, {"config": "c"})
    result = store.restore(variables)
    store.close()
    return result.step, np.asarray(table.value), result.damaged


def test_two_processes_save_what_they_and_one_process_restore(tmp_path):
    results = run(tmp_path)
    for result in results:
        assert (result["step"], result["state"]) == (2, {"examples": 16})
        assert result["codes"] == ["R332", "R333", "R338"]
        (words,) = result["damaged"]
        assert words.startswith("step 3: ocdbt.process_1/")
        assert len(result["shards"]) == 4
        for start, part in result["shards"].items():
            np.testing.assert_array_equal(part, 2 * COUNTED[int(start) : int(start) + 2])
    assert set(results[0]["shards"]).isdisjoint(results[1]["shards"])
    best = tmp_path / "best"
    parts = [
        set(json.loads((best / "3" / "manifests" / f"{n}.json").read_text())["files"])
        for n in range(PROCESSES)
    ]
    assert parts[0].isdisjoint(parts[1])
    assert all(name.startswith("ocdbt.process_1/") for name in parts[1])
    whole = shutil.copytree(best, tmp_path / "whole")
    step, table, _ = restored(whole)
    assert step == 3
    np.testing.assert_array_equal(table, 3 * COUNTED)

    flipped = next((best / "3" / "ocdbt.process_1" / "d").iterdir())
    content = bytearray(flipped.read_bytes())
    content[len(content) // 2] ^= 1
    flipped.write_bytes(content)
    step, table, (damage,) = restored(best)
    assert step == 2
    assert flipped.name in damage
    np.testing.assert_array_equal(table, 2 * COUNTED)
    (best / "2" / "manifests" / "1.json").unlink()
    with pytest.raises(RecsysError, match=r"R331.*manifests/1\.json"):
        restored(best)


@pytest.mark.faults
def test_a_save_that_loses_a_process_leaves_the_last_checkpoint_whole(tmp_path):
    rng = random.Random(3)
    for lost in (1, 0):
        processes = started("saving.py", tmp_path / "run", subprocess.DEVNULL)
        try:
            # Gloo says something on the same pipe.
            words = (line.split() for line in processes[0].stdout)
            whole = (int(step) for word, step, *_ in words if word == "whole")
            announced = [next(whole), next(whole)][-1]
            time.sleep(rng.uniform(0, 0.05))
            processes[lost].kill()
            time.sleep(0.5)
        finally:
            for process in processes:
                process.kill()
                process.communicate()
        copy = shutil.copytree(tmp_path / "run", tmp_path / f"after-{announced}")
        step, table, damaged = restored(copy, 2**15, 16)
        assert step >= announced
        assert damaged == ()
        np.testing.assert_array_equal(table, np.full_like(table, step))


# --- killed runs


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


@pytest.mark.faults
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
