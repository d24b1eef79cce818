"""Checkpoints of a run of several processes, joined by jax.distributed."""

import json
import socket
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest

from recsys.training.checkpoint import CheckpointStore

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).parent / "test_checkpoint_scripts" / "processes.py"
PROCESSES = 2


def run(folder):
    """Returns what each process ended with."""
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = probe.getsockname()[1]
    started = [
        subprocess.Popen(
            [sys.executable, SCRIPT, folder, str(n), str(PROCESSES), str(port)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for n in range(PROCESSES)
    ]
    outputs = [process.communicate(timeout=180) for process in started]
    for process, (_, errors) in zip(started, outputs, strict=True):
        assert process.returncode == 0, errors[-2000:]
    return [json.loads(out.splitlines()[-1]) for out, _ in outputs]


def test_two_processes_save_what_they_and_one_process_restore(tmp_path):
    results = run(tmp_path)
    counted = np.arange(64, dtype=np.float32).reshape(16, 4)
    for result in results:
        assert (result["step"], result["state"]) == (2, {"examples": 16})
        assert result["codes"] == ["R332", "R333"]
        (words,) = result["damaged"]
        assert words.startswith("step 3: ocdbt.process_1/")
        assert len(result["shards"]) == 4
        for start, part in result["shards"].items():
            np.testing.assert_array_equal(part, 2 * counted[int(start) : int(start) + 2])
    assert set(results[0]["shards"]).isdisjoint(results[1]["shards"])
    alone = {
        "table": keras.Variable(np.zeros((16, 4), np.float32)),
        "iterations": keras.Variable(np.float32(0)),
    }
    store = CheckpointStore(tmp_path / "best", {"config": "c"})
    assert store.restore(alone).step == 3
    store.close()
    np.testing.assert_array_equal(np.asarray(alone["table"].value), 3 * counted)
    assert alone["iterations"].value == 3
