"""Sharding of a table on the mesh, and the interleaving of its rows.

Frequent ids have small rows. If row r were physical row r, the first device would serve most of
the traffic. If it were on device r mod n, a file of 8 devices would not fit 4. So a table has
`SLOTS` equal slots on every mesh, row r is in slot (r · `STRIDE`) mod `SLOTS`, and a device
holds a run of neighbouring slots. Successive rows are spread evenly over all devices, for every
number of devices that divides `SLOTS`, and the physical order is the same on every mesh.
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
    """Sharding of one table, and of the batch that reads it.

    Attributes:
        split: Dimension of the table that is split over devices.
        mesh: The devices; None for one device without a distribution.
        batch_axis: Mesh axis of the batch.
        table_axis: Mesh axis of the table, if it is split. On a 1-D mesh it is `batch_axis`;
            on a 2-D mesh the batch is replicated along `table_axis`, and the table along
            `batch_axis`.
        node_devices: Devices of a node, which are neighbours on the mesh; links between nodes
            are slower. None if all devices are in one node.
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
        """Number of devices that one copy of the table is split over."""
        return 1 if self.mesh is None or self.table_axis is None else self._size(self.table_axis)

    @property
    def n_batch_parts(self) -> int:
        """Number of parts that the batch is split into."""
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
        """The devices of a node, which batch and table are split over."""
        n = self.n_shards
        return Group(str(self.table_axis), n, self.devices_in_node(self.table_axis))

    @property
    def peers(self) -> Group:
        """The devices with the same index in each node."""
        n, in_node = self.n_shards, self.node.size
        return Group(str(self.table_axis), n, n // in_node, in_node)

    @property
    def has_nodes(self) -> bool:
        """Whether batch and table are split over several nodes of several devices."""
        in_node = self.devices_in_node(self.table_axis)
        return self.shares_axis and 1 < in_node < self.n_shards and self.n_shards % in_node == 0

    def devices_in_node(self, axis: str | None) -> int:
        """Returns the number of neighbours along a mesh axis in one node."""
        if self.mesh is None or axis is None:
            return 1
        names = self.mesh.axis_names
        stride = math.prod(self._size(name) for name in names[names.index(axis) + 1 :])
        in_node = self.mesh.size if self.node_devices is None else self.node_devices
        return max(1, min(self._size(axis), in_node // stride))

    @property
    def table_spec(self) -> PartitionSpec:
        """Partition of the table, and of its slots with `dim` columns."""
        axes = {
            "rows": (self.table_axis, None),
            "columns": (None, self.table_axis),
            "none": (None, None),
        }
        return PartitionSpec(*axes[self.split])

    def slot_spec(self, per_row: bool) -> PartitionSpec:
        """Returns the partition of a slot."""
        if per_row and self.split == "columns":
            return PartitionSpec(None, None)
        return self.table_spec

    @property
    def batch_spec(self) -> PartitionSpec:
        """Partition of arrays with an entry per bag or id."""
        return PartitionSpec(self.batch_axis)

    def _size(self, axis: str) -> int:
        return int(self.mesh.shape[axis]) if self.mesh is not None else 1


def sharding_of(path: str) -> TableSharding:
    """Returns the sharding of the variable `path` by the active distribution."""
    distribution = keras.distribution.distribution()
    if distribution is None or keras.backend.backend() != "jax":
        return TableSharding()
    mesh = distribution.device_mesh.backend_mesh
    # Distributions without a LayoutMap don't split variables.
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
    """Returns the number of devices of a node: of the layout, else of this process."""
    stated = getattr(distribution, "node_devices", None)
    return stated or len(distribution.device_mesh.backend_mesh.local_devices)


SLOTS = 3840
"""Slots of a table: 2^8 · 3 · 5, divisible by 1 … 6, 8, 10, 12, 15, 16, … 256 devices."""

STRIDE = 2371
"""Close to the golden section of `SLOTS`, which spreads runs most evenly, and coprime."""

_STRIDE_INVERSE = pow(STRIDE, -1, SLOTS)


def padded_rows(rows: int, n_shards: int) -> int:
    """Returns the physical rows of a table of `rows` rows, divisible by `n_shards` devices."""
    unit = math.lcm(SLOTS, n_shards)
    return -(-rows // unit) * unit


def physical_rows(rows: Any, padded: int) -> Any:
    """Returns the physical rows of logical `rows`.

    Args:
        rows: Logical rows `[...]` in 0 … `padded` - 1; an int, or an integer array of any
            library.
        padded: Physical rows of the table, from `padded_rows`.
    """
    # Every product stays below 2^31, so int32 is wide enough.
    return (rows % SLOTS) * STRIDE % SLOTS * (padded // SLOTS) + rows // SLOTS


def logical_rows(physical: Any, padded: int) -> Any:
    """Returns the logical rows of `physical` rows; the inverse of `physical_rows`."""
    depth = padded // SLOTS
    return physical % depth * SLOTS + physical // depth * _STRIDE_INVERSE % SLOTS


_CHUNK_BYTES = 1 << 24
"""Size of the chunk that `in_ranges` brings to each device [bytes]."""


def range_of(rows: int, part: int, n_parts: int) -> tuple[int, int]:
    """Returns the bounds of range `part` of `n_parts` even ranges of `rows` rows."""
    return rows * part // n_parts, rows * (part + 1) // n_parts


def in_ranges(value: jax.Array, rows: int) -> Iterator[tuple[int, jax.Array]]:
    """Yields a table's rows in logical order, in chunks of each device's range (`range_of`).

    All processes must iterate.

    Args:
        value: Weights or a slot `[physical rows, width]` of an interleaved table, split by rows
            over an axis of n devices.
        rows: Number of logical rows.

    Yields:
        The offset in each range, and the next rows of all ranges `[n · c, width]`, split over
        the same axis. Entries past the end of a range are undefined.
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
    """Returns the number of devices that share the rows of a table."""
    return int(sharding.mesh.shape[sharding.spec[0]])


@functools.lru_cache(maxsize=16)
def _bring(
    sharding: NamedSharding, rows: int, n_rows: int
) -> Callable[[jax.Array, np.int32], jax.Array]:
    """Returns a function that brings each device the next `n_rows` rows of its range."""
    axis, n = sharding.spec[0], devices_of(sharding)
    # Each device holds equally many of `SLOTS` successive rows, give or take one.
    capacity = (n_rows // SLOTS + 1) * (-(-SLOTS // n) + (SLOTS % n > 0))
    bounds = np.array([range_of(rows, part, n) for part in range(n)], np.int32)

    def own(value: jax.Array, before: jax.Array) -> jax.Array:
        n_physical, width = value.shape
        first, end = jnp.asarray(bounds)[jax.lax.axis_index(axis)]
        row = first + before + jnp.arange(n_rows, dtype=jnp.int32)
        physical = physical_rows(jnp.minimum(row, rows - 1), n * n_physical)
        owner = jnp.where(row < end, physical // n_physical, n)
        order = jnp.argsort(owner)  # Stable; rows past the end come last.
        owner = owner[order]
        at = jnp.arange(n_rows) - jnp.searchsorted(owner, jnp.arange(n + 1))[owner]
        wanted = jnp.zeros((n, capacity), jnp.int32)
        wanted = wanted.at[owner, at].set(physical[order] % n_physical, mode="drop")
        requested = jax.lax.all_to_all(wanted, axis, 0, 0)
        received = jax.lax.all_to_all(value[requested], axis, 0, 0)
        ordered = received.at[owner, at].get(mode="clip")
        return jnp.zeros((n_rows, width), value.dtype).at[order].set(ordered)

    specs = (sharding.spec, PartitionSpec())
    mapped = on_each_device(own, sharding.mesh, specs, sharding.spec)
    bring: Callable[[jax.Array, np.int32], jax.Array] = jax.jit(mapped)
    return bring
