"""Reads and updates one table on a mesh, however it is split.

A step reads a table any number of times, and each `read` returns a `TableRead`. At the end
`apply` takes all reads of a table with the gradients of their outputs, brings each gradient to
the device that owns its row, and updates the rows in place.

| split   | single ids                 | bags                                          |
| ------- | -------------------------- | --------------------------------------------- |
| rows    | all-to-all of unique rows, | `gathered`: ids are gathered, pooled by the   |
|         | both ways (`row_exchange`) | owners of the rows, partial sums scattered;   |
|         |                            | `rows`: like single ids, pooled locally;      |
|         |                            | `nodes`: `gathered` within a node, `rows`     |
|         |                            | between nodes                                 |
| columns | ids gathered; every device pools its columns of the whole batch, all-to-all |
| none    | read locally; ids and gradients gathered, every replica updated alike       |

`traffic` chooses the exchange of bags, and whether gradients are summed as one dense array of
the table's size instead, by the bytes that a device sends.

On a 2-D mesh the batch is replicated along the axis that the table is split over, so a read
needs one sum along it, and an update gathers along the batch axis.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from recsys.distributed.collectives import (
    Group,
    all_gather,
    columns_to_rows,
    gather_parts,
    on_each_device,
    reduce_scatter,
    rows_to_columns,
)
from recsys.embedding.optimizers import RowOptimizer, Slots, Width
from recsys.embedding.row_exchange import Exchange, read_bags, send_gradients
from recsys.embedding.rows import (
    Lookups,
    RowGradients,
    StepScalars,
    concatenate,
    gather,
    pool,
    sum_squares,
    update,
    with_bag_weights,
)
from recsys.embedding.sharding import TableSharding
from recsys.embedding.traffic import ExchangeOptions, ReadPlan, TableTraffic, Way, way_of

State = tuple[jax.Array, ...]
Offset = jax.Array | int
Change = Callable[[State, RowGradients, Offset, Width | None], State]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TableRead:
    """One read of a table in a step, as the table's update needs it.

    Attributes:
        lookups: Physical rows that were read, this device's part of the batch.
        plan: Sizes of the read on a device, and how its bags travel.
        options: How the table's rows may travel.
        bag_weight: Common weight of the entries of each bag `[n_bags]` float32, or None; it
            travels in place of the entries' weights.
    """

    lookups: Lookups
    plan: ReadPlan = dataclasses.field(metadata={"static": True})
    options: ExchangeOptions = dataclasses.field(metadata={"static": True})
    bag_weight: jax.Array | None = None


# --- reading


def read(
    sharding: TableSharding,
    table: jax.Array,
    lookups: Lookups,
    n_bags: int,
    options: ExchangeOptions,
    is_single: bool = False,
    learns_weights: bool = False,
    bag_weight: jax.Array | None = None,
    features: tuple[str, ...] = (),
) -> tuple[jax.Array, TableRead, jax.Array]:
    """Returns the pooled rows of `lookups`.

    Args:
        sharding: Sharding of the table.
        table: The table `[physical rows, dim]`.
        lookups: Physical rows; every device's bags, one device after the other. Indices
            outside the table add nothing.
        n_bags: Number of bags.
        options: How the table's rows may travel.
        is_single: Whether each bag is one id of weight 1.
        learns_weights: Whether the loss is differentiated by the weights.
        bag_weight: Common weight of the entries of each bag `[n_bags]` float32, or None.
        features: Names of the features.

    Returns:
        Sums `[n_bags, dim]` float32; the read, for `apply`; and the extra rounds that the
        exchange took, a scalar int32.
    """
    n, n_ids = sharding.n_batch_parts, lookups.rows.shape[0]
    n_bag_arrays = 0 if bag_weight is None else 1
    plan = ReadPlan(
        n_bags // n,
        n_ids // n,
        table.shape[1],
        n_id_arrays=sum(array is not None for array in lookups) - n_bag_arrays,
        n_bag_arrays=n_bag_arrays,
        is_single=is_single,
        learns_weights=learns_weights,
        features=features,
    )
    if sharding.is_local:
        here = TableRead(lookups, plan, options, bag_weight)
        return pool(table, lookups, n_bags), here, jnp.int32(0)
    plan = plan._replace(way=way_of(sharding, plan, options, table.shape[0]))
    of_batch = TableRead(lookups, plan, options, bag_weight)
    if n_bags % n or n_ids % n:
        # XLA inserts the communication, slowly.
        picked = gather(table, lookups.rows) * lookups.weights()[:, None]
        pooled = jax.ops.segment_sum(picked, lookups.bags(n_bags), n_bags)
        return pooled, of_batch, jnp.int32(0)

    def read_here(table: jax.Array, here: TableRead) -> tuple[jax.Array, jax.Array]:
        if plan.way == "gathered":
            return _read_gathered(sharding, table, here), jnp.int32(0)
        exchange = _exchange_of(sharding, [here], table.shape[0])
        if plan.way == "rows":
            lookups = shifted(sharding, here.lookups, -plan.bags)
            return read_bags(table, lookups, plan.bags, exchange)
        lookups, n_node_bags = _lookups_of_node(sharding, here, table.shape[0])
        pooled, extra = read_bags(table, lookups, n_node_bags, exchange)
        return reduce_scatter(pooled, sharding.node, options.payload), extra

    specs = jax.tree.map(lambda _: sharding.batch_spec, of_batch)
    into, out_of = (sharding.table_spec, specs), (sharding.batch_spec, PartitionSpec())
    pooled, extra = on_each_device(read_here, sharding.mesh, into, out_of)(table, of_batch)
    return pooled, of_batch, extra


def shifted(sharding: TableSharding, lookups: Lookups, n_bags: int) -> Lookups:
    """Adds `n_bags` to the bag numbers for each part of the batch before this device's part.

    Args:
        sharding: Sharding of the table.
        lookups: Lookups of this device.
        n_bags: Bags of a part, to number them in the whole batch; negative to number them from
            the part's first bag.
    """
    if lookups.bag is None or sharding.is_local or sharding.batch_axis is None:
        return lookups
    part = jax.lax.axis_index(sharding.batch_axis).astype(jnp.int32)
    return lookups._replace(bag=lookups.bag + part * n_bags)


def _read_gathered(sharding: TableSharding, table: jax.Array, here: TableRead) -> jax.Array:
    n_bags = here.plan.bags
    if sharding.split != "none" and sharding.shares_axis:
        lookups = _gathered(sharding.batch_devices, here)
        n_bags = n_bags * sharding.n_batch_parts
    else:
        lookups = shifted(sharding, here.lookups, -n_bags)
    lookups = _local_lookups(sharding, lookups, table.shape[0])
    return _return_bags(sharding, pool(table, lookups, n_bags), here.options.payload)


def _return_bags(sharding: TableSharding, pooled: jax.Array, payload: str) -> jax.Array:
    """Brings partial sums `[bags, dim or part of it]` to the devices of the bags."""
    devices = sharding.table_devices
    if sharding.split == "none":
        return pooled
    if sharding.split == "rows":
        if sharding.shares_axis:
            return reduce_scatter(pooled, devices, payload)
        return jax.lax.psum(pooled, devices.axis)
    if sharding.shares_axis:
        return rows_to_columns(pooled, devices, payload)
    return jax.lax.all_gather(pooled, devices.axis, axis=1, tiled=True)


# --- lookups of several devices


def _exchange_of(sharding: TableSharding, reads: list[TableRead], shard_rows: int) -> Exchange:
    """Returns the exchange of rows of reads that travel the same way."""
    has_bags = not all(read.plan.is_single for read in reads)
    options, payload = reads[0].options, reads[0].options.payload
    if reads[0].plan.way == "nodes":
        peers, share = sharding.peers, sharding.node.size
        alone = dataclasses.replace(peers, size=1)
        return Exchange(peers, alone, shard_rows, has_bags, payload, options.payload_between, share)
    group, node = sharding.table_devices, sharding.node
    between = payload if node.size == group.size else options.payload_between
    return Exchange(group, node, shard_rows, has_bags, payload, between)


def _local_lookups(sharding: TableSharding, lookups: Lookups, shard_rows: int) -> Lookups:
    """Returns `lookups` in this device's rows; -1 for rows of other devices."""
    if sharding.split != "rows":
        return lookups
    local = lookups.rows - jax.lax.axis_index(sharding.table_axis) * shard_rows
    mine = (lookups.rows >= 0) & (local >= 0) & (local < shard_rows)
    return lookups._replace(rows=jnp.where(mine, local, -1))


def _lookups_of_node(
    sharding: TableSharding, here: TableRead, shard_rows: int
) -> tuple[Lookups, int]:
    """Returns the node's lookups that this device requests, and their number of bags.

    Returns:
        The lookups of all devices of the node, as rows of the shards of this device and its
        peers, one after the other; -1 for rows that another device of the node requests.
    """
    node, peers = sharding.node, sharding.peers
    n_bags = node.size * here.plan.bags
    lookups = _gathered(node, here, peers.index().astype(jnp.int32) * n_bags)
    owner, local = jnp.divmod(lookups.rows, shard_rows)
    is_ours = (lookups.rows >= 0) & (owner < sharding.n_shards)
    is_ours &= owner % node.size == node.index()
    rows = owner // node.size * shard_rows + local
    return lookups._replace(rows=jnp.where(is_ours, rows, -1)), n_bags


def _gathered(devices: Group, here: TableRead, first_bag: Offset = 0) -> Lookups:
    """Gathers the lookups of `devices`, with bags numbered from `first_bag` of the batch on."""
    weight = here.lookups.weight if here.bag_weight is None else None
    sent = here.lookups._replace(weight=weight)
    gathered: Lookups = jax.tree.map(lambda x: gather_parts(x, devices), sent)
    if gathered.bag is not None:
        gathered = gathered._replace(bag=gathered.bag - first_bag)
    if here.bag_weight is None:
        return gathered
    return with_bag_weights(gathered, gather_parts(here.bag_weight, devices))


# --- updating


def apply(
    sharding: TableSharding,
    optimizer: RowOptimizer,
    table: jax.Array,
    slots: Slots,
    reads: list[TableRead],
    grads: list[jax.Array],
    scalars: StepScalars,
) -> tuple[jax.Array, Slots]:
    """Returns the table and its slots after a step.

    Args:
        sharding: Sharding of the table.
        optimizer: Its optimizer.
        table: The table `[physical rows, dim]`; donated, it is changed in place.
        slots: Its slots.
        reads: All reads of the table in this step.
        grads: Gradient of each read's output `[n_bags, dim]` float32.
        scalars: Scalars of the step; `row_offset` is set here.
    """

    def change(state: State, gradients: RowGradients, offset: Offset, width: Width | None) -> State:
        table, slots = state[0], state[1:]
        here = scalars._replace(row_offset=jnp.asarray(offset, jnp.int32))
        table, slots = update(optimizer, table, slots, gradients, here, width)
        return (table, *slots)

    specs = (sharding.table_spec, *(sharding.slot_spec(s.per_row) for s in optimizer.slot_list()))
    table, *new = _each_gradient(
        sharding, table.shape[0], (table, *slots), specs, reads, grads, change
    )
    return table, tuple(new)


def squares(
    sharding: TableSharding, n_physical: int, reads: list[TableRead], grads: list[jax.Array]
) -> jax.Array:
    """Returns the sum of squares of a table's gradient, duplicates summed, a scalar float32.

    Args:
        sharding: Sharding of the table.
        n_physical: Physical rows of the whole table.
        reads: As in `apply`.
        grads: As in `apply`.
    """

    def add(state: State, gradients: RowGradients, offset: Offset, width: Width | None) -> State:
        return (state[0] + sum_squares(gradients, _rows_of_shard(sharding, n_physical)),)

    start, specs = (jnp.float32(0),), (PartitionSpec(),)
    return _each_gradient(sharding, n_physical, start, specs, reads, grads, add, is_sum=True)[0]


def _rows_of_shard(sharding: TableSharding, n_physical: int) -> int:
    return n_physical // sharding.n_shards if sharding.split == "rows" else n_physical


def _each_gradient(
    sharding: TableSharding,
    n_physical: int,
    state: State,
    specs: Any,
    reads: list[TableRead],
    grads: list[jax.Array],
    change: Change,
    is_sum: bool = False,
) -> State:
    """Calls `change` with each device's gradients; returns the last state, or its sum."""
    if sharding.is_local:
        parts = [RowGradients(r.lookups, g) for r, g in zip(reads, grads, strict=True)]
        return change(state, concatenate(parts), 0, None)

    def mapped(state: State, reads: list[TableRead], grads: list[jax.Array]) -> State:
        shard_rows = _rows_of_shard(sharding, n_physical)
        state = _change_shard(sharding, state, reads, grads, change, shard_rows)
        if is_sum and sharding.split != "none":
            state = jax.tree.map(lambda s: jax.lax.psum(s, sharding.table_devices.axis), state)
        return state

    read_specs = jax.tree.map(lambda _: sharding.batch_spec, reads)
    grad_specs = [sharding.batch_spec] * len(grads)
    spread = on_each_device(mapped, sharding.mesh, (specs, read_specs, grad_specs), specs)
    result: State = spread(state, reads, grads)
    return result


def _change_shard(
    sharding: TableSharding,
    state: State,
    reads: list[TableRead],
    grads: list[jax.Array],
    change: Change,
    shard_rows: int,
) -> State:
    """Calls `change` with the gradients of this device's shard, in rounds if they exchange."""
    offset = jax.lax.axis_index(sharding.table_axis) * shard_rows if sharding.split == "rows" else 0
    # Bags are numbered from this device's first bag on.
    own = [
        RowGradients(shifted(sharding, read.lookups, -grad.shape[0]), grad)
        for read, grad in zip(reads, grads, strict=True)
    ]
    plans = tuple(read.plan for read in reads)
    n_physical = _physical_rows_of(sharding, shard_rows)
    if TableTraffic("", sharding, reads[0].options, n_physical, plans).is_dense:
        dense = _sum_densely(sharding, concatenate(own), shard_rows)
        return change(state, dense, offset, None)
    by_way: dict[Way, list[tuple[TableRead, RowGradients]]] = {"rows": [], "nodes": []}
    gathered = []
    for read, grad, gradients in zip(reads, grads, own, strict=True):
        if read.plan.way == "rows":
            by_way["rows"].append((read, gradients))
        elif read.plan.way == "nodes":
            lookups, _ = _lookups_of_node(sharding, read, shard_rows)
            of_node = all_gather(grad, sharding.node, read.options.payload)
            by_way["nodes"].append((read, RowGradients(lookups, of_node)))
        else:
            gathered.append(_gather_gradients(sharding, read, grad, shard_rows))
    outgoing = [
        (
            concatenate([gradients for _, gradients in parts]),
            _exchange_of(sharding, [read for read, _ in parts], shard_rows),
        )
        for parts in by_way.values()
        if parts
    ]
    if not outgoing:
        return change(state, concatenate(gathered), offset, _width(sharding, grads))

    def one_round(
        state: State, received: list[RowGradients], first: jax.Array, upto: jax.Array
    ) -> State:
        inside = [_within(part, first, upto) for part in gathered]
        return change(state, concatenate([*received, *inside]), offset, None)

    return send_gradients(outgoing, state, one_round)


def _physical_rows_of(sharding: TableSharding, shard_rows: int) -> int:
    return shard_rows * sharding.n_shards if sharding.split == "rows" else shard_rows


def _sum_densely(sharding: TableSharding, gradients: RowGradients, shard_rows: int) -> RowGradients:
    """Returns the gradients of all rows of this device, summed over the batch's devices.

    A further column says which rows were read: only they may change.

    Args:
        sharding: Sharding of the table.
        gradients: Gradients of this device's bags, of rows of the whole table.
        shard_rows: Rows of a device.
    """
    scatters = sharding.split == "rows" and sharding.shares_axis
    lookups, grads = gradients
    if not scatters:
        lookups = _local_lookups(sharding, lookups, shard_rows)
    n_rows = _physical_rows_of(sharding, shard_rows) if scatters else shard_rows
    is_row = (lookups.rows >= 0) & (lookups.rows < n_rows)
    rows = jnp.where(is_row, lookups.rows, n_rows)
    order = jnp.argsort(rows)
    # Pools the other way around: reads the bags' gradients, and sums them by table row.
    summed = Lookups(
        jnp.where(is_row, lookups.bags(grads.shape[0]), -1)[order],
        jnp.minimum(rows, n_rows - 1)[order],
        None if lookups.weight is None else lookups.weight[order],
    )
    sums = pool(grads, summed, n_rows)
    was_read = jnp.zeros((n_rows, 1), jnp.float32).at[rows].set(1.0, mode="drop")
    sums = jnp.concatenate([sums, was_read], axis=1)
    if scatters:
        sums = reduce_scatter(sums, sharding.table_devices)
    else:
        sums = jax.lax.psum(sums, sharding.batch_devices.axis)
    here = jnp.arange(shard_rows, dtype=jnp.int32)
    return RowGradients(Lookups(jnp.where(sums[:, -1] > 0, here, -1)), sums[:, :-1])


def _within(part: RowGradients, first: jax.Array, upto: jax.Array) -> RowGradients:
    """Drops the rows outside `first` … `upto`."""
    rows = part.lookups.rows
    inside = (rows >= first) & (rows < upto)
    return part._replace(lookups=part.lookups._replace(rows=jnp.where(inside, rows, -1)))


def _gather_gradients(
    sharding: TableSharding, read: TableRead, grad: jax.Array, shard_rows: int
) -> RowGradients:
    """Returns the gradients of this device's rows, or columns, of the whole batch."""
    lookups = _gathered(sharding.batch_devices, read)
    if sharding.split == "columns" and sharding.shares_axis:
        grad = columns_to_rows(grad, sharding.table_devices, read.options.payload)
    else:
        if sharding.split == "columns":
            width = grad.shape[1] // sharding.n_shards
            start = jax.lax.axis_index(sharding.table_axis) * width
            grad = jax.lax.dynamic_slice_in_dim(grad, start, width, axis=1)
        grad = all_gather(grad, sharding.batch_devices, read.options.payload)
    return RowGradients(_local_lookups(sharding, lookups, shard_rows), grad)


def _width(sharding: TableSharding, grads: list[jax.Array]) -> Width | None:
    if sharding.split != "columns":
        return None
    dim = grads[0].shape[1]
    first = jax.lax.axis_index(sharding.table_axis) * (dim // sharding.n_shards)
    return Width(dim, sharding.table_axis, first)
