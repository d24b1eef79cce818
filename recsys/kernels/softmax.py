"""The sampled softmax and its gradients, by the C kernel.

The same two functions as `recsys.losses.softmax_blocks`, to about 1e-6. They may be called
inside `jax.jit` and `jax.shard_map` where `kernels.available()`. Results are the same
bits for any number of threads.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

MAX_DIM = 1024


def losses(
    query: jax.Array,
    candidate: jax.Array,
    item_row: jax.Array,
    log_q: jax.Array,
    known: jax.Array,
    scale: jax.Array,
    first: jax.Array,
) -> jax.Array:
    """Returns the loss of each query `[batch]` float32; arguments as below."""
    weight = jnp.zeros(query.shape[:1], jnp.float32)
    shapes = [query.shape[:1]]
    return _call(shapes, query, candidate, item_row, log_q, weight, known, scale, first)[0]


def losses_and_gradients(
    query: jax.Array,
    candidate: jax.Array,
    item_row: jax.Array,
    log_q: jax.Array,
    weight: jax.Array,
    known: jax.Array,
    scale: jax.Array,
    first: jax.Array,
    with_log_q: bool,
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """Returns the losses, and the gradients of their weighted sum.

    Args:
        query: Query embeddings `[batch, dim]` float32, at most `MAX_DIM` wide.
        candidate: Candidate embeddings `[candidates, dim]` float32.
        item_row: Item row of each candidate `[candidates]` int32.
        log_q: Subtracted from a candidate's logits `[candidates]` float32.
        weight: Weight of each query's loss in the sum `[batch]` float32.
        known: Item rows that are no negatives of a query `[batch, known]` int32; 0 is none.
        scale: One over the temperature, a scalar float32.
        first: The positive of query 0, a scalar int32; that of query i is `first + i`.
        with_log_q: Whether the gradient of `log_q` is wanted.

    Returns:
        The losses `[batch]`, and the gradients of `query`, `candidate` and `log_q` in
        their shapes, the last one `[0]` if not wanted; all float32.
    """
    n_log_q = log_q.shape[0] if with_log_q else 0
    shapes = [query.shape[:1], query.shape, candidate.shape, (n_log_q,)]
    loss, d_query, d_candidate, d_log_q = _call(
        shapes, query, candidate, item_row, log_q, weight, known, scale, first
    )
    return loss, d_query, d_candidate, d_log_q


def _call(shapes: list[tuple[int, ...]], *arguments: jax.Array) -> list[jax.Array]:
    outs = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    call = jax.ffi.ffi_call("recsys_softmax", outs, vmap_method="sequential")
    *arrays, scale, first = arguments
    return list(call(*arrays, jnp.float32(scale)[None], jnp.int32(first)[None]))
