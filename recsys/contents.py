"""Lazy imports of a package's public names.

A package lists its names once, as imports for type checkers and editors:

    if TYPE_CHECKING:
        from package.module import Name

    __all__ = ["Name"]
    __getattr__, __dir__ = lazy_contents(__name__, __file__)
"""

from __future__ import annotations

import ast
import functools
import importlib.util
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any


def lazy_contents(package: str, file: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Returns `__getattr__` and `__dir__` of a package.

    Args:
        package: Name of the package.
        file: Path of its `__init__.py`, whose imports under `if TYPE_CHECKING:` are the contents.

    Returns:
        The functions `__getattr__` and `__dir__`.

    """
    homes = functools.cache(lambda: contents_of(Path(file).read_text(encoding="utf-8")))

    def getattr_(name: str) -> Any:
        if name.startswith("__") or name not in homes():
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        if package == "recsys" and "keras" not in sys.modules:
            # Keras' own default is TensorFlow, on which nothing trains.
            os.environ.setdefault("KERAS_BACKEND", "jax")
        module, attribute = homes()[name].split(":")
        loaded = importlib.import_module(module)
        is_package = hasattr(loaded, "__path__")
        if is_package and importlib.util.find_spec(f"{module}.{attribute}") is not None:
            return importlib.import_module(f"{module}.{attribute}")
        return getattr(loaded, attribute)

    def dir_() -> list[str]:
        return sorted(homes())

    return getattr_, dir_


def contents_of(source: str) -> dict[str, str]:
    """Returns `module:name` for each name that the source imports under `TYPE_CHECKING`."""
    homes: dict[str, str] = {}
    for node in ast.parse(source).body:
        if not (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"):
            continue
        for statement in node.body:
            if isinstance(statement, ast.ImportFrom) and statement.module:
                for alias in statement.names:
                    homes[alias.asname or alias.name] = f"{statement.module}:{alias.name}"
    return homes
