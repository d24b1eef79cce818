"""Sweeps over queries and candidates on several devices, and in several groups, on JAX.

Each device sweeps its own queries over the candidates of its group: it gathers those of the
other devices in the group, and sends back the gradients that are theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import jax
import keras
from jax.sharding import Mesh, PartitionSpec

from recsys.collectives import Group, all_gather, gather_parts, reduce_scatter
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
    group = Group(axis, n_devices, max(1, n_devices // sharing.groups))

    def part(batch: SoftmaxBatch) -> tuple[jax.Array, ...]:
        if group.size == 1:
            return tuple(_each_group(batch, sweep, sharing.groups // n_devices))
        of_group = {
            "item_row": gather_parts(batch.item_row, group),
            "log_q": gather_parts(batch.log_q, group),
            "candidate": all_gather(batch.candidate, group, sharing.dtype),
        }
        first = group.place() * len(batch.query)
        losses, *gradients = sweep(batch._replace(**of_group, first=first))
        if not gradients:
            return (losses,)
        d_query, d_candidate, d_log_q = gradients
        d_candidate = reduce_scatter(d_candidate, group, sharing.dtype)
        return losses, d_query, d_candidate, reduce_scatter(d_log_q, group)

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
