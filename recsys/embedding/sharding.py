"""Sharding of a table on the mesh, and the interleaving of its rows.

Frequent ids have small rows. Were row r stored at place r, the first device would
serve most of the traffic. Were it stored on device r mod n, the file of 8 devices
would not fit 4. So a table has `SLOTS` equal slots on every mesh, row r lies in slot
(r · `STRIDE`) mod `SLOTS`, and a device holds a run of neighbouring slots: successive
rows fall evenly on all devices, for every number of devices that divides `SLOTS`, and
a table moves between meshes without moving a row in it.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator
from typing import Any, Literal, cast

import jax
import jax.numpy as jnp
import keras
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from recsys.distributed.collectives import Group, on_each_device

# --- sharding


Split = Literal["rows", "columns", "none"]


@dataclasses.dataclass(frozen=True)
class TableSharding:
    """The place of one table, and of the batch that reads it.

    Attributes:
        split: What of the table is split over devices.
        mesh: The devices; None for one device without a distribution.
        batch_axis: Mesh axis of the batch.
        table_axis: Mesh axis of the table, if it is split. The same as `batch_axis` on
            a 1-D mesh; on a 2-D mesh the batch is repeated along it, and the table
            along `batch_axis`.
        node_devices: Devices of a node, which are neighbours on the mesh; links between
            nodes are slower. None: all devices are of one node.
    """

    split: Split = "none"
    mesh: Mesh | None = None
    batch_axis: str | None = None
    table_axis: str | None = None
    node_devices: int | None = None

    @property
    def is_local(self) -> bool:
        """Whether one device holds everything."""
        return self.mesh is None or self.mesh.size == 1

    @property
    def shares_axis(self) -> bool:
        """Whether the batch is split over the devices that the table is split over."""
        return self.table_axis == self.batch_axis

    @property
    def n_shards(self) -> int:
        """Devices among which one copy of the table is split."""
        return 1 if self.mesh is None or self.table_axis is None else self._size(self.table_axis)

    @property
    def n_batch_parts(self) -> int:
        """Parts that the batch is split into."""
        return 1 if self.mesh is None or self.batch_axis is None else self._size(self.batch_axis)

    @property
    def table_devices(self) -> Group:
        """The devices that one copy of the table is split over."""
        return Group(str(self.table_axis), self.n_shards, self.n_shards)

    @property
    def batch_devices(self) -> Group:
        """The devices that the batch is split over."""
        return Group(str(self.batch_axis), self.n_batch_parts, self.n_batch_parts)

    @property
    def node(self) -> Group:
        """The devices of a node, among which batch and table are split."""
        n = self.n_shards
        return Group(str(self.table_axis), n, self.devices_in_node(self.table_axis))

    @property
    def peers(self) -> Group:
        """The devices of one place in each node."""
        n, in_node = self.n_shards, self.node.size
        return Group(str(self.table_axis), n, n // in_node, in_node)

    @property
    def has_nodes(self) -> bool:
        """Whether batch and table are split over several nodes of several devices."""
        in_node = self.devices_in_node(self.table_axis)
        return self.shares_axis and 1 < in_node < self.n_shards and self.n_shards % in_node == 0

    def devices_in_node(self, axis: str | None) -> int:
        """Returns how many neighbours along an axis of the mesh are in one node."""
        if self.mesh is None or axis is None:
            return 1
        names = self.mesh.axis_names
        stride = math.prod(self._size(name) for name in names[names.index(axis) + 1 :])
        in_node = self.mesh.size if self.node_devices is None else self.node_devices
        return max(1, min(self._size(axis), in_node // stride))

    @property
    def table_spec(self) -> PartitionSpec:
        """How the table and its slots are split; a slot of one number a row by rows alone."""
        axes = {
            "rows": (self.table_axis, None),
            "columns": (None, self.table_axis),
            "none": (None, None),
        }
        return PartitionSpec(*axes[self.split])

    def slot_spec(self, per_row: bool) -> PartitionSpec:
        """Returns how a slot is split."""
        if per_row and self.split == "columns":
            return PartitionSpec(None, None)
        return self.table_spec

    @property
    def batch_spec(self) -> PartitionSpec:
        """How arrays with one entry a bag, or an id, are split."""
        return PartitionSpec(self.batch_axis)

    def _size(self, axis: str) -> int:
        return int(self.mesh.shape[axis]) if self.mesh is not None else 1


def sharding_of(path: str) -> TableSharding:
    """Returns how the variable of `path` is split by the active distribution."""
    distribution = keras.distribution.distribution()
    if distribution is None or keras.backend.backend() != "jax":
        return TableSharding()
    mesh = distribution.device_mesh.backend_mesh
    # A LayoutMap answers for its rules; other distributions split no variable.
    layout = distribution.get_tensor_layout(path)
    axes = () if layout is None else tuple(layout.axes)
    batch_axis = distribution.batch_dim_name
    node = devices_of_node(distribution)
    if axes[:1] and axes[0] is not None:
        return TableSharding("rows", mesh, batch_axis, axes[0], node)
    if axes[1:] and axes[1] is not None:
        return TableSharding("columns", mesh, batch_axis, axes[1], node)
    return TableSharding("none", mesh, batch_axis, None, node)


def devices_of_node(distribution: keras.distribution.Distribution) -> int:
    """Returns the devices of a node: what the layout says, else those of this process."""
    stated = getattr(distribution, "node_devices", None)
    return stated or len(distribution.device_mesh.backend_mesh.local_devices)


SLOTS = 3840
"""Slots of a table: 2^8 · 3 · 5, so 1 … 6, 8, 10, 12, 15, 16, … 256 devices divide it."""

STRIDE = 2371
"""Close to the golden section of `SLOTS`, which spreads runs most evenly; coprime to it."""

_STRIDE_INVERSE = pow(STRIDE, -1, SLOTS)


def padded_rows(rows: int, n_shards: int) -> int:
    """Returns the places of a table of `rows` rows that `n_shards` devices share equally."""
    unit = math.lcm(SLOTS, n_shards)
    return -(-rows // unit) * unit


def physical_rows(rows: Any, padded: int) -> Any:
    """Returns the places of `rows` in a table of `padded` places.

    Args:
        rows: Rows `[...]`, each in 0 … `padded` - 1; an int, or an integer array of
            any library.
        padded: What `padded_rows` returned.
    """
    # Every product stays below 2^31, so int32 is wide enough.
    return (rows % SLOTS) * STRIDE % SLOTS * (padded // SLOTS) + rows // SLOTS


def logical_rows(physical: Any, padded: int) -> Any:
    """Returns the rows that lie at `places`: the inverse of `places`."""
    depth = padded // SLOTS
    return physical % depth * SLOTS + physical // depth * _STRIDE_INVERSE % SLOTS


_CHUNK_BYTES = 1 << 24
"""Rows that a device is brought at a time."""


def range_of(rows: int, part: int, n_parts: int) -> tuple[int, int]:
    """Returns the first row, and the one after the last, of one of several even ranges."""
    return rows * part // n_parts, rows * (part + 1) // n_parts


def in_ranges(value: jax.Array, rows: int) -> Iterator[tuple[int, jax.Array]]:
    """Yields the rows of a table by ranges, one of `range_of` a device along its axis.

    Every process of a run goes through it.

    Args:
        value: Weights or a slot `[places, width]` of an interleaved table, split by rows over
            an axis of n devices.
        rows: Logical rows.

    Yields:
        How many rows of each range came before, and the next ones `[n · c, width]`, split
        over the same axis. At the end of a range nothing is said of the rows past it.
    """
    sharding = cast(NamedSharding, value.sharding)
    n = devices_of(sharding)
    longest = -(-rows // n)
    width = value.shape[1]
    n_rows = max(1, _CHUNK_BYTES // (value.dtype.itemsize * width) // SLOTS) * SLOTS
    n_rows = min(n_rows, -(-longest // SLOTS) * SLOTS)
    bring = _bring(sharding, rows, n_rows)
    for before in range(0, longest, n_rows):
        yield before, bring(value, np.int32(before))


def devices_of(sharding: NamedSharding) -> int:
    """Returns how many devices share the rows of a table."""
    return int(sharding.mesh.shape[sharding.spec[0]])


@functools.lru_cache(maxsize=16)
def _bring(
    sharding: NamedSharding, rows: int, n_rows: int
) -> Callable[[jax.Array, np.int32], jax.Array]:
    """Returns a function that brings each device the next `n_rows` of its range."""
    axis, n = sharding.spec[0], devices_of(sharding)
    # Of `SLOTS` rows that follow each other each device holds as many, or one more or less.
    capacity = (n_rows // SLOTS + 1) * (-(-SLOTS // n) + (SLOTS % n > 0))
    bounds = np.array([range_of(rows, part, n) for part in range(n)], np.int32)

    def own(value: jax.Array, before: jax.Array) -> jax.Array:
        n_places, width = value.shape
        first, end = jnp.asarray(bounds)[jax.lax.axis_index(axis)]
        row = first + before + jnp.arange(n_rows, dtype=jnp.int32)
        place = physical_rows(jnp.minimum(row, rows - 1), n * n_places)
        owner = jnp.where(row < end, place // n_places, n)
        order = jnp.argsort(owner)  # Stable; those past the end come last.
        owner = owner[order]
        at = jnp.arange(n_rows) - jnp.searchsorted(owner, jnp.arange(n + 1))[owner]
        wanted = jnp.zeros((n, capacity), jnp.int32)
        wanted = wanted.at[owner, at].set(place[order] % n_places, mode="drop")
        requested = jax.lax.all_to_all(wanted, axis, 0, 0)
        received = jax.lax.all_to_all(value[requested], axis, 0, 0)
        ordered = received.at[owner, at].get(mode="clip")
        return jnp.zeros((n_rows, width), value.dtype).at[order].set(ordered)

    specs = (sharding.spec, PartitionSpec())
    mapped = on_each_device(own, sharding.mesh, specs, sharding.spec)
    bring: Callable[[jax.Array, np.int32], jax.Array] = jax.jit(mapped)
    return bring
