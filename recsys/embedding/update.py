"""The update of a training step: dense weights by the model's optimizer, rows by each table's.

Loss scaling, clipping by the global norm and gradient accumulation of the model's optimizer
include the tables. No gradient of a table's size exists that could be accumulated. Instead the
lookups of the last steps are buffered with the gradients of their outputs, and the update takes
them as if they were of one step.
"""

from __future__ import annotations

import dataclasses
import zlib
from typing import Any

import jax
import jax.numpy as jnp
import keras

from recsys.embedding import exchange
from recsys.embedding.exchange import TableRead
from recsys.embedding.optimizers import RowOptimizer
from recsys.embedding.rows import StepScalars
from recsys.embedding.table import Table
from recsys.embedding.traffic import TableTraffic
from recsys.errors import UsageError
from recsys.kernels.rounding import mixed

Arrays = list[jax.Array]


class GradientBuffers(keras.layers.Layer):
    """Buffers the arrays of several training steps; built when the shapes of one are known."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.parts: list[Any] = []
        self.built = True  # Most models don't accumulate.

    def build_for(self, arrays: list[jax.ShapeDtypeStruct], steps: int) -> None:
        """Creates a buffer `[steps, *shape]` for each of `arrays`, split like the batch."""
        for number, array in enumerate(arrays):
            self._add(number, (steps, *array.shape), str(array.dtype))

    def _add(self, number: int, shape: tuple[int, ...], dtype: str) -> None:
        distribution = keras.distribution.distribution()
        layout = None
        if distribution is not None and len(shape) > 1:
            axes = (None, distribution.batch_dim_name, *(None for _ in shape[2:]))
            layout = keras.distribution.TensorLayout(axes, distribution.device_mesh)
        variable = keras.Variable(
            keras.initializers.Zeros(),
            shape,
            dtype,
            trainable=False,
            autocast=False,
            name=f"part_{number}",
            layout=layout,
        )
        setattr(self, f"part_{number}", variable)
        self.parts.append(variable)

    def save_own_variables(self, store: Any) -> None:
        """Saves the buffers, half filled or not, so that a run resumes exactly."""
        for number, variable in enumerate(self.parts):
            store[str(number)] = keras.ops.convert_to_numpy(variable)

    def load_own_variables(self, store: Any) -> None:
        """Loads the saved buffers, of any shape."""
        for number in range(len(store.keys())):
            array = store[str(number)]
            if number >= len(self.parts):
                self._add(number, tuple(array.shape), str(array.dtype))
            self.parts[number].assign(array)


def buffered(buffers: Arrays, arrays: Arrays, step: jax.Array) -> Arrays:
    """Writes the arrays of one step into `buffers`, at index `step`, a scalar int32.

    Raises:
        UsageError: The batch differs in length from the first one (R308).
    """
    lengths = [(b.shape[1:], a.shape) for b, a in zip(buffers, arrays, strict=True)]
    if any(room != shape for room, shape in lengths):
        raise UsageError(
            "R308",
            "Batches must be equally long where gradients are accumulated.",
            "Drop the last batch if it is shorter, or pad it with weight 0.",
            next(pair for pair in lengths if pair[0] != pair[1]),
        )
    return [
        jax.lax.dynamic_update_index_in_dim(buffer, array.astype(buffer.dtype), step, 0)
        for buffer, array in zip(buffers, arrays, strict=True)
    ]


def only_if(condition: jax.Array, update: Any, values: Arrays) -> Arrays:
    """Returns `update(values)` if `condition`, a scalar bool, else `values`.

    Runs as a loop of at most one iteration: XLA updates the carry of a loop in place, but copies
    the operands of a conditional.
    """

    def body(carry: tuple[jax.Array, Arrays]) -> tuple[jax.Array, Arrays]:
        return jnp.zeros((), bool), update(carry[1])

    return jax.lax.while_loop(lambda carry: carry[0], body, (condition, values))[1]


_GOLDEN = 0x9E3779B9


@dataclasses.dataclass(frozen=True)
class TableUpdate:
    """The reads of one table in a step, and the gradients of their outputs."""

    table: Table
    optimizer: RowOptimizer
    reads: list[TableRead] = dataclasses.field(default_factory=list)
    grads: Arrays = dataclasses.field(default_factory=list)

    @property
    def traffic(self) -> TableTraffic:
        """The collectives that read and update the table."""
        table, plans = self.table, tuple(read.plan for read in self.reads)
        return TableTraffic(table.name, table.sharding, table.exchange, table.n_physical, plans)

    def only_if(self, condition: jax.Array) -> TableUpdate:
        """Returns this update without rows unless `condition`."""
        reads = []
        for read in self.reads:
            rows = jnp.where(condition, read.lookups.rows, -1)
            reads.append(dataclasses.replace(read, lookups=read.lookups._replace(rows=rows)))
        return dataclasses.replace(self, reads=reads)

    def scaled(self, scale: jax.Array) -> TableUpdate:
        """Returns this update with gradients times `scale`."""
        return dataclasses.replace(self, grads=[grad * scale for grad in self.grads])

    def squares(self) -> jax.Array:
        """Returns the sum of squares of the table's gradient, a scalar."""
        table = self.table
        return exchange.squares(table.sharding, table.n_physical, self.reads, self.grads)

    def updated(
        self,
        values: Arrays,
        scale: jax.Array,
        is_due: jax.Array | None,
        rate_share: jax.Array | None = None,
    ) -> Arrays:
        """Returns the new values of the table's weights, slots and step count.

        Args:
            values: Old values of the weights, the slots and the step count.
            scale: Factor on every gradient.
            is_due: Whether to update, a scalar bool; None for True.
            rate_share: Factor on a constant learning rate, a scalar; None for 1.
        """
        if is_due is None:
            return self._apply(values, scale, rate_share)
        return only_if(is_due, lambda v: self._apply(v, scale, rate_share), values)

    def _apply(self, values: Arrays, scale: jax.Array, rate_share: jax.Array | None) -> Arrays:
        *values, step = values
        table, optimizer = self.table, self.optimizer
        rate = optimizer.rate(step)
        if rate_share is not None and not callable(optimizer.learning_rate):
            rate = rate * rate_share
        name = zlib.crc32(f"{table.seed} {table.name}".encode())
        scalars = StepScalars(
            rate=rate,
            step_size=optimizer.step_size(rate, step),
            scale=jnp.asarray(scale, jnp.float32),
            seed=mixed(step.astype(jnp.uint32) * jnp.uint32(_GOLDEN) ^ jnp.uint32(name)),
            row_offset=jnp.int32(0),
        )
        old, *state = values
        weights, slots = exchange.apply(
            table.sharding, optimizer, old, tuple(state), self.reads, self.grads, scalars
        )
        return [weights, *slots, step + 1]


def table_updates(tables: list[Table], reads: list[TableRead], grads: Arrays) -> list[TableUpdate]:
    """Returns the updates of the tables that learn, each with all its reads."""
    updates: dict[int, TableUpdate] = {}
    for table, read, grad in zip(tables, reads, grads, strict=True):
        if table.optimizer is not None:
            update = updates.setdefault(id(table), TableUpdate(table, table.optimizer))
            update.reads.append(read)
            update.grads.append(grad)
    return list(updates.values())


def dependent_one(reads: Arrays) -> jax.Array:
    """Returns 1.0 with a data dependency on `reads`.

    An update writes where lookups, and the gradients of learned weights, read. It must wait for
    all of them, even for those that it doesn't need, or XLA copies the table. XLA drops
    optimization barriers before it orders its program.
    """
    total = sum((jnp.sum(x, dtype=jnp.float32) for x in reads), jnp.float32(0))
    return jnp.where(total > jnp.inf, jnp.float32(2.0), jnp.float32(1.0))


def accumulation_steps(optimizer: Any) -> int:
    """Returns the steps that an optimizer accumulates gradients over; 0 for none."""
    return getattr(_innermost(optimizer), "gradient_accumulation_steps", None) or 0


def learning_rate(optimizer: Any) -> float | None:
    """Returns the learning rate of the model's optimizer; None for a schedule or 0."""
    rate = _innermost(optimizer)._learning_rate
    return float(rate.value) or None if isinstance(rate, keras.Variable) else None


def _innermost(optimizer: Any) -> Any:
    return getattr(optimizer, "inner_optimizer", optimizer)


class StepUpdate:
    """Applies the gradients of one step.

    Args:
        optimizer: The model's optimizer.
        variables: The model's non-trainable variables, which include the tables.
        buffers: Buffers of accumulated gradients of tables.
        first_rate: Initial learning rate of the optimizer. Tables with a constant learning rate
            follow later changes of it, for example by callbacks; None if they don't.

    Attributes:
        arrays: Shapes that the buffers need, after `apply` was traced without buffers.
    """

    def __init__(
        self,
        optimizer: Any,
        variables: list[Any],
        buffers: GradientBuffers,
        first_rate: float | None = None,
    ) -> None:
        self.optimizer, self.variables, self.buffers = optimizer, variables, buffers
        self.first_rate = first_rate
        self.inner, self.count = _innermost(optimizer), accumulation_steps(optimizer)
        self.arrays: list[jax.ShapeDtypeStruct] = []

    def apply(
        self,
        tv: Arrays,
        ntv: Arrays,
        ov: Arrays,
        grads: Arrays,
        updates: list[TableUpdate],
        one: jax.Array,
    ) -> tuple[Arrays, Arrays, Arrays]:
        """Returns all variables after the dense and the sparse updates.

        Args:
            tv: Trainable variables.
            ntv: Non-trainable variables.
            ov: Variables of the optimizer.
            grads: Gradients of the trainable variables.
            updates: Updates of the tables.
            one: Result of `dependent_one`, which the tables' updates wait for.
        """
        scale = 1.0 / self._loss_scale(ov)
        is_due = finite = self._all_finite(grads, updates)
        if finite is not None:
            # Keras checks the dense gradients; it must skip the step if a table's aren't finite.
            grads = [jnp.where(finite, g, jnp.nan) for g in grads]
            updates = [update.only_if(finite) for update in updates]
        row_scale = scale
        if self.count:
            # The loss scale may change before the accumulated update.
            updates = [update.scaled(scale) for update in updates]
            updates, ntv, is_due = self._accumulated(ov, ntv, updates)
            if finite is not None and is_due is not None:
                is_due = is_due & finite
            row_scale = jnp.float32(1.0)
        grads, row_scale = self._clipped(ov, grads, updates, scale, row_scale)
        rate_share = self._rate_share(ov)
        tv, ov = self.optimizer.stateless_apply(ov, grads, tv)
        index_of = {id(v): i for i, v in enumerate(self.variables)}
        for update in updates:
            variables = (*update.table.variables_by_row, update.table.steps)
            indices = [index_of[id(v)] for v in variables]
            values = [ntv[i] for i in indices]
            values = update.updated(values, row_scale * one, is_due, rate_share)
            for i, value in zip(indices, values, strict=True):
                ntv[i] = value
        return tv, ntv, ov

    def _accumulated(
        self, ov: Arrays, ntv: Arrays, updates: list[TableUpdate]
    ) -> tuple[list[TableUpdate], Arrays, jax.Array | None]:
        """Returns the updates since the last one, the buffers, and whether an update is due."""
        count = self.count
        leaves, structure = jax.tree.flatten([(update.reads, update.grads) for update in updates])
        if not self.buffers.parts:
            self.arrays = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in leaves]
            return updates, ntv, None
        index_of = {id(v): i for i, v in enumerate(self.variables)}
        indices = [index_of[id(variable)] for variable in self.buffers.parts]
        counter = ov[self._index(self.inner._iterations)]
        buffers = buffered([ntv[i] for i in indices], leaves, counter % count)
        for i, buffer in zip(indices, buffers, strict=True):
            ntv[i] = buffer
        joint = [TableUpdate(update.table, update.optimizer) for update in updates]
        for step in range(count):
            parts = jax.tree.unflatten(structure, [buffer[step] for buffer in buffers])
            for update, (reads, grads) in zip(joint, parts, strict=True):
                update.reads.extend(reads)
                update.grads.extend(grad / count for grad in grads)
        return joint, ntv, (counter + 1) % count == 0

    def _rate_share(self, ov: Arrays) -> jax.Array | None:
        """Returns the learning rate of this step divided by the initial one, a scalar."""
        if self.first_rate is None:
            return None
        rate, first = ov[self._index(self.inner._learning_rate)], jnp.float32(self.first_rate)
        # Exactly 1 until the rate changes: XLA may replace a division by a multiplication.
        return jnp.where(rate == first, jnp.float32(1.0), rate / first)

    def _loss_scale(self, ov: Arrays) -> jax.Array:
        mapping = list(zip(self.optimizer.variables, ov, strict=True))
        with keras.StatelessScope(state_mapping=mapping):
            return jnp.asarray(self.optimizer.scale_loss(jnp.float32(1.0)), jnp.float32)

    def _clipped(
        self,
        ov: Arrays,
        grads: Arrays,
        updates: list[TableUpdate],
        scale: jax.Array,
        row_scale: jax.Array,
    ) -> tuple[Arrays, jax.Array]:
        """Clips by the global norm of dense and sparse gradients; returns both with their scale."""
        optimizer = self.inner
        limit = getattr(optimizer, "global_clipnorm", None)
        if limit is None:
            return grads, row_scale
        count = self.count
        before = [jnp.zeros((), g.dtype) for g in grads]
        if count:
            accumulated = optimizer._accumulated_gradients
            before = [ov[self._index(v)] for v in accumulated]
        totals = [(g * scale + b) / (count or 1) for g, b in zip(grads, before, strict=True)]
        dense = sum((jnp.sum(jnp.square(t)) for t in totals), jnp.float32(0))
        sparse = sum((update.squares() for update in updates), jnp.float32(0)) * row_scale**2
        factor = limit / jnp.maximum(jnp.sqrt(dense + sparse), limit)
        if count:
            # Keras adds its accumulated gradients, divides, and clips again without effect.
            is_due = (ov[self._index(optimizer._iterations)] + 1) % count == 0
            due = [(t * factor * count - b) / scale for t, b in zip(totals, before, strict=True)]
            grads = [jnp.where(is_due, d, g) for d, g in zip(due, grads, strict=True)]
            return grads, row_scale * factor
        return [g * factor.astype(g.dtype) for g in grads], row_scale * factor

    def _all_finite(self, grads: Arrays, updates: list[TableUpdate]) -> jax.Array | None:
        """Returns whether all gradients are finite under loss scaling; None without scaling."""
        if not isinstance(self.optimizer, keras.optimizers.LossScaleOptimizer):
            return None
        arrays = [*grads, *(g for update in updates for g in update.grads)]
        return jnp.stack([jnp.all(jnp.isfinite(a)) for a in arrays]).all()

    def _index(self, wanted: Any) -> int:
        """Returns the index of a variable among the optimizer's variables."""
        return next(i for i, variable in enumerate(self.optimizer.variables) if variable is wanted)
