"""A package from outside the tree brings its own classes through the whole pipeline."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import yaml
from places import ROOT

import recsys

PLUGIN = "my_recsys_plugin"
MODEL = {"dim": 8, "feature_dim": 4, "history": 6}
TRAIN = {"batch_size": 64, "uniform_negatives": 64, "epochs": 2}

pytestmark = [pytest.mark.slow, pytest.mark.pipeline]


class Installed:
    """The package, installed into a folder, and a config that names its classes."""

    def __init__(self, folder):
        self.folder, self.site = folder, folder / "site"
        source = shutil.copytree(Path(__file__).parent / "plugin_package", folder / "source")
        build = "from setuptools import build_meta; print(build_meta.build_wheel('..'))"
        subprocess.run(
            [sys.executable, "-c", build], cwd=source, check=True, stdout=subprocess.DEVNULL
        )
        (wheel,) = folder.glob("*.whl")
        install = [
            ROOT / "uvw",
            "pip",
            "install",
            "--python",
            sys.executable,
            "--target",
            self.site,
        ]
        subprocess.run([*install, "--no-deps", "--offline", "--quiet", wheel], check=True)
        shutil.rmtree(source)
        words = ["--users", 150, "--items", 60, "--interactions", 4_000, "--out", folder / "data"]
        self.recsys("synth", *words)
        (written,) = (folder / "data").glob("*.yaml")
        config = yaml.safe_load(written.read_text())
        del config["data"]["items"]["features"][1:]  # Each takes Transform some seconds.
        config.update(
            plugins=[PLUGIN],
            root=str(folder / "run"),
            model={"type": "gated", "units": 8, **MODEL},
            train={**TRAIN, "loss": {"type": "margin", "margin": 0.3}},
            evaluate={
                "k": [10],
                "metrics": ["recall", "ndcg", {"type": "found_early", "places": 2}],
                "baselines": ["popularity"],
                "resamples": 100,
            },
            bless={
                "metric": "recall@10",
                "at_least": 0.01,
                "over": {},
                "over_blessed": 0.0,
                "over_strongest": 0.0,
                "sure_loss": "allow",
            },
        )
        self.config = folder / "data" / "plugin.yaml"
        self.config.write_text(yaml.safe_dump(config))

    @property
    def environment(self):
        roots = [str(ROOT), str(self.site)]
        return {**os.environ, "PYTHONPATH": os.pathsep.join(roots)}

    def recsys(self, *words, code=0):
        run = subprocess.run(
            [sys.executable, "-m", "recsys", *map(str, words)],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert run.returncode == code, run.stdout[-2000:] + run.stderr[-4000:]
        return run


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    pytest.importorskip("tfx", reason="needs the extra `pipeline`")
    return Installed(tmp_path_factory.mktemp("plugin"))


@pytest.fixture(scope="module")
def run(installed):
    """Returns the result of `recsys run` with the package's model, loss and metric."""
    printed = installed.recsys("run", installed.config, "--json").stdout
    return json.loads(printed.splitlines()[-1])


def one(folder, pattern):
    (path,) = folder.glob(f"run/artifacts/**/{pattern}")
    return path


def test_the_command_trains_the_model_by_the_loss_of_the_package(installed, data, tmp_path):
    words = ["--config", installed.config, "--data", data, "--out", tmp_path / "model"]
    installed.recsys("train", *words)
    training = json.loads((tmp_path / "model" / "training.json").read_text())
    assert training["step"]["tables"] == []
    assert training["curve"][-1]["loss"] < training["curve"][0]["loss"]
    model = json.loads((tmp_path / "model" / "model.json").read_text())
    assert model["spec"]["config"]["type"] == "gated"


@pytest.mark.thorough
def test_the_model_is_trained_proven_measured_and_exported(installed, run):
    training = json.loads(one(installed.folder, "training.json").read_text())
    assert training["step"]["tables"] == []
    assert training["curve"][-1]["loss"] < training["curve"][0]["loss"]
    evaluation = json.loads(one(installed.folder, "evaluation.json").read_text())
    assert 0.0 < evaluation["metrics"]["found_early@10"] <= 1.0
    assert run["blessed"]
    bundle = Path(run["bundle"])
    manifest = json.loads((bundle / "manifest.json").read_text())
    assert manifest["config"]["model"]["type"] == "gated"
    card = (bundle / "MODEL_CARD.md").read_text()
    assert "A gated retrieval model" in card
    assert "Hinge with a margin" in card
    assert "found early" in Path(run["report"]).read_text()


@pytest.mark.thorough
def test_the_bundle_answers_where_the_package_is_not_installed(run):
    assert importlib.util.find_spec(PLUGIN) is None
    bundle = recsys.load_bundle(Path(run["bundle"]))
    answer = bundle.recommend("1", k=11)
    assert len({item.id for item in answer.items}) == 11


def digest(folder):
    files = sorted((folder / "weights").iterdir())
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


def training_of(installed, name, **change):
    """Returns a folder for a model, and the words of a training after the run."""
    config = yaml.safe_load(installed.config.read_text())
    config["train"].update(change)
    path = installed.config.with_name(f"{name}.yaml")
    path.write_text(yaml.safe_dump(config))
    data = one(installed.folder, "store/store.json").parent.parent
    out = installed.folder / name / "model"
    return out, [str(word) for word in ("--config", path, "--data", data, "--out", out)]


@pytest.mark.faults
def test_a_killed_training_ends_with_the_bits_of_the_run(installed, run):
    resumed, words = training_of(installed, "killed", checkpoint={"every_steps": 5})
    command = [sys.executable, "-m", "recsys.stages.train", *words]
    options = {"env": installed.environment, "stdout": subprocess.DEVNULL}
    killed = subprocess.Popen(command, stderr=subprocess.DEVNULL, **options)
    checkpoints = installed.folder / "killed" / "checkpoints"
    while not any(path.name.isdecimal() for path in checkpoints.glob("*/last/*")):
        assert killed.poll() is None
        time.sleep(0.02)
    killed.kill()
    killed.communicate()
    subprocess.run(command, check=True, **options)
    assert json.loads((resumed / "training.json").read_text())["resumed_at"]
    assert digest(resumed) == digest(one(installed.folder, "training.json").parent)


@pytest.mark.thorough
def test_a_model_of_the_package_is_gone_on_from(installed, run):
    warm, words = training_of(installed, "warm", epochs=1)
    installed.recsys("train", *words, "--base", one(installed.folder, "training.json").parent)
    training = json.loads((warm / "training.json").read_text())
    carried = training["warm_start"]["carried"]
    assert carried["users"]["kept"] > 100
    before = json.loads(one(installed.folder, "training.json").read_text())["curve"]
    assert training["curve"][0]["loss"] < before[0]["loss"]


def test_options_of_the_package_are_checked_as_strictly_as_ours(installed):
    wrong = "train.loss={type: margin, margin: -1.0}"
    refused = installed.recsys("run", installed.config, "--set", wrong, code=2)
    assert "'train.loss.margin'" in refused.stderr


@pytest.mark.thorough
def test_an_encoder_of_the_package_trains_in_the_two_towers(installed, run, tmp_path):
    config = yaml.safe_load(installed.config.read_text())
    encoder = {"type": "decaying", "half_life": 2.0}
    config["model"] = {"pooling": encoder, "dim": 8, "history": 6, "widths": [8]}
    path = installed.config.with_name("encoder.yaml")
    path.write_text(yaml.safe_dump(config))
    folder = tmp_path / "model"
    data = one(installed.folder, "store/store.json").parent.parent
    installed.recsys("train", "--data", data, "--out", folder, "--config", path)
    summary = json.loads((folder / "model.json").read_text())
    assert summary["spec"]["config"]["pooling"] == {"type": "decaying", "half_life": 2.0}
    assert "two_tower/history/scale" in [v["path"] for v in summary["variables"]]
    assert np.isfinite(np.load(folder / "candidates.npy")).all()
