"""Ranges of settings: read, tried on a config, and drawn from."""

import json
from pathlib import Path

import optuna
import pytest
from optuna.distributions import CategoricalDistribution as Choices
from optuna.distributions import FloatDistribution as Float
from optuna.distributions import IntDistribution as Int

from recsys.config.load import load_config
from recsys.errors import ConfigError
from recsys.tuning.search_space import (
    base_parameters,
    decode,
    default_space,
    parse_space,
    read_space,
    suggest,
)

TEXT = (
    "{name: t, root: r, model: {}, data: {split: random,"
    " interactions: {files: a.csv, columns: {user: u, item: i}}}}"
)


@pytest.fixture
def load(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text(TEXT)
    return lambda values: load_config(path, [f"{k}={json.dumps(v)}" for k, v in values.items()])


@pytest.mark.parametrize(
    ("key", "written", "expected"),
    [
        ("train.table_learning_rate", "log:0.001..0.1", Float(0.001, 0.1, log=True)),
        ("train.table_learning_rate", "1e-3..0.1", Float(0.001, 0.1)),
        ("model.dim", "16..256", Int(16, 256)),
        ("model.dim", "64..256/64", Int(64, 256, step=64)),
        ("model.dim", {"low": 16, "high": 64, "step": 16}, Int(16, 64, step=16)),
        ("model.temperature", "1.0..2", Float(1, 2)),
        ("model.pooling", "mean|attention", Choices(['"mean"', '"attention"'])),
        ("model.widths", [None, [64]], Choices(["null", "[64]"])),
    ],
)
def test_a_range_is_read_as_it_is_meant(load, key, written, expected):
    assert parse_space({key: written}, load) == {key: expected}


@pytest.mark.parametrize(
    ("key", "written", "code", "named"),
    [
        ("train.table_learning_rat", "log:0.001..0.1", "R105", "table_learning_rate"),
        ("train.table_learning_rate", "log:0..0.1", "R920", "low"),
        ("train.table_learning_rate", "a..b", "R920", "numbers"),
        ("train.table_learning_rate", "0.1", "R920", "two values"),
        ("train.table_learning_rate", "-1.0..1.0", "R107", "greater than 0"),
        ("model.pooling", "mean|mode", "R107", "mode"),
        ("model.dim", "[", "R920", "range"),
        ("data.eval_share", "0.1..0.2", "R920", "Only keys of `model` and `train`"),
        ("train.seed", "0..9", "R920", "train.seed"),
        ("train.validation.share", "0.1..0.2", "R920", "train.validation"),
    ],
)
def test_a_range_that_cannot_be_is_refused(load, key, written, code, named):
    with pytest.raises(ConfigError, match=named) as caught:
        parse_space({key: written}, load)
    assert caught.value.code == code


def test_a_file_has_ranges_and_the_command_line_has_the_last_word(tmp_path):
    file = tmp_path / "space.yaml"
    file.write_text("model.dim: [8, 16]\ntrain.epochs: 2..4\n")
    space = read_space(file, ["train.epochs=3..9", "model.history = 5..50"])
    assert space == {
        "model.dim": [8, 16],
        "train.epochs": "3..9",
        "model.history": "5..50",
    }
    file.write_text("- 1\n")
    with pytest.raises(ConfigError, match="R920"):
        read_space(file, [])
    with pytest.raises(ConfigError, match="R920"):
        read_space(None, ["model.dim"])


@pytest.mark.parametrize(
    ("sets", "absent"),
    [
        ({}, ""),
        ({"model.widths": None}, "train.tower_learning_rate"),
        ({"train.loss": "full_softmax"}, "train.uniform_negatives"),
        ({"model.similarity": "dot"}, "model.temperature"),
    ],
)
def test_the_default_space_has_the_settings_in_use(load, sets, absent):
    space = parse_space(default_space(load(sets)), lambda values: load({**sets, **values}))
    every = set(default_space(load({})))
    assert len(every) == 7
    assert every - set(space) == {absent} - {""}


def test_the_defaults_of_a_ranking_model_are_in_its_default_space():
    def of(values):
        sets = [f"{key}={json.dumps(value)}" for key, value in values.items()]
        return load_config(Path("configs/movielens_ranking.yaml"), sets)

    space = parse_space(default_space(of({})), of)
    assert base_parameters(of({}), space, of).keys() == space.keys()


def test_a_config_is_in_the_space_if_its_values_are(load):
    written = {
        "train.table_optimizer": ["sgd", {"type": "adagrad"}],
        "model.widths": [None, [128]],
        "train.table_learning_rate": "0.01..0.02",
        "train.epochs": "10..20",
    }
    space = parse_space(written, load)
    assert base_parameters(load({}), space, load) == {
        "train.table_optimizer": '{"type": "adagrad"}',
        "model.widths": "[128]",
        "train.epochs": 12,
    }


def test_drawn_values_are_in_the_range_and_valid(load):
    space = parse_space({"model.dim": "64..256/64", "model.widths": [None, [64]]}, load)
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    for _ in range(20):
        trial = study.ask()
        for key, distribution in space.items():
            suggest(trial, key, distribution)
        drawn = {key: decode(value, space[key]) for key, value in trial.params.items()}
        assert drawn["model.dim"] in (64, 128, 192, 256)
        assert load(drawn).model.widths in (None, (64,))
