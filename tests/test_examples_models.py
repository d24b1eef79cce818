"""The examples of a model and a loss of one's own, and of the whole way in one program, run."""

import subprocess
import sys
from pathlib import Path

import pytest

import recsys
from examples import custom_encoder, custom_loss, custom_model


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

    # Elsewhere the bundle is enough.
    bundle = recsys.load_bundle(tmp_path / "bundle")
    user = bundle.example_users[0]
    alone, (together, nobody) = (
        bundle.recommend(user, k=3),
        bundle.recommend(users=[user, "nobody"], k=3),
    )
    assert [item.id for item in alone.items] == [item.id for item in together.items]
    assert len(alone.items) == 3
    assert (alone.known, nobody.known, nobody.source) == (True, False, "popularity")
