"""The serving bundle, how `recsys serve` searches it, and what the export needs."""

from __future__ import annotations

from typing import Literal

from pydantic import PositiveFloat, PositiveInt

from recsys.registry import Plugins
from recsys.strict import Name, Repeats, Share, Strict


class IndexConfig(Strict):
    """How `recsys serve` finds the best items of a query."""

    kind: Literal["auto", "exact", "ann"] = "auto"
    """`exact`: by looking at every item; `ann`: by an approximate index, which looks at
    those of the nearest lists; `auto`: exact up to `exact_up_to` items."""
    exact_up_to: PositiveInt = 200_000
    """Items up to which `auto` is exact; beyond, one look at all of them takes longer
    than 5 ms."""
    min_recall: Share = 0.95
    """Share of the exact best `export.k` that the index must find [0..1]; else the export
    fails."""
    lists: PositiveInt | None = None
    """Lists that the index spreads the items over; `null`: four times the root of their
    number."""


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
    vectors: Literal["bundle", "apart"] = "bundle"
    """Where the item vectors are: `bundle`: in the SavedModel, which ranks; `apart`: in
    `item_embeddings.npy` alone, for a vector engine beside TensorFlow Serving."""


class ExportStage(Strict):
    """The parts of a config that the export needs."""

    plugins: Plugins = ()
    """Modules that register models, losses, metrics and other classes which the other keys
    name; they are imported before the rest is read."""
    name: Name
    """Name of the pipeline and of the served model."""
    export: ExportConfig = ExportConfig()
    """The serving bundle."""
    repeats: Repeats = "exclude"
    """Whether lists may hold items that their user has seen. `exclude`: no, and repeated
    events are not answers of a query; `include`: yes, they are treated like other items. It
    holds for validation, evaluation and the defaults of serving."""
