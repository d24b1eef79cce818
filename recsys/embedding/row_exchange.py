"""Exchanges single rows between devices: each row is requested once, from its owner.

Tables are split by rows over the axis that splits the batch too. A device sorts the
places that it needs, which removes duplicates and groups them by owner; it sends
each owner the places, and gets the rows (forward) or hands over summed gradients
(backward) by all-to-all. All-to-all needs equal chunks, so a chunk has a capacity.
Of a few capacities the smallest that holds the fullest chunk of any device is taken;
where none does, the exchange takes more rounds, and they are counted. A round covers
a range of each owner's places, the same on all devices: the longest in which no
device asks for more than a chunk. So a row is complete within a round, nothing is
ever dropped, and memory is bounded by the capacity.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from recsys.embedding.rows import Gradients, Lookups, pool

CAPACITY_SHARES = (0.375, 0.5, 0.625, 0.75, 0.875, 1.0, 1.25, 1.5)
"""Capacities of a chunk, as shares of the ids of a device divided by the devices."""

_MIN_CAPACITY = 8
_MANY = 100.0  # From this even share on 1.5 times it is five standard deviations more.

State = TypeVar("State")


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
    state: State,
    swap: Callable[[State, _Round, tuple[int, ...]], State],
) -> tuple[State, jax.Array]:
    """Goes through the rounds; returns the last state and the number of extra rounds.

    Args:
        requested: What the device needs.
        axis: The axis.
        shard_rows: Rows of a device.
        state: What `swap` changes.
        swap: Takes the state, the round, and the capacities; returns the new state.
    """
    capacities = axis.capacities(requested.places.shape[0])

    def body(carry: tuple[jax.Array, jax.Array, State]) -> tuple[jax.Array, jax.Array, State]:
        covered, count, state = carry
        turn = _next_round(requested, covered, axis, shard_rows, capacities)
        return turn.upto, count + 1, swap(state, turn, capacities)

    def unfinished(carry: tuple[jax.Array, jax.Array, State]) -> jax.Array:
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
    state: State,
    change: Callable[[State, Gradients, jax.Array, jax.Array], State],
) -> State:
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
        carry: tuple[jax.Array, State], turn: _Round, capacities: tuple[int, ...]
    ) -> tuple[jax.Array, State]:
        covered, state = carry
        branches = [functools.partial(hand_over, capacity) for capacity in capacities]
        rows, received = jax.lax.switch(turn.tier, branches, turn)
        upto = turn.upto[me]
        return upto, change(state, Gradients(Lookups(rows), received), covered, upto)

    (_, state), _ = _rounds(requested, axis, shard_rows, (jnp.int32(0), state), swap)
    return state
