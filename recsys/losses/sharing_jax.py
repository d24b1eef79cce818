"""Sweeps over queries and candidates on several devices, and in several groups, on JAX.

Each device sweeps its own queries over the candidates of its group: it gathers those of the
other devices in the group, and sends back the gradients that are theirs.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import keras
from jax.sharding import Mesh, PartitionSpec

from recsys.losses.sharing import SHARED_BY_ALL, CandidateSharing

if TYPE_CHECKING:
    from recsys.losses.softmax_jax import SoftmaxBatch

    Sweep = Callable[[SoftmaxBatch], Sequence[jax.Array]]

_ARRAYS = ("query", "candidate", "item_row", "log_q", "weight", "known")
"""Fields of a batch with an entry for each query, or for each candidate."""


def batch_axis() -> tuple[Mesh | None, str]:
    """Returns the mesh and its axis that split the batch; no mesh if nothing does."""
    distribution = keras.distribution.distribution()
    if distribution is None or distribution.batch_dim_name is None:
        return None, ""
    mesh, axis = distribution.device_mesh.backend_mesh, distribution.batch_dim_name
    return (None, "") if mesh.shape[axis] == 1 else (mesh, axis)


def can_sweep(n_queries: int, n_candidates: int, groups: int = 1) -> bool:
    """Returns whether both sizes, and the groups, divide among the active devices."""
    mesh, axis = batch_axis()
    n_parts = mesh.shape[axis] if mesh is not None else 1
    if groups % n_parts and n_parts % groups:
        return False
    return n_queries % n_parts == 0 and n_candidates % n_parts == 0


def swept(
    batch: SoftmaxBatch, sweep: Sweep, sharing: CandidateSharing = SHARED_BY_ALL
) -> Sequence[jax.Array]:
    """Returns what `sweep` returns; under a mesh each device sweeps its own queries.

    Args:
        batch: The whole batch.
        sweep: Returns the losses, or these, the queries' gradients, and those of arrays with
            an entry for each candidate, which are summed over the devices of a group.
        sharing: How candidates are shared.
    """
    mesh, axis = batch_axis()
    if mesh is None:
        return _each_group(batch, sweep, sharing.groups)
    n_devices = mesh.shape[axis]
    group = _Group(axis, max(1, n_devices // sharing.groups), n_devices)

    def part(batch: SoftmaxBatch) -> tuple[jax.Array, ...]:
        if group.size == 1:
            return tuple(_each_group(batch, sweep, sharing.groups // n_devices))
        of_group = {name: group.gather(getattr(batch, name)) for name in ("item_row", "log_q")}
        is_short = sharing.dtype == "bfloat16"
        gather = group.gather_bfloat16 if is_short else group.gather
        reduce = group.reduce_bfloat16 if is_short else group.reduce
        of_group["candidate"] = gather(batch.candidate)
        first = group.place() * len(batch.query)
        losses, *gradients = sweep(batch._replace(**of_group, first=first))
        if not gradients:
            return (losses,)
        d_query, d_candidate, d_log_q = gradients
        return losses, d_query, reduce(d_candidate), group.reduce(d_log_q)

    own, whole = PartitionSpec(axis), PartitionSpec()
    specs = type(batch)._make([own] * 6 + [whole] * 3)
    # Along other axes of the mesh everything is repeated.
    mapped = jax.shard_map(part, mesh=mesh, in_specs=(specs,), out_specs=own, check_vma=False)
    results: Sequence[jax.Array] = mapped(batch)
    return results


def _each_group(batch: SoftmaxBatch, sweep: Sweep, groups: int) -> Sequence[jax.Array]:
    """Returns what `sweep` returns of one group after the other, laid end to end."""
    if groups == 1:
        return sweep(batch)
    arrays = {name: getattr(batch, name) for name in _ARRAYS}
    cut = {name: x.reshape(groups, len(x) // groups, *x.shape[1:]) for name, x in arrays.items()}
    results = jax.lax.map(lambda parts: tuple(sweep(batch._replace(**parts))), cut)
    return [x.reshape(groups * x.shape[1], *x.shape[2:]) for x in results]


@dataclasses.dataclass(frozen=True)
class _Group:
    """The devices that share their candidates, seen from inside a `shard_map`.

    Attributes:
        axis: The axis of the mesh that splits the batch.
        size: Devices of a group, which are neighbours along it.
        n_devices: Devices along the axis.
    """

    axis: str
    size: int
    n_devices: int

    @property
    def groups(self) -> list[list[int]] | None:
        """Places along the axis of each group's devices; None if it is all of them."""
        if self.size == self.n_devices:
            return None
        firsts = range(0, self.n_devices, self.size)
        return [list(range(first, first + self.size)) for first in firsts]

    def place(self) -> jax.Array:
        """Returns the place of this device in its group."""
        place = jax.lax.axis_index(self.axis)
        return place if self.size == self.n_devices else place % self.size

    def gather(self, x: jax.Array) -> jax.Array:
        """Returns `x` `[n, …]` of all devices of the group `[size · n, …]`."""
        return jax.lax.all_gather(x, self.axis, axis_index_groups=self.groups, tiled=True)

    def reduce(self, x: jax.Array) -> jax.Array:
        """Returns this device's part `[n, …]` of the group's sum of `x` `[size · n, …]`."""
        return jax.lax.psum_scatter(x, self.axis, axis_index_groups=self.groups, tiled=True)

    def gather_bfloat16(self, x: jax.Array) -> jax.Array:
        """Returns what `gather` does, rounded to bfloat16 on the way."""
        return _from_bits(self.gather(_to_bits(x)))

    def reduce_bfloat16(self, x: jax.Array) -> jax.Array:
        """Returns what `reduce` does, each summand rounded to bfloat16; sums are float32.

        As an exchange and a local sum, of as many bytes as a reduction, which would round
        its sums too.
        """
        swap = functools.partial(jax.lax.all_to_all, split_axis=0, concat_axis=0, tiled=True)
        parts = _from_bits(swap(_to_bits(x), self.axis, axis_index_groups=self.groups))
        return jnp.sum(parts.reshape(self.size, -1, *x.shape[1:]), axis=0)


def _to_bits(x: jax.Array) -> jax.Array:
    """Returns the bits of numbers in bfloat16: XLA may widen floats that it sends, not bits."""
    return jax.lax.bitcast_convert_type(x.astype(jnp.bfloat16), jnp.uint16)


def _from_bits(bits: jax.Array) -> jax.Array:
    return jax.lax.bitcast_convert_type(bits, jnp.bfloat16).astype(jnp.float32)
