"""Lookups: from ids to pooled embeddings, recorded on the tape of a training step.

On JAX a lookup reads through the exchange and records the read on the step's tape. On other
backends, which serve and evaluate, it gathers rows with `keras.ops`.

Row gradients are computed without table gradients. A lookup adds a *tap* to its output: zeros
that the training step differentiates by. The gradient of the tap is the gradient of the bag's
embedding, which is all that the update of the touched rows needs. The table itself is a
constant, and no array of its size arises. The shapes of the taps are found by tracing the step
once without them.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import keras
from keras import ops

from recsys.distributed.collectives import on_each_device
from recsys.embedding import exchange
from recsys.embedding.exchange import TableRead
from recsys.embedding.ids import Ragged
from recsys.embedding.rows import Lookups, bag_lookups, bag_maxima, padded_lookups
from recsys.embedding.sharding import TableSharding
from recsys.embedding.table import FeatureInput, Table
from recsys.embedding.table_config import TableSpec
from recsys.errors import RecsysError, UsageError

# --- reading features


def read_features(features: Sequence[FeatureInput]) -> list[jax.Array]:
    """Returns the pooled embeddings `[batch, dim]` float32 of each feature.

    Single ids of one table are read together, by one exchange.
    """
    outputs: dict[int, jax.Array] = {}
    together: dict[tuple[int, int], list[int]] = {}
    for i, feature in enumerate(features):
        if not isinstance(feature.ids, Ragged) and feature.ids.ndim == 1:
            together.setdefault((id(feature.table), feature.ids.shape[0]), []).append(i)
        else:
            outputs[i] = _read_bags(feature)
    for indices in together.values():
        singles = _read_singles([features[i] for i in indices])
        outputs |= zip(indices, singles, strict=True)
    return [outputs[i] for i in range(len(features))]


def _read_singles(features: list[FeatureInput]) -> list[jax.Array]:
    """Returns the embeddings `[batch, dim]` of single ids of one table."""
    table = features[0].table
    # As in keras-rs, weights of single ids count only if they are summed.
    weights = [
        _finite(feature.weights) if feature.spec.combiner == "sum" else None for feature in features
    ]
    columns = []
    for feature, weight in zip(features, weights, strict=True):
        rows, is_unknown = _rows_of_ids(table, feature.spec, feature.ids)
        lookups = padded_lookups(rows, weight)
        _count_unknown(table, feature.spec, is_unknown, lookups)
        columns.append(lookups.rows)
    # Stacked along axis 1, so that each device's part of the batch stays its own.
    rows = jnp.stack(columns, axis=1)
    names = tuple(feature.name for feature in features)
    lookups = Lookups(rows.reshape(-1))
    read = _read_table(table, lookups, rows.size, names, is_single=True)
    read = read.reshape(*rows.shape, table.dim)
    return [
        read[:, i] if weight is None else read[:, i] * weight[:, None]
        for i, weight in enumerate(weights)
    ]


def _read_bags(feature: FeatureInput) -> jax.Array:
    """Returns the pooled embeddings `[batch, dim]` of ids `[batch, length]` or `Ragged`."""
    table, spec, ids, weights, name = feature
    sharding, combiner, lengths = table.sharding, spec.combiner, None
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
    rows, is_unknown = _rows_of_ids(table, spec, ids)
    factor, bag_weight = 1.0, None
    if lengths is None and weights is None and combiner != "max":
        # Bags of equal length without weights: scale the sums instead of sending weights.
        length = max(1, rows.shape[1])
        factor = {"sum": 1.0, "mean": 1.0 / length, "sqrtn": length**-0.5}[combiner]
        lookups = padded_lookups(rows)
    else:
        lookups, bag_weight = _bags_by_device(sharding, rows, lengths, weights, combiner)
    _count_unknown(table, spec, is_unknown, lookups)
    if combiner == "max":
        rows, n_ids = lookups.rows, lookups.rows.shape[0]
        each = _read_table(table, Lookups(rows), n_ids, (name,), is_single=True)
        return _maxima(sharding, lookups, n_bags, each)
    pooled = _read_table(table, lookups, n_bags, (name,), bag_weight=bag_weight)
    return pooled * factor


def _rows_of_ids(table: Table, spec: TableSpec, ids: Any) -> tuple[jax.Array, jax.Array]:
    """Returns physical rows, and which ids are unknown (they read row 0), shaped as `ids`."""
    is_known = (ids >= 0) & (ids < spec.rows)
    return table.physical_of(spec.name, jnp.where(is_known, ids, 0)), ~is_known


def _finite(weights: Any) -> jax.Array | None:
    """Replaces weights that are NaN or infinite by 0, which drops their ids."""
    if weights is None:
        return None
    weights = jnp.asarray(weights, jnp.float32)
    return jnp.where(jnp.isfinite(weights), weights, 0.0)


def _bags_by_device(
    sharding: TableSharding,
    rows: jax.Array,
    lengths: jax.Array | None,
    weights: Any,
    combiner: str,
) -> tuple[Lookups, jax.Array | None]:
    """Returns the lookups of bags, and the common weight of each bag's entries, if they have one.

    Each device computes the weights of its own bags: XLA would gather the sums of all. Bags that
    don't divide among the devices are computed as one batch, without common weights.

    Args:
        sharding: Sharding of the table.
        rows: Physical rows `[batch, length]`, or `[capacity]` of ragged bags.
        lengths: Entries of each ragged bag `[batch]`; None for padded bags.
        weights: Weights of the entries, a mask, or None.
        combiner: `sum`, `mean`, `sqrtn` or `max`.
    """
    is_mask = str(getattr(weights, "dtype", None)) == "bool"
    has_scale = combiner in ("mean", "sqrtn")
    has_bag_weight = combiner != "max" and (is_mask or (weights is None and has_scale))
    weights = _finite(weights)
    n_bags = (rows if lengths is None else lengths).shape[0]
    if lengths is None and weights is not None:
        weights = jnp.broadcast_to(weights, rows.shape)
    n_local, rest = divmod(n_bags, sharding.n_batch_parts)
    if sharding.is_local or not rows.size or rest:
        return bag_lookups(rows, lengths, weights, n_bags, combiner)[0], None

    def local(
        rows: jax.Array, lengths: jax.Array | None, weights: jax.Array | None
    ) -> tuple[Lookups, jax.Array | None]:
        lookups, scale = bag_lookups(rows, lengths, weights, n_local, combiner)
        return exchange.shifted(sharding, lookups, n_local), scale if has_bag_weight else None

    split: Any = sharding.batch_spec
    into = tuple(None if array is None else split for array in (rows, lengths, weights))
    lookup_specs = Lookups(split, into[1], split if weights is not None or has_scale else None)
    out_specs = (lookup_specs, split if has_bag_weight else None)
    spread = on_each_device(local, sharding.mesh, into, out_specs)
    result: tuple[Lookups, jax.Array | None] = spread(rows, lengths, weights)
    return result


def _maxima(sharding: TableSharding, lookups: Lookups, n_bags: int, each: jax.Array) -> jax.Array:
    """Returns the maxima over bags `[bags, dim]` of the embedding of each entry `[n, dim]`."""
    if sharding.is_local or n_bags % sharding.n_batch_parts:
        return bag_maxima(each, lookups, n_bags)

    def local(lookups: Lookups, each: jax.Array) -> jax.Array:
        n_local = n_bags // sharding.n_batch_parts
        return bag_maxima(each, exchange.shifted(sharding, lookups, -n_local), n_local)

    split = sharding.batch_spec
    specs = jax.tree.map(lambda _: split, lookups)
    return on_each_device(local, sharding.mesh, (specs, split), split)(lookups, each)


def _count_unknown(table: Table, spec: TableSpec, is_unknown: jax.Array, lookups: Lookups) -> None:
    """Counts unknown ids on the tape; without one, raises R360 if the table refuses them."""
    n_unknown = jnp.sum(is_unknown.reshape(-1) & lookups.is_entry, dtype=jnp.int32)
    tape = active()
    if tape is not None:
        tape.count_unknown(table, n_unknown, is_refused=spec.unknown == "error")
    elif spec.unknown == "error":
        if isinstance(n_unknown, jax.core.Tracer):
            jax.debug.callback(functools.partial(refuse, spec.name, spec.rows), n_unknown)
        else:
            refuse(spec.name, spec.rows, n_unknown)


def refuse(name: str, rows: int, n_unknown: Any) -> None:
    """Raises R360 if there are unknown ids."""
    if n_unknown:
        raise RecsysError(
            "R360",
            f"Ids of table {name!r} must be in 0 … {rows - 1}.",
            "Correct the input, or set unknown='row0' to read row 0 for them.",
            f"{int(n_unknown)} other ids in one batch",
        )


def _read_table(
    table: Table,
    lookups: Lookups,
    n_bags: int,
    features: tuple[str, ...],
    is_single: bool = False,
    bag_weight: jax.Array | None = None,
) -> jax.Array:
    """Returns pooled rows `[bags, dim]` of `table`, recorded on the tape if it learns."""
    if not lookups.rows.shape[0]:  # Collectives refuse empty arrays.
        return jnp.zeros((n_bags, table.dim), jnp.float32)
    learns_weights = lookups.weight is not None and _has_tangent([lookups.weight])
    output, read, extra_rounds = exchange.read(
        table.sharding,
        jax.lax.stop_gradient(table.embeddings.value),
        lookups,
        n_bags,
        table.exchange,
        is_single,
        learns_weights,
        bag_weight,
        features,
    )
    tape = active()
    return output if tape is None else tape.record(table, read, output, extra_rounds)


# --- the tape of a training step


class StepCounts(NamedTuple):
    """Counts of a step, scalars int32.

    Attributes:
        unknown: Ids outside their vocabulary.
        extra_rounds: Rounds of exchanges beyond the first.
    """

    unknown: jax.Array
    extra_rounds: jax.Array


class Tape:
    """The table reads of one step, in order.

    Args:
        taps: Zeros to add to each read's output; None to find out their shapes.
        trains: Whether the step updates tables.

    Attributes:
        tables: Table of each read that is recorded.
        reads: The reads.
        outputs: Pooled rows of each read `[bags, dim]` float32, without its tap.
        counts: Sums over all reads.
        refused: Pairs of a table that refuses unknown ids and their number in one lookup.
    """

    def __init__(self, taps: list[jax.Array] | None = None, trains: bool = True) -> None:
        self.taps, self.trains = taps, trains
        self.tables: list[Table] = []
        self.reads: list[TableRead] = []
        self.outputs: list[jax.Array] = []
        self.counts = StepCounts(jnp.int32(0), jnp.int32(0))
        self.refused: list[tuple[Table, jax.Array]] = []

    def count_unknown(self, table: Table, n_unknown: jax.Array, is_refused: bool) -> None:
        """Adds the unknown ids of one lookup."""
        self.counts = self.counts._replace(unknown=self.counts.unknown + n_unknown)
        if is_refused:
            self.refused.append((table, n_unknown))

    def record(
        self, table: Table, read: TableRead, output: jax.Array, extra_rounds: jax.Array
    ) -> jax.Array:
        """Adds one read; returns its output, plus its tap if taps are known."""
        rounds = self.counts.extra_rounds + extra_rounds
        self.counts = self.counts._replace(extra_rounds=rounds)
        if not (self.trains and table.learns):
            return output
        self.tables.append(table)
        self.reads.append(read)
        self.outputs.append(output)
        return output if self.taps is None else output + self.taps[len(self.reads) - 1]


_active = threading.local()


def active() -> Tape | None:
    """Returns the tape of the step that is being traced, if there is one."""
    return getattr(_active, "tape", None)


@contextlib.contextmanager
def recording(tape: Tape) -> Iterator[Tape]:
    """Makes `tape` the active tape inside the context."""
    before = active()
    _active.tape = tape
    try:
        yield tape
    finally:
        _active.tape = before


def is_differentiated() -> bool:
    """Returns whether the model that is being called is differentiated by its weights.

    Keras on JAX calls a subclassed model's `call` directly, so `training` doesn't reach its
    layers. Tangents show it: the rule of a custom derivative runs only if an argument has one.
    """
    with keras.StatelessScope(initialize_variables=False) as scope:
        outer = scope.original_scope
    values = [] if outer is None else list(outer.state_mapping.values())
    return _has_tangent([value for value in values if jnp.issubdtype(value.dtype, jnp.floating)])


def _has_tangent(arrays: list[jax.Array]) -> bool:
    """Returns whether one of `arrays` has a tangent in the current trace."""
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


# --- other backends


@contextlib.contextmanager
def reading_by_keras() -> Iterator[None]:
    """Makes lookups gather rows with `keras.ops` inside the context, for a TensorFlow graph."""
    _active.is_plain = True
    try:
        yield
    finally:
        _active.is_plain = False


def reads_by_keras() -> bool:
    """Returns whether lookups gather rows with `keras.ops`."""
    return keras.backend.backend() != "jax" or getattr(_active, "is_plain", False)


def read_by_keras(table: Table, spec: TableSpec, ids: Any, weights: Any) -> Any:
    """Returns the pooled embeddings `[batch, dim]` float32 of a feature, with `keras.ops`.

    The result equals that of `read_features`, which runs on JAX.
    """
    if isinstance(ids, Ragged):
        raise UsageError(
            "R361",
            "Ragged bags are read only on the JAX backend.",
            "Pad them, with weight 0 for padding.",
            type(ids).__name__,
        )
    ids = ops.convert_to_tensor(ids)
    known = ops.logical_and(ids >= 0, ids < spec.rows)
    rows = ops.cast(ops.where(known, ids, ops.zeros_like(ids)), "int32")
    rows = table.physical_of(spec.name, rows)
    out = ops.cast(ops.take(table.for_lookups(), rows, axis=0), "float32")
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
