"""Configs of the export."""

from __future__ import annotations

from typing import Literal

from pydantic import PositiveFloat, PositiveInt

from recsys.index.config import IndexConfig
from recsys.registry.choice import Stage
from recsys.strict import Name, Share, Strict


class ExportConfig(Strict):
    """The serving bundle."""

    k: PositiveInt = 100
    """Highest number of candidates that `recommend` can return."""
    item_embeddings: Literal["float32", "float16", "int8"] = "float32"
    """Dtype of the item embeddings in the SavedModel: `float16` halves their size, `int8` quarters
    it."""
    min_parity: Share = 0.99
    """Lowest share of the exact float32 top k that item embeddings of lower precision must find
    [0..1]."""
    latency_ms: PositiveFloat | None = None
    """Highest 99th percentile of the latency of single requests; a slower bundle is rejected;
    `null`: not measured [ms]."""
    index: IndexConfig = IndexConfig()
    """How `recsys serve` searches for the best items."""
    vectors: Literal["bundle", "apart"] = "bundle"
    """Location of the item vectors. `bundle`: in the SavedModel, which ranks; `apart`: only in
    `item_embeddings.npy`, for a vector database besides TensorFlow Serving."""


class ExportStage(Stage):
    """The parts of a config that the export needs."""

    name: Name
    """Name of the pipeline and of the served model."""
    export: ExportConfig = ExportConfig()
    """The serving bundle."""
