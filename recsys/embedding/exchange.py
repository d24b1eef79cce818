"""Reads and updates one table on a mesh, for every way of splitting it.

A step reads a table any number of times. Each `read` leaves a `Use`; at the end
`apply` takes all uses of a table with the gradients of what they returned, brings
each gradient to the device that holds its row, and updates the rows in place.

| split   | single ids                 | bags                                          |
| ------- | -------------------------- | --------------------------------------------- |
| rows    | all-to-all, both ways      | ids gathered, pooled where the rows are,      |
|         | (`row_exchange`)           | partial sums scattered back                   |
| columns | ids gathered; every device pools its columns of the whole batch, all-to-all |
| none    | read locally; ids and gradients gathered, every copy updated alike         |

On a 2-D mesh the batch is repeated along the axis that the table is split over, so
a read needs one sum along it, and an update gathers along the batch axis.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from recsys.embedding import row_exchange
from recsys.embedding.optimizers import RowOptimizer, Slots, Width
from recsys.embedding.row_exchange import Axis
from recsys.embedding.rows import (
    Gradients,
    Lookups,
    Numbers,
    gather,
    joined,
    pool,
    sum_squares,
    update,
)
from recsys.embedding.sharding import TableSharding, shard_mapped

State = tuple[jax.Array, ...]
Offset = jax.Array | int
Change = Callable[[State, Gradients, Offset, Width | None], State]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Use:
    """What the update needs to know of one reading of a table.

    Attributes:
        lookups: Places read, this device's part of the batch.
        n_bags: Bags of the whole batch.
        is_single: Whether each bag is one id, exchanged by all-to-all.
    """

    lookups: Lookups
    n_bags: int = dataclasses.field(metadata={"static": True})
    is_single: bool = dataclasses.field(metadata={"static": True})


def read(
    sharding: TableSharding, table: jax.Array, lookups: Lookups, n_bags: int, is_single: bool
) -> tuple[jax.Array, Use, jax.Array]:
    """Returns the pooled rows of `lookups`.

    Args:
        sharding: Where the table lies.
        table: The table `[places, dim]`.
        lookups: Places in the whole table; every device's bags, one device after the
            other. One outside the table adds nothing.
        n_bags: Bags.
        is_single: Whether each bag is one id of weight 1.

    Returns:
        Sums `[n_bags, dim]` float32; what `apply` needs; and the extra rounds that the
        exchange took, a scalar int32.
    """
    use = Use(lookups, n_bags, is_single)
    none = jnp.int32(0)
    if sharding.is_local:
        return pool(table, lookups, lookups.weights(), n_bags), use, none
    if n_bags % sharding.n_batch_parts or lookups.rows.shape[0] % sharding.n_batch_parts:
        return _partitioned(table, lookups, n_bags), use, none
    read_here = _read_single if _exchanges(sharding, is_single) else _read_bags
    n_local = n_bags // sharding.n_batch_parts
    mapped = shard_mapped(
        sharding,
        lambda table, lookups: read_here(
            sharding, table, with_local_bags(sharding, lookups, n_local), n_local
        ),
        (sharding.table_spec, _lookup_specs(sharding, lookups)),
        (sharding.batch_spec, jax.sharding.PartitionSpec()),
    )
    out, extra = mapped(table, lookups)
    return out, use, extra


def _exchanges(sharding: TableSharding, is_single: bool) -> bool:
    return is_single and sharding.split == "rows" and sharding.shares_axis


def with_local_bags(sharding: TableSharding, lookups: Lookups, n_bags: int) -> Lookups:
    """Returns one device's `lookups` with bags counted from its own first one."""
    return _shifted(sharding, lookups, -n_bags)


def with_global_bags(sharding: TableSharding, lookups: Lookups, n_bags: int) -> Lookups:
    """Returns one device's `lookups` with bags counted from the first of the batch."""
    return _shifted(sharding, lookups, n_bags)


def _shifted(sharding: TableSharding, lookups: Lookups, n_bags: int) -> Lookups:
    if lookups.bag is None or sharding.is_local or sharding.batch_axis is None:
        return lookups
    part = jax.lax.axis_index(sharding.batch_axis).astype(jnp.int32)
    return lookups._replace(bag=lookups.bag + part * n_bags)


def _lookup_specs(sharding: TableSharding, lookups: Lookups) -> Any:
    return jax.tree.map(lambda _: sharding.batch_spec, lookups)


def _partitioned(table: jax.Array, lookups: Lookups, n_bags: int) -> jax.Array:
    """Lets XLA insert the communication: any number of bags, slow, for reading only."""
    picked = gather(table, lookups.rows) * lookups.weights()[:, None]
    return jax.ops.segment_sum(picked, lookups.bags(n_bags), n_bags)


def _axis(sharding: TableSharding) -> Axis:
    return Axis(str(sharding.table_axis), sharding.n_shards)


def _read_single(
    sharding: TableSharding, table: jax.Array, lookups: Lookups, n_bags: int
) -> tuple[jax.Array, jax.Array]:
    return row_exchange.read_rows(table, lookups.rows, _axis(sharding))


def _read_bags(
    sharding: TableSharding, table: jax.Array, lookups: Lookups, n_bags: int
) -> tuple[jax.Array, jax.Array]:
    gathers = sharding.split != "none" and sharding.shares_axis
    if gathers:
        lookups = _gathered(sharding, lookups, n_bags)
        n_bags = n_bags * sharding.n_batch_parts
    lookups = _own(sharding, lookups, table.shape[0])
    pooled = pool(table, lookups, lookups.weights(), n_bags)
    return _returned(sharding, pooled), jnp.int32(0)


def _returned(sharding: TableSharding, pooled: jax.Array) -> jax.Array:
    """Brings pooled parts `[bags, dim or part of it]` to the devices that asked."""
    axis = sharding.table_axis
    if sharding.split == "none":
        return pooled
    if sharding.split == "rows":
        if sharding.shares_axis:
            return jax.lax.psum_scatter(pooled, axis, scatter_dimension=0, tiled=True)
        return jax.lax.psum(pooled, axis)
    if sharding.shares_axis:
        return jax.lax.all_to_all(pooled, axis, 0, 1, tiled=True)
    return jax.lax.all_gather(pooled, axis, axis=1, tiled=True)


def _own(sharding: TableSharding, lookups: Lookups, shard_rows: int) -> Lookups:
    """Returns `lookups` in this device's rows; what another device holds becomes -1."""
    if sharding.split != "rows":
        return lookups
    local = lookups.rows - jax.lax.axis_index(sharding.table_axis) * shard_rows
    mine = (lookups.rows >= 0) & (local >= 0) & (local < shard_rows)
    return lookups._replace(rows=jnp.where(mine, local, -1))


def _gathered(sharding: TableSharding, lookups: Lookups, n_bags: int) -> Lookups:
    """Returns the lookups of all parts of the batch, each of `n_bags` bags."""
    axis = sharding.batch_axis

    def gather_parts(x: jax.Array | None) -> jax.Array | None:
        return None if x is None else jax.lax.all_gather(x, axis, tiled=True)

    return jax.tree.map(gather_parts, with_global_bags(sharding, lookups, n_bags))


# --- updating


def apply(
    sharding: TableSharding,
    optimizer: RowOptimizer,
    table: jax.Array,
    slots: Slots,
    uses: list[Use],
    grads: list[jax.Array],
    numbers: Numbers,
) -> tuple[jax.Array, Slots]:
    """Returns the table and its slots after a step.

    Args:
        sharding: Where the table lies.
        optimizer: Its optimizer.
        table: The table `[places, dim]`; donated, it is changed in place.
        slots: Its slots.
        uses: What `read` left, for each reading of the table in this step.
        grads: The gradient of what each returned `[n_bags, dim]` float32.
        numbers: What changes from step to step; `row_offset` is filled in here.
    """

    def change(state: State, gradients: Gradients, offset: Offset, width: Width | None) -> State:
        table, slots = state[0], state[1:]
        here = numbers._replace(row_offset=jnp.asarray(offset, jnp.int32))
        table, slots = update(optimizer, table, slots, gradients, here, width)
        return (table, *slots)

    shard_rows = table.shape[0] // (sharding.n_shards if sharding.split == "rows" else 1)
    specs = (sharding.table_spec, *(sharding.slot_spec(s.per_row) for s in optimizer.slot_list()))
    table, *new = _each_gradient(sharding, shard_rows, (table, *slots), specs, uses, grads, change)
    return table, tuple(new)


def squares(
    sharding: TableSharding, n_places: int, uses: list[Use], grads: list[jax.Array]
) -> jax.Array:
    """Returns the sum of squares of a table's gradient, duplicates summed, a scalar float32.

    Args:
        sharding: Where the table lies.
        n_places: Places of the whole table.
        uses: See `apply`.
        grads: See `apply`.
    """
    shard_rows = n_places // (sharding.n_shards if sharding.split == "rows" else 1)

    def add(state: State, gradients: Gradients, offset: Offset, width: Width | None) -> State:
        return (state[0] + sum_squares(gradients, shard_rows),)

    none = jax.sharding.PartitionSpec()
    return _each_gradient(sharding, shard_rows, (jnp.float32(0),), (none,), uses, grads, add, True)[
        0
    ]


def _each_gradient(
    sharding: TableSharding,
    shard_rows: int,
    state: State,
    specs: Any,
    uses: list[Use],
    grads: list[jax.Array],
    change: Change,
    is_sum: bool = False,
) -> State:
    """Calls `change` with this device's gradients; returns the last state, or its sum."""
    if sharding.is_local:
        parts = [Gradients(u.lookups, g) for u, g in zip(uses, grads, strict=True)]
        return change(state, joined(parts), 0, None)

    def mapped(state: State, uses: list[Use], grads: list[jax.Array]) -> State:
        state = _on_device(sharding, state, uses, grads, change, shard_rows)
        if is_sum and sharding.split != "none":
            state = jax.tree.map(lambda s: jax.lax.psum(s, sharding.table_axis), state)
        return state

    use_specs = jax.tree.map(lambda _: sharding.batch_spec, uses)
    grad_specs = [sharding.batch_spec] * len(grads)
    spread = shard_mapped(sharding, mapped, (specs, use_specs, grad_specs), specs)
    result: State = spread(state, uses, grads)
    return result


def _on_device(
    sharding: TableSharding,
    state: State,
    uses: list[Use],
    grads: list[jax.Array],
    change: Change,
    shard_rows: int,
) -> State:
    parts, singles = [], []
    for use, grad in zip(uses, grads, strict=True):
        if _exchanges(sharding, use.is_single):
            singles.append((use.lookups.rows, grad))
        else:
            parts.append(_brought(sharding, use, grad, shard_rows))
    offset = jax.lax.axis_index(sharding.table_axis) * shard_rows if sharding.split == "rows" else 0
    if not singles:
        return change(state, joined(parts), offset, _width(sharding, grads))

    def one_round(state: State, received: Gradients, first: jax.Array, upto: jax.Array) -> State:
        inside = [_within(part, first, upto) for part in parts]
        return change(state, joined([received, *inside]), offset, None)

    places = jnp.concatenate([rows for rows, _ in singles])
    stacked = jnp.concatenate([grad for _, grad in singles])
    return row_exchange.each_round(places, stacked, _axis(sharding), shard_rows, state, one_round)


def _within(part: Gradients, first: jax.Array, upto: jax.Array) -> Gradients:
    rows = part.lookups.rows
    inside = (rows >= first) & (rows < upto)
    return part._replace(lookups=part.lookups._replace(rows=jnp.where(inside, rows, -1)))


def _brought(sharding: TableSharding, use: Use, grad: jax.Array, shard_rows: int) -> Gradients:
    """Returns the gradients of this device's rows, or columns, in one use."""
    n_bags = grad.shape[0]
    lookups = _gathered(sharding, with_local_bags(sharding, use.lookups, n_bags), n_bags)
    if sharding.split == "columns" and sharding.shares_axis:
        grad = jax.lax.all_to_all(grad, sharding.table_axis, 1, 0, tiled=True)
    else:
        if sharding.split == "columns":
            width = grad.shape[1] // sharding.n_shards
            start = jax.lax.axis_index(sharding.table_axis) * width
            grad = jax.lax.dynamic_slice_in_dim(grad, start, width, axis=1)
        grad = jax.lax.all_gather(grad, sharding.batch_axis, tiled=True)
    return Gradients(_own(sharding, lookups, shard_rows), grad)


def _width(sharding: TableSharding, grads: list[jax.Array]) -> Width | None:
    if sharding.split != "columns":
        return None
    dim = grads[0].shape[1]
    first = jax.lax.axis_index(sharding.table_axis) * (dim // sharding.n_shards)
    return Width(dim, sharding.table_axis, first)
