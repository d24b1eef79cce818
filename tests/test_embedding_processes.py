"""Tables over the devices of several processes, joined by jax.distributed; errors of one."""

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent / "test_embedding_scripts" / "processes.py"


def run(processes):
    """Returns what each process ended with."""
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = probe.getsockname()[1]
    started = [
        subprocess.Popen(
            [sys.executable, SCRIPT, str(n), str(processes), str(port)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for n in range(processes)
    ]
    outputs = [process.communicate(timeout=180) for process in started]
    for process, (_, errors) in zip(started, outputs, strict=True):
        assert process.returncode == 0, errors[-2000:]
    return [json.loads(out.splitlines()[-1]) for out, _ in outputs]


def test_two_processes_train_the_table_that_one_process_trains():
    (alone,) = run(1)
    first, second = run(2)
    assert first == second
    for name in ("loss", "squares"):
        assert first[name] == pytest.approx(alone[name], rel=1e-6)
    assert alone["loss"] < 1
    # What the second one alone has seen, both say.
    assert "R221" in first["error"]
    assert "item_row.npy" in first["error"]
    assert first["no_error"] is None
