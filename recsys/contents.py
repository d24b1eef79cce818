"""A package's table of contents, from which each name is imported when it is first used.

A package lists its names once, as imports for type checkers and editors:

    if TYPE_CHECKING:
        from package.module import Name

    __all__ = ["Name"]
    __getattr__, __dir__ = lazy_contents(__name__, __file__)
"""

from __future__ import annotations

import ast
import functools
import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any


def lazy_contents(package: str, file: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Returns `__getattr__` and `__dir__` of a package.

    Args:
        package: Its name.
        file: Its `__init__.py`, whose imports under `if TYPE_CHECKING:` are the contents.
    """
    homes = functools.cache(lambda: contents_of(Path(file).read_text(encoding="utf-8")))

    def getattr_(name: str) -> Any:
        if name.startswith("__") or name not in homes():
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module, _, attribute = homes()[name].partition(":")
        loaded = importlib.import_module(module)
        return getattr(loaded, attribute) if attribute else loaded

    def dir_() -> list[str]:
        return sorted(homes())

    return getattr_, dir_


def contents_of(source: str) -> dict[str, str]:
    """Returns `module:name`, or `module`, of each name that a source imports for type checkers.

    A module that is imported from its package is written `from package import module as name`.
    """
    homes: dict[str, str] = {}
    for node in ast.parse(source).body:
        if not (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"):
            continue
        for statement in node.body:
            if isinstance(statement, ast.ImportFrom) and statement.module:
                for alias in statement.names:
                    homes[alias.asname or alias.name] = f"{statement.module}:{alias.name}"
    return homes
