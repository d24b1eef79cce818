"""A program that trains, exports and asks the bundle, without a pipeline and its folders."""

import json
import os
import subprocess
import sys

import keras
import pytest
from training_runs import STAGE, write_data

import recsys
from recsys.config import TrainStage
from recsys.errors import UsageError

_ASK = """
import dataclasses, json, sys
import recsys
bundle = recsys.load_bundle(sys.argv[1])
user = bundle.example_users[0]
answers = [bundle.recommend(user, k=3), *bundle.recommend(users=[user, "nobody"], k=3)]
print(json.dumps([dataclasses.asdict(answer) for answer in answers]))
"""


@pytest.fixture
def no_distribution():
    yield
    keras.distribution.set_distribution(None)


@pytest.mark.slow
@pytest.mark.usefixtures("no_distribution")
def test_a_model_trained_in_python_is_exported_and_recommends(tmp_path):
    from recsys.training.trainer import Trainer

    write_data(tmp_path / "data")
    data = recsys.open_data(tmp_path / "data")
    settings = TrainStage.model_validate({"model": STAGE["model"], "train": STAGE["train"]})
    model = recsys.TwoTower.from_config(settings, data)
    Trainer(settings.train, tmp_path / "checkpoints", verbose=0).fit(model, data)
    path = recsys.export(model, data, tmp_path / "bundle", name="mine")
    assert path == tmp_path / "bundle"
    assert json.loads((path / "manifest.json").read_text())["name"] == "mine"
    asked = subprocess.run(
        [sys.executable, "-c", _ASK, path],
        env={**os.environ, "KERAS_BACKEND": ""}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    alone, together, nobody = json.loads(asked.stdout.splitlines()[-1])
    assert [item["id"] for item in alone["items"]] == [item["id"] for item in together["items"]]
    assert len(alone["items"]) == 3
    assert (alone["known"], nobody["known"], nobody["source"]) == (True, False, "popularity")


def test_a_model_that_was_not_trained_is_refused(tmp_path):
    with pytest.raises(UsageError, match=r"R536.*recsys\.Trainer.*"):
        recsys.export(object(), tmp_path, tmp_path / "bundle")
