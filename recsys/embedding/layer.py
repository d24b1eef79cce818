"""`ShardedEmbedding`: a Keras layer from the ids of features to their embeddings."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import keras
import keras_rs
from keras import ops

from recsys.embedding.ids import Ragged, checked_ids
from recsys.embedding.lookup import (
    active,
    is_differentiated,
    read_by_keras,
    read_features,
    reads_by_keras,
)
from recsys.embedding.optimizers import BY_KERAS, RowOptimizer, row_optimizer
from recsys.embedding.table import FeatureInput, Table, checked_columns, logical_order
from recsys.embedding.table_config import (
    FeatureConfig,
    TableConfig,
    by_name,
    check_shapes,
    refused_regularizer,
    resolve,
    stacks,
)
from recsys.errors import UsageError

Nested = Any


@keras.saving.register_keras_serializable(package="recsys")
class ShardedEmbedding(keras.layers.Layer):
    """Looks up and combines the embeddings of features, as `keras_rs.layers.DistributedEmbedding`.

    Tables are split over devices by the layout of the active distribution
    (`recsys.embedding.table_layout`), and trained by `SparseModel`. The cost of a step grows
    with the batch, not with the number of rows.

    Args:
        feature_configs: Nested structure of `FeatureConfig`. Features share a table if they
            have the same `TableConfig` object, or one of the same name.
        table_stacking: Lists of names of tables to store as one; `auto` stacks all tables of
            equal width, optimizer and placement; None stacks none. Stacked tables share one
            exchange.
        n_shards: Number of devices that tables may be split over; None for the devices of the
            active distribution.
        seed: Seed of initial values and of stochastic rounding.

    Raises:
        UsageError: A config isn't supported (R347, R353, R355, R357, R358, R365).

    Example:
        ```python
        users = TableConfig("users", 1_000_000, 64, optimizer=RowWiseAdagrad(0.05))
        layer = ShardedEmbedding({"user": FeatureConfig("user", users, (None,), (None, 64))})
        layer({"user": [3, 5]})["user"].shape  # (2, 64)
        ```
    """

    def __init__(
        self,
        feature_configs: Nested,
        table_stacking: str | Sequence[Sequence[str]] | None = None,
        n_shards: int | None = None,
        seed: int = 0,
        **kwargs: Any,
    ) -> None:
        if any(name.endswith("regularizer") and name[:8] != "activity" for name in kwargs):
            raise refused_regularizer(str(kwargs.get("name", "of a ShardedEmbedding")))
        super().__init__(**kwargs)
        self.autocast = False
        self._convert_input_args = False
        self.feature_configs, self.table_stacking = feature_configs, table_stacking
        self.n_shards = devices_of_distribution() if n_shards is None else n_shards
        self.seed = seed
        self._paths: dict[str, FeatureConfig] = {}
        walked(feature_configs, self._paths.__setitem__)
        configs = by_name([feature.table for feature in self._paths.values()])
        self._resolved = {name: resolve(config) for name, config in configs.items()}
        for feature in self._paths.values():
            check_shapes(feature)
        for spec in self._resolved.values():
            checked_columns(spec, self.n_shards)
        self.tables = [
            Table(members, self.n_shards, seed, trainable=self.trainable)
            for members in stacks(list(self._resolved.values()), table_stacking)
        ]
        self._home = {m.name: table for table in self.tables for m in table.members}

    def build(self, input_shapes: Any = None) -> None:
        """Creates the tables."""
        for table in self.tables:
            if not table.built:
                table.build()
        self.built = True

    def __call__(self, inputs: Nested, weights: Nested = None, **kwargs: Any) -> Any:
        """Checks 64-bit ids before they are cast, then calls the layer."""
        inputs = self._map(inputs, lambda _, feature, ids: checked_ids(ids, feature.name))
        if weights is None:
            return super().__call__(inputs, **kwargs)
        return super().__call__(inputs, weights=weights, **kwargs)

    def call(self, inputs: Nested, weights: Nested = None, training: bool = False) -> Nested:
        """Returns the embeddings `[batch, dim]` of each feature, in the structure of `inputs`.

        Args:
            inputs: Ids in the structure of the feature configs; a dict may leave features out.
                Each is `[batch]` for single ids, `[batch, length]` for bags, or a `Ragged`;
                integers.
            weights: Weights of the ids in the same structure and shapes, or None; an entry may
                be None. Ids of weight 0 are not in their bags. Boolean weights are masks, which
                take fewer bytes to exchange. As in keras-rs, weights of single ids are used
                only by the combiner `sum`.
            training: Whether this call is part of a training step, of a `SparseModel`.

        Returns:
            Embeddings in the layer's compute dtype.

        Raises:
            UsageError: Another model trains, which wouldn't update the tables (R306); or the
                inputs have another structure or shape (R356, R359).
        """
        self._check_trainer(training)
        leaves = dict(self._leaves(inputs))
        chosen = {} if weights is None else dict(self._leaves(weights))
        features = []
        for path, ids in leaves.items():
            spec = self._resolved[self._paths[path].table.name]
            features.append(FeatureInput(self._home[spec.name], spec, ids, chosen.get(path), path))
        is_plain = reads_by_keras()
        read = [read_by_keras(*f[:4]) for f in features] if is_plain else read_features(features)
        outputs = dict(zip(leaves, read, strict=True))
        return self._map(inputs, lambda path, *_: ops.cast(outputs[path], self.compute_dtype))

    def _check_trainer(self, training: bool) -> None:
        learns = self.trainable and any(table.optimizer is not None for table in self.tables)
        if not learns or active() is not None or keras.backend.backend() != "jax":
            return
        if training or is_differentiated():
            raise UsageError(
                "R306",
                "Tables are trained only by recsys.embedding.SparseModel; another model would not"
                " update them.",
                "Derive the model from SparseModel, or SparseModel(inputs, outputs); to train"
                " the towers over fixed tables set trainable=False on the layer.",
                self.name,
            )

    def compute_output_spec(self, inputs: Nested, weights: Nested = None, **_: Any) -> Nested:
        """Returns the specs of the outputs without tracing the exchange."""

        def spec(path: str, feature: FeatureConfig, ids: Any) -> keras.KerasTensor:
            batch = (ids.lengths if isinstance(ids, Ragged) else ids).shape[0]
            return keras.KerasTensor((batch, _dim(feature)), dtype=self.compute_dtype)

        return self._map(inputs, spec)

    def compute_output_shape(self, input_shapes: Nested) -> Nested:
        """Returns the shape `(batch, dim)` of each feature's embeddings."""
        return self._map(input_shapes, lambda _, feature, shape: (shape[0], _dim(feature)))

    def get_embedding_tables(self) -> dict[str, Any]:
        """Returns the weights `[rows, dim]` of each table by name, gathered on the host."""
        weights = {}
        for table in self.tables:
            values = logical_order(table, table.embeddings)
            for member in table.members:
                start = table.offset(member.name)
                weights[member.name] = values[start : start + member.rows]
        return weights

    def home_of(self, name: str) -> Table:
        """Returns the table, or stack, that stores the table `name`."""
        return self._home[name]

    def grow(self, name: str, rows: int) -> None:
        """Grows the table `name` to `rows` rows; see `EmbeddingTable.grow`."""
        self._home[name].grow(name, rows)
        self._resolved[name] = dataclasses.replace(self._resolved[name], rows=rows)
        for path, feature in self._paths.items():
            if feature.table.name == name:
                table = dataclasses.replace(feature.table, vocabulary_size=rows)
                self._paths[path] = dataclasses.replace(feature, table=table)
        self.feature_configs = walked(self.feature_configs, lambda path, _: self._paths[path])

    def _map(self, inputs: Nested, function: Any) -> Nested:
        """Maps `function(path, feature, leaf)` over the leaves of `inputs`."""

        def is_feature(path: str, node: Any) -> bool:
            if path in self._paths:
                return True
            if isinstance(node, Ragged) or not isinstance(node, dict | list | tuple):
                raise UsageError(
                    "R356",
                    "The inputs must have the structure of the feature configs.",
                    f"Features: {', '.join(sorted(self._paths))}.",
                    path or type(node).__name__,
                )
            return False

        return walked(
            inputs, lambda path, leaf: function(path, self._paths[path], leaf), is_feature
        )

    def _leaves(self, nested: Nested) -> list[tuple[str, Any]]:
        leaves: list[tuple[str, Any]] = []
        self._map(nested, lambda path, _, leaf: leaves.append((path, leaf)))
        return leaves

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments; features refer to tables by name."""
        tables = by_name([feature.table for feature in self._paths.values()])
        features = {
            path: {
                "name": feature.name,
                "table": feature.table.name,
                "input_shape": feature.input_shape,
                "output_shape": feature.output_shape,
            }
            for path, feature in self._paths.items()
        }
        return {
            **super().get_config(),
            # Converts keras-rs' configs but keeps their objects: Keras' files identify shared
            # objects by address, so there must be no temporary ones.
            "tables": {name: TableConfig(**vars(t)).get_config() for name, t in tables.items()},
            "features": features,
            "structure": walked(self.feature_configs, lambda path, _: path),
            "table_stacking": self.table_stacking,
            "n_shards": self.n_shards,
            "seed": self.seed,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> ShardedEmbedding:
        """Makes the layer from its config."""
        config = dict(config)
        tables = {n: TableConfig.from_config(c) for n, c in config.pop("tables").items()}
        features = {
            path: FeatureConfig(
                f["name"], tables[f["table"]], tuple(f["input_shape"]), tuple(f["output_shape"])
            )
            for path, f in config.pop("features").items()
        }
        structure = config.pop("structure")
        return cls(walked(structure, lambda _, path: features[path]), **config)


def devices_of_distribution() -> int:
    """Returns the number of devices that the active distribution splits tables over."""
    distribution = keras.distribution.distribution()
    # Tables are split along the last axis, of one or two.
    return 1 if distribution is None else int(distribution.device_mesh.shape[-1])


def _dim(feature: FeatureConfig) -> int:
    return int(feature.table.embedding_dim)


def _is_leaf(_: str, node: Any) -> bool:
    return not isinstance(node, dict | list | tuple)


def walked(
    node: Nested,
    function: Callable[[str, Any], Any],
    is_leaf: Callable[[str, Any], bool] = _is_leaf,
    path: str = "",
) -> Nested:
    """Maps `function(path, leaf)` over the leaves of a nested structure."""
    if is_leaf(path, node):
        return function(path, node)
    prefix = f"{path}." if path else ""
    if isinstance(node, dict):
        return {k: walked(v, function, is_leaf, f"{prefix}{k}") for k, v in node.items()}
    return type(node)(walked(v, function, is_leaf, f"{prefix}{i}") for i, v in enumerate(node))


_KINDS = ("TPU v5", "TPU v6 lite")
_KERAS = {cls.kind: optimizer for optimizer, cls in BY_KERAS.items()}


def has_sparsecore() -> bool:
    """Returns whether JAX's devices are TPUs with SparseCores that keras-rs supports."""
    return keras.backend.backend() == "jax" and jax.devices()[0].device_kind in _KINDS


def embedding_layer(feature_configs: Any, **kwargs: Any) -> keras.layers.Layer:
    """Returns the embedding layer for the devices: keras-rs' on SparseCores, else ours.

    Args:
        feature_configs: As for `ShardedEmbedding`.
        **kwargs: As for `ShardedEmbedding`.

    Raises:
        UsageError: A table has the placement `sparsecore` on other devices (R353), or options
            that SparseCores don't support (R366).
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
