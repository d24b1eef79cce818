"""The sampled softmax and its gradients, by the C kernel.

The same two functions as `recsys.losses.softmax_blocks`, to about 1e-6. They may be called
inside `jax.jit` and `jax.shard_map` where `kernels.available()`. Results are the same
bits for any number of threads.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

MAX_DIM = 1024
"""The widest embeddings that the kernel takes [floats]."""


class SoftmaxBatch(NamedTuple):
    """What the sampled softmax is computed from.

    Attributes:
        query: Query embeddings `[batch, dim]` float32.
        candidate: Candidate embeddings `[candidates, dim]` float32.
        item_row: Item row of each candidate `[candidates]` int32.
        log_q: Subtracted from a candidate's logits `[candidates]` float32.
        weight: Weight of each query's loss in the sum `[batch]` float32.
        known: Item rows that are no negatives of a query `[batch, known]` int32; 0 is none.
        scale: One over the temperature, a scalar float32.
        first: The positive of query 0, a scalar int32; that of query i is `first + i`.
    """

    query: jax.Array
    candidate: jax.Array
    item_row: jax.Array
    log_q: jax.Array
    weight: jax.Array
    known: jax.Array
    scale: jax.Array
    first: jax.Array


def losses(batch: SoftmaxBatch) -> jax.Array:
    """Returns the loss of each query `[batch]` float32, without its weight."""
    return _call(batch, [batch.weight.shape])[0]


def losses_and_gradients(batch: SoftmaxBatch, with_log_q: bool) -> list[jax.Array]:
    """Returns the losses, and the gradients of their weighted sum.

    Args:
        batch: What they are computed from.
        with_log_q: Whether the gradient of `log_q` is wanted.

    Returns:
        The losses `[batch]`, and the gradients of `query`, `candidate` and `log_q` in
        their shapes, the last one `[0]` if not wanted; all float32.
    """
    n_log_q = len(batch.log_q) if with_log_q else 0
    return _call(batch, [batch.weight.shape, batch.query.shape, batch.candidate.shape, (n_log_q,)])


def _call(batch: SoftmaxBatch, shapes: list[tuple[int, ...]]) -> list[jax.Array]:
    outs = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    call = jax.ffi.ffi_call("recsys_softmax", outs, vmap_method="sequential")
    *arrays, scale, first = batch
    return list(call(*arrays, jnp.float32(scale)[None], jnp.int32(first)[None]))
