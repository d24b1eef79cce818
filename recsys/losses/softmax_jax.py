"""The sampled softmax on JAX, with gradients that never hold queries × candidates.

The forward pass computes the gradients along with the losses, in one sweep over blocks
of queries; the backward pass only scales them. Under a mesh each device sweeps its own
queries over all candidates, and gets back the sum of its own candidates' gradients.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import keras
from jax.sharding import Mesh, PartitionSpec

from recsys import kernels
from recsys.kernels import softmax as native_softmax
from recsys.losses import softmax_blocks


class _BatchSharding(NamedTuple):
    """How the batch is split: over one axis of a mesh."""

    mesh: Mesh
    axis: str

    @property
    def n_parts(self) -> int:
        return int(self.mesh.shape[self.axis])


def can_sweep(n_queries: int, n_candidates: int) -> bool:
    """Returns whether both sizes divide among the devices of the active distribution."""
    sharding = _batch_sharding()
    return sharding is None or (
        n_queries % sharding.n_parts == 0 and n_candidates % sharding.n_parts == 0
    )


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
def _sweep_loss(
    query: jax.Array,
    candidate: jax.Array,
    item_row: jax.Array,
    log_q: jax.Array,
    temperature: jax.Array,
    weight: jax.Array,
    known: jax.Array,
) -> jax.Array:
    arrays = (query, candidate, item_row, log_q, known)
    sharding = _batch_sharding()
    if sharding is None:
        loss = _kernels(query).losses(*arrays, 1 / temperature, 0)
    else:
        loss = _sharded_losses(sharding, *arrays, 1 / temperature)
    return jnp.sum(weight * loss)


def _forward(*primals: Any) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    query, candidate, item_row, log_q, temperature, weight, known = (x.value for x in primals)
    with_log_q = primals[3].perturbed
    arrays = (query, candidate, item_row, log_q, weight, known)
    sharding = _batch_sharding()
    if sharding is None:
        swept = _kernels(query).losses_and_gradients(*arrays, 1 / temperature, 0, with_log_q)
    else:
        swept = _sharded_gradients(sharding, *arrays, 1 / temperature, with_log_q)
    loss, d_query, d_candidate, d_log_q = swept
    if not with_log_q:
        d_log_q = jnp.zeros_like(log_q)
    # Logits depend on query / temperature alone: one gradient follows from the other.
    d_temperature = -jnp.sum(query * d_query) / temperature
    return jnp.sum(weight * loss), (d_query, d_candidate, d_log_q, d_temperature, loss)


def _backward(residuals: tuple[jax.Array, ...], cotangent: jax.Array) -> tuple[Any, ...]:
    d_query, d_candidate, d_log_q, d_temperature, d_weight = (cotangent * x for x in residuals)
    return d_query, d_candidate, None, d_log_q, d_temperature, d_weight, None


_sweep_loss.defvjp(_forward, _backward, symbolic_zeros=True)


def _kernels(query: jax.Array) -> Any:
    """Returns the module that sweeps on one device."""
    is_native = query.shape[1] <= native_softmax.MAX_DIM and kernels.available()
    return native_softmax if is_native else softmax_blocks


# --- under a mesh


def _batch_sharding() -> _BatchSharding | None:
    """Returns how the batch is split as the active distribution says; None if it isn't."""
    distribution = keras.distribution.distribution()
    if distribution is None or distribution.batch_dim_name is None:
        return None
    sharding = _BatchSharding(distribution.device_mesh.backend_mesh, distribution.batch_dim_name)
    return None if sharding.n_parts == 1 else sharding


def _sharded_losses(
    sharding: _BatchSharding,
    query: jax.Array,
    candidate: jax.Array,
    item_row: jax.Array,
    log_q: jax.Array,
    known: jax.Array,
    scale: jax.Array,
) -> jax.Array:
    def part(query: jax.Array, *rest: jax.Array) -> jax.Array:
        *candidates, known, scale = rest
        return _kernels(query).losses(
            query, *_gathered(sharding, *candidates), known, scale, _first_positive(sharding, query)
        )

    own = PartitionSpec(sharding.axis)
    return _mapped(sharding, part, (*[own] * 5, PartitionSpec()), own)(
        query, candidate, item_row, log_q, known, scale
    )


def _sharded_gradients(
    sharding: _BatchSharding,
    query: jax.Array,
    candidate: jax.Array,
    item_row: jax.Array,
    log_q: jax.Array,
    weight: jax.Array,
    known: jax.Array,
    scale: jax.Array,
    with_log_q: bool,
) -> tuple[jax.Array, ...]:
    def part(
        query: jax.Array,
        candidate: jax.Array,
        item_row: jax.Array,
        log_q: jax.Array,
        weight: jax.Array,
        known: jax.Array,
        scale: jax.Array,
    ) -> tuple[jax.Array, ...]:
        candidates = _gathered(sharding, candidate, item_row, log_q)
        loss, d_query, *d_candidates = _kernels(query).losses_and_gradients(
            query, *candidates, weight, known, scale, _first_positive(sharding, query), with_log_q
        )
        return loss, d_query, *_scattered(sharding, *d_candidates)

    own = PartitionSpec(sharding.axis)
    return _mapped(sharding, part, (*[own] * 6, PartitionSpec()), (own, own, own, own))(
        query, candidate, item_row, log_q, weight, known, scale
    )


def _mapped(sharding: _BatchSharding, part: Any, in_specs: Any, out_specs: Any) -> Any:
    # Along other axes of the mesh everything is repeated.
    return jax.shard_map(
        part, mesh=sharding.mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False
    )


def _gathered(sharding: _BatchSharding, *parts: jax.Array) -> list[jax.Array]:
    return [jax.lax.all_gather(x, sharding.axis, tiled=True) for x in parts]


def _scattered(sharding: _BatchSharding, *sums: jax.Array) -> list[jax.Array]:
    return [jax.lax.psum_scatter(x, sharding.axis, tiled=True) for x in sums]


def _first_positive(sharding: _BatchSharding, query: jax.Array) -> jax.Array:
    """Returns the position of the positive of this device's query 0 among all candidates."""
    return jax.lax.axis_index(sharding.axis) * query.shape[0]
