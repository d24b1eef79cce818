"""Imports Keras without its optional imports, in the processes that we start.

Keras imports IPython, pandas and scikit-learn where they are installed: to show a file, to take
frames as inputs, for wrappers of models. No stage needs it, and they take 40 % of the time that
a stage takes to import. They are hidden while Keras is imported, and can be
imported as usual afterwards.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

_LOOKED_FOR = ("IPython", "pandas", "sklearn")


class KerasAlone(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """A finder on `sys.meta_path` that loads Keras once, and then removes itself.

    It stays if a module is only looked up, as TensorFlow does before it imports Keras.
    """

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Returns the spec of Keras, to be loaded by this object."""
        if fullname != "keras":
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            self._loader, spec.loader = spec.loader, self
        return spec

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        """Returns what the own loader of Keras makes."""
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Imports Keras while those modules that are not imported yet are hidden."""
        sys.meta_path.remove(self)
        modules: dict[str, Any] = sys.modules
        absent = [name for name in _LOOKED_FOR if name not in modules]
        modules.update(dict.fromkeys(absent))
        module.__loader__ = module.__spec__.loader = self._loader  # type: ignore[union-attr]
        try:
            self._loader.exec_module(module)
        finally:
            for name in absent:
                del modules[name]
