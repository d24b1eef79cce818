"""The search space of a study: keys of the config, each with a range or a list of values.

log:0.001..0.1    a number, drawn by its logarithm
0.0..0.5          a number
16..256           a whole number, since both ends are
64..512/64        a whole number, in steps
mean|attention    one of these; each is YAML
[64, 128, 256]    the same
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import optuna
from optuna.distributions import (
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)

from recsys.config import Config
from recsys.config.safe_yaml import YamlProblem, parse_yaml
from recsys.errors import ConfigError
from recsys.tasks import side_of

Load = Callable[[Mapping[str, Any]], Config]
"""Returns the config with some keys set, by their dotted paths; raises ConfigError."""
Distribution: TypeAlias = IntDistribution | FloatDistribution | CategoricalDistribution
Space = dict[str, Distribution]
"""The distribution of each key, by its dotted path; choices are JSON."""

_FIXED = ("train.validation", "train.seed", "train.checkpoint", "train.profile_steps")
"""Keys that would make trials incomparable, or that don't change the model."""


def read_space(file: Path | None, varied: Sequence[str]) -> dict[str, Any]:
    """Returns the unparsed ranges of a file and of `--vary`, which takes precedence.

    Args:
        file: YAML, a map of keys to ranges, or None.
        varied: Ranges as `KEY=RANGE`.

    Raises:
        ConfigError: They can't be read.
    """
    written: dict[str, Any] = {}
    if file is not None:
        try:
            content = parse_yaml(file.read_text(encoding="utf-8"))
        except (OSError, ValueError, YamlProblem) as error:
            raise _wrong(f"The file {str(file)!r} must be YAML", str(error)) from None
        if not isinstance(content, dict):
            raise _wrong(f"The file {str(file)!r} must map keys to ranges", content)
        written |= content
    for text in varied:
        key, equals, value = text.partition("=")
        if not equals:
            raise _wrong("--vary must read KEY=RANGE", text)
        written[key.strip()] = value.strip()
    return written


def parse_space(written: Mapping[str, Any], load: Load) -> Space:
    """Returns the distributions of ranges; both ends of each are checked on the config.

    Args:
        written: Range of each key: text, a list of values, or a map with `low`, `high`, and
            optionally `log` and `step`.
        load: Returns the config with some keys set.

    Raises:
        ConfigError: A range is invalid, or the config doesn't take its values.
    """
    space: Space = {}
    for key, value in written.items():
        parts = str(key).split(".")
        if len(parts) < 2 or parts[0] not in ("model", "train") or ".".join(parts[:2]) in _FIXED:
            kept = ", ".join(_FIXED)
            raise _wrong(f"Only keys of `model` and `train` can be varied, except {kept}", key)
        distribution = space[key] = _read_range(key, value)
        if isinstance(distribution, CategoricalDistribution):
            values = [decode(choice, distribution) for choice in distribution.choices]
        else:
            values = [distribution.low, distribution.high]
        for one in values:
            load({key: one})
    return space


def suggest(trial: optuna.Trial, key: str, distribution: Distribution) -> None:
    """Draws the value of a key, unless the trial has one."""
    if isinstance(distribution, CategoricalDistribution):
        trial.suggest_categorical(key, distribution.choices)
        return
    is_whole = isinstance(distribution, IntDistribution)
    draw: Any = trial.suggest_int if is_whole else trial.suggest_float
    draw(key, distribution.low, distribution.high, log=distribution.log, step=distribution.step)


def decode(value: Any, distribution: Distribution) -> Any:
    """Returns the config's form of an Optuna value."""
    return json.loads(value) if isinstance(distribution, CategoricalDistribution) else value


def _read_range(key: str, value: Any) -> Distribution:
    written = value
    try:
        if isinstance(value, str) and ".." in value:
            low, _, high = value.removeprefix("log:").partition("..")
            high, _, step = high.partition("/")
            low, high, step = (parse_yaml(part or "null") for part in (low, high, step))
            value = {"low": low, "high": high, "log": value.startswith("log:"), "step": step}
        elif isinstance(value, str):
            is_list = value.startswith("[")
            value = parse_yaml(value) if is_list else [parse_yaml(p) for p in value.split("|")]
        if isinstance(value, list) and len(value) > 1:
            return CategoricalDistribution([json.dumps(choice) for choice in value])
        numbers = [value["low"], value["high"], value.get("step") or 1]
        if all(type(number) is int for number in numbers):
            return IntDistribution(**value | {"step": numbers[2]})
        return FloatDistribution(**value)
    except (TypeError, ValueError, LookupError, YamlProblem) as error:
        rule = f"{key} needs a range of numbers, or at least two values: {error}"
        raise _wrong(rule, written) from None


def _wrong(rule: str, received: Any) -> ConfigError:
    return ConfigError(
        "R920",
        f"{rule.rstrip('.')}.",
        "Write, for example, --vary train.table_learning_rate=log:0.001..0.1, --vary"
        " model.dim=64..256/64 or --vary model.pooling=mean|attention.",
        received,
    )


def default_space(config: Config) -> dict[str, Any]:
    """Returns the default ranges of a model's task, as `parse_space` takes them.

    Raises:
        ConfigError: There are none.
    """
    space: dict[str, Any] = side_of(config.model, "training").default_space(config)
    if not space:
        rule = "A model of a plugin has no default ranges: name the keys to vary"
        raise _wrong(rule, config.model.summary)
    return space


def base_parameters(config: Config, space: Space, load: Load) -> dict[str, Any]:
    """Returns the values of a config that are in the space, in Optuna's form."""
    parameters: dict[str, Any] = {}
    for key, distribution in space.items():
        if isinstance(distribution, CategoricalDistribution):
            # Values that give the same config are equal, however they are written.
            same = (c for c in distribution.choices if load({key: json.loads(str(c))}) == config)
            if (choice := next(same, None)) is not None:
                parameters[key] = choice
            continue
        value: Any = config.model_dump(mode="json")
        for name in key.split("."):
            value = value.get(name) if isinstance(value, dict) else None
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if is_number and distribution.low <= value <= distribution.high:
            parameters[key] = value
    return parameters
