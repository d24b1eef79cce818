"""Reading one feature on JAX: ids to places, places to pooled rows, a note on the tape."""

from __future__ import annotations

import functools
from collections.abc import Sequence
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
from recsys.embedding.table import FeatureInput, Table
from recsys.embedding.taps import Counts, Reading, active
from recsys.errors import RecsysError, UsageError


def read_features(asked: Sequence[FeatureInput]) -> list[jax.Array]:
    """Returns the combined embeddings `[batch, dim]` float32 of each feature.

    Single ids that go to one table go together, in one exchange.
    """
    found: list[Any] = [None] * len(asked)
    together: dict[tuple[int, int], list[int]] = {}
    for number, one in enumerate(asked):
        if not isinstance(one.ids, Ragged) and one.ids.ndim == 1:
            together.setdefault((id(one.table), one.ids.shape[0]), []).append(number)
        else:
            found[number] = _read_bags(*one)
    for numbers in together.values():
        outs = _read_singles([asked[number] for number in numbers])
        for number, out in zip(numbers, outs, strict=True):
            found[number] = out
    return found


def _read_singles(asked: list[FeatureInput]) -> list[jax.Array]:
    """Returns the embeddings of features `[batch]` of one table."""
    table = asked[0].table
    # On single ids weights matter where they are summed.
    weights = [_finite(one.weights) if one.kind.combiner == "sum" else None for one in asked]
    places = []
    for one, weight in zip(asked, weights, strict=True):
        rows, unknown = _known(one.kind, one.ids)
        places.append(_places(table, one.kind, dense_lookups(rows, weight), unknown))
    # Side by side, not end to end: so each device's part of the batch stays its own.
    stacked = jnp.stack(places, axis=1)
    out = _read(table, table.site, Lookups(stacked.reshape(-1)), stacked.size, True)
    out = out.reshape(*stacked.shape, table.dim)
    return [
        out[:, i] if weight is None else out[:, i] * weight[:, None]
        for i, weight in enumerate(weights)
    ]


def _read_bags(table: Table, kind: ResolvedTable, ids: Any, weights: Any) -> jax.Array:
    """Returns the embeddings of a feature `[batch, length]`, or `Ragged`."""
    site, scale = table.site, 1.0
    if isinstance(ids, Ragged):
        n_bags, values = ids.lengths.shape[0], ids.values
        rows, unknown = _known(kind, values)
        weights = _finite(ids.weights if weights is None else weights)
        lookups = _by_device(site, rows, ids.lengths, weights, kind.combiner)
    else:
        _check_rank(kind, ids)
        n_bags, values = ids.shape[0], ids
        rows, unknown = _known(kind, values)
        lookups, scale = _dense(rows, _finite(weights), n_bags, kind.combiner)
    lookups = lookups._replace(rows=_places(table, kind, lookups, unknown))
    if kind.combiner == "max":
        each = _read(table, site, Lookups(lookups.rows), lookups.rows.shape[0], True)
        return _maxima(site, lookups, n_bags, each)
    return _read(table, site, lookups, n_bags, False) * scale


def _check_rank(kind: ResolvedTable, ids: Any) -> None:
    if ids.ndim != 2:
        raise UsageError(
            "R359",
            f"Ids for table {kind.name!r} must be [batch] or [batch, length].",
            "Flatten further dimensions into the batch.",
            ids.shape,
        )


def _known(kind: ResolvedTable, ids: Any) -> tuple[jax.Array, jax.Array]:
    """Returns rows, 0 for an unknown id, and which ids are unknown, in the shape of `ids`."""
    known = (ids >= 0) & (ids < kind.rows)
    return jnp.where(known, ids, 0), ~known


def _places(table: Table, kind: ResolvedTable, lookups: Lookups, unknown: jax.Array) -> jax.Array:
    """Returns the places `[n]` of lookups in rows, -1 where nothing is; counts them."""
    present = lookups.rows >= 0
    _count(table, kind, present, unknown.reshape(-1))
    places = table.place(jnp.maximum(lookups.rows, 0) + table.offset(kind.name))
    return jnp.where(present, places, -1)


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
    if combiner == "max":
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


def _count(table: Table, kind: ResolvedTable, present: jax.Array, unknown: jax.Array) -> None:
    """Counts ids and unknown ones on the tape; a table's policy may refuse the unknown."""
    n_unknown = jnp.sum(unknown & present, dtype=jnp.int32)
    tape = active()
    if kind.unknown == "error":
        if tape is not None:
            tape.refused.append((table, n_unknown))
        elif isinstance(n_unknown, jax.core.Tracer):
            jax.debug.callback(functools.partial(refuse, kind.name, kind.rows), n_unknown)
        else:
            refuse(kind.name, kind.rows, n_unknown)
    if tape is not None:
        n_ids = jnp.sum(present, dtype=jnp.int32)
        tape.counts.append(Counts(n_ids, n_unknown, jnp.int32(0)))


def refuse(name: str, rows: int, n_unknown: Any) -> None:
    """Raises R360 if there are unknown ids."""
    if n_unknown:
        raise RecsysError(
            "R360",
            f"Ids of table {name!r} must be in 0 … {rows - 1}.",
            "Correct the input, or set unknown='row0' to read row 0 for them.",
            f"{int(n_unknown)} other ids in one batch",
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
