"""Reads a config file, applies overrides, and says what is wrong with it.

Paths in a config file are relative to that file's folder, paths in an override
(`--set root=DIR`) to the current folder.
"""

from __future__ import annotations

import difflib
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pydantic
from pydantic.fields import FieldInfo

from recsys.config import Config, StageT, Strict, stage_of
from recsys.config_yaml import NotPlain, YamlProblem, parse_yaml
from recsys.errors import ConfigError
from recsys.registry import Choice
from recsys.system.files import open_regular

DEFAULT_NAME = "recsys.yaml"
"""The config of a folder, as `recsys init` writes it."""
_LONGEST_BYTES = 1 << 20  # More than the YAML that is read has.
_MOST_PROBLEMS = 3
_LONGEST_MESSAGE = 500
_PATH_KEYS = (
    ("root",),
    ("data", "interactions", "files"),
    ("data", "interactions", "eval_files"),
    ("data", "items", "files"),
    ("data", "users", "files"),
    ("data", "gate", "schema_dir"),
    ("metadata", "mysql", "ssl", "ca"),
    ("metadata", "mysql", "ssl", "cert"),
    ("metadata", "mysql", "ssl", "key"),
)


def load_config(path: str | Path, overrides: Iterable[str] = ()) -> Config:
    """Reads, overrides and checks a config file.

    Args:
        path: A YAML file.
        overrides: `a.b=value` each; the value is YAML.

    Returns:
        The config; its paths are absolute.

    Raises:
        ConfigError: The file can't be read, is no YAML, or breaks the schema.
    """
    path = Path(path)
    raw = _read_yaml(path)
    _anchor_paths(raw, path.resolve().parent)
    changed: dict[str, Any] = {}
    for override in overrides:
        _apply_override(changed, override)
    _anchor_paths(changed, Path.cwd())
    _merge(raw, changed)
    _rename(raw)
    try:
        # Strict JSON mode: lists become tuples, "4" never becomes 4.
        return Config.model_validate_json(json.dumps(raw))
    except pydantic.ValidationError as error:
        raise _as_config_error(path, error, raw) from None
    except (TypeError, ValueError) as error:
        raise ConfigError(
            "R103",
            f"Config {str(path)!r} must hold only text, numbers, lists and maps.",
            "Quote dates and other special YAML values.",
            str(error),
        ) from None


def load_stage(path: Path, kind: type[StageT]) -> StageT:
    """Reads the parts that a stage needs.

    Args:
        path: A whole config, or a JSON file that holds the stage's parts alone
            (what a component hands to its process).
        kind: `TrainStage`, `EvaluateStage` or `ExportStage`.

    Raises:
        ConfigError: As `load_config`.
    """
    raw = _read_yaml(path)
    _rename(raw)
    if not set(raw) <= set(kind.model_fields):
        return stage_of(load_config(path), kind)
    try:
        return kind.model_validate_json(json.dumps(raw))
    except pydantic.ValidationError as error:
        raise _as_config_error(path, error, raw) from None


def default_config_path() -> Path:
    """Returns the config that is meant where none is named.

    That is `recsys.yaml` of the current folder, else that of the data in the checkout.

    Raises:
        ConfigError: There is neither (R101).
    """
    shipped = Path(__file__).resolve().parent.parent / "configs" / "movielens_small.yaml"
    for path in (Path(DEFAULT_NAME), shipped):
        if path.exists():
            return path
    raise ConfigError(
        "R101",
        f"Without a config's name the current folder must have a {DEFAULT_NAME}.",
        "Write one with data to try it on: recsys init. Or name a config: recsys run CONFIG.",
        str(Path.cwd()),
    )


def _read_text(path: Path) -> str:
    """Returns the text of a regular file; a pipe or a device may never end."""
    try:
        with open_regular(path) as file:
            return file.read(_LONGEST_BYTES + 1).decode("utf-8")
    except (OSError, ValueError) as error:
        raise ConfigError(
            "R101",
            f"Config {str(path)!r} must be a readable text file.",
            "Name an existing YAML file, as in configs/movielens_small.yaml.",
            getattr(error, "strerror", None) or str(error),
        ) from None


def _read_yaml(path: Path) -> dict[str, Any]:
    text = _read_text(path)
    try:
        raw = parse_yaml(text)
    except NotPlain as problem:
        raise ConfigError(
            "R103",
            f"Config {str(path)!r}{problem.place} must hold only text, numbers, lists and maps.",
            "Quote dates and other special YAML values.",
            problem.problem,
        ) from None
    except YamlProblem as problem:
        raise ConfigError(
            "R102",
            f"Config {str(path)!r}{problem.place} must be YAML.",
            "Check the keys, the indentation, the quotes and the colons there.",
            problem.problem,
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
    for keys in _PATH_KEYS:
        part: Any = raw
        for key in keys[:-1]:
            part = part.get(key) if isinstance(part, dict) else None
        if isinstance(part, dict) and keys[-1] in part:
            part[keys[-1]] = _anchored(part[keys[-1]], folder)


def _anchored(value: Any, folder: Path) -> Any:
    """Returns a path, or each of several, from `folder` on; `gs://…` stays."""
    if isinstance(value, list):
        return [_anchored(one, folder) for one in value]
    if not isinstance(value, str) or "://" in value:
        return value
    return os.path.normpath(os.path.join(folder, os.path.expanduser(value)))


def _apply_override(changed: dict[str, Any], override: str) -> None:
    path, equals, text = override.partition("=")
    keys = path.strip().split(".")
    if not equals or not all(re.fullmatch(r"\w+", key) for key in keys):
        raise ConfigError(
            "R104",
            "An override must read path=value.",
            "Write for example --set train.batch_size=256.",
            override,
        )
    try:
        value = parse_yaml(text)
    except YamlProblem as problem:
        raise ConfigError(
            "R104", f"The value of --set {path} must be YAML: {problem.problem}.", "Quote it.", text
        ) from None
    part = changed
    for key in keys[:-1]:
        part = part.setdefault(key, {})
        if not isinstance(part, dict):
            raise ConfigError(
                "R104",
                f"--set {path} goes into a value that --set replaced.",
                "Drop one.",
                override,
            )
    part[keys[-1]] = value


def _merge(raw: dict[str, Any], changed: Mapping[str, Any]) -> None:
    for key, value in changed.items():
        if isinstance(value, dict) and isinstance(raw.get(key), dict):
            _merge(raw[key], value)
        else:
            raw[key] = value


def _rename(raw: dict[str, Any]) -> None:
    """Writes `evaluate.mask_seen` of earlier versions as `repeats`; both are refused."""
    evaluate = raw.get("evaluate")
    if not isinstance(evaluate, dict) or "repeats" in raw:
        return
    if isinstance(evaluate.get("mask_seen"), bool):
        raw["repeats"] = "exclude" if evaluate["mask_seen"] else "include"
        raw["evaluate"] = {key: evaluate[key] for key in evaluate if key != "mask_seen"}


def _as_config_error(
    path: Path, error: pydantic.ValidationError, raw: Mapping[str, Any]
) -> ConfigError:
    problems = error.errors(include_url=False)
    first, where = problems[0], _config_path(problems[0], raw)
    more = _more(problems, raw)
    if first["type"] == "extra_forbidden":
        allowed = _allowed_keys(first["loc"][:-1], raw)
        near = difflib.get_close_matches(str(first["loc"][-1]), allowed, n=1)
        hint = f"Did you mean {near[0]!r}? " if near else ""
        return ConfigError(
            "R105",
            f"Config {str(path)!r}: there is no key {where!r}{more}.",
            f"{hint}Allowed here: {', '.join(allowed)}.",
            _shown_input(first),
        )
    if first["type"] == "missing":
        return ConfigError(
            "R106",
            f"Config {str(path)!r}: the key {where!r} is required{more}.",
            "Add it; configs/movielens_small.yaml shows every key in use.",
        )
    subject = f"{where!r}: " if where else ""
    return ConfigError(
        "R107",
        f"Config {str(path)!r}: {subject}{_expected(first)}{more}.",
        f"Correct {where or 'it'} in the file, or with --set.",
        ... if not where else _shown_input(first),
    )


def _more(problems: Sequence[Any], raw: Mapping[str, Any]) -> str:
    """Returns the other problems of a config in brackets: a few, and how many more."""
    others: dict[str, str] = {}
    for problem in problems[1:]:
        others.setdefault(_config_path(problem, raw), _expected(problem))
    others.pop(_config_path(problems[0], raw), None)
    if not others:
        return ""
    shown = [f"{where}: {expected}" for where, expected in others.items()][:_MOST_PROBLEMS]
    n_left = len(others) - len(shown)
    return f" (also {'; '.join(shown)}{f'; and {n_left} more problems' if n_left else ''})"


def _expected(problem: Any) -> str:
    """Returns what a value should be, on one line."""
    if problem["type"] == "extra_forbidden":
        return "there is no such key"
    text = " ".join(str(problem["msg"]).removeprefix("Value error, ").split())
    return text if len(text) <= _LONGEST_MESSAGE else f"{text[: _LONGEST_MESSAGE - 1]}…"


def _config_path(problem: Any, raw: Any) -> str:
    """Returns a place as the config has it; pydantic's also names the kinds of a union."""
    keys: list[str] = []
    for key in problem["loc"]:
        is_key = isinstance(raw, dict) and key in raw
        if is_key or (isinstance(raw, list) and isinstance(key, int) and key < len(raw)):
            raw = raw[key]
            keys.append(str(key))
    if problem["type"] == "missing":
        keys.append(str(problem["loc"][-1]))
    return ".".join(keys)


def _shown_input(problem: Mapping[str, Any]) -> Any:
    """Returns what was received, but for what may be a password: it would go into a log."""
    key = str(problem["loc"][-1]).lower()
    return "(not shown)" if "password" in key else problem["input"]


def _allowed_keys(location: tuple[int | str, ...], raw: Any) -> list[str]:
    """Returns the keys allowed in the part of the config `raw` at `location`."""
    kind: Any = Config
    choice: Choice | None = None
    for key in location:
        raw = _at(raw, key)
        if isinstance(key, str) and isinstance(kind, type) and issubclass(kind, Strict):
            field = kind.model_fields[key]
            choice, kind = _choice(field), part_of(field, raw)
        elif choice is not None:
            kind = choice.config_of(raw)
        else:
            kind = _strict_part(kind)
    return sorted([*(kind.model_fields if kind else ()), *([choice.key] if choice else ())])


def _at(raw: Any, key: int | str) -> Any:
    """Returns what stands at a key of a map or a list; None where nothing does."""
    try:
        return raw[key]
    except (LookupError, TypeError):
        return None


def part_of(field: FieldInfo, raw: Any = None) -> type[Strict] | None:
    """Returns the type of the part of a config that a key holds; None if it holds a value.

    Args:
        field: The key.
        raw: What stands there in a file, which chooses the type of some parts.
    """
    choice = _choice(field)
    if choice is None:
        return _strict_part(field.annotation)
    return _strict_part(choice.config_of(raw if isinstance(raw, dict) else {}))


def _choice(field: FieldInfo) -> Choice | None:
    """Returns what chooses the class of a field, or of the elements of its list."""
    marks = [*field.metadata]
    for part in getattr(field.annotation, "__args__", ()):
        marks += getattr(part, "__metadata__", ())
    return next((mark for mark in marks if isinstance(mark, Choice)), None)


def _strict_part(kind: Any) -> type[Strict] | None:
    if isinstance(kind, type) and issubclass(kind, Strict):
        return kind
    for part in getattr(kind, "__args__", ()):
        if isinstance(part, type) and issubclass(part, Strict):
            return part
    return None
