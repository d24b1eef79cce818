"""Configs: what the JSON schema refuses must be refused, and always by a sentence."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema_rs
import yaml
from hypothesis import strategies as st

from benchmarks.fuzz_case.case import Example, broken, require, require_harmless
from recsys.config import Config
from recsys.config_file import default_config_path, load_config
from recsys.errors import ConfigError

_VALUES: list[Any] = [
    None, True, 0, 1, -1, 3, 0.5, 1e308, math.inf, -math.inf, math.nan, 2**63, 10**30, "", "x", "1",
    "time", "\x1b[31m", [], {}, [1], ["a", "a"], [[]], {"a": 1}, {"": None}, "*" * 2000,
]  # fmt: skip
_BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{b}: &{b} [{','.join(['*' + a] * 9)}]\n"
    for a, b in zip("abcdefghi", "bcdefghij", strict=True)
)
_TEXTS = [_BOMB, "[" * 5000, "{a: " * 2000, "a: !!int abc", "a: 2024-99-99", "name: &a [*a]", "\0"]


class Configs:
    """Configs with one known mistake, and broken texts."""

    def __init__(self) -> None:
        self._whole = load_config(default_config_path()).model_dump(mode="json")
        self._text = default_config_path().read_text()
        self._schema = jsonschema_rs.validator_for(Config.model_json_schema())

    def strategy(self) -> st.SearchStrategy[Example]:
        """Returns config files."""
        texts = st.sampled_from([self._text, yaml.safe_dump(self._whole), *_TEXTS])
        return _edited(self._whole, self._schema) | texts.flatmap(
            lambda text: broken(text.encode())
        ).map(lambda content: Example("config.yaml", content))

    def take(self, example: Example, path: Path) -> None:
        """Loads a config; one that is taken must fit the schema, and its edits too."""
        try:
            config = load_config(path)
        except ConfigError as error:
            require_harmless(str(error))
            return
        require("is_wrong" not in example.facts, "took a config that is wrong")
        values = config.model_dump(mode="json")
        require(all(map(math.isfinite, _numbers(values))), "took a number that is not finite")
        require(self._schema.is_valid(values), "took what the schema refuses")


@st.composite
def _edited(draw: st.DrawFn, whole: dict[str, Any], schema: Any) -> Example:
    """Returns a config with values and keys that are other ones, and whether it is wrong."""
    edited = copy.deepcopy(whole)
    for _ in range(draw(st.integers(1, 3))):
        place: Any = draw(st.sampled_from(list(_places(edited))))
        key = draw(st.sampled_from(_keys(place)))
        if isinstance(place, dict) and draw(st.integers(0, 3)) == 0:
            key = draw(st.sampled_from(["unknown", "Name", "name ", "__class__", "\x1b[31m"]))
        if isinstance(place, dict) and draw(st.integers(0, 5)) == 0:
            place.pop(key, None)
        else:
            place[key] = copy.deepcopy(draw(st.sampled_from(_VALUES)))
    # What the schema takes may break a rule between keys: only the other half is known.
    facts = {} if _is_valid(schema, edited) else {"is_wrong": True}
    return Example("config.yaml", yaml.safe_dump(edited, allow_unicode=True).encode(), facts)


def _is_valid(schema: Any, values: Any) -> bool:
    if not all(map(math.isfinite, _numbers(values))):
        return False
    return bool(schema.is_valid(json.loads(json.dumps(values))))


def _places(value: Any) -> Iterator[Any]:
    """Yields every map and list that holds something."""
    if isinstance(value, dict | list) and value:
        yield value
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _places(inner)


def _keys(place: Any) -> list[Any]:
    return list(place) if isinstance(place, dict) else list(range(len(place)))


def _numbers(value: Any) -> Iterator[float]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for inner in value:
            yield from _numbers(inner)
    elif isinstance(value, float):
        yield value
