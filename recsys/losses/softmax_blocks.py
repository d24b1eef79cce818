"""The sampled softmax and its gradients in JAX alone, block of queries by block.

No array of queries × candidates is held: one sweep over blocks of queries gives the
losses and both gradients. The same two functions as `recsys.kernels.softmax`, which is
faster on a CPU.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

from recsys.losses.batch import is_first, known_positions

# Most logits of a block [floats]: small enough for a CPU's caches to be of use, and large
# enough for a GPU.
_CPU_LOGITS = 2**20
_LOGITS = 2**26
_FEWEST_QUERIES = 64

_dot = functools.partial(
    jax.lax.dot_general, precision=jax.lax.Precision.HIGHEST, preferred_element_type=jnp.float32
)


class _Candidates(NamedTuple):
    """What every block reads.

    Attributes:
        embedding: Embeddings `[candidates, dim]` float32.
        item_row: Item rows `[candidates]` int32.
        log_q: Subtracted from the logits `[candidates]` float32.
        is_copy: Whether the item has an earlier place `[candidates]` bool.
    """

    embedding: jax.Array
    item_row: jax.Array
    log_q: jax.Array
    is_copy: jax.Array


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
    candidates = _Candidates(candidate, item_row, log_q, ~is_first(item_row))
    hidden = _hidden(known, item_row, first)

    def sweep(carry: None, index: jax.Array) -> tuple[None, jax.Array]:
        loss, _, _ = _softmax(query[index] * scale, candidates, first + index, hidden[index])
        return carry, loss

    _, loss = jax.lax.scan(sweep, None, _blocks(query, candidate))
    return loss.reshape(-1)[: query.shape[0]]


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
        query: Query embeddings `[batch, dim]` float32.
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
    n_queries, n_log_q = query.shape[0], log_q.shape[0] if with_log_q else 0
    candidates = _Candidates(candidate, item_row, log_q, ~is_first(item_row))
    hidden = _hidden(known, item_row, first)
    blocks = _blocks(query, candidate)
    # What fills the last block up repeats a query, without weight.
    fill = blocks.size - n_queries
    weights = jnp.pad(weight, (0, fill)).reshape(blocks.shape)

    def sweep(
        sums: tuple[jax.Array, jax.Array], block: tuple[jax.Array, jax.Array]
    ) -> tuple[tuple[jax.Array, jax.Array], tuple[jax.Array, jax.Array]]:
        index, weight = block
        scaled = query[index] * scale
        loss, slopes, total = _softmax(scaled, candidates, first + index, hidden[index])
        share = weight / total
        of_query = scale * share[:, None] * _dot(slopes, candidate, (((1,), (0,)), ((), ())))
        of_candidate = _dot(slopes, scaled * share[:, None], (((0,), (0,)), ((), ())))
        of_log_q = share @ slopes if with_log_q else sums[1]
        return (sums[0] + of_candidate, sums[1] - of_log_q), (loss, of_query)

    zeros = jnp.zeros(candidate.shape, jnp.float32), jnp.zeros((n_log_q,), jnp.float32)
    (d_candidate, d_log_q), (loss, d_query) = jax.lax.scan(sweep, zeros, (blocks, weights))
    d_query = d_query.reshape(-1, query.shape[1])[:n_queries]
    return loss.reshape(-1)[:n_queries], d_query, d_candidate, d_log_q


def _hidden(known: jax.Array, item_row: jax.Array, first: jax.Array) -> jax.Array:
    """Returns the candidates that are known items `[batch, known]`; others are past the end."""
    return known_positions(item_row, known, first + jnp.arange(known.shape[0], dtype=jnp.int32))


def _softmax(
    scaled: jax.Array, candidates: _Candidates, at: jax.Array, hidden: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Returns losses `[block]`, their slopes `[block, candidates]`, and totals `[block]`.

    A slope over its row's total is the gradient of the row's loss to a logit.

    Args:
        scaled: Queries over the temperature `[block, dim]`.
        candidates: What they are compared with.
        at: Where the positives of the block are among the candidates `[block]`.
        hidden: Candidates that are no negatives `[block, known]`.
    """
    logits = _dot(scaled, candidates.embedding, (((1,), (1,)), ((), ()))) - candidates.log_q
    same = candidates.item_row[at][:, None] == candidates.item_row[None, :]
    other = at[:, None] != jnp.arange(candidates.item_row.size)[None, :]
    # The positive is never masked, so every row has a logit that is finite.
    logits = jnp.where((same | candidates.is_copy) & other, -jnp.inf, logits)
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
