"""Reading one feature with `keras.ops` alone: what export and evaluation on TensorFlow run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from keras import ops

from recsys.embedding.config import ResolvedTable
from recsys.embedding.lookups import Ragged
from recsys.embedding.table import FeatureInput, Table
from recsys.errors import UsageError


def read_features(asked: Sequence[FeatureInput]) -> list[Any]:
    """Returns the combined embeddings `[batch, dim]` float32 of each feature.

    The same numbers as `recsys.embedding.reading.read_features`, which JAX runs.
    """
    return [_read(*one) for one in asked]


def _read(table: Table, kind: ResolvedTable, ids: Any, weights: Any) -> Any:
    if isinstance(ids, Ragged):
        raise UsageError(
            "R361",
            "Ragged bags are read on the JAX backend alone.",
            "Pad them, with weight 0 for padding.",
            type(ids).__name__,
        )
    ids = ops.convert_to_tensor(ids)
    known = ops.logical_and(ids >= 0, ids < kind.rows)
    rows = ops.cast(ops.where(known, ids, ops.zeros_like(ids)), "int32")
    places = table.place(rows + table.offset(kind.name))
    out = ops.cast(ops.take(table.for_lookups(), places, axis=0), "float32")
    if weights is not None:
        weights = ops.cast(weights, "float32")
        weights = ops.where(ops.isfinite(weights), weights, ops.zeros_like(weights))
    if len(ids.shape) == 1:
        is_weighted = weights is not None and kind.combiner == "sum"
        return out * weights[:, None] if is_weighted else out
    weights = ops.ones_like(out[..., 0]) if weights is None else weights
    return _combined(out, weights, kind.combiner)


def _combined(out: Any, weights: Any, combiner: str) -> Any:
    if combiner == "max":
        best = ops.max(ops.where(weights[..., None] != 0, out, -float("inf")), axis=1)
        return ops.where(ops.isinf(best), ops.zeros_like(best), best)
    summed = ops.sum(out * weights[..., None], axis=1)
    if combiner == "sum":
        return summed
    total = ops.sum(weights if combiner == "mean" else weights * weights, axis=1, keepdims=True)
    total = total if combiner == "mean" else ops.sqrt(total)
    has_any = total != 0
    return ops.where(has_any, summed / ops.where(has_any, total, 1.0), 0.0)
