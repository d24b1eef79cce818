"""Rows by all-to-all: each device asks every owner once for each distinct row that it needs.

A device sorts the places of its ids, which removes duplicates and groups them by owner; it
sends each owner the places, and gets the rows (reading) or hands over summed gradients
(updating) by all-to-all. Bags are added up where they are needed, from the distinct rows, and
their gradients are added up for each distinct row before they leave.

All-to-all needs equal chunks, so a chunk has a capacity. Of a few capacities the smallest
that holds the fullest chunk of any device is taken; where none does, the exchange takes
more rounds, and they are counted. A round covers a range of each owner's places, the same
on all devices: the longest in which no device asks for more than a chunk. So a row is
complete within a round, nothing is ever dropped, and memory is bounded by the capacity.

Everything here runs inside a `shard_map`.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from recsys.embedding.payload import swap_chunks
from recsys.embedding.rows import Gradients, Lookups, float0, pool, weight_grad
from recsys.embedding.traffic import capacities

Carried = TypeVar("Carried")


@dataclasses.dataclass(frozen=True)
class Axis:
    """The mesh axis that an exchange goes over.

    Attributes:
        name: Name of the axis.
        size: Devices along it.
        has_bags: Whether ids are in bags; chooses the capacities.
        payload: What rows and gradients travel as.
    """

    name: str
    size: int
    has_bags: bool = False
    payload: str = "float32"

    def capacities(self, n_ids: int) -> tuple[int, ...]:
        """Returns the capacities of a chunk for `n_ids` ids a device, ascending."""
        return capacities(n_ids, self.size, self.has_bags)


class Request(NamedTuple):
    """The distinct places that a device needs, grouped by owner.

    Attributes:
        places: Distinct places `[n]` int32, ascending; then numbers past the table.
        order: The ids in the order of their places `[n]` int32.
        rank: Index into `places` of each id in that order `[n]` int32, ascending.
        bounds: Where each owner's places begin and end in `places` `[size + 1]` int32.
    """

    places: jax.Array
    order: jax.Array
    rank: jax.Array
    bounds: jax.Array

    @property
    def which(self) -> jax.Array:
        """Index into `places` of each id `[n]` int32."""
        return jnp.zeros_like(self.rank).at[self.order].set(self.rank, unique_indices=True)


def request(places: jax.Array, axis: Axis, shard_rows: int) -> Request:
    """Returns the distinct ones of `places` `[n]` int32; those outside the table drop out."""
    n, end = places.shape[0], axis.size * shard_rows
    places = jnp.where((places >= 0) & (places < end), places, end)
    order = jnp.argsort(places)
    ordered = places[order]
    first = jnp.concatenate([jnp.ones((1,), bool), ordered[1:] != ordered[:-1]])[:n]
    rank = (jnp.cumsum(first) - 1).astype(jnp.int32)
    distinct = (end + jnp.arange(n, dtype=jnp.int32)).at[rank].set(ordered)
    starts = jnp.arange(axis.size + 1, dtype=jnp.int32) * shard_rows
    bounds = jnp.searchsorted(distinct, starts).astype(jnp.int32)
    return Request(distinct, order.astype(jnp.int32), rank, bounds)


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
    requested: Request, covered: jax.Array, axis: Axis, shard_rows: int, sizes: tuple[int, ...]
) -> _Round:
    """Returns the round that begins at the places `covered` `[size]` of the owners' shards."""
    n = requested.places.shape[0]
    base = jnp.arange(axis.size, dtype=jnp.int32) * shard_rows
    first = jnp.searchsorted(requested.places, base + covered).astype(jnp.int32)
    left = requested.bounds[1:] - first
    beyond = requested.places[jnp.minimum(first + sizes[-1], n - 1)] - base
    mine = jnp.where(left > sizes[-1], beyond, shard_rows)
    # One reduction for both: how far all get, and how full the fullest chunk is.
    fullest = jnp.minimum(jnp.max(left), sizes[-1])
    agreed = jax.lax.pmin(jnp.concatenate([mine, -fullest[None]]), axis.name)
    upto, fullest = agreed[:-1], -agreed[-1]
    last = jnp.searchsorted(requested.places, base + upto).astype(jnp.int32)
    tier = jnp.searchsorted(jnp.asarray(sizes, jnp.int32), fullest).astype(jnp.int32)
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
    sizes = axis.capacities(requested.places.shape[0])

    def body(carry: tuple[jax.Array, jax.Array, Carried]) -> tuple[jax.Array, jax.Array, Carried]:
        covered, count, state = carry
        turn = _next_round(requested, covered, axis, shard_rows, sizes)
        return turn.upto, count + 1, swap(state, turn, sizes)

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


def _slots(
    index: jax.Array, owner: jax.Array, turn: _Round, capacity: int
) -> tuple[jax.Array, jax.Array]:
    """Returns where requested places lie among the chunks of a round, and which are in it.

    Args:
        index: Indices of requested places `[k]` int32.
        owner: Their owners `[k]` int32.
        turn: The round.
        capacity: Of a chunk.
    """
    at = index - turn.first[owner]
    inside = (at >= 0) & (index < turn.last[owner])
    return owner * capacity + jnp.clip(at, 0, capacity - 1), inside


def _owners(requested: Request, axis: Axis, shard_rows: int) -> jax.Array:
    return jnp.minimum(requested.places // shard_rows, axis.size - 1)


def _all_to_all(x: jax.Array, axis: Axis) -> jax.Array:
    return jax.lax.all_to_all(x, axis.name, 0, 0, tiled=True)


# --- reading

Fold = Callable[[Any, jax.Array, jax.Array], Any]


@functools.partial(jax.custom_vjp, nondiff_argnums=(3, 4))
def read_bags(
    table: jax.Array, lookups: Lookups, keep: jax.Array, n_bags: int, axis: Axis
) -> tuple[jax.Array, jax.Array]:
    """Returns the weighted sums over bags of rows from all devices.

    Differentiable in the weights alone. No array has a row for each id, unless a loss is
    differentiated by the weights: then the distinct rows are kept, in room for all ids.

    Args:
        table: This device's rows `[shard_rows, dim]`.
        lookups: Places in the whole table; one outside it adds nothing.
        keep: `lookups.weights()`, again: the argument to differentiate by.
        n_bags: Bags of this device.
        axis: The axis.

    Returns:
        Sums `[n_bags, dim]` float32, and the extra rounds taken, a scalar int32.
    """
    lookups = lookups._replace(weight=None if lookups.weight is None else keep)
    requested = request(lookups.rows, axis, table.shape[0])
    which = requested.which

    def add(pooled: jax.Array, rows: jax.Array, slots: jax.Array) -> jax.Array:
        here = lookups._replace(rows=slots[which])
        return pooled + pool(rows, here, here.weights(), n_bags)

    start = jnp.zeros((n_bags, table.shape[1]), jnp.float32)
    return _fetched(table, requested, axis, start, add)


def _read_forward(
    table: jax.Array, lookups: Lookups, keep: jax.Array, n_bags: int, axis: Axis
) -> tuple[tuple[jax.Array, jax.Array], tuple[jax.Array, Lookups]]:
    requested = request(lookups.rows, axis, table.shape[0])

    def put(distinct: jax.Array, rows: jax.Array, slots: jax.Array) -> jax.Array:
        return jnp.where((slots >= 0)[:, None], rows[jnp.maximum(slots, 0)], distinct)

    start = jnp.zeros((lookups.rows.shape[0], table.shape[1]), jnp.float32)
    distinct, extra = _fetched(table, requested, axis, start, put)
    index = jnp.where(requested.which < requested.bounds[-1], requested.which, -1)
    lookups = lookups._replace(rows=index, weight=None if lookups.weight is None else keep)
    pooled = pool(distinct, lookups, lookups.weights(), n_bags)
    return (pooled, extra), (distinct, lookups)


def _read_backward(
    n_bags: int, axis: Axis, residual: tuple[jax.Array, Lookups], cotangents: Any
) -> tuple[None, Any, jax.Array]:
    distinct, lookups = residual
    integers = jax.tree.map(lambda x: np.zeros(x.shape, float0), lookups._replace(weight=None))
    weight = None if lookups.weight is None else jnp.zeros_like(lookups.weight)
    grads = weight_grad(distinct, lookups, cotangents[0], n_bags)
    return None, integers._replace(weight=weight), grads


read_bags.defvjp(_read_forward, _read_backward)


def _fetched(
    table: jax.Array, requested: Request, axis: Axis, state: jax.Array, fold: Fold
) -> tuple[jax.Array, jax.Array]:
    """Fetches the requested rows, round by round; returns the last state and the extra rounds.

    Args:
        table: This device's rows `[shard_rows, dim]`.
        requested: What the device needs.
        axis: The axis.
        state: What `fold` changes.
        fold: Takes the state, the rows of a round `[size * capacity, dim]` float32, and where
            each requested place lies among them `[n]` int32, -1 if it isn't in the round.
    """
    shard_rows = table.shape[0]
    owner = _owners(requested, axis, shard_rows)
    index = jnp.arange(owner.shape[0], dtype=jnp.int32)

    def fetch(capacity: int, turn: _Round, state: jax.Array) -> jax.Array:
        wanted = _all_to_all(_chunks(requested, turn, capacity, shard_rows), axis).reshape(-1)
        lookups = Lookups(wanted)
        rows = pool(table, lookups, lookups.weights(), wanted.shape[0])
        rows = swap_chunks(rows.reshape(axis.size, capacity, -1), axis.name, axis.payload)
        slots, inside = _slots(index, owner, turn, capacity)
        flat = rows.reshape(axis.size * capacity, -1)
        folded: jax.Array = fold(state, flat, jnp.where(inside, slots, -1))
        return folded

    def swap(state: jax.Array, turn: _Round, sizes: tuple[int, ...]) -> jax.Array:
        branches = [functools.partial(fetch, capacity) for capacity in sizes]
        fetched: jax.Array = jax.lax.switch(turn.tier, branches, turn, state)
        return fetched

    return _rounds(requested, axis, shard_rows, state, swap)


# --- updating


def each_round(
    gradients: Gradients,
    axis: Axis,
    shard_rows: int,
    state: Carried,
    change: Callable[[Carried, Gradients, jax.Array, jax.Array], Carried],
) -> Carried:
    """Hands gradients to the owners of their rows.

    Args:
        gradients: Gradients of this device's bags, of places in the whole table; others drop
            out. They are summed for each place before they leave.
        axis: The axis.
        shard_rows: Rows of a device.
        state: What `change` changes, the table for one.
        change: Takes the state, the gradients of this device's rows in a round, and
            the first place and one past the last that the round covers; returns the
            new state. A row comes in one round alone.

    Returns:
        The last state.
    """
    lookups, grads = gradients
    n = lookups.rows.shape[0]
    requested = request(lookups.rows, axis, shard_rows)
    bags = lookups.bags(grads.shape[0])[requested.order]
    weight = None if lookups.weight is None else lookups.weight[requested.order]
    owner = _owners(requested, axis, shard_rows)[requested.rank]
    most = axis.size * axis.capacities(n)[-1]
    me = jax.lax.axis_index(axis.name)

    def hand_over(capacity: int, turn: _Round) -> tuple[jax.Array, jax.Array]:
        slots, inside = _slots(requested.rank, owner, turn, capacity)
        # The gradients of bags are what is read, and the bags to sum are the chunks' slots.
        summed = Lookups(jnp.where(inside, bags, -1), slots, weight)
        sums = pool(grads, summed, summed.weights(), axis.size * capacity)
        received = swap_chunks(sums.reshape(axis.size, capacity, -1), axis.name, axis.payload)
        received = received.reshape(axis.size * capacity, -1)
        rows = _all_to_all(_chunks(requested, turn, capacity, shard_rows), axis).reshape(-1)
        room = most - rows.shape[0]
        return jnp.pad(rows, (0, room), constant_values=-1), jnp.pad(received, ((0, room), (0, 0)))

    def swap(
        carry: tuple[jax.Array, Carried], turn: _Round, sizes: tuple[int, ...]
    ) -> tuple[jax.Array, Carried]:
        covered, state = carry
        branches = [functools.partial(hand_over, capacity) for capacity in sizes]
        rows, received = jax.lax.switch(turn.tier, branches, turn)
        upto = turn.upto[me]
        return upto, change(state, Gradients(Lookups(rows), received), covered, upto)

    (_, state), _ = _rounds(requested, axis, shard_rows, (jnp.int32(0), state), swap)
    return state
