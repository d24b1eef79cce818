"""The sampled softmax and its gradients in JAX alone, block of queries by block.

No array of queries × candidates is held: one sweep over blocks of queries gives the
losses and both gradients. The same two functions as `recsys.native.softmax`, which is
faster on a CPU.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp

# Most logits of a block [floats]: small enough for a CPU's caches to be of use, and large
# enough for a GPU.
_CPU_LOGITS = 2**20
_LOGITS = 2**26
_FEWEST_QUERIES = 64

_dot = functools.partial(
    jax.lax.dot_general, precision=jax.lax.Precision.HIGHEST, preferred_element_type=jnp.float32
)


def losses(
    query: jax.Array,
    candidate: jax.Array,
    item_row: jax.Array,
    log_q: jax.Array,
    scale: jax.Array,
    first: jax.Array,
) -> jax.Array:
    """Returns the loss of each query `[batch]` float32; arguments as below."""

    def sweep(carry: None, index: jax.Array) -> tuple[None, jax.Array]:
        query_block = query[index] * scale
        loss, _, _ = _softmax(query_block, candidate, item_row, log_q, first + index)
        return carry, loss

    _, loss = jax.lax.scan(sweep, None, _blocks(query, candidate))
    return loss.reshape(-1)[: query.shape[0]]


def losses_and_gradients(
    query: jax.Array,
    candidate: jax.Array,
    item_row: jax.Array,
    log_q: jax.Array,
    weight: jax.Array,
    scale: jax.Array,
    first: jax.Array,
    with_log_q: bool,
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """Returns the losses, and the gradients of their weighted sum.

    Args:
        query: Query embeddings `[batch, dim]` float32.
        candidate: Candidate embeddings `[candidates, dim]` float32.
        item_row: Item row of each candidate `[candidates]` int32.
        log_q: Subtracted from a candidate's logits `[candidates]` float32.
        weight: Weight of each query's loss in the sum `[batch]` float32.
        scale: One over the temperature, a scalar float32.
        first: The positive of query 0, a scalar int32; that of query i is `first + i`.
        with_log_q: Whether the gradient of `log_q` is wanted.

    Returns:
        The losses `[batch]`, and the gradients of `query`, `candidate` and `log_q` in
        their shapes, the last one `[0]` if not wanted; all float32.
    """
    n_queries, n_log_q = query.shape[0], log_q.shape[0] if with_log_q else 0
    blocks = _blocks(query, candidate)
    # What fills the last block up repeats a query, without weight.
    fill = blocks.size - n_queries
    weights = jnp.pad(weight, (0, fill)).reshape(blocks.shape)

    def sweep(
        sums: tuple[jax.Array, jax.Array], block: tuple[jax.Array, jax.Array]
    ) -> tuple[tuple[jax.Array, jax.Array], tuple[jax.Array, jax.Array]]:
        index, weight = block
        scaled = query[index] * scale
        loss, slopes, total = _softmax(scaled, candidate, item_row, log_q, first + index)
        share = weight / total
        of_query = scale * share[:, None] * _dot(slopes, candidate, (((1,), (0,)), ((), ())))
        of_candidate = _dot(slopes, scaled * share[:, None], (((0,), (0,)), ((), ())))
        of_log_q = share @ slopes if with_log_q else sums[1]
        return (sums[0] + of_candidate, sums[1] - of_log_q), (loss, of_query)

    zeros = jnp.zeros(candidate.shape, jnp.float32), jnp.zeros((n_log_q,), jnp.float32)
    (d_candidate, d_log_q), (loss, d_query) = jax.lax.scan(sweep, zeros, (blocks, weights))
    d_query = d_query.reshape(-1, query.shape[1])[:n_queries]
    return loss.reshape(-1)[:n_queries], d_query, d_candidate, d_log_q


def _softmax(
    scaled: jax.Array, candidate: jax.Array, item_row: jax.Array, log_q: jax.Array, at: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Returns losses `[block]`, their slopes `[block, candidates]`, and totals `[block]`.

    A slope over its row's total is the gradient of the row's loss to a logit.

    Args:
        scaled: Queries over the temperature `[block, dim]`.
        candidate: Candidate embeddings `[candidates, dim]`.
        item_row: Item row of each candidate `[candidates]`.
        log_q: Subtracted from the logits `[candidates]`.
        at: Where the positives of the block are among the candidates `[block]`.
    """
    logits = _dot(scaled, candidate, (((1,), (1,)), ((), ()))) - log_q
    same = item_row[at][:, None] == item_row[None, :]
    other = at[:, None] != jnp.arange(candidate.shape[0])[None, :]
    # The positive is never masked, so every row has a logit that is finite.
    logits = jnp.where(same & other, -jnp.inf, logits)
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
