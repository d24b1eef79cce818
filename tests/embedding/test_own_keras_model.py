"""Only the engine: the example's DLRM trains by plain `compile` and `fit`."""

import importlib.util
import os
import re
import subprocess
import sys

import pytest
from places import ROOT
from training_runs import on_devices

EXAMPLE = ROOT / "examples" / "own_keras_model.py"


def assert_learned(printed, devices):
    assert f"c4: 1,000,000 rows, {devices} shards" in printed
    assert "'c4'" in re.search(r"StepProof\(tables=\((.*?)\)", printed)[1]


def test_the_dlrm_learns_and_its_step_is_checked(monkeypatch, capsys):
    spec = importlib.util.spec_from_file_location("own_keras_model", EXAMPLE)
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    few = dict(list(example.TABLES.items())[:6])  # Each costs some seconds to compile.
    monkeypatch.setattr(example, "TABLES", few)
    monkeypatch.setattr(example, "ROWS", example.ROWS[:6])
    with on_devices(2):
        assert example.main() > 0.65
    assert_learned(capsys.readouterr().out, 2)


@pytest.mark.thorough
@pytest.mark.parametrize("devices", [1, 2, 8])
def test_the_whole_example_runs(devices):
    # Compiled as users do: it computes for longer than it compiles.
    flags = f"--xla_force_host_platform_device_count={devices}"
    flags += " --xla_cpu_collective_call_terminate_timeout_seconds=600"  # Under load.
    done = subprocess.run(
        [sys.executable, EXAMPLE],
        env={**os.environ, "XLA_FLAGS": flags},
        capture_output=True,
        text=True,
        check=True,
    )
    assert_learned(done.stdout, devices)
    assert float(re.search(r"AUC (0\.\d+)", done.stdout)[1]) > 0.65
