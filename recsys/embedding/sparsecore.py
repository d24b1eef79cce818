"""The same configs on a TPU: keras-rs's SparseCore path.

On a TPU with SparseCores keras-rs has an engine of its own, with the same words. So
what is built there from the configs of `ShardedEmbedding` is a
`keras_rs.layers.DistributedEmbedding`, which trains inside plain Keras.
"""

from __future__ import annotations

from typing import Any

import jax
import keras
import keras_rs

from recsys.embedding.config import FeatureConfig
from recsys.embedding.layer import ShardedEmbedding, walked
from recsys.embedding.optimizers import BY_KERAS, RowOptimizer, row_optimizer
from recsys.errors import UsageError

_KINDS = ("TPU v5", "TPU v6 lite")
_KERAS = {cls.kind: optimizer for optimizer, cls in BY_KERAS.items()}


def has_sparsecore() -> bool:
    """Tells whether JAX's devices are TPUs whose SparseCores keras-rs drives."""
    return keras.backend.backend() == "jax" and jax.devices()[0].device_kind in _KINDS


def embedding_layer(feature_configs: Any, **kwargs: Any) -> keras.layers.Layer:
    """Returns the layer for these devices: keras-rs's on SparseCores, else ours.

    Args:
        feature_configs: As for `ShardedEmbedding`.
        **kwargs: As for `ShardedEmbedding`.

    Raises:
        UsageError: A table asks for SparseCores, and there are none; or for something
            that they can't do.
    """
    if has_sparsecore():
        kwargs = {name: kwargs[name] for name in ("name", "table_stacking") if name in kwargs}
        return keras_rs.layers.DistributedEmbedding(for_keras_rs(feature_configs), **kwargs)
    return ShardedEmbedding(feature_configs, **kwargs)


def for_keras_rs(feature_configs: Any) -> Any:
    """Returns feature configs for `keras_rs.layers.DistributedEmbedding`, in their structure."""
    tables: dict[str, keras_rs.layers.TableConfig] = {}

    def convert(_: str, feature: FeatureConfig) -> FeatureConfig:
        name = feature.table.name
        if name not in tables:
            tables[name] = _table(feature.table)
        return FeatureConfig(feature.name, tables[name], feature.input_shape, feature.output_shape)

    return walked(feature_configs, convert)


def _table(table: Any) -> keras_rs.layers.TableConfig:
    if table.combiner == "max" or getattr(table, "dtype", "float32") != "float32":
        raise _cant(table, "combiner sum, mean or sqrtn, and dtype float32", table.get_config())
    in_rows = table.placement in ("row", "column", "replicated")
    return keras_rs.layers.TableConfig(
        table.name,
        table.vocabulary_size,
        table.embedding_dim,
        initializer=table.initializer,
        optimizer=_optimizer(table),
        combiner=table.combiner,
        placement="auto" if in_rows else table.placement,
        max_ids_per_partition=table.max_ids_per_partition,
        max_unique_ids_per_partition=table.max_unique_ids_per_partition,
    )


def _optimizer(table: Any) -> keras.optimizers.Optimizer:
    optimizer: RowOptimizer = row_optimizer(table.optimizer or "sgd")
    if optimizer.kind not in _KERAS or optimizer.weight_decay or optimizer.clipnorm:
        raise _cant(
            table, "SGD, Adagrad, LazyAdam or Ftrl without decay and clipping", optimizer.kind
        )
    config = optimizer.get_config()
    config = {k: v for k, v in config.items() if k not in ("weight_decay", "clipnorm")}
    return _KERAS[optimizer.kind].from_config(config)


def _cant(table: Any, expected: str, received: Any) -> UsageError:
    return UsageError(
        "R366",
        f"On SparseCores table {table.name!r} must have {expected}.",
        "Change its TableConfig, or run on CPUs or GPUs.",
        received,
    )
