"""The engine and the trainer on a GPU: the numbers of a CPU, and the same bits after a kill."""

import signal
import subprocess
import sys

import numpy as np
import pytest
from places import SUPPORT
from training_runs import STAGE, Run

from recsys.tasks.retrieval.judging.systems import open_folder
from recsys.tasks.retrieval.probe import read_probe

pytestmark = pytest.mark.gpu
IN_ORDER = "--xla_gpu_deterministic_ops=true"


@pytest.fixture
def on(monkeypatch):
    """Says where the processes that a test starts compute, as users would start them."""

    def choose(platform, flags=""):
        monkeypatch.setenv("JAX_PLATFORMS", platform)
        monkeypatch.setenv("XLA_FLAGS", flags)

    return choose


def test_every_row_optimizer_gives_the_tables_of_a_cpu(on, tmp_path):
    script = SUPPORT / "all_optimizers.py"
    results = {}
    for platform in ("cuda", "cpu"):
        on(platform)
        path = tmp_path / f"{platform}.npz"
        subprocess.run([sys.executable, script, path], check=True, timeout=300)
        results[platform] = dict(np.load(path))
    assert results["cuda"].pop("platform") == "gpu"
    assert results["cpu"].pop("platform") == "cpu"
    for name, expected in results["cpu"].items():
        np.testing.assert_allclose(results["cuda"][name], expected, rtol=0, atol=1e-5, err_msg=name)


def test_a_killed_training_ends_with_the_same_bits_if_sums_are_in_order(on, data, tmp_path):
    on("cuda", IN_ORDER)
    undisturbed, killed = (Run(tmp_path / name, data, devices=1) for name in ("whole", "killed"))
    undisturbed.finish()
    killed.stop_at(100, signal.SIGKILL)
    assert killed.saved()
    assert killed.finish()["resumed_at"]
    expected, found = undisturbed.weights(), killed.weights()
    assert found.keys() == expected.keys()
    for name, weights in expected.items():
        assert np.array_equal(found[name], weights), name


def test_a_model_of_a_gpu_computes_the_same_on_a_cpu(on, data, tmp_path):
    """Its towers embed in float32, whatever they were trained in."""
    stage = {**STAGE, "model": {**STAGE["model"], "widths": [64]}}
    losses = {}
    for platform in ("cuda", "cpu"):
        on(platform)
        run = Run(tmp_path / platform, data, stage, devices=1)
        run.finish()
        losses[platform] = [point["loss"] for point in run.summary()["curve"]]
    np.testing.assert_allclose(losses["cuda"], losses["cpu"], rtol=2e-3)
    folder = tmp_path / "cuda" / "model"
    here = open_folder(folder, "the model").candidates  # Checks the queries too.
    np.testing.assert_allclose(here, read_probe(folder).candidates, rtol=0, atol=2e-6)
