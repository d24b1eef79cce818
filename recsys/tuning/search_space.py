"""What a study varies: keys of the config, each with a range or a list of values.

log:0.001..0.1    a number, by its logarithm
0.0..0.5          a number
64..512/64        a whole number, in steps
mean|attention    one of these; each is YAML
[64, 128, 256]    the same
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from recsys.config import Config, TwoTowerConfig
from recsys.config.safe_yaml import YamlProblem, parse_yaml
from recsys.errors import ConfigError

Load = Callable[[Mapping[str, Any]], Config]
"""Returns the config with some keys set, by their dotted paths; raises ConfigError."""

_FIXED = {
    "train.validation": "it is what the trials are compared by",
    "train.seed": "a lucky seed is no better setting",
    "train.checkpoint": "it changes no model",
    "train.profile_steps": "it changes no model",
}
_INSIDE = 0.381966
"""A share of a range that no whole number lies at, of one that isn't made for it."""


@dataclasses.dataclass(frozen=True)
class Interval:
    """Numbers between two.

    Attributes:
        low: The lowest.
        high: The highest.
        is_log: Whether they are drawn by their logarithms.
        step: Distance of two neighbours; None: any number.
        is_whole: Whether they are whole numbers.
    """

    low: float
    high: float
    is_log: bool = False
    step: float | None = None
    is_whole: bool = False

    def suggest(self, trial: Any, key: str) -> Any:
        """Returns what an Optuna trial takes for `key`."""
        step = self.step
        if self.is_whole:
            low, high = int(self.low), int(self.high)
            return trial.suggest_int(key, low, high, log=self.is_log, step=int(step or 1))
        return trial.suggest_float(key, self.low, self.high, log=self.is_log, step=step)

    def encoded(self, value: Any) -> Any:
        """Returns a number of a config as Optuna has it; None where it isn't in the range."""
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return value if is_number and self.low <= value <= self.high else None

    def samples(self) -> list[Any]:
        """Returns values that the config must take if it takes the range."""
        ends = (int(self.low), int(self.high)) if self.is_whole else (self.low, self.high)
        return list(ends)


@dataclasses.dataclass(frozen=True)
class Choices:
    """A few values, of any kind.

    Attributes:
        values: The values, as JSON has them.
    """

    values: tuple[Any, ...]

    def suggest(self, trial: Any, key: str) -> Any:
        """Returns what an Optuna trial takes for `key`; Optuna knows the values as JSON."""
        return json.loads(trial.suggest_categorical(key, [json.dumps(v) for v in self.values]))

    def samples(self) -> list[Any]:
        """Returns values that the config must take if it takes the range."""
        return list(self.values)


Space = dict[str, Interval | Choices]
"""The range of each key, by its dotted path."""


# --- reading ranges


def read_space(file: Path | None, varied: Sequence[str]) -> dict[str, Any]:
    """Returns the ranges of a file and of `--vary`, which comes later, as they are written.

    Args:
        file: YAML, a map of keys to ranges; None: none.
        varied: `KEY=RANGE` each.

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
    """Returns ranges, each tried on the config.

    Args:
        written: Range of each key: text, a list of values, or a map with `low`, `high`, and
            maybe `log` and `step`.
        load: Makes configs.

    Raises:
        ConfigError: A range is none, or the config doesn't take its values.
    """
    space: Space = {}
    for key, value in written.items():
        _refuse_fixed(key)
        interval = _parse_range(key, value)
        for sample in interval.samples():
            load({key: sample})
        if isinstance(interval, Interval):
            interval = dataclasses.replace(interval, is_whole=_is_whole(key, interval, load))
        space[key] = interval
    return space


def _refuse_fixed(key: str) -> None:
    parts = str(key).split(".")
    for fixed, why in _FIXED.items():
        if parts[:2] == fixed.split("."):
            raise _wrong(f"{fixed} can't be varied: {why}", key)
    if len(parts) < 2 or parts[0] not in ("model", "train"):
        raise _wrong("Keys of `model` and `train` alone can be varied", key)


def _parse_range(key: str, value: Any) -> Interval | Choices:
    is_map = isinstance(value, dict)
    if is_map and {"low", "high"} <= value.keys() <= {"low", "high", "log", "step"}:
        ends, is_log = (value["low"], value["high"]), value.get("log", False)
        return _interval(key, ends, is_log, value.get("step"), value)
    if isinstance(value, str) and ".." in value:
        is_log, text = value.startswith("log:"), value.removeprefix("log:")
        low, _, high = text.partition("..")
        high, _, step = high.partition("/")
        numbers = [parse_yaml(part) if part else None for part in (low, high, step)]
        return _interval(key, numbers[:2], is_log, numbers[2], value)
    if isinstance(value, str):
        is_list = value.startswith("[")
        value = parse_yaml(value) if is_list else [parse_yaml(part) for part in value.split("|")]
    if not isinstance(value, list) or len(value) < 2:
        raise _wrong(f"{key} needs a range or two values or more", value)
    return Choices(tuple(value))


def _interval(key: str, ends: Sequence[Any], is_log: Any, step: Any, written: Any) -> Interval:
    numbers = [*ends, *([] if step is None else [step])]
    if not all(isinstance(n, int | float) and not isinstance(n, bool) for n in numbers):
        raise _wrong(f"The ends of the range of {key} must be numbers", written)
    low, high = ends
    if low >= high or (is_log and low <= 0) or (step is not None and not 0 < step <= high - low):
        raise _wrong(f"The range of {key} must go up, above 0 if by logarithms", written)
    if is_log and step is not None:
        raise _wrong(f"The range of {key} has steps or is by logarithms, not both", written)
    return Interval(low, high, bool(is_log), step)


def _is_whole(key: str, interval: Interval, load: Load) -> bool:
    """Returns whether the config takes whole numbers alone in the range of a key."""
    low, high = interval.low, interval.high
    numbers = (low, high, *([] if interval.step is None else [interval.step]))
    if not all(isinstance(number, int) for number in numbers):
        return False
    if interval.step is not None:
        return True
    try:
        load({key: low + _INSIDE * (high - low)})
    except ConfigError:
        return True
    return False


def _wrong(rule: str, received: Any) -> ConfigError:
    return ConfigError(
        "R920",
        f"{rule}.",
        "Write, for example, --vary train.table_learning_rate=log:0.001..0.1, --vary"
        " model.dim=64..256/64 or --vary model.pooling=mean|attention.",
        received,
    )


# --- the ranges that are meant where none is named


def default_space(config: Config) -> dict[str, Any]:
    """Returns ranges for the two towers, as `parse_space` takes them.

    Raises:
        ConfigError: The model is another one.
    """
    model, train = config.model, config.train
    if not isinstance(model, TwoTowerConfig):
        raise _wrong(
            "A model of a plugin has no default ranges: name the keys to vary", model.summary
        )
    space: dict[str, Any] = {
        "train.table_learning_rate": "log:0.001..0.1",
        "train.epochs": f"{max(2, train.epochs // 2)}..{max(4, 2 * train.epochs)}",
        "model.dim": [64, 128, 192, 256],
        "model.history_dropout": "0.0..0.6",
    }
    if model.widths is not None or model.needs_order:
        space["train.tower_learning_rate"] = "log:0.0003..0.01"
    if model.similarity == "cosine":
        space["model.temperature"] = "log:0.03..0.3"
    if train.loss.negatives != "catalogue":
        space["train.uniform_negatives"] = [256, 512, 1024, 2048]
    return space


def base_parameters(config: Config, space: Space, load: Load) -> dict[str, Any]:
    """Returns where a config lies in the space, as Optuna has it; keys outside are left out."""
    dumped, parameters = config.model_dump(mode="json"), {}
    for key, interval in space.items():
        encoded: Any
        if isinstance(interval, Choices):
            # What makes the same config is the same value, however it is written.
            same = (value for value in interval.values if load({key: value}) == config)
            encoded = next((json.dumps(value) for value in same), None)
        else:
            value: Any = dumped
            for name in key.split("."):
                value = value.get(name) if isinstance(value, dict) else None
            encoded = interval.encoded(value)
        if encoded is not None:
            parameters[key] = encoded
    return parameters
