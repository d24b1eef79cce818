"""Lookups: from ids to pooled embeddings, recorded on the tape of a training step.

On JAX a lookup reads through the exchange and leaves its reading on the step's tape. On
other backends, which serve and evaluate, it gathers rows by `keras.ops` alone.

Row gradients are computed without table gradients. A lookup adds a *tap* to what it
returns: zeros, by which the training step differentiates. The gradient with respect to the
tap is the gradient with respect to the bag's embedding, which is all that an update of the
touched rows needs; the table itself is a constant, and nothing of its size arises. The
shapes of the taps are found by tracing the step once without them.
"""

from __future__ import annotations

import contextlib
import functools
import operator
import threading
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import keras
from keras import ops

from recsys.distributed.collectives import on_each_device
from recsys.embedding import exchange
from recsys.embedding.ids import Ragged
from recsys.embedding.rows import (
    Lookups,
    bag_maxima,
    bag_scales,
    dense_lookups,
    normalized,
    ragged_lookups,
)
from recsys.embedding.sharding import TableSharding
from recsys.embedding.table import FeatureInput, Table
from recsys.embedding.table_config import TableSpec
from recsys.errors import RecsysError, UsageError

# --- the tape of a training step


class Record(NamedTuple):
    """One reading of a table within a step.

    Attributes:
        table: What was read.
        use: What its update needs.
        out: What it returned `[bags, dim]`.
        features: Names of the features that were read.
    """

    table: Table
    use: exchange.Use
    out: jax.Array
    features: tuple[str, ...]


class Counts(NamedTuple):
    """What a step counts, scalars int32.

    Attributes:
        unknown: Ids outside their vocabulary.
        extra_rounds: Rounds that exchanges took beyond the first.
    """

    unknown: jax.Array
    extra_rounds: jax.Array


class Tape:
    """The readings of one step, in their order.

    Args:
        taps: What to add to each; None to find out their shapes.
        trains: Whether tables are to be updated after it.

    Attributes:
        readings: The readings.
        counts: What each counted.
        unknown: Tables that refuse unknown ids, with the unknown ids of each lookup.
    """

    def __init__(self, taps: list[jax.Array] | None = None, trains: bool = True) -> None:
        self.taps, self.trains = taps, trains
        self.readings: list[Record] = []
        self.counts: list[Counts] = []
        self.unknown: list[tuple[Table, jax.Array]] = []

    def tapped(self, reading: Record) -> jax.Array:
        """Records a reading; returns its output, to differentiate by if taps are known."""
        if not self.trains:
            return reading.out
        self.readings.append(reading)
        return reading.out if self.taps is None else reading.out + self.taps[len(self.readings) - 1]

    def total(self) -> Counts:
        """Returns the sums of the counts."""
        total = Counts(jnp.int32(0), jnp.int32(0))
        for counts in self.counts:
            total = Counts(*map(operator.add, total, counts))
        return total


_active = threading.local()


def active() -> Tape | None:
    """Returns the tape of the step that is being traced; None without one."""
    return getattr(_active, "tape", None)


def is_differentiated() -> bool:
    """Returns whether the model that is being called is differentiated by its weights.

    Keras on JAX calls a subclassed model's `call` directly, so its layers aren't told
    that they train. The weights tell: the rule of a custom derivative runs where one of
    its arguments has a tangent, and nowhere else.
    """
    with keras.StatelessScope(initialize_variables=False) as scope:
        outer = scope.original_scope
    values = [] if outer is None else list(outer.state_mapping.values())
    return _is_differentiated_by(
        [value for value in values if jnp.issubdtype(value.dtype, jnp.floating)]
    )


def _is_differentiated_by(arrays: list[jax.Array]) -> bool:
    """Returns whether one of `arrays` has a tangent where this is traced."""
    rules_run: list[bool] = []

    @jax.custom_jvp
    def probe(arrays: list[jax.Array]) -> jax.Array:
        return jnp.float32(0)

    @probe.defjvp
    def _(*_: Any) -> tuple[jax.Array, jax.Array]:
        rules_run.append(True)
        return jnp.float32(0), jnp.float32(0)

    probe(arrays)
    return bool(rules_run)


@contextlib.contextmanager
def recording(tape: Tape) -> Iterator[Tape]:
    """Makes `tape` the active tape inside the context."""
    before = active()
    _active.tape = tape
    try:
        yield tape
    finally:
        _active.tape = before


@contextlib.contextmanager
def reading_by_keras() -> Iterator[None]:
    """Makes lookups gather rows by `keras.ops` inside the context, for a graph of TensorFlow."""
    _active.is_plain = True
    try:
        yield
    finally:
        _active.is_plain = False


def reads_by_keras() -> bool:
    """Returns whether lookups gather rows by `keras.ops`."""
    return keras.backend.backend() != "jax" or getattr(_active, "is_plain", False)


# --- lookups: ids to rows, rows to pooled embeddings


def read_features(inputs: Sequence[FeatureInput]) -> list[jax.Array]:
    """Returns the combined embeddings `[batch, dim]` float32 of each feature.

    Single ids that go to one table go together, in one exchange.
    """
    outputs: list[Any] = [None] * len(inputs)
    together: dict[tuple[int, int], list[int]] = {}
    for number, feature in enumerate(inputs):
        if not isinstance(feature.ids, Ragged) and feature.ids.ndim == 1:
            together.setdefault((id(feature.table), feature.ids.shape[0]), []).append(number)
        else:
            outputs[number] = _read_bags(*feature)
    for numbers in together.values():
        outs = _read_singles([inputs[number] for number in numbers])
        for number, out in zip(numbers, outs, strict=True):
            outputs[number] = out
    return outputs


def _read_singles(features: list[FeatureInput]) -> list[jax.Array]:
    """Returns the embeddings of features `[batch]` of one table."""
    table = features[0].table
    # On single ids weights matter where they are summed.
    weights = [
        _finite(feature.weights) if feature.spec.combiner == "sum" else None for feature in features
    ]
    places = []
    for feature, weight in zip(features, weights, strict=True):
        rows, unknown = _known(feature.spec, feature.ids)
        places.append(_places(table, feature.spec, dense_lookups(rows, weight), unknown))
    # Side by side, not end to end: so each device's part of the batch stays its own.
    stacked = jnp.stack(places, axis=1)
    names = tuple(feature.name for feature in features)
    out = _traced_read(table, Lookups(stacked.reshape(-1)), stacked.size, True, names)
    out = out.reshape(*stacked.shape, table.dim)
    return [
        out[:, i] if weight is None else out[:, i] * weight[:, None]
        for i, weight in enumerate(weights)
    ]


def _read_bags(table: Table, spec: TableSpec, ids: Any, weights: Any, name: str) -> jax.Array:
    """Returns the embeddings of a feature `[batch, length]`, or `Ragged`."""
    sharding, combiner, lengths, factor = table.sharding, spec.combiner, None, 1.0
    if isinstance(ids, Ragged):
        weights = ids.weights if weights is None else weights
        ids, lengths = ids.values, ids.lengths
    elif ids.ndim != 2:
        raise UsageError(
            "R359",
            f"Ids for table {spec.name!r} must be [batch] or [batch, length].",
            "Flatten further dimensions into the batch.",
            ids.shape,
        )
    n_bags = (ids if lengths is None else lengths).shape[0]
    rows, unknown = _known(spec, ids)
    if lengths is None and weights is None and combiner != "max":
        # All bags are equally long: no need to send weights around.
        length = max(1, rows.shape[1])
        factor = {"sum": 1.0, "mean": 1.0 / length, "sqrtn": length**-0.5}[combiner]
        lookups, scales = dense_lookups(rows, None), None
    else:
        lookups, scales = _in_bags(sharding, rows, lengths, weights, combiner)
    lookups = lookups._replace(rows=_places(table, spec, lookups, unknown))
    if combiner == "max":
        each = _traced_read(table, Lookups(lookups.rows), lookups.rows.shape[0], True, (name,))
        return _maxima(sharding, lookups, n_bags, each)
    return _traced_read(table, lookups, n_bags, False, (name,), scales) * factor


def _known(spec: TableSpec, ids: Any) -> tuple[jax.Array, jax.Array]:
    """Returns rows, 0 for an unknown id, and which ids are unknown, in the shape of `ids`."""
    known = (ids >= 0) & (ids < spec.rows)
    return jnp.where(known, ids, 0), ~known


def _places(table: Table, spec: TableSpec, lookups: Lookups, unknown: jax.Array) -> jax.Array:
    """Returns the places `[n]` of lookups in rows, -1 where nothing is; counts them."""
    present = lookups.rows >= 0
    _count(table, spec, present, unknown.reshape(-1))
    places = table.physical(jnp.maximum(lookups.rows, 0) + table.offset(spec.name))
    return jnp.where(present, places, -1)


def _finite(weights: Any) -> jax.Array | None:
    """Returns the weights; a NaN or infinite one becomes 0, which drops its id."""
    if weights is None:
        return None
    weights = jnp.asarray(weights, jnp.float32)
    return jnp.where(jnp.isfinite(weights), weights, 0.0)


def _is_mask(weights: Any) -> bool:
    """Returns whether weights only say which ids are in their bags."""
    return str(getattr(weights, "dtype", None)) == "bool"


def _in_bags(
    sharding: TableSharding,
    rows: jax.Array,
    lengths: jax.Array | None,
    weights: Any,
    combiner: str,
) -> tuple[Lookups, jax.Array | None]:
    """Returns the lookups of bags, and the weight of each bag's ids if they weigh alike.

    That weight travels in place of the ids' own. Each device computes those of its own bags, as
    XLA would gather the sums of all; bags that don't divide by the devices lie one after the
    other, with weights of their own.

    Args:
        sharding: Where the table lies.
        rows: Rows `[batch, length]`; `[capacity]` of ragged bags.
        lengths: Entries of each ragged bag `[batch]`; None: all are `length` long.
        weights: Weights of the entries, or None.
        combiner: How a bag becomes one vector.
    """
    is_divided = combiner in ("mean", "sqrtn")
    are_alike = _is_mask(weights) or (weights is None and is_divided)
    are_alike, weights = are_alike and combiner != "max", _finite(weights)
    n_bags = (rows if lengths is None else lengths).shape[0]
    if lengths is None and weights is not None:
        weights = jnp.broadcast_to(weights, rows.shape)

    def of_bags(
        n_bags: int, rows: jax.Array, lengths: jax.Array | None, weights: jax.Array | None
    ) -> tuple[Lookups, jax.Array | None]:
        if lengths is None:
            lookups = dense_lookups(rows, weights)
        else:
            lookups = ragged_lookups(rows, lengths, weights)
        if combiner == "max":
            return lookups, None
        scales = bag_scales(lookups, n_bags, combiner) if are_alike else None
        return normalized(lookups, n_bags, combiner), scales

    n_local, rest = divmod(n_bags, sharding.n_batch_parts)
    if sharding.is_local or not rows.size or rest:
        return of_bags(n_bags, rows, lengths, weights)[0], None

    def local(*arrays: Any) -> tuple[Lookups, jax.Array | None]:
        lookups, scales = of_bags(n_local, *arrays)
        return exchange.shifted(sharding, lookups, n_local), scales

    split: Any = sharding.batch_spec
    into = tuple(None if array is None else split for array in (rows, lengths, weights))
    places = Lookups(split, into[1], split if weights is not None or is_divided else None)
    spread = on_each_device(local, sharding.mesh, into, (places, split if are_alike else None))
    result: tuple[Lookups, jax.Array | None] = spread(rows, lengths, weights)
    return result


def _maxima(sharding: TableSharding, lookups: Lookups, n_bags: int, each: jax.Array) -> jax.Array:
    if sharding.is_local or n_bags % sharding.n_batch_parts:
        return bag_maxima(each, lookups, n_bags)

    def local(lookups: Lookups, each: jax.Array) -> jax.Array:
        n_local = n_bags // sharding.n_batch_parts
        return bag_maxima(each, exchange.shifted(sharding, lookups, -n_local), n_local)

    specs = jax.tree.map(lambda _: sharding.batch_spec, lookups)
    split = sharding.batch_spec
    return on_each_device(local, sharding.mesh, (specs, split), split)(lookups, each)


def _count(table: Table, spec: TableSpec, present: jax.Array, unknown: jax.Array) -> None:
    """Counts ids and unknown ones on the tape; a table's policy may refuse the unknown."""
    n_unknown = jnp.sum(unknown & present, dtype=jnp.int32)
    tape = active()
    if spec.unknown == "error":
        if tape is not None:
            tape.unknown.append((table, n_unknown))
        elif isinstance(n_unknown, jax.core.Tracer):
            jax.debug.callback(functools.partial(refuse, spec.name, spec.rows), n_unknown)
        else:
            refuse(spec.name, spec.rows, n_unknown)
    if tape is not None:
        tape.counts.append(Counts(n_unknown, jnp.int32(0)))


def refuse(name: str, rows: int, n_unknown: Any) -> None:
    """Raises R360 if there are unknown ids."""
    if n_unknown:
        raise RecsysError(
            "R360",
            f"Ids of table {name!r} must be in 0 … {rows - 1}.",
            "Correct the input, or set unknown='row0' to read row 0 for them.",
            f"{int(n_unknown)} other ids in one batch",
        )


def _traced_read(
    table: Table,
    lookups: Lookups,
    n_bags: int,
    is_single: bool,
    features: tuple[str, ...],
    scales: jax.Array | None = None,
) -> jax.Array:
    if not lookups.rows.shape[0]:  # Bags of length 0: collectives refuse empty arrays.
        return jnp.zeros((n_bags, table.dim), jnp.float32)
    weights = jax.lax.stop_gradient(table.embeddings.value)
    learns_weights = lookups.weight is not None and _is_differentiated_by([lookups.weight])
    out, use, extra = exchange.read(
        table.sharding, weights, lookups, n_bags, is_single, table.exchange, learns_weights, scales
    )
    tape = active()
    if tape is None:
        return out
    tape.counts.append(Counts(jnp.int32(0), extra))
    if not table.learns:
        return out
    return tape.tapped(Record(table, use, out, features))


def read_by_keras(table: Table, spec: TableSpec, ids: Any, weights: Any) -> Any:
    """Returns the combined embeddings `[batch, dim]` float32 of a feature, by `keras.ops` alone.

    The same numbers as `read_features`, which JAX runs.
    """
    if isinstance(ids, Ragged):
        raise UsageError(
            "R361",
            "Ragged bags are read on the JAX backend alone.",
            "Pad them, with weight 0 for padding.",
            type(ids).__name__,
        )
    ids = ops.convert_to_tensor(ids)
    known = ops.logical_and(ids >= 0, ids < spec.rows)
    rows = ops.cast(ops.where(known, ids, ops.zeros_like(ids)), "int32")
    places = table.physical(rows + table.offset(spec.name))
    out = ops.cast(ops.take(table.for_lookups(), places, axis=0), "float32")
    if weights is not None:
        weights = ops.cast(weights, "float32")
        weights = ops.where(ops.isfinite(weights), weights, ops.zeros_like(weights))
    if len(ids.shape) == 1:
        is_weighted = weights is not None and spec.combiner == "sum"
        return out * weights[:, None] if is_weighted else out
    weights = ops.ones_like(out[..., 0]) if weights is None else weights
    return _combined(out, weights, spec.combiner)


def _combined(out: Any, weights: Any, combiner: str) -> Any:
    if combiner == "max":
        best = ops.max(ops.where(weights[..., None] != 0, out, -float("inf")), axis=1)
        return ops.where(best == -float("inf"), ops.zeros_like(best), best)
    summed = ops.sum(out * weights[..., None], axis=1)
    if combiner == "sum":
        return summed
    total = ops.sum(weights if combiner == "mean" else weights * weights, axis=1, keepdims=True)
    total = total if combiner == "mean" else ops.sqrt(total)
    has_any = total != 0
    return ops.where(has_any, summed / ops.where(has_any, total, 1.0), 0.0)
