"""The softmax over all candidates on JAX, without an array of queries × candidates.

The forward pass computes the gradients with the losses, in one sweep over blocks of queries;
the backward pass only scales them. Under a mesh each device sweeps its own queries over the
candidates of its group: it gathers the candidates of the group's other devices, and sends their
gradients back.

The C kernel runs the sweep if it is available, with equal bits for any number of threads; else
JAX does. They agree to about 1e-6.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import keras
from jax.sharding import Mesh, PartitionSpec

from recsys import kernels
from recsys.distributed.collectives import (
    Group,
    all_gather,
    gather_parts,
    on_each_device,
    reduce_scatter,
)
from recsys.losses.batch import is_first, known_positions
from recsys.losses.loss import SHARED_BY_ALL, CandidateSharing

_MAX_KERNEL_DIM = 1024
"""Largest embedding width of the C kernel [floats]."""


class SoftmaxBatch(NamedTuple):
    """Inputs of a sweep.

    Attributes:
        query: Query embeddings `[batch, dim]` float32.
        candidate: Candidate embeddings `[candidates, dim]` float32.
        item_row: Item row of each candidate `[candidates]` int32.
        log_q: Subtracted from a candidate's logits `[candidates]` float32.
        weight: Weight of each query's loss in the sum `[batch]` float32.
        known: Item rows that are no negatives of a query `[batch, known]` int32, padded with 0.
        scale: One over the temperature, a scalar float32.
        first: Index of query 0's positive, a scalar int32; query i has `first + i`.
    """

    query: jax.Array
    candidate: jax.Array
    item_row: jax.Array
    log_q: jax.Array
    weight: jax.Array
    known: jax.Array
    scale: jax.Array
    first: jax.Array


Sweep = Callable[[SoftmaxBatch], Sequence[jax.Array]]
_ARRAYS = ("query", "candidate", "item_row", "log_q", "weight", "known")
"""Fields of a batch with an entry per query or per candidate."""


def sweep_loss(
    query: jax.Array,
    candidate: jax.Array,
    item_row: jax.Array,
    log_q: jax.Array,
    temperature: jax.Array | float,
    weight: jax.Array,
    known: jax.Array,
    sharing: CandidateSharing = SHARED_BY_ALL,
) -> jax.Array:
    """Returns the weighted sum of the queries' losses, a scalar float32.

    It has gradients for all arguments but `item_row` and `known`.

    Args:
        query: Query embeddings `[batch, dim]`.
        candidate: Candidate embeddings `[candidates, dim]`; row i is the positive of
            query i.
        item_row: Item row of each candidate `[candidates]` int32.
        log_q: Subtracted from a candidate's logits `[candidates]`.
        temperature: Divides the dot products.
        weight: Weight of each query's loss `[batch]`.
        known: Item rows that are no negatives of a query `[batch, known]` int32, padded with 0.
        sharing: How candidates are shared; with several groups they are ordered by group.
    """
    floats = (query, candidate, log_q, temperature, weight)
    query, candidate, log_q, temperature, weight = (jnp.asarray(x, jnp.float32) for x in floats)
    item_row, known = (jnp.asarray(x, jnp.int32) for x in (item_row, known))
    return _sweep_loss(sharing, query, candidate, item_row, log_q, weight, known, temperature)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _sweep_loss(sharing: CandidateSharing, *arguments: jax.Array) -> jax.Array:
    batch = _batch(*arguments)
    (losses,) = _swept(batch, lambda batch: [_losses(batch)], sharing)
    return jnp.sum(batch.weight * losses)


def _forward(sharing: CandidateSharing, *primals: Any) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    arguments = [primal.value for primal in primals]
    batch, temperature = _batch(*arguments), arguments[6]
    with_log_q = primals[3].perturbed
    loss, d_query, d_candidate, d_log_q = _swept(
        batch, lambda batch: _losses_and_gradients(batch, with_log_q), sharing
    )
    if not with_log_q:
        d_log_q = jnp.zeros_like(batch.log_q)
    # Logits depend only on query / temperature: one gradient follows from the other.
    d_temperature = -jnp.sum(batch.query * d_query) / temperature
    residuals = (d_query, d_candidate, d_log_q, d_temperature, loss)
    return jnp.sum(batch.weight * loss), residuals


def _backward(
    sharing: CandidateSharing, residuals: tuple[jax.Array, ...], cotangent: jax.Array
) -> tuple[Any, ...]:
    d_query, d_candidate, d_log_q, d_temperature, d_weight = (cotangent * x for x in residuals)
    return d_query, d_candidate, None, d_log_q, d_weight, None, d_temperature


_sweep_loss.defvjp(_forward, _backward, symbolic_zeros=True)


def _batch(*arguments: jax.Array) -> SoftmaxBatch:
    *arrays, temperature = arguments
    return SoftmaxBatch._make([*arrays, 1 / temperature, jnp.int32(0)])


# --- sweeps of several devices, and of several groups


def _batch_axis() -> tuple[Mesh | None, str]:
    """Returns the mesh and the axis that split the batch; no mesh if it isn't split."""
    distribution = keras.distribution.distribution()
    if distribution is None or distribution.batch_dim_name is None:
        return None, ""
    mesh, axis = distribution.device_mesh.backend_mesh, distribution.batch_dim_name
    return (None, "") if mesh.shape[axis] == 1 else (mesh, axis)


def can_sweep(n_queries: int, n_candidates: int, groups: int = 1) -> bool:
    """Returns whether both sizes, and the groups, divide among the active devices."""
    mesh, axis = _batch_axis()
    n_parts = mesh.shape[axis] if mesh is not None else 1
    if groups % n_parts and n_parts % groups:
        return False
    return n_queries % n_parts == 0 and n_candidates % n_parts == 0


def _swept(batch: SoftmaxBatch, sweep: Sweep, sharing: CandidateSharing) -> Sequence[jax.Array]:
    """Applies `sweep` to the batch; under a mesh each device sweeps its own queries.

    Args:
        batch: The whole batch.
        sweep: Returns the losses, optionally followed by the gradients of `query`, `candidate`
            and `log_q`; the last two are summed over the devices of a group.
        sharing: How candidates are shared.
    """
    mesh, axis = _batch_axis()
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
        first = group.index() * len(batch.query)
        losses, *gradients = sweep(batch._replace(**of_group, first=first))
        if not gradients:
            return (losses,)
        d_query, d_candidate, d_log_q = gradients
        d_candidate = reduce_scatter(d_candidate, group, sharing.dtype)
        return losses, d_query, d_candidate, reduce_scatter(d_log_q, group)

    own, whole = PartitionSpec(axis), PartitionSpec()
    specs = SoftmaxBatch._make([own] * 6 + [whole] * 2)
    # Other axes of the mesh replicate everything.
    results: Sequence[jax.Array] = on_each_device(part, mesh, (specs,), own)(batch)
    return results


def _each_group(batch: SoftmaxBatch, sweep: Sweep, groups: int) -> Sequence[jax.Array]:
    """Applies `sweep` to each group in turn and concatenates the results."""
    if groups == 1:
        return sweep(batch)
    arrays = {name: getattr(batch, name) for name in _ARRAYS}
    cut = {name: x.reshape(groups, len(x) // groups, *x.shape[1:]) for name, x in arrays.items()}
    results = jax.lax.map(lambda parts: tuple(sweep(batch._replace(**parts))), cut)
    return [x.reshape(groups * x.shape[1], *x.shape[2:]) for x in results]


# --- sweeps of one device


def _losses(batch: SoftmaxBatch) -> jax.Array:
    """Returns the loss of each query `[batch]` float32, without its weight."""
    return _native(batch, [batch.weight.shape])[0] if _is_native(batch) else block_losses(batch)


def _losses_and_gradients(batch: SoftmaxBatch, with_log_q: bool) -> list[jax.Array]:
    """Returns the losses, and the gradients of their weighted sum.

    Args:
        batch: The inputs.
        with_log_q: Whether to compute the gradient of `log_q`.

    Returns:
        The losses `[batch]`, and the gradients of `query`, `candidate` and `log_q` in their
        shapes (`[0]` without `with_log_q`); all float32.
    """
    if not _is_native(batch):
        return block_gradients(batch, with_log_q)
    return native_gradients(batch, with_log_q)


def _is_native(batch: SoftmaxBatch) -> bool:
    return batch.query.shape[1] <= _MAX_KERNEL_DIM and kernels.available()


def native_gradients(batch: SoftmaxBatch, with_log_q: bool) -> list[jax.Array]:
    """Returns the losses and gradients as `_losses_and_gradients`, computed by the C kernel."""
    n_log_q = len(batch.log_q) if with_log_q else 0
    shapes = [batch.weight.shape, batch.query.shape, batch.candidate.shape, (n_log_q,)]
    return _native(batch, shapes)


def _native(batch: SoftmaxBatch, shapes: list[tuple[int, ...]]) -> list[jax.Array]:
    outs = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    call = jax.ffi.ffi_call("recsys_candidate_loss", outs, vmap_method="sequential")
    *arrays, scale, first = batch
    # The last one is the kernel's factor on the logits of the positives.
    scalars = (jnp.float32(scale)[None], jnp.int32(first)[None], jnp.ones(1, jnp.float32))
    return list(call(*arrays, *scalars))


# Largest number of logits in a block [floats]: fits a CPU's caches, and keeps a GPU busy.
_CPU_LOGITS = 2**20
_LOGITS = 2**26
_FEWEST_QUERIES = 64

_dot = functools.partial(
    jax.lax.dot_general, precision=jax.lax.Precision.HIGHEST, preferred_element_type=jnp.float32
)


def block_losses(batch: SoftmaxBatch) -> jax.Array:
    """Returns the losses as `_losses`, block by block in JAX."""
    is_copy, hidden = ~is_first(batch.item_row), _hidden(batch)

    def sweep(carry: None, index: jax.Array) -> tuple[None, jax.Array]:
        loss, _, _ = _row_losses(batch, is_copy, index, hidden[index])
        return carry, loss

    _, loss = jax.lax.scan(sweep, None, _blocks(batch.query, batch.candidate))
    return loss.reshape(-1)[: len(batch.query)]


def block_gradients(batch: SoftmaxBatch, with_log_q: bool) -> list[jax.Array]:
    """Returns the losses and gradients as `_losses_and_gradients`, block by block in JAX."""
    query, candidate, scale = batch.query, batch.candidate, batch.scale
    n_queries, n_log_q = len(query), len(batch.log_q) if with_log_q else 0
    is_copy, hidden = ~is_first(batch.item_row), _hidden(batch)
    blocks = _blocks(query, candidate)
    # The last block is padded with repeated queries of weight 0.
    weights = jnp.pad(batch.weight, (0, blocks.size - n_queries)).reshape(blocks.shape)

    def sweep(
        sums: tuple[jax.Array, jax.Array], block: tuple[jax.Array, jax.Array]
    ) -> tuple[tuple[jax.Array, jax.Array], tuple[jax.Array, jax.Array]]:
        index, weight = block
        loss, slopes, total = _row_losses(batch, is_copy, index, hidden[index])
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
    """Returns the positions of known items `[batch, known]`; past the end for padding."""
    positive = batch.first + jnp.arange(len(batch.query), dtype=jnp.int32)
    return known_positions(batch.item_row, batch.known, positive)


def _row_losses(
    batch: SoftmaxBatch, is_copy: jax.Array, index: jax.Array, hidden: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Returns losses `[block]`, their slopes `[block, candidates]`, and totals `[block]`.

    A slope divided by its row's total is the gradient of the row's loss by a logit.

    Args:
        batch: The inputs.
        is_copy: Whether the candidate's item has an earlier position `[candidates]` bool.
        index: Queries of the block `[block]`.
        hidden: Positions of known items `[block, known]`.
    """
    at = batch.first + index
    scaled = batch.query[index] * batch.scale
    products = _dot(scaled, batch.candidate, (((1,), (1,)), ((), ())))
    same = batch.item_row[at][:, None] == batch.item_row[None, :]
    other = at[:, None] != jnp.arange(batch.item_row.size)[None, :]

    # A positive is never masked, so every row has a finite logit.
    is_excluded = (same | is_copy) & other
    logits = jnp.where(is_excluded, -jnp.inf, products - batch.log_q)
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
    # Blocks are of equal size, with as little padding as possible.
    size = -(-n_queries // n_blocks)
    return jnp.minimum(jnp.arange(n_blocks * size), n_queries - 1).reshape(n_blocks, size)
