"""The sampled softmax and its gradients in JAX alone, block of queries by block.

No array of queries × candidates is held: one sweep over blocks of queries gives the
losses and both gradients. The same two functions as `recsys.kernels.softmax`, which is
faster on a CPU.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp

from recsys.kernels.softmax import SoftmaxBatch
from recsys.losses.batch import is_first, known_positions

# Most logits of a block [floats]: small enough for a CPU's caches to be of use, and large
# enough for a GPU.
_CPU_LOGITS = 2**20
_LOGITS = 2**26
_FEWEST_QUERIES = 64

_dot = functools.partial(
    jax.lax.dot_general, precision=jax.lax.Precision.HIGHEST, preferred_element_type=jnp.float32
)


def losses(batch: SoftmaxBatch) -> jax.Array:
    """Returns the loss of each query `[batch]` float32, without its weight."""
    is_copy, hidden = ~is_first(batch.item_row), _hidden(batch)

    def sweep(carry: None, index: jax.Array) -> tuple[None, jax.Array]:
        loss, _, _ = _softmax(batch, is_copy, index, hidden[index])
        return carry, loss

    _, loss = jax.lax.scan(sweep, None, _blocks(batch.query, batch.candidate))
    return loss.reshape(-1)[: len(batch.query)]


def losses_and_gradients(batch: SoftmaxBatch, with_log_q: bool) -> list[jax.Array]:
    """Returns the losses, and the gradients of their weighted sum.

    Args:
        batch: What they are computed from.
        with_log_q: Whether the gradient of `log_q` is wanted.

    Returns:
        The losses `[batch]`, and the gradients of `query`, `candidate` and `log_q` in
        their shapes, the last one `[0]` if not wanted; all float32.
    """
    query, candidate, scale = batch.query, batch.candidate, batch.scale
    n_queries, n_log_q = len(query), len(batch.log_q) if with_log_q else 0
    is_copy, hidden = ~is_first(batch.item_row), _hidden(batch)
    blocks = _blocks(query, candidate)
    # What fills the last block up repeats a query, without weight.
    weights = jnp.pad(batch.weight, (0, blocks.size - n_queries)).reshape(blocks.shape)

    def sweep(
        sums: tuple[jax.Array, jax.Array], block: tuple[jax.Array, jax.Array]
    ) -> tuple[tuple[jax.Array, jax.Array], tuple[jax.Array, jax.Array]]:
        index, weight = block
        loss, slopes, total = _softmax(batch, is_copy, index, hidden[index])
        share = weight / total
        of_query = scale * share[:, None] * _dot(slopes, candidate, (((1,), (0,)), ((), ())))
        scaled = query[index] * scale * share[:, None]
        of_candidate = _dot(slopes, scaled, (((0,), (0,)), ((), ())))
        of_log_q = share @ slopes if with_log_q else sums[1]
        return (sums[0] + of_candidate, sums[1] - of_log_q), (loss, of_query)

    zeros = jnp.zeros(candidate.shape, jnp.float32), jnp.zeros((n_log_q,), jnp.float32)
    (d_candidate, d_log_q), (loss, d_query) = jax.lax.scan(sweep, zeros, (blocks, weights))
    d_query = d_query.reshape(-1, query.shape[1])[:n_queries]
    return [loss.reshape(-1)[:n_queries], d_query, d_candidate, d_log_q]


def _hidden(batch: SoftmaxBatch) -> jax.Array:
    """Returns the candidates that are known items `[batch, known]`; others are past the end."""
    positive = batch.first + jnp.arange(len(batch.query), dtype=jnp.int32)
    return known_positions(batch.item_row, batch.known, positive)


def _softmax(
    batch: SoftmaxBatch, is_copy: jax.Array, index: jax.Array, hidden: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Returns losses `[block]`, their slopes `[block, candidates]`, and totals `[block]`.

    A slope over its row's total is the gradient of the row's loss to a logit.

    Args:
        batch: What is computed from.
        is_copy: Whether an item has an earlier place `[candidates]` bool.
        index: The queries of the block `[block]`.
        hidden: Candidates that are no negatives `[block, known]`.
    """
    at = batch.first + index
    scaled = batch.query[index] * batch.scale
    logits = _dot(scaled, batch.candidate, (((1,), (1,)), ((), ()))) - batch.log_q
    same = batch.item_row[at][:, None] == batch.item_row[None, :]
    other = at[:, None] != jnp.arange(batch.item_row.size)[None, :]
    # The positive is never masked, so every row has a logit that is finite.
    logits = jnp.where((same | is_copy) & other, -jnp.inf, logits)
    if hidden.shape[1]:
        rows = jnp.arange(at.size, dtype=jnp.int32)[:, None]
        logits = logits.at[rows, hidden].set(-jnp.inf, mode="drop")
    positive = jnp.take_along_axis(logits, at[:, None], axis=1)[:, 0]
    top = jnp.max(logits, axis=1)
    exponentials = jnp.exp(logits - top[:, None])
    total = jnp.sum(exponentials, axis=1)
    slopes = jnp.where(other, exponentials, exponentials - total[:, None])
    return jnp.log(total) + (top - positive), slopes, total


def _blocks(query: jax.Array, candidate: jax.Array) -> jax.Array:
    """Returns the queries of each block `[blocks, block]`; the last one repeats the last query."""
    most = _CPU_LOGITS if jax.default_backend() == "cpu" else _LOGITS
    n_queries = query.shape[0]
    size = min(n_queries, max(_FEWEST_QUERIES, most // candidate.shape[0]))
    n_blocks = -(-n_queries // size)
    # Blocks of one size, as equal as they can be.
    size = -(-n_queries // n_blocks)
    return jnp.minimum(jnp.arange(n_blocks * size), n_queries - 1).reshape(n_blocks, size)
