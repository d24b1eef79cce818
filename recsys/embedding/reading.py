"""Reading one feature on JAX: ids to places, places to pooled rows, a note on the tape."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp

from recsys.embedding import exchange
from recsys.embedding.config import ResolvedTable
from recsys.embedding.lookups import (
    Lookups,
    Ragged,
    bag_maxima,
    dense_lookups,
    normalized,
    ragged_lookups,
)
from recsys.embedding.site import Site, shard_mapped
from recsys.embedding.table import Table
from recsys.embedding.taps import Counts, Reading, active
from recsys.errors import RecsysError, UsageError


def read_feature(table: Table, kind: ResolvedTable, ids: Any, weights: Any) -> jax.Array:
    """Returns the combined embeddings `[batch, dim]` float32 of one feature.

    Args:
        table: The table, or the stack that it is part of.
        kind: What the table is.
        ids: Ids `[batch]`, `[batch, length]`, or a `Ragged`; int32.
        weights: Weights of the ids, or None.
    """
    site = table.site
    ids, weights, n_bags, is_single = _checked(kind, ids, weights)
    values = ids.values if isinstance(ids, Ragged) else ids
    known = (values >= 0) & (values < kind.rows)
    rows = jnp.where(known, values, 0)
    if isinstance(ids, Ragged):
        lookups = _by_device(site, rows, ids.lengths, weights, kind.combiner)
        scale = 1.0
    else:
        lookups, scale = _dense(rows, weights, n_bags, kind.combiner)
    _count(kind, lookups.rows >= 0, ~known.reshape(-1))
    places = table.place(jnp.maximum(lookups.rows, 0) + table.offset(kind.name))
    lookups = lookups._replace(rows=jnp.where(lookups.rows >= 0, places, -1))
    if kind.combiner == "max" and not is_single:
        each = _read(table, site, Lookups(lookups.rows), lookups.rows.shape[0], True)
        return _maxima(site, lookups, n_bags, each)
    if not is_single:
        return _read(table, site, lookups, n_bags, False) * scale
    out = _read(table, site, Lookups(lookups.rows), n_bags, True)
    return out if lookups.weight is None else out * lookups.weight[:, None]


def _checked(kind: ResolvedTable, ids: Any, weights: Any) -> tuple[Any, Any, int, bool]:
    """Returns ids, weights that are numbers, the number of bags, whether bags are single ids."""
    if isinstance(ids, Ragged):
        weights = ids.weights if weights is None else weights
        return ids, _finite(weights), ids.lengths.shape[0], False
    if ids.ndim not in (1, 2):
        raise UsageError(
            "R359",
            f"Ids for table {kind.name!r} must be [batch] or [batch, length].",
            "Flatten further dimensions into the batch.",
            ids.shape,
        )
    is_single = ids.ndim == 1
    if is_single and kind.combiner != "sum":
        weights = None
    return ids, _finite(weights), ids.shape[0], is_single


def _finite(weights: Any) -> jax.Array | None:
    """Returns the weights; one that is no number becomes 0, which takes its id out."""
    if weights is None:
        return None
    weights = jnp.asarray(weights, jnp.float32)
    return jnp.where(jnp.isfinite(weights), weights, 0.0)


def _dense(
    rows: jax.Array, weights: jax.Array | None, n_bags: int, combiner: str
) -> tuple[Lookups, float]:
    """Returns the lookups, and what their sums are to be multiplied by."""
    lookups = dense_lookups(rows, weights)
    if rows.ndim == 1 or combiner == "max":
        return lookups, 1.0
    if weights is not None:
        return normalized(lookups, n_bags, combiner), 1.0
    # Without weights all bags are equally long: no need to send weights around.
    length = max(1, rows.shape[1])
    return lookups, {"sum": 1.0, "mean": 1.0 / length, "sqrtn": length**-0.5}[combiner]


def _by_device(
    site: Site, rows: jax.Array, lengths: jax.Array, weights: jax.Array | None, combiner: str
) -> Lookups:
    """Returns the lookups of ragged bags; each device's values hold its own bags."""

    def local(rows: jax.Array, lengths: jax.Array, weights: jax.Array | None) -> Lookups:
        lookups = ragged_lookups(rows, lengths, weights)
        if combiner != "max":
            lookups = normalized(lookups, lengths.shape[0], combiner)
        return exchange.with_global_bags(site, lookups, lengths.shape[0])

    if site.is_local or lengths.shape[0] % site.n_batch_parts:
        return local(rows, lengths, weights)
    split = site.batch_spec
    has_weights = weights is not None or combiner in ("mean", "sqrtn")
    out: Any = (split, split, split if has_weights else None)
    into = (split, split, None if weights is None else split)
    mapped = shard_mapped(site, lambda *arrays: tuple(local(*arrays)), into, out)
    return Lookups(*mapped(rows, lengths, weights))


def _maxima(site: Site, lookups: Lookups, n_bags: int, each: jax.Array) -> jax.Array:
    if site.is_local or n_bags % site.n_batch_parts:
        return bag_maxima(each, lookups, n_bags)

    def local(lookups: Lookups, each: jax.Array) -> jax.Array:
        n_local = n_bags // site.n_batch_parts
        return bag_maxima(each, exchange.with_local_bags(site, lookups, n_local), n_local)

    specs = jax.tree.map(lambda _: site.batch_spec, lookups)
    return shard_mapped(site, local, (specs, site.batch_spec), site.batch_spec)(lookups, each)


def _count(kind: ResolvedTable, present: jax.Array, unknown: jax.Array) -> None:
    """Counts ids and unknown ones on the tape; stops the run if the table's policy says so."""
    n_unknown = jnp.sum(unknown & present, dtype=jnp.int32)
    if kind.unknown == "error":
        jax.debug.callback(functools.partial(_refuse, kind.name, kind.rows), n_unknown)
    if (tape := active()) is not None:
        n_ids = jnp.sum(present, dtype=jnp.int32)
        tape.counts.append(Counts(n_ids, n_unknown, jnp.int32(0)))


def _refuse(name: str, rows: int, n_unknown: Any) -> None:
    if n_unknown:
        raise RecsysError(
            "R360",
            f"Ids of table {name!r} must be in 0 … {rows - 1}.",
            "Correct the input, or set unknown='row0' to read row 0 for them.",
            f"{int(n_unknown)} others in one batch",
        )


def _read(table: Table, site: Site, lookups: Lookups, n_bags: int, is_single: bool) -> jax.Array:
    if not lookups.rows.shape[0]:  # Bags of length 0: collectives refuse empty arrays.
        return jnp.zeros((n_bags, table.dim), jnp.float32)
    weights = jax.lax.stop_gradient(table.embeddings.value)
    out, use, extra = exchange.read(site, weights, lookups, n_bags, is_single)
    tape = active()
    if tape is None:
        return out
    tape.counts.append(Counts(jnp.int32(0), jnp.int32(0), extra))
    if not table.trainable or table.optimizer is None:
        return out
    return tape.tapped(Reading(table, use, out))
