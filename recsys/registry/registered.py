"""Registered classes by kind and name, and the plugins that register them."""

from __future__ import annotations

import functools
import importlib
import inspect
import re
from collections.abc import Callable, Iterable
from importlib import metadata
from typing import Annotated, Any, TypeVar

import pydantic

from recsys.errors import PLUGIN_PACKAGES, RecsysError, UsageError
from recsys.registry.built_ins import BUILT_INS, built_ins

ENTRY_POINTS = "recsys.plugins"
_NEEDED = {"metric": ("title", "meaning")}
"""Class attributes that the report requires, without a default."""
_NAME = re.compile(r"[a-z][a-z0-9_]*")
_MODULE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
ClassT = TypeVar("ClassT", bound=type)

_registered: dict[tuple[str, str], type] = {}
"""Classes of plugins by kind and name."""


def register(kind: str, name: str, config: str | None = None) -> Callable[[ClassT], ClassT]:
    """Returns a class decorator that registers a class under a name.

    Args:
        kind: Kind of the class, a key of `BUILT_INS`.
        name: Name in a config: lower-case letters, digits and `_`.
        config: `module:Class` of its config, if it must be available without importing the
            class; by default the class is its own config, or has one as `Config`.

    Returns:
        The decorator; it returns the class unchanged.

    Raises:
        UsageError: The kind is unknown, another class has the name, or a text for the report
            is missing (R109).
    """
    if kind not in BUILT_INS or not _NAME.fullmatch(name):
        raise UsageError(
            "R109",
            f"A class must be registered as one of {', '.join(BUILT_INS)}, with a lower-case name.",
            "Write, for example, @recsys.register_loss('my_loss').",
            (kind, name),
        )

    def decorate(cls: ClassT) -> ClassT:
        earlier, built_in = _registered.get((kind, name)), built_ins(kind).get(name)
        of_config = built_in.config if built_in else config
        if of_config is not None:
            setattr(cls, "Config", load(of_config))  # noqa: B010  mypy: any class may get one.
        if built_in is not None and built_in.path == path_of(cls):
            return cls
        if built_in or (earlier and path_of(earlier) != path_of(cls)):
            raise UsageError(
                "R109",
                f"The name {name!r} must be registered by only one {kind}.",
                "Choose another name.",
                path_of(cls),
            )
        missing = [name for name in _NEEDED.get(kind, ()) if not getattr(cls, name, "")]
        if missing:
            raise UsageError(
                "R109",
                f"A {kind} must have a {' and a '.join(missing)}, which the report shows.",
                f'Write, for example, {missing[0]}: ClassVar[str] = "…" in the class.',
                path_of(cls),
            )
        _registered[kind, name] = cls
        PLUGIN_PACKAGES.add(cls.__module__.partition(".")[0])
        return cls

    return decorate


def get(kind: str, name: str) -> type:
    """Returns the class that is registered under a name, and imports it if necessary.

    Raises:
        UsageError: No class has this name (R109).
    """
    if name in built_ins(kind):
        cls: type = load(built_ins(kind)[name].path)
        return cls
    if (kind, name) not in _registered:
        _load_entry_points()
    if (kind, name) not in _registered:
        raise UsageError(
            "R109",
            f"A {kind} must be one of {', '.join(names(kind))}.",
            "Correct it, or add the module that registers it to plugins in the config.",
            name,
        )
    return _registered[kind, name]


def names(kind: str) -> list[str]:
    """Returns the names that a config can use, built-in ones first."""
    own = sorted(name for k, name in _registered if k == kind)
    return list(dict.fromkeys([*built_ins(kind), *own]))


def name_of(kind: str, thing: Any) -> str:
    """Returns the registered name of a class, of its config class, or of an instance.

    Raises:
        ValueError: It is not registered.
    """
    cls = thing if isinstance(thing, type) else type(thing)
    for (k, name), registered in _registered.items():
        if k == kind and cls in (registered, getattr(registered, "Config", None)):
            return name
    for name, built_in in built_ins(kind).items():
        if path_of(cls) in (built_in.path, built_in.config):
            return name
    raise ValueError(f"{path_of(cls)} must be registered as a {kind}")


def class_of(kind: str, config: pydantic.BaseModel) -> Any:
    """Returns the registered class for a config, and imports it if necessary."""
    return get(kind, name_of(kind, config))


def config_type(kind: str, name: str) -> type[pydantic.BaseModel]:
    """Returns the config class of a registered class.

    Raises:
        UsageError: No class has this name, or it has no config class (R109).
    """
    built_in = built_ins(kind).get(name)
    if built_in is not None and built_in.config is not None:
        config: type = load(built_in.config)
        return config
    cls = get(kind, name)
    config = getattr(cls, "Config", cls)
    if not (inspect.isclass(config) and issubclass(config, pydantic.BaseModel)):
        raise UsageError(
            "R109",
            f"The {kind} {name!r} must have a typed config.",
            "Give its class a nested `class Config(recsys.Strict)`.",
            path_of(cls),
        )
    return config


def load_plugins(modules: Iterable[str]) -> None:
    """Imports modules that register classes.

    Raises:
        UsageError: A module can't be imported (R108).
    """
    for module in modules:
        if not _MODULE.fullmatch(module):
            raise UsageError("R108", "A plugin must be a module name.", "Correct it.", module)
        try:
            importlib.import_module(module)
        except RecsysError:
            raise
        except Exception as error:
            raise UsageError(
                "R108",
                f"The plugin {module!r} must be importable; its import raised"
                f" {type(error).__name__}: {error}.",
                "Install its package into this environment, or name its folder in PYTHONPATH; or"
                " correct the name or the module.",
                module,
            ) from error


def _loaded(modules: tuple[str, ...]) -> tuple[str, ...]:
    load_plugins(modules)
    return modules


Plugins = Annotated[tuple[str, ...], pydantic.AfterValidator(_loaded)]
"""Names of modules that are imported during validation. It must be the first key, so that later
keys find the classes that the modules register."""


def module_of(kind: str, name: str) -> str | None:
    """Returns the module of a registered class; None if it is not registered."""
    cls = _registered.get((kind, name))
    return None if cls is None else cls.__module__


def registered_in(module: str) -> list[type]:
    """Returns the classes that a module registered."""
    return [cls for cls in _registered.values() if cls.__module__ == module]


@functools.cache
def _load_entry_points() -> None:
    for entry_point in metadata.entry_points(group=ENTRY_POINTS):
        load_plugins([entry_point.value.partition(":")[0]])


def load(path: str) -> Any:
    """Returns the class or function that `module:name` names, and imports its module."""
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)


def path_of(cls: type) -> str:
    """Returns `module:Class`."""
    return f"{cls.__module__}:{cls.__qualname__}"


def _of_kind(kind: str) -> Callable[..., Callable[[ClassT], ClassT]]:
    def register_kind(name: str, config: str | None = None) -> Callable[[ClassT], ClassT]:
        return register(kind, name, config)

    register_kind.__name__ = register_kind.__qualname__ = f"register_{kind}"
    register_kind.__doc__ = f"Returns a class decorator that registers a {kind}; see `register`."
    return register_kind


register_model = _of_kind("model")
register_encoder = _of_kind("encoder")
register_term = _of_kind("term")
register_loss = _of_kind("loss")
register_metric = _of_kind("metric")
register_baseline = _of_kind("baseline")
register_feature = _of_kind("feature")
register_event_feature = _of_kind("event_feature")
register_source = _of_kind("source")
register_row_optimizer = _of_kind("row_optimizer")
register_task = _of_kind("task")
