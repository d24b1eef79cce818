"""What is looked up: bags of ids as three flat arrays, and their combiners."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

COMBINERS = ("sum", "mean", "sqrtn", "max")


class Ragged(NamedTuple):
    """Bags of any length, without padding.

    Attributes:
        values: Ids of all bags, one bag after the other `[capacity]`; what follows
            the last bag is not read. On a mesh of n devices each n-th of it holds the
            bags of one device: see `recsys.embedding.ids.ragged`.
        lengths: Ids in each bag `[batch]` int32.
        weights: Weight of each id `[capacity]` float32, or None for 1.
    """

    values: Any
    lengths: Any
    weights: Any = None


class Lookups(NamedTuple):
    """Rows to read, in bags.

    Attributes:
        rows: Row, or place, of each entry `[n]` int32; one outside the table is
            skipped: it adds nothing and is not updated.
        bag: Bag of each entry `[n]` int32, non-decreasing; None for bags of equal
            length, one after the other.
        weight: Weight of each entry `[n]` float32; None for 1.
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


def dense_lookups(rows: jax.Array, weight: jax.Array | None) -> Lookups:
    """Returns the lookups of single ids `[batch]` or padded bags `[batch, length]`.

    An entry of weight 0 is not in its bag.
    """
    flat = rows.reshape(-1)
    if weight is None:
        return Lookups(flat)
    weight = jnp.broadcast_to(weight, rows.shape).reshape(-1).astype(jnp.float32)
    return Lookups(jnp.where(weight != 0, flat, -1), None, weight)


def ragged_lookups(values: jax.Array, lengths: jax.Array, weight: jax.Array | None) -> Lookups:
    """Returns the lookups of ragged bags; entries after the last bag are skipped.

    Args:
        values: Rows `[capacity]` int32.
        lengths: Entries of each bag `[bags]` int32.
        weight: Weights `[capacity]`, or None.
    """
    capacity, n_bags = values.shape[0], lengths.shape[0]
    ends = jnp.cumsum(lengths.astype(jnp.int32))
    position = jnp.arange(capacity, dtype=jnp.int32)
    bag = jnp.searchsorted(ends, position, side="right").astype(jnp.int32)
    inside = bag < n_bags
    if weight is not None:
        weight = jnp.where(inside, weight.astype(jnp.float32), 0.0)
        inside = inside & (weight != 0)
    rows = jnp.where(inside, values, -1)
    return Lookups(rows, jnp.minimum(bag, max(0, n_bags - 1)), weight)


def normalized(lookups: Lookups, n_bags: int, combiner: str) -> Lookups:
    """Returns `lookups` with weights whose plain sum is what `combiner` means.

    `mean` divides by the sum of the weights, `sqrtn` by the root of the sum of their
    squares (as `keras_rs.layers.EmbedReduce`); a bag without entries gives zeros.

    Args:
        lookups: Lookups; skipped ones count nothing.
        n_bags: Number of bags.
        combiner: `sum`, `mean` or `sqrtn`.
    """
    if combiner == "sum":
        return lookups
    weight = jnp.where(lookups.rows >= 0, lookups.weights(), 0.0)
    total = bag_sums(weight if combiner == "mean" else weight * weight, lookups, n_bags)
    if combiner == "sqrtn":
        total = jnp.sqrt(jnp.where(total > 0, total, 1.0)) * (total > 0)
    divisor = jnp.where(total != 0, total, 1.0)
    # A bag whose weights cancel out has no mean; it gives zeros, not infinities.
    scale = jnp.where(total != 0, 1.0 / divisor, 0.0)
    return lookups._replace(weight=weight * scale[lookups.bags(n_bags)])


def bag_sums(x: jax.Array, lookups: Lookups, n_bags: int) -> jax.Array:
    """Returns the sums of `x` `[n, ...]` over the entries of each bag `[n_bags, ...]`."""
    if lookups.bag is None:
        return x.reshape(n_bags, -1, *x.shape[1:]).sum(axis=1)
    return jax.ops.segment_sum(x, lookups.bag, n_bags, indices_are_sorted=True)


def bag_maxima(x: jax.Array, lookups: Lookups, n_bags: int) -> jax.Array:
    """Returns the maxima of `x` `[n, dim]` over each bag; zeros for an empty one."""
    x = jnp.where((lookups.rows >= 0)[:, None], x, -jnp.inf)
    if lookups.bag is None:
        best = x.reshape(n_bags, -1, x.shape[-1]).max(axis=1, initial=-jnp.inf)
    else:
        best = jax.ops.segment_max(x, lookups.bag, n_bags, indices_are_sorted=True)
    return jnp.where(jnp.isneginf(best), 0.0, best)
