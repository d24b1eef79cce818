"""The engine alone: the example's DLRM trains by plain `compile` and `fit`."""

import os
import re
import subprocess
import sys

import pytest
from places import ROOT

pytestmark = pytest.mark.slow

EXAMPLE = ROOT / "examples" / "own_keras_model.py"


@pytest.mark.parametrize(
    "devices", [2, *(pytest.param(n, marks=pytest.mark.thorough) for n in (1, 8))]
)
def test_the_dlrm_learns_and_its_step_is_checked(devices):
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
    assert f"c4: 1,000,000 rows, {devices} shards" in done.stdout
    assert "'c4'" in re.search(r"StepProof\(tables=\((.*?)\)", done.stdout)[1]
    assert float(re.search(r"AUC (0\.\d+)", done.stdout)[1]) > 0.65
