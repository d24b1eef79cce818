"""Tables over the devices of several processes, joined by jax.distributed; errors of one."""

import json
import socket
import subprocess
import sys

import numpy as np
import pytest
from places import SUPPORT

from recsys.embedding.saved_arrays import open_variable, path_of
from recsys.system.manifest import ManifestError, verify_files

SCRIPTS = SUPPORT


def run(script, processes, *words):
    """Returns what each process ended with."""
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = probe.getsockname()[1]
    started = [
        subprocess.Popen(
            [sys.executable, SCRIPTS / script, str(n), str(processes), str(port), *words],
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


@pytest.mark.thorough
def test_four_processes_train_the_table_that_one_process_trains_and_write_its_parts(tmp_path):
    (alone,) = run("embedding_processes.py", 1, tmp_path)
    first, *others = run("embedding_processes.py", 4, tmp_path)
    assert others == [first] * 3
    assert first["losses"] == pytest.approx(alone["losses"], rel=1e-4)
    assert alone["losses"][-1] < 1
    ours, theirs = (np.load(tmp_path / f"step-{n}.npz") for n in (4, 1))
    for name in theirs:
        np.testing.assert_allclose(ours[name], theirs[name], rtol=1e-5, atol=1e-9)
    # Over gloo the engine has no reduce-scatter, and XLA makes none of its all-reduces.
    assert {"all-reduce", "reduce-scatter"} <= {*alone["collectives"]}
    assert "all-reduce" in first["collectives"]
    assert "reduce-scatter" not in first["collectives"]
    # Both report what only the second process has seen.
    assert "R221" in first["error"]
    assert "item_row.npy" in first["error"]
    assert first["no_error"] is None
    for name, described in first["described"].items():
        parts = [[*entry.get("parts", {})] for entry in described]
        assert [len(names) for names in parts] == ([4, 4, 0, 0] if name == "parts" else [0] * 4)
        for number in range(4):
            array = open_variable(path_of(tmp_path / name, number, described[number]))
            expected = np.load(tmp_path / f"{number}.npy")
            assert array.shape == expected.shape == tuple(described[number]["shape"])
            assert np.asarray(array).tobytes() == expected.tobytes()
    files = first["described"]["parts"][0]["parts"]
    verify_files(tmp_path / "parts", files)
    flipped = tmp_path / "parts" / "0" / "shard-2-of-4.npy"
    content = bytearray(flipped.read_bytes())
    content[-5] ^= 1
    flipped.write_bytes(content)
    with pytest.raises(ManifestError, match=r"0/shard-2-of-4\.npy"):
        verify_files(tmp_path / "parts", files)


def test_two_processes_sum_without_the_reduce_scatter_that_gloo_damages():
    first, second = run("sums.py", 2)
    assert first == second
    assert first["wrong"] == 0
    assert "R397" in first["error"]
    assert "recsys.distributed.collectives" in first["error"]
