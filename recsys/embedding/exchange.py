"""Reads and updates one table on a mesh, for every way of splitting it.

A step reads a table any number of times. Each `read` leaves a `Use`; at the end
`apply` takes all uses of a table with the gradients of what they returned, brings
each gradient to the device that holds its row, and updates the rows in place.

| split   | single ids                 | bags                                          |
| ------- | -------------------------- | --------------------------------------------- |
| rows    | all-to-all of distinct     | `gathered`: ids gathered, pooled where the    |
|         | rows, both ways            | rows are, partial sums scattered back;        |
|         | (`row_exchange`)           | `rows`: as single ids, pooled locally;        |
|         |                            | or `nodes`: `gathered` among the devices of a |
|         |                            | node, `rows` between nodes                    |
| columns | ids gathered; every device pools its columns of the whole batch, all-to-all |
| none    | read locally; ids and gradients gathered, every copy updated alike         |

Which way bags go, and whether gradients are summed as one dense array of the table's size
instead of any of this, is chosen by what a device sends (`traffic`).

On a 2-D mesh the batch is repeated along the axis that the table is split over, so
a read needs one sum along it, and an update gathers along the batch axis.
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
from recsys.embedding.row_exchange import Exchange, each_round, read_bags
from recsys.embedding.rows import (
    Gradients,
    Lookups,
    Numbers,
    gather,
    joined,
    pool,
    sum_squares,
    update,
    weighed_alike,
)
from recsys.embedding.sharding import TableSharding
from recsys.embedding.traffic import ExchangeOptions, Reading, TableTraffic, Way, way_of

State = tuple[jax.Array, ...]
Offset = jax.Array | int
Change = Callable[[State, Gradients, Offset, Width | None], State]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Use:
    """What the update needs to know of one reading of a table.

    Attributes:
        lookups: Places read, this device's part of the batch.
        reading: What a device reads, and how its bags travel.
        options: How the table's rows may travel.
        scales: The weight of the ids of each bag `[n_bags]` float32, where they weigh alike:
            it travels in place of their weights.
    """

    lookups: Lookups
    reading: Reading = dataclasses.field(metadata={"static": True})
    options: ExchangeOptions = dataclasses.field(metadata={"static": True})
    scales: jax.Array | None = None


def read(
    sharding: TableSharding,
    table: jax.Array,
    lookups: Lookups,
    n_bags: int,
    is_single: bool,
    options: ExchangeOptions,
    learns_weights: bool = False,
    scales: jax.Array | None = None,
) -> tuple[jax.Array, Use, jax.Array]:
    """Returns the pooled rows of `lookups`.

    Args:
        sharding: Where the table lies.
        table: The table `[places, dim]`.
        lookups: Places in the whole table; every device's bags, one device after the
            other. One outside the table adds nothing.
        n_bags: Bags.
        is_single: Whether each bag is one id of weight 1.
        options: How the table's rows may travel.
        learns_weights: Whether the loss is differentiated by the weights.
        scales: The weight of the ids of each bag `[n_bags]` float32, where they weigh alike.

    Returns:
        Sums `[n_bags, dim]` float32; what `apply` needs; and the extra rounds that the
        exchange took, a scalar int32.
    """
    n, n_ids = sharding.n_batch_parts, lookups.rows.shape[0]
    n_scales = 0 if scales is None else 1
    arrays = sum(array is not None for array in lookups) - n_scales
    sizes = (n_bags // n, n_ids // n, table.shape[1])
    reading = Reading(*sizes, arrays, is_single, learns_weights, n_scales)
    reading = reading._replace(way=way_of(sharding, reading, options, table.shape[0]))
    use = Use(lookups, reading, options, scales)
    none = jnp.int32(0)
    if sharding.is_local:
        return pool(table, lookups, lookups.weights(), n_bags), use, none
    if n_bags % n or n_ids % n:
        return _partitioned(table, lookups, n_bags), use, none

    def read_here(table: jax.Array, use: Use) -> tuple[jax.Array, jax.Array]:
        lookups = use.lookups
        if reading.way == "gathered":
            return _read_gathered(sharding, table, use)
        exchange = _exchange_of(sharding, [use], table.shape[0])
        if reading.way == "rows":
            lookups = shifted(sharding, lookups, -reading.bags)
            return read_bags(table, lookups, lookups.weights(), reading.bags, exchange)
        lookups, n_of_node = _of_node(sharding, use, table.shape[0])
        pooled, extra = read_bags(table, lookups, lookups.weights(), n_of_node, exchange)
        return reduce_scatter(pooled, sharding.node, options.payload), extra

    specs = jax.tree.map(lambda _: sharding.batch_spec, use)
    into, out_of = (sharding.table_spec, specs), (sharding.batch_spec, PartitionSpec())
    out, extra = on_each_device(read_here, sharding.mesh, into, out_of)(table, use)
    return out, use, extra


def shifted(sharding: TableSharding, lookups: Lookups, n_bags: int) -> Lookups:
    """Returns one device's `lookups` with bags counted from another one on.

    Args:
        sharding: Where the table lies.
        lookups: The lookups.
        n_bags: Bags of a device to count from the first one of the batch; negative to count
            from the device's own first one.
    """
    if lookups.bag is None or sharding.is_local or sharding.batch_axis is None:
        return lookups
    part = jax.lax.axis_index(sharding.batch_axis).astype(jnp.int32)
    return lookups._replace(bag=lookups.bag + part * n_bags)


def _partitioned(table: jax.Array, lookups: Lookups, n_bags: int) -> jax.Array:
    """Lets XLA insert the communication: any number of bags, slow, for reading only."""
    picked = gather(table, lookups.rows) * lookups.weights()[:, None]
    return jax.ops.segment_sum(picked, lookups.bags(n_bags), n_bags)


def _exchange_of(sharding: TableSharding, uses: list[Use], shard_rows: int) -> Exchange:
    """Returns the exchange of rows by which uses of one way go."""
    has_bags = not all(use.reading.is_single for use in uses)
    options, payload = uses[0].options, uses[0].options.payload
    if uses[0].reading.way == "nodes":
        peers, share = sharding.peers, sharding.node.size
        alone = dataclasses.replace(peers, size=1)
        return Exchange(peers, alone, shard_rows, has_bags, payload, options.payload_between, share)
    group, node = sharding.table_devices, sharding.node
    between = payload if node.size == group.size else options.payload_between
    return Exchange(group, node, shard_rows, has_bags, payload, between)


def _read_gathered(
    sharding: TableSharding, table: jax.Array, use: Use
) -> tuple[jax.Array, jax.Array]:
    n_bags, payload = use.reading.bags, use.options.payload
    if sharding.split != "none" and sharding.shares_axis:
        lookups = _gathered(sharding.batch_devices, use)
        n_bags = n_bags * sharding.n_batch_parts
    else:
        lookups = shifted(sharding, use.lookups, -n_bags)
    lookups = _own(sharding, lookups, table.shape[0])
    pooled = pool(table, lookups, lookups.weights(), n_bags)
    return _returned(sharding, pooled, payload), jnp.int32(0)


def _returned(sharding: TableSharding, pooled: jax.Array, payload: str) -> jax.Array:
    """Brings pooled parts `[bags, dim or part of it]` to the devices that asked."""
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


def _own(sharding: TableSharding, lookups: Lookups, shard_rows: int) -> Lookups:
    """Returns `lookups` in this device's rows; what another device holds becomes -1."""
    if sharding.split != "rows":
        return lookups
    local = lookups.rows - jax.lax.axis_index(sharding.table_axis) * shard_rows
    mine = (lookups.rows >= 0) & (local >= 0) & (local < shard_rows)
    return lookups._replace(rows=jnp.where(mine, local, -1))


def _of_node(sharding: TableSharding, use: Use, shard_rows: int) -> tuple[Lookups, int]:
    """Returns what this device asks its peers for, and for how many bags.

    Args:
        sharding: Where the table lies.
        use: What this device reads.
        shard_rows: Rows of a device.

    Returns:
        The lookups of all devices of the node, in the places that this device and its peers
        hold, one after the other; -1 where another device of the node asks.
    """
    node, peers = sharding.node, sharding.peers
    n_bags = node.size * use.reading.bags
    lookups = _gathered(node, use, peers.place().astype(jnp.int32) * n_bags)
    owner, local = jnp.divmod(lookups.rows, shard_rows)
    is_ours = (lookups.rows >= 0) & (owner < sharding.n_shards)
    is_ours &= owner % node.size == node.place()
    places = owner // node.size * shard_rows + local
    return lookups._replace(rows=jnp.where(is_ours, places, -1)), n_bags


def _gathered(devices: Group, use: Use, first_bag: Offset = 0) -> Lookups:
    """Returns the lookups of all of `devices`, with bags counted from their first one on.

    Args:
        devices: The devices.
        use: What this device reads.
        first_bag: Number of their first bag in the batch.
    """
    sent = use.lookups if use.scales is None else use.lookups._replace(weight=None)
    gathered: Lookups = jax.tree.map(lambda x: gather_parts(x, devices), sent)
    if gathered.bag is not None:
        gathered = gathered._replace(bag=gathered.bag - first_bag)
    if use.scales is None:
        return gathered
    return weighed_alike(gathered, gather_parts(use.scales, devices))


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

    specs = (sharding.table_spec, *(sharding.slot_spec(s.per_row) for s in optimizer.slot_list()))
    table, *new = _each_gradient(
        sharding, table.shape[0], (table, *slots), specs, uses, grads, change
    )
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

    def add(state: State, gradients: Gradients, offset: Offset, width: Width | None) -> State:
        return (state[0] + sum_squares(gradients, _rows_of_shard(sharding, n_places)),)

    start, specs = (jnp.float32(0),), (PartitionSpec(),)
    return _each_gradient(sharding, n_places, start, specs, uses, grads, add, is_sum=True)[0]


def _rows_of_shard(sharding: TableSharding, n_places: int) -> int:
    return n_places // sharding.n_shards if sharding.split == "rows" else n_places


def _each_gradient(
    sharding: TableSharding,
    n_places: int,
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
        shard_rows = _rows_of_shard(sharding, n_places)
        state = _on_device(sharding, state, uses, grads, change, shard_rows)
        if is_sum and sharding.split != "none":
            state = jax.tree.map(lambda s: jax.lax.psum(s, sharding.table_devices.axis), state)
        return state

    use_specs = jax.tree.map(lambda _: sharding.batch_spec, uses)
    grad_specs = [sharding.batch_spec] * len(grads)
    spread = on_each_device(mapped, sharding.mesh, (specs, use_specs, grad_specs), specs)
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
    offset = jax.lax.axis_index(sharding.table_axis) * shard_rows if sharding.split == "rows" else 0
    here = [
        Gradients(shifted(sharding, use.lookups, -grad.shape[0]), grad)  # From its first bag on.
        for use, grad in zip(uses, grads, strict=True)
    ]
    readings = tuple(use.reading for use in uses)
    places = _places_of(sharding, shard_rows)
    if TableTraffic("", sharding, uses[0].options, places, readings).is_dense:
        return change(state, _summed(sharding, joined(here), shard_rows), offset, None)
    handed: dict[Way, list[Gradients]] = {"rows": [], "nodes": []}
    parts = []
    for use, grad, own in zip(uses, grads, here, strict=True):
        if use.reading.way == "rows":
            handed["rows"].append(own)
        elif use.reading.way == "nodes":
            handed["nodes"].append(_by_node(sharding, use, grad, shard_rows))
        else:
            parts.append(_brought(sharding, use, grad, shard_rows))
    by_way = {way: [use for use in uses if use.reading.way == way] for way in handed}
    exchanges = [
        (joined(of_way), _exchange_of(sharding, by_way[way], shard_rows))
        for way, of_way in handed.items()
        if of_way
    ]
    if not exchanges:
        return change(state, joined(parts), offset, _width(sharding, grads))

    def one_round(
        state: State, received: list[Gradients], first: jax.Array, upto: jax.Array
    ) -> State:
        inside = [_within(part, first, upto) for part in parts]
        return change(state, joined([*received, *inside]), offset, None)

    return each_round(exchanges, state, one_round)


def _places_of(sharding: TableSharding, shard_rows: int) -> int:
    return shard_rows * sharding.n_shards if sharding.split == "rows" else shard_rows


def _summed(sharding: TableSharding, gradients: Gradients, shard_rows: int) -> Gradients:
    """Returns the gradients of all of this device's rows, summed over the batch's devices.

    Which rows were read travels with them, as one more column: no other row is to change.

    Args:
        sharding: Where the table lies.
        gradients: Those of this device's bags, of places in the whole table.
        shard_rows: Rows of a device.
    """
    scatters = sharding.split == "rows" and sharding.shares_axis
    lookups, grads = gradients
    if not scatters:
        lookups = _own(sharding, lookups, shard_rows)
    n_rows = _places_of(sharding, shard_rows) if scatters else shard_rows
    is_row = (lookups.rows >= 0) & (lookups.rows < n_rows)
    rows = jnp.where(is_row, lookups.rows, n_rows)
    order = jnp.argsort(rows)
    # The gradients of bags are what is read, and the bags to sum are the table's rows.
    summed = Lookups(
        jnp.where(is_row, lookups.bags(grads.shape[0]), -1)[order],
        jnp.minimum(rows, n_rows - 1)[order],
        None if lookups.weight is None else lookups.weight[order],
    )
    sums = pool(grads, summed, summed.weights(), n_rows)
    was_read = jnp.zeros((n_rows, 1), jnp.float32).at[rows].set(1.0, mode="drop")
    sums = jnp.concatenate([sums, was_read], axis=1)
    if scatters:
        sums = reduce_scatter(sums, sharding.table_devices)
    else:
        sums = jax.lax.psum(sums, sharding.batch_devices.axis)
    here = jnp.arange(shard_rows, dtype=jnp.int32)
    return Gradients(Lookups(jnp.where(sums[:, -1] > 0, here, -1)), sums[:, :-1])


def _within(part: Gradients, first: jax.Array, upto: jax.Array) -> Gradients:
    rows = part.lookups.rows
    inside = (rows >= first) & (rows < upto)
    return part._replace(lookups=part.lookups._replace(rows=jnp.where(inside, rows, -1)))


def _by_node(sharding: TableSharding, use: Use, grad: jax.Array, shard_rows: int) -> Gradients:
    """Returns the gradients of the node's bags, of places that this device and its peers hold."""
    lookups, _ = _of_node(sharding, use, shard_rows)
    return Gradients(lookups, all_gather(grad, sharding.node, use.options.payload))


def _brought(sharding: TableSharding, use: Use, grad: jax.Array, shard_rows: int) -> Gradients:
    """Returns the gradients of this device's rows, or columns, in one use."""
    lookups = _gathered(sharding.batch_devices, use)
    if sharding.split == "columns" and sharding.shares_axis:
        grad = columns_to_rows(grad, sharding.table_devices, use.options.payload)
    else:
        if sharding.split == "columns":
            width = grad.shape[1] // sharding.n_shards
            start = jax.lax.axis_index(sharding.table_axis) * width
            grad = jax.lax.dynamic_slice_in_dim(grad, start, width, axis=1)
        grad = all_gather(grad, sharding.batch_devices, use.options.payload)
    return Gradients(_own(sharding, lookups, shard_rows), grad)


def _width(sharding: TableSharding, grads: list[jax.Array]) -> Width | None:
    if sharding.split != "columns":
        return None
    dim = grads[0].shape[1]
    first = jax.lax.axis_index(sharding.table_axis) * (dim // sharding.n_shards)
    return Width(dim, sharding.table_axis, first)
