"""Rows of one device: looked up, pooled, and updated in place.

The JAX functions are the definition and run on every backend. On CPUs the C kernels of
`recsys.kernels` compute the same faster, also inside `jax.jit` and `jax.shard_map`, with equal
bits for any number of threads.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from recsys import kernels
from recsys.embedding.optimizers import RowOptimizer, Slots, Width
from recsys.errors import RecsysError
from recsys.kernels.rounding import round_stochastically


class Lookups(NamedTuple):
    """Rows to read, in bags.

    Attributes:
        rows: Row index of each entry `[n]` int32. An entry with an index outside the table is
            skipped: it adds nothing to its bag and is not updated.
        bag: Bag of each entry `[n]` int32, non-decreasing. None for bags of equal length, one
            after the other.
        weight: Weight of each entry `[n]` float32. None for ones.
    """

    rows: jax.Array
    bag: jax.Array | None = None
    weight: jax.Array | None = None

    def bags(self, n_bags: int) -> jax.Array:
        """Returns the bag of each entry `[n]` int32."""
        if self.bag is not None:
            return self.bag
        n = self.rows.shape[0]
        return jnp.arange(n, dtype=jnp.int32) // max(1, n // max(1, n_bags))

    def weights(self) -> jax.Array:
        """Returns the weight of each entry `[n]` float32."""
        if self.weight is not None:
            return self.weight
        return jnp.ones(self.rows.shape, jnp.float32)

    @property
    def is_entry(self) -> jax.Array:
        """Whether each entry is in its bag `[n]` bool."""
        return self.rows >= 0


class RowGradients(NamedTuple):
    """Gradients of one table's rows, as gradients of its bags.

    The gradient of a row is the sum of `weight · grads[bag]` over its entries.

    Attributes:
        lookups: Rows of the local table.
        grads: Gradients of the bags `[bags, dim]` float32.
    """

    lookups: Lookups
    grads: jax.Array


# --- bags


def padded_lookups(rows: jax.Array, weight: jax.Array | None = None) -> Lookups:
    """Returns the lookups of single ids `[batch]` or padded bags `[batch, length]`.

    Entries of weight 0 are not in their bags.
    """
    flat = rows.reshape(-1)
    if weight is None:
        return Lookups(flat)
    weight = jnp.broadcast_to(weight, rows.shape).reshape(-1).astype(jnp.float32)
    return Lookups(jnp.where(weight != 0, flat, -1), None, weight)


def ragged_lookups(rows: jax.Array, lengths: jax.Array, weight: jax.Array | None) -> Lookups:
    """Returns the lookups of ragged bags; entries after the last bag are padding.

    Args:
        rows: Row indices `[capacity]` int32.
        lengths: Entries of each bag `[bags]` int32.
        weight: Weights `[capacity]`, or None.
    """
    capacity, n_bags = rows.shape[0], lengths.shape[0]
    ends = jnp.cumsum(lengths.astype(jnp.int32))
    position = jnp.arange(capacity, dtype=jnp.int32)
    bag = jnp.searchsorted(ends, position, side="right").astype(jnp.int32)
    is_entry = bag < n_bags
    if weight is not None:
        weight = jnp.where(is_entry, weight.astype(jnp.float32), 0.0)
        is_entry = is_entry & (weight != 0)
    return Lookups(jnp.where(is_entry, rows, -1), jnp.minimum(bag, max(0, n_bags - 1)), weight)


def bag_lookups(
    rows: jax.Array,
    lengths: jax.Array | None,
    weight: jax.Array | None,
    n_bags: int,
    combiner: str,
) -> tuple[Lookups, jax.Array]:
    """Returns the lookups of bags, weighted so that their plain sum is the combined embedding.

    `mean` divides by the sum of the weights, `sqrtn` by the root of the sum of their squares,
    as `keras_rs.layers.EmbedReduce`; an empty bag gives zeros.

    Args:
        rows: Row indices `[bags, length]`, or `[capacity]` of ragged bags, int32.
        lengths: Entries of each ragged bag `[bags]`; None for padded bags.
        weight: Weights in the shape of `rows`, or None.
        n_bags: Number of bags.
        combiner: `sum`, `mean`, `sqrtn` or `max`.

    Returns:
        The lookups, and the scale of each bag's weights `[bags]` float32.
    """
    if lengths is None:
        lookups = padded_lookups(rows, weight)
    else:
        lookups = ragged_lookups(rows, lengths, weight)
    if combiner not in ("mean", "sqrtn"):
        return lookups, jnp.ones((n_bags,), jnp.float32)
    entry_weight = jnp.where(lookups.is_entry, lookups.weights(), 0.0)
    scale = _bag_scale(entry_weight, lookups, n_bags, combiner)
    return lookups._replace(weight=entry_weight * scale[lookups.bags(n_bags)]), scale


def _bag_scale(weight: jax.Array, lookups: Lookups, n_bags: int, combiner: str) -> jax.Array:
    total = bag_sums(weight if combiner == "mean" else weight * weight, lookups, n_bags)
    if combiner == "sqrtn":
        total = jnp.sqrt(jnp.where(total > 0, total, 1.0)) * (total > 0)
    divisor = jnp.where(total != 0, total, 1.0)
    # Weights that sum to 0 have no mean: zeros rather than infinities.
    return jnp.where(total != 0, 1.0 / divisor, 0.0)


def with_bag_weights(lookups: Lookups, bag_weight: jax.Array) -> Lookups:
    """Sets the weight of every entry to the weight of its bag, `bag_weight` `[bags]`."""
    bag = lookups.bags(bag_weight.shape[0])
    return lookups._replace(weight=jnp.where(lookups.is_entry, bag_weight[bag], 0.0))


def bag_sums(x: jax.Array, lookups: Lookups, n_bags: int) -> jax.Array:
    """Returns the sums of `x` `[n, ...]` over the entries of each bag `[bags, ...]`."""
    if lookups.bag is None:
        return x.reshape(n_bags, -1, *x.shape[1:]).sum(axis=1)
    return jax.ops.segment_sum(x, lookups.bag, n_bags, indices_are_sorted=True)


def bag_maxima(x: jax.Array, lookups: Lookups, n_bags: int) -> jax.Array:
    """Returns the maxima of `x` `[n, dim]` over each bag `[bags, dim]`; zeros if it is empty."""
    x = jnp.where(lookups.is_entry[:, None], x, -jnp.inf)
    if lookups.bag is None:
        bags = x.reshape(n_bags, -1, x.shape[-1])
        # XLA's maximum on CPU drops NaN from some shapes.
        has_nan = jnp.isnan(bags).any(axis=1)
        best = jnp.where(has_nan, jnp.nan, bags.max(axis=1, initial=-jnp.inf))
    else:
        best = jax.ops.segment_max(x, lookups.bag, n_bags, indices_are_sorted=True)
    return jnp.where(jnp.isneginf(best), 0.0, best)


# --- reading

float0 = jax.dtypes.float0


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def pool(table: jax.Array, lookups: Lookups, n_bags: int) -> jax.Array:
    """Returns the weighted sums of rows over bags `[bags, dim]` float32.

    Differentiable only in the weights: the gradient of a table is `RowGradients`, never an
    array of the table's size.

    Args:
        table: Rows `[rows, dim]` float32 or bfloat16.
        lookups: Rows to read.
        n_bags: Number of bags.
    """
    if kernels.available():
        out = [((n_bags, table.shape[1]), jnp.float32)]
        return _call("pool", [table, *_arrays(lookups, n_bags)], out)[0]
    picked = gather(table, lookups.rows)
    if lookups.weight is not None:
        picked = picked * lookups.weight[:, None]
    if lookups.bag is None and lookups.rows.shape[0] == n_bags:
        return picked
    return bag_sums(picked, lookups, n_bags)


def gather(table: jax.Array, rows: jax.Array) -> jax.Array:
    """Returns rows `[n, dim]` float32 of `table`; zeros for an index outside it."""
    inside = (rows >= 0) & (rows < table.shape[0])
    safe = jnp.where(inside, rows, table.shape[0])
    return table.at[safe].get(mode="fill", fill_value=0).astype(jnp.float32)


def _pool_forward(
    table: jax.Array, lookups: Lookups, n_bags: int
) -> tuple[jax.Array, tuple[jax.Array, Lookups]]:
    return pool(table, lookups, n_bags), (table, lookups)


def _pool_backward(
    n_bags: int, residual: tuple[jax.Array, Lookups], grads: jax.Array
) -> tuple[None, Any]:
    table, lookups = residual
    return None, lookups_cotangent(table, lookups, grads, n_bags)


pool.defvjp(_pool_forward, _pool_backward)


def lookups_cotangent(table: jax.Array, lookups: Lookups, grads: jax.Array, n_bags: int) -> Any:
    """Returns the cotangent of `lookups`: the gradients of the weights, if there are any."""
    cotangent = jax.tree.map(lambda x: np.zeros(x.shape, float0), lookups._replace(weight=None))
    if lookups.weight is None:
        return cotangent
    return cotangent._replace(weight=weight_grad(table, lookups, grads, n_bags))


def weight_grad(table: jax.Array, lookups: Lookups, grads: jax.Array, n_bags: int) -> jax.Array:
    """Returns the gradients of the weights `[n]` float32: row · gradient of its bag."""
    if kernels.available():
        arrays = _arrays(lookups._replace(weight=None), n_bags)
        out = [(lookups.rows.shape, jnp.float32)]
        return _call("weight_grad", [table, *arrays, grads], out)[0]
    return jnp.sum(gather(table, lookups.rows) * grads[lookups.bags(n_bags)], axis=-1)


# --- updating


class StepScalars(NamedTuple):
    """Scalars of an update that change from step to step.

    Attributes:
        rate: Learning rate.
        step_size: Learning rate with bias correction.
        scale: Factor on every gradient (loss scale, global clipping).
        seed: Seed of the stochastic rounding, uint32.
        row_offset: Physical row of the local table's first row in the whole table, int32.
    """

    rate: jax.Array
    step_size: jax.Array
    scale: jax.Array
    seed: jax.Array
    row_offset: jax.Array


def update(
    optimizer: RowOptimizer,
    table: jax.Array,
    slots: Slots,
    gradients: RowGradients,
    scalars: StepScalars,
    width: Width | None = None,
) -> tuple[jax.Array, Slots]:
    """Returns the table and its slots after one step of the rows in `gradients`.

    Donated arrays are changed in place; no row outside the lookups is read or written.

    Args:
        optimizer: Optimizer of the rows.
        table: Rows `[rows, dim]` float32 or bfloat16.
        slots: State of the rows, `[rows, dim]` or `[rows, 1]` float32.
        gradients: Gradients; a row may occur any number of times.
        scalars: Scalars of the step.
        width: Width of whole rows, if `table` holds some columns of each.
    """
    if width is None and optimizer.has_kernel() and kernels.available():
        return _update_native(optimizer, table, slots, gradients, scalars)
    width = width or Width(table.shape[1])
    return _update(optimizer, table, slots, gradients, scalars, width)


def _update_native(
    optimizer: RowOptimizer,
    table: jax.Array,
    slots: Slots,
    gradients: RowGradients,
    scalars: StepScalars,
) -> tuple[jax.Array, Slots]:
    """Computes `_update` with the C kernel, in place for donated tables and slots."""
    lookups, grads = gradients
    floats = [scalars.rate, scalars.scale, scalars.step_size, 0.0]
    rounding = [jax.lax.bitcast_convert_type(scalars.seed, jnp.int32), scalars.row_offset]
    arguments = [
        table,
        *slots,
        *_arrays(lookups, grads.shape[0]),
        grads,
        jnp.stack([jnp.asarray(x, jnp.float32) for x in floats]),
        jnp.stack([jnp.asarray(x, jnp.int32) for x in rounding]),
    ]
    table, *new = _call(
        "update",
        arguments,
        [(x.shape, x.dtype) for x in (table, *slots)],
        aliases={i: i for i in range(1 + len(slots))},
        optimizer=np.int32(_KINDS.index(optimizer.kind)),
        **{name: np.float64(value) for name, value in optimizer.attributes().items()},
    )
    return table, tuple(new)


def _update(
    optimizer: RowOptimizer,
    table: jax.Array,
    slots: Slots,
    gradients: RowGradients,
    scalars: StepScalars,
    width: Width,
) -> tuple[jax.Array, Slots]:
    rows, grads = unique(gradients, table.shape[0])
    grads = clipped(grads * scalars.scale, optimizer.clipnorm, width)
    old = table.at[rows].get(mode="fill", fill_value=0).astype(jnp.float32)
    old = old - scalars.rate * optimizer.weight_decay * old
    # Padding reads 1, so that no power or root of it is infinite.
    state = tuple(slot.at[rows].get(mode="fill", fill_value=1) for slot in slots)
    new, state = optimizer.apply(old, state, grads, scalars.rate, scalars.step_size, width.mean)
    if table.dtype != jnp.float32:
        physical = rows + scalars.row_offset
        new = round_stochastically(new, physical, scalars.seed, table.dtype, width.first_column)
    write: dict[str, Any] = {"mode": "drop", "unique_indices": True, "indices_are_sorted": True}
    table = table.at[rows].set(new, **write)
    slots = tuple(slot.at[rows].set(s, **write) for slot, s in zip(slots, state, strict=True))
    return table, slots


def clipped(grads: jax.Array, clipnorm: float, width: Width) -> jax.Array:
    """Returns `grads` `[rows, dim]` with the norm of each row at most `clipnorm`, if not 0."""
    if not clipnorm:
        return grads
    norms = jnp.sqrt(width.sum(grads * grads))
    return grads * (clipnorm / jnp.maximum(norms, clipnorm))


def unique(gradients: RowGradients, n_rows: int) -> tuple[jax.Array, jax.Array]:
    """Returns the unique rows and their summed gradients.

    Args:
        gradients: Gradients with duplicates, n entries.
        n_rows: Rows of the table.

    Returns:
        Row indices `[n]` int32, ascending and unique, `n_rows` and above for padding;
        gradients `[n, dim]` float32.
    """
    rows = gradients.lookups.rows
    n = rows.shape[0]
    rows = jnp.where((rows >= 0) & (rows < n_rows), rows, n_rows)
    order = jnp.argsort(rows, stable=True)
    ordered = rows[order]
    first = jnp.concatenate([jnp.ones((1,), bool), ordered[1:] != ordered[:-1]])[:n]
    segment = jnp.cumsum(first) - 1
    per_entry = _per_entry(gradients)[order]
    sums = jax.ops.segment_sum(per_entry, segment, n, indices_are_sorted=True)
    # Indices past the table pad the result: sorted, unique, and dropped when written.
    padding = n_rows + jnp.arange(n, dtype=jnp.int32)
    return padding.at[segment].set(ordered, indices_are_sorted=True), sums


def _per_entry(gradients: RowGradients) -> jax.Array:
    lookups, grads = gradients
    n_bags = grads.shape[0]
    if lookups.bag is None and lookups.rows.shape[0] == n_bags:
        expanded = grads
    else:
        expanded = grads[lookups.bags(n_bags)]
    return expanded if lookups.weight is None else expanded * lookups.weight[:, None]


def sum_squares(gradients: RowGradients, n_rows: int) -> jax.Array:
    """Returns the sum of squares over the unique rows' gradients, a scalar float32."""
    if kernels.available():
        lookups, grads = gradients
        arguments = [*_arrays(lookups, grads.shape[0]), grads]
        return _call("sum_squares", arguments, [((), jnp.float32)], n_rows=np.int64(n_rows))[0]
    rows, grads = unique(gradients, n_rows)
    return jnp.sum(jnp.where((rows < n_rows)[:, None], grads * grads, 0.0))


def concatenate(parts: Sequence[RowGradients]) -> RowGradients:
    """Returns the gradients of several reads of one table as one."""
    if len(parts) == 1:
        return parts[0]
    n_bags = [part.grads.shape[0] for part in parts]
    offsets = np.cumsum([0, *n_bags[:-1]])
    return RowGradients(
        Lookups(
            jnp.concatenate([p.lookups.rows for p in parts]),
            jnp.concatenate(
                [
                    p.lookups.bags(n) + np.int32(offset)
                    for p, n, offset in zip(parts, n_bags, offsets, strict=True)
                ]
            ),
            jnp.concatenate([p.lookups.weights() for p in parts]),
        ),
        jnp.concatenate([p.grads for p in parts]),
    )


# --- C kernels

_KINDS = ("sgd", "adagrad", "row_wise_adagrad", "lazy_adam", "ftrl")
"""Kinds of optimizers in the order of the enum in optimizers.h."""


def _call(
    name: str,
    arguments: list[jax.Array],
    outs: Sequence[tuple[tuple[int, ...], Any]],
    aliases: dict[int, int] | None = None,
    **attributes: np.generic,
) -> list[jax.Array]:
    """Calls a kernel; under `jax.shard_map` each device calls it on its own part."""
    results = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in outs]
    call = jax.ffi.ffi_call(f"recsys_{name}", results, input_output_aliases=aliases)
    return list(call(*arguments, **attributes))


def _arrays(lookups: Lookups, n_bags: int) -> list[jax.Array]:
    """Returns rows, bags and weights as the kernels read them: empty arrays for None.

    Raises:
        RecsysError: A type or length is wrong, which the kernels don't check (R342).
    """
    n = lookups.rows.shape[0]
    arrays = []
    for x, dtype in zip(lookups, (jnp.int32, jnp.int32, jnp.float32), strict=True):
        array = jnp.zeros((0,), dtype) if x is None else x
        if array.dtype != dtype or (x is not None and x.shape != (n,)):
            raise _mismatch("Rows, bags and weights must be int32, int32 and float32.", lookups)
        arrays.append(array)
    if lookups.bag is None and n_bags and n % n_bags:
        raise _mismatch(f"{n_bags} bags without numbers must be of equal length.", lookups)
    return arrays


def _mismatch(rule: str, lookups: Lookups) -> RecsysError:
    received = [None if x is None else f"{x.dtype}{list(x.shape)}" for x in lookups]
    return RecsysError("R342", rule, "Make them by recsys.embedding.rows.", received)
