"""Data: from raw files to the folder that training, evaluation and export read."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from recsys.data.dataset import Data, DataSpec, open_data

__all__ = ["Data", "DataSpec", "open_data"]


def __getattr__(name: str) -> Any:
    """Imports what is used: a worker that reads files needs none of it."""
    if name in __all__:
        return getattr(importlib.import_module("recsys.data.dataset"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
