"""The examples of a model and a loss of one's own, and of the whole way in one program, run."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from examples import custom_encoder, custom_loss, custom_model

ASK = """
import dataclasses, json, sys
import recsys
bundle = recsys.load_bundle(sys.argv[1])
user = bundle.example_users[0]
answers = [bundle.recommend(user, k=3), *bundle.recommend(users=[user, "nobody"], k=3)]
print(json.dumps([dataclasses.asdict(answer) for answer in answers]))
"""


@pytest.mark.parametrize("example", [custom_model, custom_encoder])
def test_the_custom_model_and_encoder_learn(example):
    losses = example.main()
    assert losses[-1] < 0.8 * losses[0]


def test_the_custom_loss_is_a_hinge():
    assert custom_loss.main() == (0.0, 0.5)


@pytest.mark.slow
@pytest.mark.pipeline
def test_the_program_recommends_by_its_own_model(tmp_path):
    command = [sys.executable, "-m", "examples.program", tmp_path]
    root = Path(__file__).parents[1]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
    assert "model: Averaged" in done.stdout
    assert "items for user 'u" in done.stdout

    # Elsewhere the bundle is enough: neither the model's module nor Keras.
    asked = subprocess.run(
        [sys.executable, "-c", ASK, tmp_path / "bundle"],
        env={**os.environ, "KERAS_BACKEND": ""}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    alone, together, nobody = json.loads(asked.stdout.splitlines()[-1])
    assert [item["id"] for item in alone["items"]] == [item["id"] for item in together["items"]]
    assert len(alone["items"]) == 3
    assert (alone["known"], nobody["known"], nobody["source"]) == (True, False, "popularity")
