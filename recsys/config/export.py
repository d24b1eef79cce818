"""The serving bundle, and what the export needs of the config."""

from __future__ import annotations

from typing import Literal

from pydantic import PositiveFloat, PositiveInt

from recsys.config.index import IndexConfig
from recsys.registry import Plugins
from recsys.strict import Name, Repeats, Share, Strict


class ExportConfig(Strict):
    """The serving bundle."""

    k: PositiveInt = 100
    """Most candidates that `recommend` can return."""
    item_embeddings: Literal["float32", "float16", "int8"] = "float32"
    """What the SavedModel stores of the items: `float16` is half as large, `int8` a quarter."""
    min_parity: Share = 0.99
    """Share of exact float32's best that shorter item embeddings must find [0..1]."""
    latency_ms: PositiveFloat | None = None
    """Longest that 99 % of single requests may take before a bundle is refused [ms];
    `null`: it isn't measured."""
    index: IndexConfig = IndexConfig()
    """How `recsys serve` finds the best items."""


class ExportStage(Strict):
    """The parts of a config that the export needs."""

    plugins: Plugins = ()
    """Modules that register classes which the other keys name."""
    name: Name
    """Name of the served model."""
    export: ExportConfig = ExportConfig()
    """The serving bundle."""
    repeats: Repeats = "exclude"
    """What becomes of items that a user has seen."""
