"""The sampled softmax on JAX, with gradients that never hold queries × candidates.

The forward pass computes the gradients along with the losses, in one sweep over blocks
of queries; the backward pass only scales them. Under a mesh each device sweeps its own
queries over all candidates, and gets back the sum of its own candidates' gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import keras
from jax.sharding import Mesh, PartitionSpec

from recsys import kernels
from recsys.kernels import softmax as native_softmax
from recsys.kernels.softmax import SoftmaxBatch
from recsys.losses import softmax_blocks


def can_sweep(n_queries: int, n_candidates: int) -> bool:
    """Returns whether both sizes divide among the devices of the active distribution."""
    mesh, axis = _batch_axis()
    n_parts = mesh.shape[axis] if mesh is not None else 1
    return n_queries % n_parts == 0 and n_candidates % n_parts == 0


def sweep_loss(
    query: jax.Array,
    candidate: jax.Array,
    item_row: jax.Array,
    log_q: jax.Array,
    temperature: jax.Array | float,
    weight: jax.Array,
    known: jax.Array,
) -> jax.Array:
    """Returns the weighted sum of the queries' losses, a scalar float32.

    It has gradients to all arguments but `item_row` and `known`.

    Args:
        query: Query embeddings `[batch, dim]`.
        candidate: Candidate embeddings `[candidates, dim]`; row i is the positive of
            query i.
        item_row: Item row of each candidate `[candidates]` int32.
        log_q: Subtracted from a candidate's logits `[candidates]`.
        temperature: Divides the dot products.
        weight: Weight of each query's loss `[batch]`.
        known: Item rows that are no negatives of a query `[batch, known]` int32; 0 is none.
    """
    numbers = [jnp.asarray(x, jnp.float32) for x in (query, candidate, log_q, temperature, weight)]
    query, candidate, log_q, temperature, weight = numbers
    item_row, known = (jnp.asarray(x, jnp.int32) for x in (item_row, known))
    return _sweep_loss(query, candidate, item_row, log_q, temperature, weight, known)


@jax.custom_vjp
def _sweep_loss(*arguments: jax.Array) -> jax.Array:
    batch = _batch(*arguments)
    return jnp.sum(batch.weight * _swept(batch, lambda batch: [_kernels(batch).losses(batch)])[0])


def _forward(*primals: Any) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    arguments = [primal.value for primal in primals]
    batch, temperature, with_log_q = _batch(*arguments), arguments[4], primals[3].perturbed
    loss, d_query, d_candidate, d_log_q = _swept(
        batch, lambda batch: _kernels(batch).losses_and_gradients(batch, with_log_q)
    )
    if not with_log_q:
        d_log_q = jnp.zeros_like(batch.log_q)
    # Logits depend on query / temperature alone: one gradient follows from the other.
    d_temperature = -jnp.sum(batch.query * d_query) / temperature
    residuals = (d_query, d_candidate, d_log_q, d_temperature, loss)
    return jnp.sum(batch.weight * loss), residuals


def _backward(residuals: tuple[jax.Array, ...], cotangent: jax.Array) -> tuple[Any, ...]:
    d_query, d_candidate, d_log_q, d_temperature, d_weight = (cotangent * x for x in residuals)
    return d_query, d_candidate, None, d_log_q, d_temperature, d_weight, None


_sweep_loss.defvjp(_forward, _backward, symbolic_zeros=True)


def _batch(
    query: jax.Array,
    candidate: jax.Array,
    item_row: jax.Array,
    log_q: jax.Array,
    temperature: jax.Array,
    weight: jax.Array,
    known: jax.Array,
) -> SoftmaxBatch:
    first = jnp.int32(0)
    return SoftmaxBatch(query, candidate, item_row, log_q, weight, known, 1 / temperature, first)


def _kernels(batch: SoftmaxBatch) -> Any:
    """Returns the module that sweeps on one device."""
    is_native = batch.query.shape[1] <= native_softmax.MAX_DIM and kernels.available()
    return native_softmax if is_native else softmax_blocks


def _batch_axis() -> tuple[Mesh | None, str]:
    """Returns the mesh and its axis that split the batch; no mesh if nothing does."""
    distribution = keras.distribution.distribution()
    if distribution is None or distribution.batch_dim_name is None:
        return None, ""
    mesh, axis = distribution.device_mesh.backend_mesh, distribution.batch_dim_name
    return (None, "") if mesh.shape[axis] == 1 else (mesh, axis)


def _swept(
    batch: SoftmaxBatch, sweep: Callable[[SoftmaxBatch], Sequence[jax.Array]]
) -> Sequence[jax.Array]:
    """Returns what `sweep` returns; under a mesh each device sweeps its own queries.

    Args:
        batch: The whole batch.
        sweep: Returns the losses, or these, the queries' gradients, and those of arrays with
            an entry for each candidate, which are summed over the devices.
    """
    mesh, axis = _batch_axis()
    if mesh is None:
        return sweep(batch)

    def part(batch: SoftmaxBatch) -> tuple[jax.Array, ...]:
        of_all = {
            name: jax.lax.all_gather(getattr(batch, name), axis, tiled=True)
            for name in ("candidate", "item_row", "log_q")
        }
        first = jax.lax.axis_index(axis) * len(batch.query)
        swept = sweep(batch._replace(**of_all, first=first))
        sums = (jax.lax.psum_scatter(x, axis, tiled=True) for x in swept[2:])
        return (*swept[:2], *sums)

    own, whole = PartitionSpec(axis), PartitionSpec()
    specs = SoftmaxBatch._make([own] * 6 + [whole] * 2)
    # Along other axes of the mesh everything is repeated.
    mapped = jax.shard_map(part, mesh=mesh, in_specs=(specs,), out_specs=own, check_vma=False)
    swept: Sequence[jax.Array] = mapped(batch)
    return swept
