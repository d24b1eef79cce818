"""Imports that happen late or not at all: optional dependencies of large packages, public names.

Keras imports IPython, pandas and scikit-learn if they are installed, to show files, to accept
data frames and to wrap models. TensorFlow imports JAX, to convert JAX programs to TFLite. No
stage needs these, so they are hidden while Keras or TensorFlow is imported, except for Keras's
own backend. They can be imported as usual afterwards.

`tfx.components` and `tensorflow_model_analysis` import all of their modules, and with them
Kubernetes' client and NLTK. A pipeline needs a few of these modules, so the others are imported
on first use.

A `recsys run` starts five such processes. Without this they take 19 CPU seconds more on two busy
cores (medians of pairs in turns: the pipeline 16.3 and 20.7, the trainer 6.5 and 9.4, the
evaluator 5.1 and 8.6, the export 10.4 and 14.0, its parity checks 8.7 and 14.0).
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

_OPTIONAL = {"keras": ("IPython", "pandas", "sklearn"), "tensorflow": ("jax",)}
_LATE = ("tfx.components", "tensorflow_model_analysis")


def install() -> None:
    """Activates this for the process; call it before the packages are imported."""
    sys.meta_path.insert(0, LeanImports())


class LeanImports(importlib.abc.MetaPathFinder):
    """Finds those packages; it must be the first on `sys.meta_path`."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Returns the spec of one of the packages, with its loader replaced."""
        if fullname not in _OPTIONAL and fullname not in _LATE:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            kind = _Late if fullname in _LATE else _Alone
            spec.loader = kind(spec.loader)
        return spec


class _Loader(importlib.abc.Loader):
    """Loads a package by its original loader, which it restores in the module."""

    def __init__(self, own: importlib.abc.Loader) -> None:
        self.own = own

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self.own.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = module.__spec__.loader = self.own  # type: ignore[union-attr]


class _Alone(_Loader):
    """Imports a package while its optional imports are hidden, unless they are imported already."""

    def exec_module(self, module: ModuleType) -> None:
        super().exec_module(module)
        modules: dict[str, Any] = sys.modules
        # TensorFlow imports Keras, which would be incomplete if its backend were hidden.
        needed = {*modules, os.environ.get("KERAS_BACKEND")}
        hidden = [name for name in _OPTIONAL[module.__name__] if name not in needed]
        modules.update(dict.fromkeys(hidden))
        try:
            self.own.exec_module(module)
        finally:
            for name in hidden:
                del modules[name]


class _Late(_Loader):
    """Defers the `__init__` of a package until one of its non-module attributes is used."""

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return _LatePackage(spec.name)


class _LatePackage(ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name not in ("__all__", "__version__"):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        module = f"{self.__name__}.{name}"
        if importlib.util.find_spec(module) is not None:
            return importlib.import_module(module)
        self.__class__ = ModuleType  # type: ignore[assignment]  # Runs once.
        self.__spec__.loader.exec_module(self)  # type: ignore[union-attr]
        return getattr(self, name)


# --- public names of a package, loaded on first use


def lazy_contents(
    package: str, names: Mapping[str, str]
) -> tuple[list[str], Callable[[str], Any], Callable[[], list[str]]]:
    """Returns `__all__`, `__getattr__` and `__dir__` of a package.

    A package lists its names once for Python, and once as imports for type checkers and editors:

        if TYPE_CHECKING:
            from package.module import Name as Name, Other as Other

        __all__, __getattr__, __dir__ = lazy_contents(__name__, {"package.module": "Name Other"})

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
