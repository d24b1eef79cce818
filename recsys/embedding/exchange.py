"""Reads and updates one table on a mesh, for every way of splitting it.

A step reads a table any number of times. Each `read` leaves a `Use`; at the end
`apply` takes all uses of a table with the gradients of what they returned, brings
each gradient to the device that holds its row, and updates the rows in place.

| split   | single ids                 | bags                                          |
| ------- | -------------------------- | --------------------------------------------- |
| rows    | all-to-all, both ways      | ids gathered, pooled where the rows are,      |
|         | (see below)                | partial sums scattered back                   |
| columns | ids gathered; every device pools its columns of the whole batch, all-to-all |
| none    | read locally; ids and gradients gathered, every copy updated alike         |

On a 2-D mesh the batch is repeated along the axis that the table is split over, so
a read needs one sum along it, and an update gathers along the batch axis.

Single rows are requested once each, from their owner. A device sorts the places that it
needs, which removes duplicates and groups them by owner; it sends each owner the places,
and gets the rows (forward) or hands over summed gradients (backward) by all-to-all.
All-to-all needs equal chunks, so a chunk has a capacity. Of a few capacities the smallest
that holds the fullest chunk of any device is taken; where none does, the exchange takes
more rounds, and they are counted. A round covers a range of each owner's places, the same
on all devices: the longest in which no device asks for more than a chunk. So a row is
complete within a round, nothing is ever dropped, and memory is bounded by the capacity.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from recsys.embedding.optimizers import RowOptimizer, Slots, Width
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
Carried = TypeVar("Carried")


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

    def read_here(table: jax.Array, lookups: Lookups) -> tuple[jax.Array, jax.Array]:
        if _exchanges(sharding, is_single):
            return read_rows(table, lookups.rows, _axis(sharding))
        return _read_bags(sharding, table, lookups, n_bags // sharding.n_batch_parts)

    specs = jax.tree.map(lambda _: sharding.batch_spec, lookups)
    mapped = shard_mapped(
        sharding, read_here, (sharding.table_spec, specs), (sharding.batch_spec, PartitionSpec())
    )
    out, extra = mapped(table, lookups)
    return out, use, extra


def _exchanges(sharding: TableSharding, is_single: bool) -> bool:
    return is_single and sharding.split == "rows" and sharding.shares_axis


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


def _axis(sharding: TableSharding) -> Axis:
    return Axis(str(sharding.table_axis), sharding.n_shards)


def _read_bags(
    sharding: TableSharding, table: jax.Array, lookups: Lookups, n_bags: int
) -> tuple[jax.Array, jax.Array]:
    if sharding.split != "none" and sharding.shares_axis:
        lookups, n_bags = _gathered(sharding, lookups), n_bags * sharding.n_batch_parts
    else:
        lookups = shifted(sharding, lookups, -n_bags)
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


def _gathered(sharding: TableSharding, lookups: Lookups) -> Lookups:
    """Returns the lookups of all parts of the batch."""
    axis = sharding.batch_axis
    return jax.tree.map(lambda x: jax.lax.all_gather(x, axis, tiled=True), lookups)


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
    return each_round(places, stacked, _axis(sharding), shard_rows, state, one_round)


def _within(part: Gradients, first: jax.Array, upto: jax.Array) -> Gradients:
    rows = part.lookups.rows
    inside = (rows >= first) & (rows < upto)
    return part._replace(lookups=part.lookups._replace(rows=jnp.where(inside, rows, -1)))


def _brought(sharding: TableSharding, use: Use, grad: jax.Array, shard_rows: int) -> Gradients:
    """Returns the gradients of this device's rows, or columns, in one use."""
    lookups = _gathered(sharding, use.lookups)
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


# --- single rows

CAPACITY_SHARES = (0.375, 0.5, 0.625, 0.75, 0.875, 1.0, 1.25, 1.5)
"""Capacities of a chunk, as shares of the ids of a device divided by the devices."""

_MIN_CAPACITY = 8
_MANY = 100.0  # From this even share on 1.5 times it is five standard deviations more.


@dataclasses.dataclass(frozen=True)
class Axis:
    """The mesh axis that an exchange goes over, seen from inside a `shard_map`.

    Attributes:
        name: Name of the axis.
        size: Devices along it.
        shares: Capacities to choose from, ascending.
    """

    name: str
    size: int
    shares: tuple[float, ...] = CAPACITY_SHARES

    def capacities(self, n_places: int) -> tuple[int, ...]:
        """Returns the capacities of a chunk for `n_places` places a device, ascending."""
        even = n_places / self.size
        wanted = [even * share for share in self.shares]
        # Few ids fill a chunk by chance: past five standard deviations hardly ever.
        wanted.append(even * self.shares[-1] if even > _MANY else even + 5 * even**0.5)
        rounded = {-(-int(np.ceil(n)) // 8) * 8 for n in wanted}
        # A chunk never holds more than all of a device's places.
        limit = max(1, n_places)
        return tuple(sorted({min(max(c, _MIN_CAPACITY), limit) for c in rounded}))


class Request(NamedTuple):
    """The distinct places that a device needs, grouped by owner.

    Attributes:
        places: Distinct places `[n]` int32, ascending; then numbers past the table.
        which: Index into `places` of each id `[n]` int32.
        bounds: Where each owner's places begin and end in `places` `[size + 1]` int32.
    """

    places: jax.Array
    which: jax.Array
    bounds: jax.Array


def request(places: jax.Array, axis: Axis, shard_rows: int) -> Request:
    """Returns the distinct ones of `places` `[n]` int32; those outside the table drop out."""
    n, end = places.shape[0], axis.size * shard_rows
    places = jnp.where((places >= 0) & (places < end), places, end)
    order = jnp.argsort(places)
    ordered = places[order]
    first = jnp.concatenate([jnp.ones((1,), bool), ordered[1:] != ordered[:-1]])[:n]
    rank = (jnp.cumsum(first) - 1).astype(jnp.int32)
    distinct = (end + jnp.arange(n, dtype=jnp.int32)).at[rank].set(ordered)
    which = jnp.zeros((n,), jnp.int32).at[order].set(rank, unique_indices=True)
    starts = jnp.arange(axis.size + 1, dtype=jnp.int32) * shard_rows
    return Request(distinct, which, jnp.searchsorted(distinct, starts).astype(jnp.int32))


class _Round(NamedTuple):
    """One round: which of the requested places go out.

    Attributes:
        first: First requested place for each owner `[size]` int32.
        last: One past the last `[size]` int32.
        upto: One past the last place covered of each owner's shard `[size]` int32.
        tier: Which capacity is wide enough, a scalar int32.
    """

    first: jax.Array
    last: jax.Array
    upto: jax.Array
    tier: jax.Array


def _next_round(
    requested: Request, covered: jax.Array, axis: Axis, shard_rows: int, capacities: tuple[int, ...]
) -> _Round:
    """Returns the round that begins at the places `covered` `[size]` of the owners' shards."""
    n = requested.places.shape[0]
    base = jnp.arange(axis.size, dtype=jnp.int32) * shard_rows
    first = jnp.searchsorted(requested.places, base + covered).astype(jnp.int32)
    left = requested.bounds[1:] - first
    beyond = requested.places[jnp.minimum(first + capacities[-1], n - 1)] - base
    mine = jnp.where(left > capacities[-1], beyond, shard_rows)
    # One reduction for both: how far all get, and how full the fullest chunk is.
    fullest = jnp.minimum(jnp.max(left), capacities[-1])
    agreed = jax.lax.pmin(jnp.concatenate([mine, -fullest[None]]), axis.name)
    upto, fullest = agreed[:-1], -agreed[-1]
    last = jnp.searchsorted(requested.places, base + upto).astype(jnp.int32)
    tier = jnp.searchsorted(jnp.asarray(capacities, jnp.int32), fullest).astype(jnp.int32)
    return _Round(first, last, upto, tier)


def _rounds(
    requested: Request,
    axis: Axis,
    shard_rows: int,
    state: Carried,
    swap: Callable[[Carried, _Round, tuple[int, ...]], Carried],
) -> tuple[Carried, jax.Array]:
    """Goes through the rounds; returns the last state and the number of extra rounds.

    Args:
        requested: What the device needs.
        axis: The axis.
        shard_rows: Rows of a device.
        state: What `swap` changes.
        swap: Takes the state, the round, and the capacities; returns the new state.
    """
    capacities = axis.capacities(requested.places.shape[0])

    def body(carry: tuple[jax.Array, jax.Array, Carried]) -> tuple[jax.Array, jax.Array, Carried]:
        covered, count, state = carry
        turn = _next_round(requested, covered, axis, shard_rows, capacities)
        return turn.upto, count + 1, swap(state, turn, capacities)

    def unfinished(carry: tuple[jax.Array, jax.Array, Carried]) -> jax.Array:
        return jnp.any(carry[0] < shard_rows)

    start = (jnp.zeros((axis.size,), jnp.int32), jnp.int32(0), state)
    _, count, state = jax.lax.while_loop(unfinished, body, start)
    return state, count - 1


def _chunks(requested: Request, turn: _Round, capacity: int, shard_rows: int) -> jax.Array:
    """Returns the places to ask for, local to their owners `[size, capacity]`; -1 is none."""
    at = turn.first[:, None] + jnp.arange(capacity, dtype=jnp.int32)
    base = jnp.arange(turn.first.shape[0], dtype=jnp.int32)[:, None] * shard_rows
    inside = at < turn.last[:, None]
    places = requested.places[jnp.minimum(at, requested.places.shape[0] - 1)]
    return jnp.where(inside, places - base, -1)


def _all_to_all(x: jax.Array, axis: Axis) -> jax.Array:
    return jax.lax.all_to_all(x, axis.name, 0, 0, tiled=True)


def read_rows(table: jax.Array, places: jax.Array, axis: Axis) -> tuple[jax.Array, jax.Array]:
    """Returns the rows at `places` from all devices; called inside a `shard_map`.

    Args:
        table: This device's rows `[shard_rows, dim]`.
        places: Places in the whole table `[n]` int32; zeros come for one outside it.
        axis: The axis.

    Returns:
        Rows `[n, dim]` float32, and the extra rounds taken, a scalar int32.
    """
    shard_rows = table.shape[0]
    if not places.shape[0]:
        return jnp.zeros((0, table.shape[1]), jnp.float32), jnp.int32(0)
    requested = request(places, axis, shard_rows)
    owner = jnp.minimum(requested.places // shard_rows, axis.size - 1)

    def fetch(capacity: int, turn: _Round, gathered: jax.Array) -> jax.Array:
        wanted = _all_to_all(_chunks(requested, turn, capacity, shard_rows), axis).reshape(-1)
        lookups = Lookups(wanted)
        rows = pool(table, lookups, lookups.weights(), wanted.shape[0])
        back = _all_to_all(rows.reshape(axis.size, capacity, -1), axis)
        at = jnp.arange(requested.places.shape[0], dtype=jnp.int32) - turn.first[owner]
        here = (at >= 0) & (at < turn.last[owner] - turn.first[owner])
        flat = back.reshape(axis.size * capacity, -1)
        got = flat[jnp.where(here, owner * capacity + at, 0)]
        return jnp.where(here[:, None], got, gathered)

    def swap(gathered: jax.Array, turn: _Round, capacities: tuple[int, ...]) -> jax.Array:
        branches = [functools.partial(fetch, capacity) for capacity in capacities]
        got: jax.Array = jax.lax.switch(turn.tier, branches, turn, gathered)
        return got

    gathered = jnp.zeros((places.shape[0], table.shape[1]), jnp.float32)
    gathered, extra = _rounds(requested, axis, shard_rows, gathered, swap)
    return gathered[requested.which], extra


def each_round(
    places: jax.Array,
    grads: jax.Array,
    axis: Axis,
    shard_rows: int,
    state: Carried,
    change: Callable[[Carried, Gradients, jax.Array, jax.Array], Carried],
) -> Carried:
    """Hands gradients to the owners of their rows; called inside a `shard_map`.

    Args:
        places: Places in the whole table `[n]` int32; others drop out.
        grads: Gradient of each `[n, dim]` float32; duplicates are summed on the way.
        axis: The axis.
        shard_rows: Rows of a device.
        state: What `change` changes, the table for one.
        change: Takes the state, the gradients of this device's rows in a round, and
            the first place and one past the last that the round covers; returns the
            new state. A row comes in one round alone.

    Returns:
        The last state.
    """
    requested = request(places, axis, shard_rows)
    sums = jax.ops.segment_sum(grads, requested.which, places.shape[0])
    most = axis.size * axis.capacities(places.shape[0])[-1]
    me = jax.lax.axis_index(axis.name)

    def hand_over(capacity: int, turn: _Round) -> tuple[jax.Array, jax.Array]:
        chunks = _chunks(requested, turn, capacity, shard_rows)
        at = jnp.minimum(
            turn.first[:, None] + jnp.arange(capacity, dtype=jnp.int32), places.shape[0] - 1
        )
        received = _all_to_all(sums[at], axis).reshape(axis.size * capacity, -1)
        rows = _all_to_all(chunks, axis).reshape(-1)
        room = most - rows.shape[0]
        return jnp.pad(rows, (0, room), constant_values=-1), jnp.pad(received, ((0, room), (0, 0)))

    def swap(
        carry: tuple[jax.Array, Carried], turn: _Round, capacities: tuple[int, ...]
    ) -> tuple[jax.Array, Carried]:
        covered, state = carry
        branches = [functools.partial(hand_over, capacity) for capacity in capacities]
        rows, received = jax.lax.switch(turn.tier, branches, turn)
        upto = turn.upto[me]
        return upto, change(state, Gradients(Lookups(rows), received), covered, upto)

    (_, state), _ = _rounds(requested, axis, shard_rows, (jnp.int32(0), state), swap)
    return state
