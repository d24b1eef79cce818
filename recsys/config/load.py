"""Reads config files, applies overrides, and reports errors.

Paths in a config file are relative to that file's folder, paths in an override
(`--set root=DIR`) to the current folder.
"""

from __future__ import annotations

import difflib
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pydantic
from pydantic.fields import FieldInfo

from recsys.config import Config, PairStage, TrainStage
from recsys.config.removed import removed_key
from recsys.config.safe_yaml import YamlProblem, parse_yaml
from recsys.errors import ConfigError, shortened
from recsys.registry import Choice, choice_of
from recsys.registry.choice import StageT, stage_of
from recsys.strict import NOT_SHOWN, Strict
from recsys.system.files import open_regular

DEFAULT_NAME = "recsys.yaml"
"""Name of the config in a folder, as `recsys init` writes it."""
_DEFAULTS = Path(DEFAULT_NAME), Path("configs", "movielens_small.yaml")
_LONGEST_BYTES = 1 << 20  # More than the YAML that is read has.
_MOST_PROBLEMS = 3
_LONGEST_MESSAGE = 500
_FEATURES = "[{name: genre, column: genres, kind: categories}]"
_PATH_KEYS = (
    ("root",),
    ("data", "interactions", "files"),
    ("data", "interactions", "eval_files"),
    ("data", "interactions", "valid_files"),
    ("data", "items", "files"),
    ("data", "users", "files"),
    ("data", "interactions", "format", "folder"),
    ("data", "items", "format", "folder"),
    ("data", "users", "format", "folder"),
    ("data", "gate", "schema_dir"),
    ("data", "forget"),
    ("metadata", "mysql", "ssl", "ca"),
    ("metadata", "mysql", "ssl", "cert"),
    ("metadata", "mysql", "ssl", "key"),
)
StrictT = TypeVar("StrictT", bound=Strict)


def load_config(path: str | Path | None = None, overrides: Iterable[str] = ()) -> Config:
    """Reads a config file, applies overrides and validates the result.

    Args:
        path: A YAML file; None: see `default_config_path`.
        overrides: Overrides of the form `a.b=value`; the value is YAML.

    Returns:
        The validated config, with absolute paths.

    Raises:
        ConfigError: The file can't be read, is not valid YAML, or violates the schema.
    """
    path = Path(path or default_config_path())
    raw, folder = _read_yaml(path), path.resolve().parent
    _anchor_paths(raw, folder)
    there = {*_texts_in(raw)}
    here = _override(raw, overrides)
    return _validated(Config, raw, path, {"folder": folder, "there": there, "here": here})


def load_stage(path: Path, kind: type[StageT], overrides: Iterable[str] = ()) -> StageT:
    """Reads the parts of a config that a stage needs.

    Args:
        path: A complete config, or a file with only the parts of the stage (as a component
            passes to its process).
        kind: `TrainStage`, `EvaluateStage` or `ExportStage`.
        overrides: Overrides, as in `load_config`.

    Returns:
        The validated parts, with absolute paths.

    Raises:
        ConfigError: The file can't be read, is not valid YAML, or violates the schema.
    """
    raw = _read_yaml(path)
    if set(raw) <= set(kind.model_fields):
        _override(raw, overrides)
        return _validated(kind, raw, path)
    return stage_of(load_config(path, overrides), kind)


def load_training_stage(path: Path) -> TrainStage:
    """Reads the parts of a config that a training needs; a `PairStage` if it has a ranker.

    Raises:
        ConfigError: As `load_stage`.
    """
    kind = TrainStage if _read_yaml(path).get("ranker") is None else PairStage
    return load_stage(path, kind)


def default_stage(
    kind: type[StageT], known: Mapping[str, Any], overrides: Iterable[str] = ()
) -> StageT:
    """Returns the default options of a stage.

    Args:
        kind: `TrainStage`, `EvaluateStage` or `ExportStage`.
        known: Values that apply in place of defaults.
        overrides: Overrides, as in `load_config`.

    Raises:
        ConfigError: The values violate the schema.
    """
    raw = dict(known)
    _override(raw, overrides)
    return _validated(kind, raw, Path("the defaults"))


def default_config_path() -> Path:
    """Returns the path of the config to use if none is given.

    It is `recsys.yaml` in the current folder, or `configs/movielens_small.yaml` in a clone.
    A config that is somewhere else is about other data, and is only used if it is named.

    Raises:
        ConfigError: Neither exists (R101).
    """
    for path in _DEFAULTS:
        if path.exists():
            return path
    raise ConfigError(
        "R101",
        f"Without a config, the current folder must contain {' or '.join(map(str, _DEFAULTS))}.",
        "Name a config (--config FILE, or recsys run CONFIG), or create one: recsys init.",
        str(Path.cwd()),
    )


def _read_yaml(path: Path) -> dict[str, Any]:
    try:
        with open_regular(path) as file:  # Reading a pipe or a device may never end.
            text = file.read(_LONGEST_BYTES + 1).decode("utf-8")
    except (OSError, ValueError) as error:
        raise ConfigError(
            "R101",
            f"Config {str(path)!r} must be a readable text file.",
            "Name an existing YAML file, such as configs/movielens_small.yaml.",
            getattr(error, "strerror", None) or str(error),
        ) from None
    try:
        raw = parse_yaml(text)
    except YamlProblem as problem:
        raise ConfigError(
            "R102",
            f"Config {str(path)!r}{problem.place} must be YAML of text, numbers, lists and maps.",
            "Check keys, indentation, quotes and colons at that place; quote dates.",
            str(problem),
        ) from None
    if not isinstance(raw, dict):
        raise ConfigError(
            "R102",
            f"Config {str(path)!r} must be a map of keys to values.",
            "Start from configs/movielens_small.yaml.",
            raw,
        )
    return raw


def _anchor_paths(raw: dict[str, Any], folder: Path) -> None:
    """Makes the relative paths of a raw config absolute, relative to `folder`."""
    for *keys, last in _PATH_KEYS:
        part: Any = raw
        for key in keys:
            part = part.get(key) if isinstance(part, dict) else None
        if isinstance(part, dict) and last in part:
            part[last] = _anchored(part[last], folder)


def _anchored(value: Any, folder: Path) -> Any:
    """Returns a path or a list of paths relative to `folder`; leaves URLs unchanged."""
    if isinstance(value, list):
        return [_anchored(path, folder) for path in value]
    if not isinstance(value, str) or "://" in value:
        return value
    return os.path.normpath(os.path.join(folder, os.path.expanduser(value)))


def _override(raw: dict[str, Any], overrides: Iterable[str]) -> set[str]:
    """Applies overrides of the form `a.b=value` to a raw config.

    Returns:
        The texts in their values. The files that plugins read (`recsys.File`) are known only when
        the config is validated; those among the texts are relative to the current folder.
    """
    changes: dict[str, Any] = {}
    for override in overrides:
        _apply_override(changes, override)
    _anchor_paths(changes, Path.cwd())
    _merge(raw, changes)
    return {*_texts_in(changes)}


def _texts_in(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _texts_in(part)


def _apply_override(changes: dict[str, Any], override: str) -> None:
    path, equals, text = override.partition("=")
    keys = path.strip().split(".")
    if not equals or not all(re.fullmatch(r"\w+", key) for key in keys):
        raise ConfigError(
            "R104",
            "An override must have the form path=value.",
            "Write, for example, --set train.batch_size=256.",
            override,
        )
    try:
        value = parse_yaml(text)
    except YamlProblem as problem:
        raise ConfigError(
            "R104", f"The value of --set {path} must be YAML: {problem}.", "Quote it.", text
        ) from None
    part = changes
    for key in keys[:-1]:
        part = part.setdefault(key, {})
        if not isinstance(part, dict):
            raise ConfigError(
                "R104",
                f"--set {path} must not conflict with another --set of a parent key.",
                "Remove one of them.",
                override,
            )
    part[keys[-1]] = value


def _merge(raw: dict[str, Any], changes: Mapping[str, Any]) -> None:
    """Merges the keys of maps into the file's; an empty map replaces the file's."""
    for key, value in changes.items():
        if value and isinstance(value, dict) and isinstance(raw.get(key), dict):
            _merge(raw[key], value)
        else:
            raw[key] = value


def _with_model_type(raw: dict[str, Any]) -> dict[str, Any]:
    """Returns the values with the model of `task`, if `model` has keys and no type."""
    task, model = Choice("task").config_of(raw.get("task")), raw.get("model")
    default = getattr(task, "model", None)
    if default in (None, "auto") or not isinstance(model, dict) or "type" in model:
        return raw
    return {**raw, "model": {"type": default, **model}}


def _validated(
    kind: type[StrictT], raw: dict[str, Any], path: Path, context: Mapping[str, Any] | None = None
) -> StrictT:
    """Returns the validated config.

    Args:
        kind: Class of the config.
        raw: Its raw values.
        path: Its file, for messages.
        context: Folder to which paths of `recsys.File` are relative; None: the current folder.

    Raises:
        ConfigError: The values violate the schema.
    """
    try:
        # Strict JSON mode: lists become tuples, "4" never becomes 4.
        text = json.dumps(_with_model_type(raw))
        return kind.model_validate_json(text, context=context)
    except pydantic.ValidationError as error:
        problems = sorted(error.errors(include_url=False), key=lambda p: p["type"] != "missing")
    raw = json.loads(text)  # Keys are texts there, as in the places of the problems.
    removed = removed_key(raw)
    if removed is not None:
        rule = f"Config {str(path)!r}: `{removed[0].replace('=', ': ')}` is no longer there."
        raise ConfigError("R105", rule, f"{removed[1]} docs/removed.md lists what went.")
    first, where, more = problems[0], _config_path(problems[0], raw), _more(problems, raw)
    if first["type"] == "extra_forbidden":
        allowed = _allowed_keys(kind, first["loc"][:-1], raw)
        near = difflib.get_close_matches(str(first["loc"][-1]), allowed, n=1)
        hint = f"Did you mean {near[0]!r}? " if near else ""
        if where.startswith("model.") and raw["model"].get("type") == "auto":
            hint = "type: auto chooses it from the data; set model.type=two_tower to set it. "
        raise ConfigError(
            "R105",
            f"Config {str(path)!r}: there is no key {where!r}{more}.",
            f"{hint}Allowed here: {', '.join(allowed)}.",
            _shown_input(first),
        )
    if first["type"] == "missing":
        raise ConfigError(
            "R106",
            f"Config {str(path)!r}: the key {where!r} is required{more}.",
            "Add it; docs/config.md has every key.",
        )
    subject = f"{where!r}: " if where else ""
    raise ConfigError(
        "R107",
        f"Config {str(path)!r}: {subject}{_expected(first)}{more}.",
        f"Correct {where or 'it'} in the file or with --set.",
        ... if not where or first["type"] == NOT_SHOWN else _shown_input(first),
    )


def _more(problems: Sequence[Any], raw: dict[str, Any]) -> str:
    """Returns a summary of the other problems of a config, in brackets."""
    others = {_config_path(problem, raw): _expected(problem) for problem in reversed(problems)}
    del others[_config_path(problems[0], raw)]
    shown = [f"{where}: {expected}" for where, expected in reversed(others.items())]
    if len(shown) > _MOST_PROBLEMS:
        shown[_MOST_PROBLEMS:] = [f"and {len(shown) - _MOST_PROBLEMS} more problems"]
    return f" (also {'; '.join(shown)})" if shown else ""


def _expected(problem: Any) -> str:
    """Returns the expected value of a key, on one line."""
    if problem["type"] == "extra_forbidden":
        return "unknown key"
    if problem["type"] == "tuple_type":
        example = _FEATURES if problem["loc"][-1] == "features" else "[a, b]"
        return f"must be a list, such as {example}"
    text = " ".join(str(problem["msg"]).removeprefix("Value error, ").split())
    text = text.replace("Input should be", "must be").replace("String should", "must")
    return shortened(text, _LONGEST_MESSAGE)


def _config_path(problem: Any, raw: Any) -> str:
    """Returns the path of a key in the config, without the union members in pydantic's path."""
    keys: list[str] = []
    for key in problem["loc"]:
        is_key = isinstance(raw, dict) and key in raw
        if is_key or (isinstance(raw, list) and isinstance(key, int) and key < len(raw)):
            raw = raw[key]
            keys.append(str(key))
    if problem["type"] == "missing":
        keys.append(str(problem["loc"][-1]))
    return ".".join(keys)


def _shown_input(problem: Any) -> Any:
    """Returns the received value, or a placeholder for passwords, as messages are logged."""
    key = str(problem["loc"][-1]).lower()
    return "(not shown)" if "password" in key else problem["input"]


def _allowed_keys(kind: type[Strict], location: tuple[int | str, ...], raw: Any) -> list[str]:
    """Returns the keys that are allowed at `location` in `raw`, which is to become a `kind`."""
    part: type[Strict] | None = kind
    choice: Choice | None = None
    for key in location:
        raw = raw[key]
        if isinstance(key, str) and part is not None:
            field = _fields(part)[key]
            choice, part = choice_of(field), part_of(field, raw)
        elif choice is not None:
            part = _strict_part(choice.config_of(raw))
    return sorted([*(_fields(part) if part else ()), *([choice.key] if choice else ())])


def _fields(part: type[Strict]) -> dict[str, FieldInfo]:
    """Returns the fields of a config class by their keys in a file."""
    return {field.alias or name: field for name, field in part.model_fields.items()}


def part_of(field: FieldInfo, raw: Any = None) -> type[Strict] | None:
    """Returns the config class of a key, or None if the key holds a plain value.

    Args:
        field: Field of the key.
        raw: Raw value of the key in a file, which selects the class of some parts.
    """
    choice = choice_of(field)
    options = raw if isinstance(raw, dict) else {}
    return _strict_part(field.annotation if choice is None else choice.config_of(options))


def _strict_part(kind: Any) -> type[Strict] | None:
    for part in (kind, *getattr(kind, "__args__", ())):
        if isinstance(part, type) and issubclass(part, Strict):
            return part
    return None
