"""All-to-all exchange of unique rows: each device requests each row that it needs once.

A device sorts the row indices of its lookups, which removes duplicates and groups them by
owner. It sends the indices to the owners, and receives rows (reading) or sends summed gradients
(updating) by all-to-all. Bags are pooled on the device that reads them, from the unique rows;
their gradients are summed for each unique row before they are sent.

All-to-all needs equal chunks, so a chunk has a capacity: the smallest of a few that holds the
fullest chunk of any device. If none does, the exchange takes more rounds, which are counted. A
round covers a range of each owner's rows, the same on all devices: the longest in which no
device requests more than a chunk. So a row is complete within a round, nothing is dropped, and
memory is bounded by the capacity.

Several exchanges, among different groups of devices, may send gradients of the same rows. They
take their rounds together, and a round covers the same range of an owner's rows in all.

All functions run inside a `shard_map`.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp

from recsys.distributed.collectives import Group, all_to_all, from_bits, swap_chunks, to_bits
from recsys.embedding.rows import Lookups, RowGradients, lookups_cotangent, pool
from recsys.embedding.traffic import capacities

State = TypeVar("State")
Move = Callable[[jax.Array], jax.Array]


@dataclasses.dataclass(frozen=True)
class Exchange:
    """An exchange of rows among devices.

    Attributes:
        group: The devices. Their shards, one after the other, are the table.
        node: The devices of the group in this device's node.
        shard_rows: Rows of each device.
        has_bags: Whether ids are in bags; chooses the capacities.
        payload: Dtype in which rows and gradients travel within the node.
        between: Dtype in which they travel between nodes.
        share: One in `share` ids is a row of the table on average; the others are dropped.
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
        """Number of devices that exchange."""
        return self.group.size

    def capacities(self, n_ids: int) -> tuple[int, ...]:
        """Returns the capacities of a chunk for `n_ids` ids per device, ascending."""
        return capacities(n_ids // self.share, self.size, self.has_bags)

    def starts(self) -> jax.Array:
        """Returns the first row of each device `[size]` int32."""
        return jnp.arange(self.size, dtype=jnp.int32) * self.shard_rows

    def owners(self, rows: jax.Array) -> jax.Array:
        """Returns the devices of the group that own `rows`; the last device for padding."""
        return jnp.minimum(rows // self.shard_rows, self.size - 1)


class Request(NamedTuple):
    """The unique rows that a device needs, grouped by owner.

    Attributes:
        rows: Unique row indices `[n]` int32, ascending; then indices past the table.
        order: The lookups sorted by row `[n]` int32.
        rank: Index into `rows` of each lookup in that order `[n]` int32, ascending.
        bounds: Start and end of each owner's rows in `rows` `[size + 1]` int32.
    """

    rows: jax.Array
    order: jax.Array
    rank: jax.Array
    bounds: jax.Array

    @property
    def inverse(self) -> jax.Array:
        """Index into `rows` of each lookup `[n]` int32."""
        return jnp.zeros_like(self.rank).at[self.order].set(self.rank, unique_indices=True)


def _count_below(ascending: jax.Array, values: jax.Array) -> jax.Array:
    """Returns how many of `ascending` `[n]` are below each of a few `values`.

    Compares all: a binary search compiles into a loop, which takes longer than it saves.
    """
    return jnp.searchsorted(ascending, values, method="compare_all")


def request(rows: jax.Array, exchange: Exchange) -> Request:
    """Returns the unique row indices of `rows` `[n]` int32; out-of-range indices are dropped."""
    n, end = rows.shape[0], exchange.size * exchange.shard_rows
    rows = jnp.where((rows >= 0) & (rows < end), rows, end)
    order = jnp.argsort(rows)
    ordered = rows[order]
    first = jnp.concatenate([jnp.ones((1,), bool), ordered[1:] != ordered[:-1]])[:n]
    rank = (jnp.cumsum(first) - 1).astype(jnp.int32)
    unique = (end + jnp.arange(n, dtype=jnp.int32)).at[rank].set(ordered)
    starts = jnp.arange(exchange.size + 1, dtype=jnp.int32) * exchange.shard_rows
    bounds = _count_below(unique, starts).astype(jnp.int32)
    return Request(unique, order.astype(jnp.int32), rank, bounds)


class _Round(NamedTuple):
    """One round of an exchange, as ranges of the requested rows.

    Attributes:
        first: First requested row for each owner `[size]` int32.
        last: One past the last `[size]` int32.
        tier: Index of the capacity that is large enough, a scalar int32.
    """

    first: jax.Array
    last: jax.Array
    tier: jax.Array


Requests = Sequence[tuple[Request, Exchange]]
"""Exchanges that take their rounds together."""


def _next_rounds(requests: Requests, covered: jax.Array) -> tuple[list[_Round], jax.Array]:
    """Returns the rounds that begin at the rows `covered` of all devices' shards.

    Args:
        requests: Request of each exchange.
        covered: Rows of each device that earlier rounds covered `[devices]` int32.

    Returns:
        The round of each exchange, and one past the last row that it covers of each device's
        shard `[devices]` int32.
    """
    firsts, reaches, fullest = [], [], []
    for requested, exchange in requests:
        n, most = requested.rows.shape[0], exchange.capacities(requested.rows.shape[0])[-1]
        base = exchange.starts()
        begins = base + _of_members(covered, exchange)
        first = _count_below(requested.rows, begins).astype(jnp.int32)
        left = requested.bounds[1:] - first
        beyond = requested.rows[jnp.minimum(first + most, n - 1)] - base
        reach = jnp.where(left > most, beyond, exchange.shard_rows)
        firsts.append(first)
        reaches.append(_of_all(reach, exchange))
        fullest.append(jnp.minimum(jnp.max(left), most))
    # One reduction for all: the rows that all devices reach, and the sizes of the fullest chunks.
    reached = functools.reduce(jnp.minimum, reaches)
    local = jnp.concatenate([reached, -jnp.stack(fullest)])
    agreed = jax.lax.pmin(local, requests[0][1].group.axis)
    upto = agreed[: len(reached)]
    rounds = []
    for number, (requested, exchange) in enumerate(requests):
        ends = exchange.starts() + _of_members(upto, exchange)
        last = _count_below(requested.rows, ends).astype(jnp.int32)
        sizes = jnp.asarray(exchange.capacities(requested.rows.shape[0]), jnp.int32)
        tier = _count_below(sizes, -agreed[len(reached) + number]).astype(jnp.int32)
        rounds.append(_Round(firsts[number], last, tier))
    return rounds, upto


def _of_members(x: jax.Array, exchange: Exchange) -> jax.Array:
    """Selects the entries of a group's devices `[size]` from those of all `[devices]`."""
    group = exchange.group
    return x if group.size == group.n_devices else x[group.members()]


def _of_all(x: jax.Array, exchange: Exchange) -> jax.Array:
    """Expands the entries of a group's devices `[size]` to all; others reach the shard's end."""
    group = exchange.group
    if group.size == group.n_devices:
        return x
    whole = jnp.full((group.n_devices,), exchange.shard_rows, jnp.int32)
    return whole.at[group.members()].set(x, unique_indices=True)


def _run_rounds(
    requests: Requests,
    state: State,
    swap: Callable[[State, list[_Round], jax.Array], State],
) -> tuple[State, jax.Array]:
    """Runs rounds until all rows are covered; returns the last state and the extra rounds.

    Args:
        requests: Request of each exchange.
        state: Initial state.
        swap: Maps the state, the round of each exchange and the end of its range to the new
            state.
    """
    _, exchange = requests[0]

    def body(carry: tuple[jax.Array, jax.Array, State]) -> tuple[jax.Array, jax.Array, State]:
        covered, count, state = carry
        rounds, upto = _next_rounds(requests, covered)
        return upto, count + 1, swap(state, rounds, upto)

    def unfinished(carry: tuple[jax.Array, jax.Array, State]) -> jax.Array:
        return jnp.any(carry[0] < exchange.shard_rows)

    start = (jnp.zeros((exchange.group.n_devices,), jnp.int32), jnp.int32(0), state)
    _, count, state = jax.lax.while_loop(unfinished, body, start)
    return state, count - 1


def _chunks(requested: Request, exchange: Exchange, current: _Round) -> jax.Array:
    """Returns the rows to request, local to their owners `[size, most]`; -1 for padding."""
    n = requested.rows.shape[0]
    at = current.first[:, None] + jnp.arange(exchange.capacities(n)[-1], dtype=jnp.int32)
    inside = at < current.last[:, None]
    rows = requested.rows[jnp.minimum(at, n - 1)]
    return jnp.where(inside, rows - exchange.starts()[:, None], -1)


def _move_chunks(
    sizes: tuple[int, ...],
    current: _Round,
    move: Move,
    chunks: jax.Array,
) -> jax.Array:
    """Applies `move` to the first `capacity` rows of each chunk.

    Only `move` is compiled for each capacity; the code around it uses the largest.

    Args:
        sizes: Capacities of the exchange.
        current: The round, which chooses the capacity.
        move: Maps the beginnings `[size, capacity, ...]` of the chunks.
        chunks: A chunk for each device `[size, most, ...]`.

    Returns:
        `[size * most, ...]`, zeros past the capacity of each chunk.
    """

    def moved(capacity: int, chunks: jax.Array) -> jax.Array:
        x = move(chunks[:, :capacity])
        room = [(0, 0), (0, sizes[-1] - capacity), *[(0, 0)] * (x.ndim - 2)]
        return jnp.pad(x, room)

    branches = [functools.partial(moved, capacity) for capacity in sizes]
    x = jax.lax.switch(current.tier, branches, chunks)
    return x.reshape(-1, *x.shape[2:])


def _replace_node_chunks(
    exchange: Exchange,
    rows: jax.Array,
    received: jax.Array,
    tiered: Callable[[Move, jax.Array], jax.Array] = lambda move, x: move(x),
) -> jax.Array:
    """Returns `received` with the chunks from this node sent again in the node's own payload.

    Args:
        exchange: The exchange.
        rows: Chunks that this device sends `[size, n, dim]` float32.
        received: Chunks from all devices `[size, n, dim]` float32.
        tiered: Applies a `Move` to chunks, or to the first `capacity` rows of them.
    """
    if exchange.payload == exchange.between:
        return received
    node = exchange.node
    first = exchange.group.index() // node.size * node.size
    near = jax.lax.dynamic_slice_in_dim(rows, first, node.size)
    near = tiered(lambda x: swap_chunks(x, node, exchange.payload), near).reshape(near.shape)
    return jax.lax.dynamic_update_slice_in_dim(received, near, first, 0)


def _chunk_slots(
    index: jax.Array, owner: jax.Array, current: _Round, capacity: int
) -> tuple[jax.Array, jax.Array]:
    """Returns the slots of requested rows in the chunks of a round, and which are in it.

    Args:
        index: Indices of requested rows `[k]` int32.
        owner: Their owners `[k]` int32.
        current: The round.
        capacity: Capacity of a chunk.
    """
    at = index - current.first[owner]
    inside = (at >= 0) & (index < current.last[owner])
    return owner * capacity + jnp.clip(at, 0, capacity - 1), inside


# --- reading

Fold = Callable[[Any, jax.Array, jax.Array], Any]


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def read_bags(
    table: jax.Array, lookups: Lookups, n_bags: int, exchange: Exchange
) -> tuple[jax.Array, jax.Array]:
    """Returns the weighted sums over bags of rows from the devices of an exchange.

    Differentiable only in the weights. No array has a row for each id, unless a loss is
    differentiated by the weights: then the unique rows are kept, in an array with room for all
    ids.

    Args:
        table: This device's rows `[shard_rows, dim]`.
        lookups: Rows of the group's table; out-of-range indices add nothing.
        n_bags: Bags of this device.
        exchange: The exchange.

    Returns:
        Sums `[n_bags, dim]` float32, and the extra rounds taken, a scalar int32.
    """
    requested = request(lookups.rows, exchange)
    inverse = requested.inverse

    def add(pooled: jax.Array, rows: jax.Array, slots: jax.Array) -> jax.Array:
        return pooled + pool(rows, lookups._replace(rows=slots[inverse]), n_bags)

    start = jnp.zeros((n_bags, table.shape[1]), jnp.float32)
    return _fetch_rows(table, requested, exchange, start, add)


def _read_forward(
    table: jax.Array, lookups: Lookups, n_bags: int, exchange: Exchange
) -> tuple[tuple[jax.Array, jax.Array], tuple[jax.Array, Lookups]]:
    requested = request(lookups.rows, exchange)

    def put(unique: jax.Array, rows: jax.Array, slots: jax.Array) -> jax.Array:
        return jnp.where((slots >= 0)[:, None], rows[jnp.maximum(slots, 0)], unique)

    start = jnp.zeros((lookups.rows.shape[0], table.shape[1]), jnp.float32)
    unique, extra = _fetch_rows(table, requested, exchange, start, put)
    index = jnp.where(requested.inverse < requested.bounds[-1], requested.inverse, -1)
    lookups = lookups._replace(rows=index)
    return (pool(unique, lookups, n_bags), extra), (unique, lookups)


def _read_backward(
    n_bags: int, exchange: Exchange, residual: tuple[jax.Array, Lookups], cotangents: Any
) -> tuple[None, Any]:
    unique, lookups = residual
    return None, lookups_cotangent(unique, lookups, cotangents[0], n_bags)


read_bags.defvjp(_read_forward, _read_backward)


def _fetch_rows(
    table: jax.Array, requested: Request, exchange: Exchange, state: jax.Array, fold: Fold
) -> tuple[jax.Array, jax.Array]:
    """Fetches the requested rows, round by round; returns the last state and the extra rounds.

    Args:
        table: This device's rows `[shard_rows, dim]`.
        requested: Rows that the device needs.
        exchange: The exchange.
        state: Initial state of `fold`.
        fold: Maps the state, the rows of a round `[size * most, dim]` float32, and the slot of
            each requested row among them `[n]` int32 (-1 if it isn't in the round) to the new
            state.
    """
    owner, n = exchange.owners(requested.rows), requested.rows.shape[0]
    index, sizes = jnp.arange(n, dtype=jnp.int32), exchange.capacities(n)

    def fetch(rows: jax.Array) -> jax.Array:
        wanted = all_to_all(rows, exchange.group)
        found = pool(table, Lookups(wanted.reshape(-1)), wanted.size).reshape(*wanted.shape, -1)
        received = swap_chunks(found, exchange.group, exchange.between)
        return _replace_node_chunks(exchange, found, received)

    def swap(state: jax.Array, rounds: list[_Round], _: jax.Array) -> jax.Array:
        (current,) = rounds
        rows = _move_chunks(sizes, current, fetch, _chunks(requested, exchange, current))
        slots, inside = _chunk_slots(index, owner, current, sizes[-1])
        folded: jax.Array = fold(state, rows, jnp.where(inside, slots, -1))
        return folded

    return _run_rounds([(requested, exchange)], state, swap)


# --- updating


def send_gradients(
    outgoing: Sequence[tuple[RowGradients, Exchange]],
    state: State,
    change: Callable[[State, list[RowGradients], jax.Array, jax.Array], State],
) -> State:
    """Sends gradients to the owners of their rows; returns the last state of `change`.

    Args:
        outgoing: Gradients of each exchange, of rows of its group's table; out-of-range rows
            are dropped. Gradients are summed for each row before they are sent.
        state: Initial state of `change`, such as the table.
        change: Maps the state, the gradients of this device's rows in a round, by exchange,
            and the first row and one past the last that the round covers, to the new state. A
            row occurs in one round only.
    """
    sums = [_RowSums(gradients, exchange) for gradients, exchange in outgoing]
    me = jax.lax.axis_index(outgoing[0][1].group.axis)

    def swap(
        carry: tuple[jax.Array, State], rounds: list[_Round], upto: jax.Array
    ) -> tuple[jax.Array, State]:
        covered, state = carry
        received = [part.received(current) for part, current in zip(sums, rounds, strict=True)]
        return upto[me], change(state, received, covered, upto[me])

    requests = [(part.requested, part.exchange) for part in sums]
    (_, state), _ = _run_rounds(requests, (jnp.int32(0), state), swap)
    return state


class _RowSums:
    """The gradients that a device sends by one exchange, summed by row.

    Args:
        gradients: Gradients of its bags.
        exchange: The exchange.
    """

    def __init__(self, gradients: RowGradients, exchange: Exchange) -> None:
        lookups, self.grads = gradients
        self.exchange = exchange
        self.requested = requested = request(lookups.rows, exchange)
        self.bags = lookups.bags(self.grads.shape[0])[requested.order]
        self.weight = None if lookups.weight is None else lookups.weight[requested.order]
        self.owner = exchange.owners(requested.rows)[requested.rank]
        self.sizes = exchange.capacities(lookups.rows.shape[0])

    def received(self, current: _Round) -> RowGradients:
        """Returns the gradients of this device's rows that a round brings."""
        exchange, most = self.exchange, self.sizes[-1]
        slots, inside = _chunk_slots(self.requested.rank, self.owner, current, most)
        # Pools the other way around: reads the bags' gradients, and sums them by chunk slot.
        summed = Lookups(jnp.where(inside, self.bags, -1), slots, self.weight)
        sums = pool(self.grads, summed, exchange.size * most)
        sums = sums.reshape(exchange.size, most, -1)
        # Zeros follow the capacity that is sent, so rows are counted from 1.
        rows = _chunks(self.requested, exchange, current) + 1
        row_bits = jax.lax.bitcast_convert_type(rows, jnp.uint32)[..., None]
        bits = jnp.concatenate([row_bits, to_bits(sums, exchange.between)], axis=-1)
        tiered = functools.partial(_move_chunks, self.sizes, current)
        bits = tiered(lambda x: all_to_all(x, exchange.group), bits)
        rows = jax.lax.bitcast_convert_type(bits[:, 0], jnp.int32) - 1
        received = from_bits(bits[:, 1:], sums.shape[-1], exchange.between).reshape(sums.shape)
        received = _replace_node_chunks(exchange, sums, received, tiered)
        return RowGradients(Lookups(rows), received.reshape(-1, sums.shape[-1]))
