"""A package from outside the tree brings its own classes through the whole pipeline."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import numpy as np
import pytest
import yaml

ROOT = Path(__file__).resolve().parent.parent
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

    def recsys(self, *words, check=True):
        run = subprocess.run(
            [sys.executable, "-m", "recsys", *map(str, words)],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert not check or run.returncode == 0, run.stdout[-2000:] + run.stderr[-4000:]
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


def post(url, body):
    with urllib.request.urlopen(url, body, 60) as reply:  # noqa: S310
        return json.load(reply)


def wait_for(answer, timeout_s=120):
    """Returns an answer as soon as the server has loaded the model."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            return answer()
        except OSError:
            assert time.monotonic() < deadline
            time.sleep(0.2)


def test_a_request_is_answered_from_the_bundle(installed, run):
    words = ["serve", "--root", str(installed.folder / "run"), "--port", "0", "--json"]
    server = subprocess.Popen(
        [sys.executable, "-m", "recsys", *words],
        env={**os.environ, "PYTHONPATH": str(ROOT)},  # A bundle needs no plugin.
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        url = json.loads(server.stdout.readline())["url"].rstrip("/")
        name = yaml.safe_load(installed.config.read_text())["name"]
        instance = {"user_id": "1", "history": [""], "exclude_seen": True}
        body = json.dumps({"signature_name": "recommend", "instances": [instance]}).encode()
        reply = wait_for(lambda: post(f"{url}/v1/models/{name}:predict", body))
        (answer,) = reply["predictions"]
    finally:
        server.terminate()
        server.communicate(timeout=60)
    assert len({*answer["candidate_ids"]} - {""}) > 10


def digest(folder):
    files = sorted((folder / "weights").iterdir())
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


def train(installed, out, *words, kill=False):
    """Trains on the run's data; kills the training once it has a checkpoint, if `kill`."""
    data = one(installed.folder, "store/store.json").parent.parent
    words = ["train", "--data", data, "--out", out / "model", *words]
    command = [sys.executable, "-m", "recsys", *map(str, words)]
    process = subprocess.Popen(
        command, env=installed.environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    while kill and process.poll() is None:
        if [p for p in out.glob("checkpoints/*/last/*") if p.name.isdecimal()]:
            process.send_signal(signal.SIGKILL)
            break
        time.sleep(0.02)
    _, talk = process.communicate(timeout=300)
    assert kill or process.returncode == 0, talk.decode()[-3000:]
    return out / "model"


def test_a_killed_training_ends_with_the_bits_of_the_run(installed, run, tmp_path):
    words = ["--config", installed.config, "--set", "train.checkpoint.every_steps=5"]
    train(installed, tmp_path, *words, kill=True)
    resumed = train(installed, tmp_path, *words)
    assert json.loads((resumed / "training.json").read_text())["resumed_at"]
    assert digest(resumed) == digest(one(installed.folder, "training.json").parent)


def test_a_model_of_the_package_is_gone_on_from(installed, run, tmp_path):
    base = one(installed.folder, "training.json").parent
    words = ["--config", installed.config, "--set", "train.epochs=1", "--base", base]
    folder = train(installed, tmp_path, *words)
    training = json.loads((folder / "training.json").read_text())
    carried = training["warm_start"]["carried"]
    assert carried["users"]["kept"] > 100
    before = json.loads((base / "training.json").read_text())["curve"]
    assert training["curve"][0]["loss"] < before[0]["loss"]


@pytest.mark.thorough
def test_an_encoder_of_the_package_trains_in_the_two_towers(installed, run, tmp_path):
    config = yaml.safe_load(installed.config.read_text())
    encoder = {"type": "decaying", "half_life": 2.0}
    config["model"] = {"pooling": encoder, "dim": 8, "history": 6, "widths": [8]}
    path = installed.config.with_name("encoder.yaml")
    path.write_text(yaml.safe_dump(config))
    folder = train(installed, tmp_path, "--config", path)
    summary = json.loads((folder / "model.json").read_text())
    assert summary["spec"]["config"]["pooling"] == {"type": "decaying", "half_life": 2.0}
    assert "two_tower/history/scale" in [v["path"] for v in summary["variables"]]
    assert np.isfinite(np.load(folder / "candidates.npy")).all()


def test_options_of_the_package_are_checked_as_strictly_as_ours(installed):
    override = "train.loss={type: margin, margin: -1.0}"
    refused = installed.recsys("run", installed.config, "--set", override, check=False)
    assert refused.returncode == 2
    assert "'train.loss.margin'" in refused.stderr
