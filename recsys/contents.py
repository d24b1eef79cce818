"""Lazy imports of a package's public names.

A package lists its names once for Python, and once as imports for type checkers and editors:

    if TYPE_CHECKING:
        from package.module import Name as Name, Other as Other

    __all__, __getattr__, __dir__ = lazy_contents(__name__, {"package.module": "Name Other"})
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any


def lazy_contents(
    package: str, names: Mapping[str, str]
) -> tuple[list[str], Callable[[str], Any], Callable[[], list[str]]]:
    """Returns `__all__`, `__getattr__` and `__dir__` of a package.

    Args:
        package: Name of the package.
        names: Names, separated by spaces, by the module that defines them; a submodule by itself.
    """
    homes = {name: module for module, defined in names.items() for name in defined.split()}

    def getattr_(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        if "keras" not in sys.modules:
            # Keras' own default is TensorFlow, on which nothing trains.
            os.environ.setdefault("KERAS_BACKEND", "jax")
        module = importlib.import_module(homes[name])
        if module.__name__.endswith(f".{name}"):  # As `recsys.losses`, which has no such name.
            return getattr(module, name, module)
        return getattr(module, name)

    return sorted(homes), getattr_, lambda: sorted(homes)
