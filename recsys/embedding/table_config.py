"""Configs of tables and features, with the names that keras-rs uses."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

import keras
import keras_rs

from recsys.distributed.collectives import PAYLOADS
from recsys.embedding.optimizers import RowOptimizer, row_optimizer
from recsys.embedding.traffic import EXCHANGES, ExchangeOptions
from recsys.errors import UsageError

FeatureConfig: TypeAlias = keras_rs.layers.FeatureConfig

COMBINERS = ("sum", "mean", "sqrtn", "max")
Placement = Literal["row", "column", "replicated"]
PLACEMENTS = ("auto", "default_device", "sparsecore", "row", "column", "replicated")
REPLICATE_BELOW_ROWS = 50_000
"""Placement `auto` splits a table with at least this many rows, and replicates smaller ones."""


@dataclasses.dataclass(order=True)
class TableConfig(keras_rs.layers.TableConfig):
    """Config of one embedding table: `keras_rs.layers.TableConfig` with more options.

    Args:
        name: Name of the table.
        vocabulary_size: Number of rows; row 0 is for unknown ids.
        embedding_dim: Width of a row [floats].
        initializer: Initial values; see `recsys.embedding.initial`.
        optimizer: Optimizer of the rows; see `recsys.embedding.optimizers`. None for a
            table that is only read.
        combiner: `sum`, `mean`, `sqrtn`, or `max`.
        placement: `row` and `column` split the table over the devices; `replicated` keeps it
            on each; `auto` and `default_device` split by rows from 50,000 rows on, else
            replicate; `sparsecore` is keras-rs' placement on a TPU.
        unknown: Handling of ids outside the vocabulary: `row0` reads row 0 and counts them,
            `error` stops the run.
        dtype: `float32`, or `bfloat16` with stochastic rounding.
        exchange: How bags and gradients travel between devices: `auto`, `cheapest`,
            `gathered`, `rows`, `nodes` or `dense`; see `recsys.embedding.traffic`.
        distinct_share: Expected share of distinct ids among a device's ids of a batch (0..1].
            Used only to choose an exchange, and in the plan.
        exchange_dtype: Dtype in which rows and gradients travel: `float32`, `bfloat16` or
            `int8`.
        between_nodes_dtype: The same between nodes, for the exchanges `rows` and `nodes`; None
            for `exchange_dtype`.
    """

    unknown: str = "row0"
    dtype: str = "float32"
    exchange: str = "auto"
    distinct_share: float = 1.0
    exchange_dtype: str = "float32"
    between_nodes_dtype: str | None = None

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments."""
        own = {name: getattr(self, name) for name in _OWN}
        return {**super().get_config(), **own}


_OWN = (
    "unknown", "dtype", "exchange", "distinct_share", "exchange_dtype", "between_nodes_dtype",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class TableSpec:
    """A validated `TableConfig`, as the engine uses it.

    Attributes:
        name: Name of the table.
        rows: Logical rows, without padding.
        dim: Width of a row [floats].
        placement: Requested placement.
        optimizer: Optimizer of its rows; None if it is only read.
        initializer: Initial values.
        combiner: `sum`, `mean`, `sqrtn` or `max`.
        unknown: `row0` or `error`.
        dtype: Dtype of the weights.
        exchange: How its rows travel between devices.
    """

    name: str
    rows: int
    dim: int
    placement: Placement
    optimizer: RowOptimizer | None
    initializer: Any
    combiner: str
    unknown: str
    dtype: str
    exchange: ExchangeOptions

    @property
    def itemsize(self) -> int:
        """Bytes of a weight."""
        return 2 if self.dtype == "bfloat16" else 4


def resolve(table: keras_rs.layers.TableConfig) -> TableSpec:
    """Returns the validated form of a table's config.

    Raises:
        UsageError: A value is not supported (R353).
    """
    _check(table, "combiner", table.combiner, COMBINERS)
    _check(table, "placement", table.placement, PLACEMENTS)
    if table.placement == "sparsecore":
        raise _refused(table, "placement", "sparsecore", "another one: this is not a TPU")
    if any("regularizer" in name and value is not None for name, value in vars(table).items()):
        raise refused_regularizer(table.name)
    if not isinstance(table, TableConfig):
        table = TableConfig(**vars(table))
    _check(table, "unknown", table.unknown, ("row0", "error"))
    _check(table, "dtype", table.dtype, ("float32", "bfloat16"))
    for name in ("vocabulary_size", "embedding_dim"):
        if not 0 < getattr(table, name) < 2**31:
            raise _refused(table, name, getattr(table, name), "a number in 1 … 2³¹ - 1")
    placement = table.placement
    if placement in ("auto", "default_device"):
        placement = "row" if table.vocabulary_size >= REPLICATE_BELOW_ROWS else "replicated"
    return TableSpec(
        name=table.name,
        rows=table.vocabulary_size,
        dim=table.embedding_dim,
        placement=placement,
        optimizer=None if table.optimizer is None else row_optimizer(table.optimizer),
        initializer=keras.initializers.get(table.initializer),
        combiner=table.combiner,
        unknown=table.unknown,
        dtype=table.dtype,
        exchange=_exchange_options(table),
    )


def refused_regularizer(table: str) -> UsageError:
    """Returns the error for a table with a regularizer (R347)."""
    return UsageError(
        "R347",
        f"Table {table!r} must have no regularizer: its gradient would have a number for every"
        " weight of the table, in every step.",
        "Set weight_decay of its row optimizer (train.table_weight_decay), which shrinks the rows"
        " that a step updates, or train.table_regularisation.",
    )


def _exchange_options(table: TableConfig) -> ExchangeOptions:
    options = ExchangeOptions(
        table.exchange, table.distinct_share, table.exchange_dtype, table.between_nodes_dtype
    )
    _check(table, "exchange_dtype", options.payload, PAYLOADS)
    _check(table, "between_nodes_dtype", options.payload_between, PAYLOADS)
    _check(table, "exchange", options.exchange, EXCHANGES)
    if not 0 < options.distinct_share <= 1:
        raise _refused(table, "distinct_share", options.distinct_share, "a share in (0..1]")
    return options


def check_shapes(feature: keras_rs.layers.FeatureConfig) -> None:
    """Checks the declared shapes of a feature.

    Ids are `[batch]` or bags `[batch, length]`, and are pooled to `[batch, embedding_dim]`. As
    in keras-rs, a call may have another batch size and bag length than declared.

    Raises:
        UsageError: The input or output shape doesn't match (R365).
    """
    dim = feature.table.embedding_dim
    allowed: dict[str, tuple[str, list[tuple[int | None, ...]]]] = {
        "input_shape": ("(batch,) or (batch, length)", [(None,), (None, None)]),
        "output_shape": (f"(batch, {dim})", [(None, dim)]),
    }
    for name, (expected, shapes) in allowed.items():
        declared = getattr(feature, name)
        if isinstance(declared, list | tuple) and any(_fits(declared, shape) for shape in shapes):
            continue
        raise UsageError(
            "R365",
            f"{name!r} of feature {feature.name!r} must be {expected}.",
            "Declare that in its FeatureConfig, with None where a size is open. A bag of ids"
            " becomes one vector; for one vector an id flatten the ids into the batch.",
            declared,
        )


def _fits(declared: Sequence[Any], shape: tuple[int | None, ...]) -> bool:
    """Whether `declared` matches `shape`; None in either matches any size."""
    if len(declared) != len(shape):
        return False
    pairs = zip(declared, shape, strict=True)
    return all(
        size is None or (isinstance(size, int) and size > 0 and wanted in (None, size))
        for size, wanted in pairs
    )


def _check(table: Any, name: str, value: Any, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise _refused(table, name, value, f"one of {', '.join(allowed)}")


def _refused(table: Any, name: str, value: Any, expected: str) -> UsageError:
    return UsageError(
        "R353",
        f"{name!r} of table {table.name!r} must be {expected}.",
        "Change it in the table's TableConfig.",
        value,
    )


def by_name(tables: list[Any]) -> dict[str, Any]:
    """Returns the tables by name. Raises R357 if different tables have the same name."""
    by_name: dict[str, Any] = {}
    for table in tables:
        known = by_name.setdefault(table.name, table)
        if known is not table and known.get_config() != table.get_config():
            raise UsageError(
                "R357",
                f"Two tables of a layer must not have the same name {table.name!r}.",
                "Give one of them another name.",
                (known, table),
            )
    return by_name


def stacks(
    specs: Sequence[TableSpec], stacking: str | Sequence[Sequence[str]] | None
) -> list[list[TableSpec]]:
    """Returns groups of tables; each group is stored as one table."""
    if stacking is None:
        return [[spec] for spec in specs]
    if stacking == "auto":
        groups: dict[Any, list[TableSpec]] = {}
        for spec in specs:
            key = _likeness(spec) if spec.placement == "row" else spec.name
            groups.setdefault(key, []).append(spec)
        return list(groups.values())
    if isinstance(stacking, str):
        raise UsageError(
            "R358", "table_stacking must be 'auto', lists of names, or None.", "Use one.", stacking
        )
    by_name = {spec.name: spec for spec in specs}
    stacks = [[by_name[name] for name in names] for names in stacking]
    for stack in stacks:
        if len({_likeness(spec) for spec in stack}) > 1:
            raise UsageError(
                "R358",
                "Stacked tables must be alike in width, optimizer, placement, dtype, exchange.",
                "Leave the one that differs out of table_stacking.",
                [spec.name for spec in stack],
            )
    stacked = {name for names in stacking for name in names}
    return stacks + [[spec] for spec in specs if spec.name not in stacked]


def _likeness(spec: TableSpec) -> str:
    return repr((spec.dim, spec.optimizer, spec.placement, spec.dtype, spec.exchange))
