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

Several exchanges, among different groups of devices, may hand over gradients to the same rows.
They take their rounds together, and a round covers the same range of an owner's places in all.

Everything here runs inside a `shard_map`.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp

from recsys.distributed.collectives import Group, all_to_all, from_bits, swap_chunks, to_bits
from recsys.embedding.rows import Gradients, Lookups, no_gradient, pool, weight_grad
from recsys.embedding.traffic import capacities

Carried = TypeVar("Carried")
Move = Callable[[jax.Array], jax.Array]


@dataclasses.dataclass(frozen=True)
class Exchange:
    """An exchange of rows among devices.

    Attributes:
        group: The devices. They hold the places of a table one after the other.
        node: Those of them that are in this one's node.
        shard_rows: Rows that each holds.
        has_bags: Whether ids are in bags; chooses the capacities.
        payload: What rows and gradients travel as within the node.
        between: What they travel as from one node to another.
        share: One of so many ids is a place of the table, in the mean; the others drop out.
    """

    group: Group
    node: Group
    shard_rows: int
    has_bags: bool = False
    payload: str = "float32"
    between: str = "float32"
    share: int = 1

    @property
    def size(self) -> int:
        """Devices that exchange."""
        return self.group.size

    def capacities(self, n_ids: int) -> tuple[int, ...]:
        """Returns the capacities of a chunk for `n_ids` ids a device, ascending."""
        return capacities(n_ids // self.share, self.size, self.has_bags)

    def starts(self) -> jax.Array:
        """Returns the first place of each device `[size]` int32."""
        return jnp.arange(self.size, dtype=jnp.int32) * self.shard_rows

    def owners(self, places: jax.Array) -> jax.Array:
        """Returns the devices that hold `places`, in the group; the last one's for those past."""
        return jnp.minimum(places // self.shard_rows, self.size - 1)


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


def _positions(ascending: jax.Array, values: jax.Array) -> jax.Array:
    """Returns how many of `ascending` `[n]` are below each of a few `values`.

    By comparing all: a search compiles into a loop, which takes longer than it saves.
    """
    return jnp.searchsorted(ascending, values, method="compare_all")


def request(places: jax.Array, exchange: Exchange) -> Request:
    """Returns the distinct ones of `places` `[n]` int32; those outside the table drop out."""
    n, end = places.shape[0], exchange.size * exchange.shard_rows
    places = jnp.where((places >= 0) & (places < end), places, end)
    order = jnp.argsort(places)
    ordered = places[order]
    first = jnp.concatenate([jnp.ones((1,), bool), ordered[1:] != ordered[:-1]])[:n]
    rank = (jnp.cumsum(first) - 1).astype(jnp.int32)
    distinct = (end + jnp.arange(n, dtype=jnp.int32)).at[rank].set(ordered)
    starts = jnp.arange(exchange.size + 1, dtype=jnp.int32) * exchange.shard_rows
    bounds = _positions(distinct, starts).astype(jnp.int32)
    return Request(distinct, order.astype(jnp.int32), rank, bounds)


class _Round(NamedTuple):
    """One round of an exchange: which of the requested places go out.

    Attributes:
        first: First requested place for each owner `[size]` int32.
        last: One past the last `[size]` int32.
        tier: Which capacity is wide enough, a scalar int32.
    """

    first: jax.Array
    last: jax.Array
    tier: jax.Array


Requests = Sequence[tuple[Request, Exchange]]
"""Exchanges that take their rounds together."""


def _next_rounds(requests: Requests, covered: jax.Array) -> tuple[list[_Round], jax.Array]:
    """Returns the rounds that begin at the places `covered` of all devices' shards.

    Args:
        requests: What each exchange is to bring.
        covered: Places that earlier rounds have covered, of each device `[devices]` int32.

    Returns:
        The round of each exchange, and one past the last place that it covers, of each
        device's shard `[devices]` int32.
    """
    firsts, reaches, fullest = [], [], []
    for requested, exchange in requests:
        n, most = requested.places.shape[0], exchange.capacities(requested.places.shape[0])[-1]
        base = exchange.starts()
        begins = base + _of_members(covered, exchange)
        first = _positions(requested.places, begins).astype(jnp.int32)
        left = requested.bounds[1:] - first
        beyond = requested.places[jnp.minimum(first + most, n - 1)] - base
        reach = jnp.where(left > most, beyond, exchange.shard_rows)
        firsts.append(first)
        reaches.append(_of_all(reach, exchange))
        fullest.append(jnp.minimum(jnp.max(left), most))
    # One reduction for all: how far all get, and how full the fullest chunks are.
    reached = functools.reduce(jnp.minimum, reaches)
    numbers = jnp.concatenate([reached, -jnp.stack(fullest)])
    agreed = jax.lax.pmin(numbers, requests[0][1].group.axis)
    upto = agreed[: len(reached)]
    rounds = []
    for number, (requested, exchange) in enumerate(requests):
        ends = exchange.starts() + _of_members(upto, exchange)
        last = _positions(requested.places, ends).astype(jnp.int32)
        sizes = jnp.asarray(exchange.capacities(requested.places.shape[0]), jnp.int32)
        tier = _positions(sizes, -agreed[len(reached) + number]).astype(jnp.int32)
        rounds.append(_Round(firsts[number], last, tier))
    return rounds, upto


def _of_members(x: jax.Array, exchange: Exchange) -> jax.Array:
    """Returns the entries of the devices of a group `[size]` among those of all `[devices]`."""
    group = exchange.group
    return x if group.size == group.n_devices else x[group.members()]


def _of_all(x: jax.Array, exchange: Exchange) -> jax.Array:
    """Returns the entries of a group's devices `[size]` in those of all, which reach the end."""
    group = exchange.group
    if group.size == group.n_devices:
        return x
    whole = jnp.full((group.n_devices,), exchange.shard_rows, jnp.int32)
    return whole.at[group.members()].set(x, unique_indices=True)


def _rounds(
    requests: Requests,
    state: Carried,
    swap: Callable[[Carried, list[_Round], jax.Array], Carried],
) -> tuple[Carried, jax.Array]:
    """Goes through the rounds; returns the last state and the number of extra rounds.

    Args:
        requests: What each exchange is to bring.
        state: What `swap` changes.
        swap: Takes the state, the round of each exchange, and what they cover; returns the
            new state.
    """
    _, exchange = requests[0]

    def body(carry: tuple[jax.Array, jax.Array, Carried]) -> tuple[jax.Array, jax.Array, Carried]:
        covered, count, state = carry
        rounds, upto = _next_rounds(requests, covered)
        return upto, count + 1, swap(state, rounds, upto)

    def unfinished(carry: tuple[jax.Array, jax.Array, Carried]) -> jax.Array:
        return jnp.any(carry[0] < exchange.shard_rows)

    start = (jnp.zeros((exchange.group.n_devices,), jnp.int32), jnp.int32(0), state)
    _, count, state = jax.lax.while_loop(unfinished, body, start)
    return state, count - 1


def _chunks(requested: Request, exchange: Exchange, turn: _Round) -> jax.Array:
    """Returns the places to ask for, local to their owners `[size, most]`; -1 is none."""
    n = requested.places.shape[0]
    at = turn.first[:, None] + jnp.arange(exchange.capacities(n)[-1], dtype=jnp.int32)
    inside = at < turn.last[:, None]
    places = requested.places[jnp.minimum(at, n - 1)]
    return jnp.where(inside, places - exchange.starts()[:, None], -1)


def _by_tier(
    sizes: tuple[int, ...],
    turn: _Round,
    move: Move,
    chunks: jax.Array,
) -> jax.Array:
    """Returns what `move` makes of the chunks, of which the round's capacity alone is moved.

    Only what is moved is compiled for each capacity; what comes before and after has room for
    the largest.

    Args:
        sizes: Capacities of the exchange.
        turn: The round.
        move: Takes the beginnings `[size, capacity, ...]` of the chunks.
        chunks: A chunk for each device `[size, most, ...]`.

    Returns:
        `[size * most, ...]`, zeros past the capacity of each chunk.
    """

    def moved(capacity: int, chunks: jax.Array) -> jax.Array:
        x = move(chunks[:, :capacity])
        room = [(0, 0), (0, sizes[-1] - capacity), *[(0, 0)] * (x.ndim - 2)]
        return jnp.pad(x, room)

    branches = [functools.partial(moved, capacity) for capacity in sizes]
    x = jax.lax.switch(turn.tier, branches, chunks)
    return x.reshape(-1, *x.shape[2:])


def _nearer(
    exchange: Exchange,
    rows: jax.Array,
    received: jax.Array,
    tiered: Callable[[Move, jax.Array], jax.Array] = lambda move, x: move(x),
) -> jax.Array:
    """Returns the chunks that were `received`, those of the node's devices in its own payload.

    Args:
        exchange: The exchange.
        rows: The chunks that this device sends `[size, n, dim]` float32.
        received: Those that it has from all devices `[size, n, dim]` float32.
        tiered: Calls its first argument by the second, or by as much of it as is full.
    """
    if exchange.payload == exchange.between:
        return received
    node = exchange.node
    first = exchange.group.place() // node.size * node.size
    near = jax.lax.dynamic_slice_in_dim(rows, first, node.size)
    near = tiered(lambda x: swap_chunks(x, node, exchange.payload), near).reshape(near.shape)
    return jax.lax.dynamic_update_slice_in_dim(received, near, first, 0)


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


# --- reading

Fold = Callable[[Any, jax.Array, jax.Array], Any]


@functools.partial(jax.custom_vjp, nondiff_argnums=(3, 4))
def read_bags(
    table: jax.Array, lookups: Lookups, keep: jax.Array, n_bags: int, exchange: Exchange
) -> tuple[jax.Array, jax.Array]:
    """Returns the weighted sums over bags of rows from the devices of an exchange.

    Differentiable in the weights alone. No array has a row for each id, unless a loss is
    differentiated by the weights: then the distinct rows are kept, in room for all ids.

    Args:
        table: This device's rows `[shard_rows, dim]`.
        lookups: Places in what the devices hold; one outside it adds nothing.
        keep: `lookups.weights()`, again: the argument to differentiate by.
        n_bags: Bags of this device.
        exchange: The exchange.

    Returns:
        Sums `[n_bags, dim]` float32, and the extra rounds taken, a scalar int32.
    """
    lookups = lookups._replace(weight=None if lookups.weight is None else keep)
    requested = request(lookups.rows, exchange)
    which = requested.which

    def add(pooled: jax.Array, rows: jax.Array, slots: jax.Array) -> jax.Array:
        here = lookups._replace(rows=slots[which])
        return pooled + pool(rows, here, here.weights(), n_bags)

    start = jnp.zeros((n_bags, table.shape[1]), jnp.float32)
    return _fetched(table, requested, exchange, start, add)


def _read_forward(
    table: jax.Array, lookups: Lookups, keep: jax.Array, n_bags: int, exchange: Exchange
) -> tuple[tuple[jax.Array, jax.Array], tuple[jax.Array, Lookups]]:
    requested = request(lookups.rows, exchange)

    def put(distinct: jax.Array, rows: jax.Array, slots: jax.Array) -> jax.Array:
        return jnp.where((slots >= 0)[:, None], rows[jnp.maximum(slots, 0)], distinct)

    start = jnp.zeros((lookups.rows.shape[0], table.shape[1]), jnp.float32)
    distinct, extra = _fetched(table, requested, exchange, start, put)
    index = jnp.where(requested.which < requested.bounds[-1], requested.which, -1)
    lookups = lookups._replace(rows=index, weight=None if lookups.weight is None else keep)
    pooled = pool(distinct, lookups, lookups.weights(), n_bags)
    return (pooled, extra), (distinct, lookups)


def _read_backward(
    n_bags: int, exchange: Exchange, residual: tuple[jax.Array, Lookups], cotangents: Any
) -> tuple[None, Any, jax.Array]:
    distinct, lookups = residual
    grads = weight_grad(distinct, lookups, cotangents[0], n_bags)
    return None, no_gradient(lookups), grads


read_bags.defvjp(_read_forward, _read_backward)


def _fetched(
    table: jax.Array, requested: Request, exchange: Exchange, state: jax.Array, fold: Fold
) -> tuple[jax.Array, jax.Array]:
    """Fetches the requested rows, round by round; returns the last state and the extra rounds.

    Args:
        table: This device's rows `[shard_rows, dim]`.
        requested: What the device needs.
        exchange: The exchange.
        state: What `fold` changes.
        fold: Takes the state, the rows of a round `[size * most, dim]` float32, and where
            each requested place lies among them `[n]` int32, -1 if it isn't in the round.
    """
    owner, n = exchange.owners(requested.places), requested.places.shape[0]
    index, sizes = jnp.arange(n, dtype=jnp.int32), exchange.capacities(n)

    def fetch(places: jax.Array) -> jax.Array:
        wanted = all_to_all(places, exchange.group)
        lookups = Lookups(wanted.reshape(-1))
        rows = pool(table, lookups, lookups.weights(), wanted.size).reshape(*wanted.shape, -1)
        return _nearer(exchange, rows, swap_chunks(rows, exchange.group, exchange.between))

    def swap(state: jax.Array, rounds: list[_Round], _: jax.Array) -> jax.Array:
        (turn,) = rounds
        rows = _by_tier(sizes, turn, fetch, _chunks(requested, exchange, turn))
        slots, inside = _slots(index, owner, turn, sizes[-1])
        folded: jax.Array = fold(state, rows, jnp.where(inside, slots, -1))
        return folded

    return _rounds([(requested, exchange)], state, swap)


# --- updating

Handed = Sequence[tuple[Gradients, Exchange]]
"""Gradients of a device's bags, of places in what the devices of an exchange hold."""


def each_round(
    handed: Handed,
    state: Carried,
    change: Callable[[Carried, list[Gradients], jax.Array, jax.Array], Carried],
) -> Carried:
    """Hands gradients to the owners of their rows.

    Args:
        handed: What goes by each exchange; places outside drop out. Gradients are summed for
            each place before they leave.
        state: What `change` changes, the table for one.
        change: Takes the state, the gradients of this device's rows in a round, by exchange,
            and the first place and one past the last that the round covers; returns the new
            state. A row comes in one round alone.

    Returns:
        The last state.
    """
    sums = [_PlaceSums(gradients, exchange) for gradients, exchange in handed]
    me = jax.lax.axis_index(handed[0][1].group.axis)

    def swap(
        carry: tuple[jax.Array, Carried], rounds: list[_Round], upto: jax.Array
    ) -> tuple[jax.Array, Carried]:
        covered, state = carry
        received = [of.received(turn) for of, turn in zip(sums, rounds, strict=True)]
        return upto[me], change(state, received, covered, upto[me])

    requests = [(of.requested, of.exchange) for of in sums]
    (_, state), _ = _rounds(requests, (jnp.int32(0), state), swap)
    return state


class _PlaceSums:
    """The gradients that a device hands over by one exchange, by place.

    Args:
        gradients: Gradients of its bags.
        exchange: The exchange.
    """

    def __init__(self, gradients: Gradients, exchange: Exchange) -> None:
        lookups, self.grads = gradients
        self.exchange = exchange
        self.requested = requested = request(lookups.rows, exchange)
        self.bags = lookups.bags(self.grads.shape[0])[requested.order]
        self.weight = None if lookups.weight is None else lookups.weight[requested.order]
        self.owner = exchange.owners(requested.places)[requested.rank]
        self.sizes = exchange.capacities(lookups.rows.shape[0])

    def received(self, turn: _Round) -> Gradients:
        """Returns what a round brings for the rows of this device."""
        exchange, most = self.exchange, self.sizes[-1]
        slots, inside = _slots(self.requested.rank, self.owner, turn, most)
        # The gradients of bags are what is read, and the bags to sum are the chunks' slots.
        summed = Lookups(jnp.where(inside, self.bags, -1), slots, self.weight)
        sums = pool(self.grads, summed, summed.weights(), exchange.size * most)
        sums = sums.reshape(exchange.size, most, -1)
        # Past the capacity that goes out there are zeros: places are counted from 1.
        places = _chunks(self.requested, exchange, turn) + 1
        numbers = jax.lax.bitcast_convert_type(places, jnp.uint32)[..., None]
        bits = jnp.concatenate([numbers, to_bits(sums, exchange.between)], axis=-1)
        tiered = functools.partial(_by_tier, self.sizes, turn)
        bits = tiered(lambda x: all_to_all(x, exchange.group), bits)
        rows = jax.lax.bitcast_convert_type(bits[:, 0], jnp.int32) - 1
        received = from_bits(bits[:, 1:], sums.shape[-1], exchange.between).reshape(sums.shape)
        received = _nearer(exchange, sums, received, tiered)
        return Gradients(Lookups(rows), received.reshape(-1, sums.shape[-1]))
