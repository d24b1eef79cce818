"""The optimizers' part of a training step: the model's for dense weights, each table's for rows.

The options of the model's optimizer count the tables in: its loss scale, its clipping
by the global norm, its gradient accumulation. A table has no gradient of its size that
could be accumulated, so the lookups of the last steps are kept, with the gradients of
what they returned, and the update takes all of them as if one step had made them.
"""

from __future__ import annotations

import dataclasses
import zlib
from typing import Any

import jax
import jax.numpy as jnp
import keras

from recsys.embedding import exchange
from recsys.embedding.exchange import Use
from recsys.embedding.optimizers import RowOptimizer
from recsys.embedding.rows import Numbers
from recsys.embedding.table import Table
from recsys.errors import UsageError
from recsys.kernels.rounding import mixed

Arrays = list[jax.Array]


class GradientBuffers(keras.layers.Layer):
    """Keeps the arrays of `steps` training steps; built when the first step's are known."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.parts: list[Any] = []
        self.built = True  # Most models never need it.

    def build_for(self, arrays: list[jax.ShapeDtypeStruct], steps: int) -> None:
        """Creates room `[steps, *shape]` for each of `arrays`, split as the batch is."""
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
        """Saves a half-filled buffer too, so that a resumed run goes on exactly."""
        for number, variable in enumerate(self.parts):
            store[str(number)] = keras.ops.convert_to_numpy(variable)

    def load_own_variables(self, store: Any) -> None:
        """Loads what was saved, of whatever shape it is."""
        for number in range(len(store.keys())):
            array = store[str(number)]
            if number >= len(self.parts):
                self._add(number, tuple(array.shape), str(array.dtype))
            self.parts[number].assign(array)


def kept(buffers: Arrays, arrays: Arrays, at: jax.Array) -> Arrays:
    """Returns `buffers` with the arrays of a step at place `at`, a scalar int32.

    Raises:
        UsageError: The batch has another length than the first one.
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
        jax.lax.dynamic_update_index_in_dim(buffer, array.astype(buffer.dtype), at, 0)
        for buffer, array in zip(buffers, arrays, strict=True)
    ]


def only_if(condition: jax.Array, update: Any, values: Arrays) -> Arrays:
    """Returns `update(values)` if `condition`, a scalar bool, else `values`.

    A loop of at most one turn: XLA changes what it carries in place, where it would
    copy what the branches of a conditional change.
    """

    def turn(carry: tuple[jax.Array, Arrays]) -> tuple[jax.Array, Arrays]:
        return jnp.zeros((), bool), update(carry[1])

    return jax.lax.while_loop(lambda carry: carry[0], turn, (condition, values))[1]


_GOLDEN = 0x9E3779B9


@dataclasses.dataclass(frozen=True)
class TableStep:
    """The uses of one table in a step, and the gradients of their outputs."""

    table: Table
    optimizer: RowOptimizer
    uses: list[Use] = dataclasses.field(default_factory=list)
    grads: Arrays = dataclasses.field(default_factory=list)

    def kept_if(self, condition: jax.Array) -> TableStep:
        """Returns this with nothing to update unless `condition`."""
        uses = []
        for use in self.uses:
            rows = jnp.where(condition, use.lookups.rows, -1)
            uses.append(dataclasses.replace(use, lookups=use.lookups._replace(rows=rows)))
        return dataclasses.replace(self, uses=uses)

    def scaled(self, scale: jax.Array) -> TableStep:
        """Returns this with gradients times `scale`."""
        return dataclasses.replace(self, grads=[grad * scale for grad in self.grads])

    def squares(self) -> jax.Array:
        """Returns the sum of squares of the table's gradient, a scalar."""
        table = self.table
        return exchange.squares(table.sharding, table.n_physical, self.uses, self.grads)

    def updated(
        self,
        values: Arrays,
        scale: jax.Array,
        is_due: jax.Array | None,
        rate_share: jax.Array | None = None,
    ) -> Arrays:
        """Returns the new values of the table's weights, slots and step count.

        Args:
            values: The values.
            scale: Factor on every gradient.
            is_due: Whether to update at all, a scalar bool; None for always.
            rate_share: Factor on a learning rate that is a number, a scalar; None: 1.
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
        numbers = Numbers(
            rate=rate,
            step_size=optimizer.step_size(rate, step),
            scale=jnp.asarray(scale, jnp.float32),
            seed=mixed(step.astype(jnp.uint32) * jnp.uint32(_GOLDEN) ^ jnp.uint32(name)),
            row_offset=jnp.int32(0),
        )
        old, *state = values
        weights, slots = exchange.apply(
            table.sharding, optimizer, old, tuple(state), self.uses, self.grads, numbers
        )
        return [weights, *slots, step + 1]


def by_table(tables: list[Table], uses: list[Use], grads: Arrays) -> list[TableStep]:
    """Returns the steps of the tables that learn, each with all its uses."""
    steps: dict[int, TableStep] = {}
    for table, use, grad in zip(tables, uses, grads, strict=True):
        if table.optimizer is not None:
            step = steps.setdefault(id(table), TableStep(table, table.optimizer))
            step.uses.append(use)
            step.grads.append(grad)
    return list(steps.values())


def after(reads: Arrays) -> jax.Array:
    """Returns 1.0, which isn't known before all of `reads` are.

    An update writes where lookups read, and where the gradients of learned weights do.
    It must wait for all of them, also where it doesn't need them, or XLA copies the
    table; an optimization barrier is gone by the time that XLA orders its program.
    """
    total = sum((jnp.sum(x, dtype=jnp.float32) for x in reads), jnp.float32(0))
    return jnp.where(total > jnp.inf, jnp.float32(2.0), jnp.float32(1.0))


def accumulation_steps(optimizer: Any) -> int:
    """Returns the steps that an optimizer accumulates gradients over; 0 for none."""
    return getattr(_innermost(optimizer), "gradient_accumulation_steps", None) or 0


def own_rate(optimizer: Any) -> float | None:
    """Returns the learning rate of the model's optimizer; None of a schedule, and of 0."""
    rate = _innermost(optimizer)._learning_rate
    return float(rate.value) or None if isinstance(rate, keras.Variable) else None


def _innermost(optimizer: Any) -> Any:
    return getattr(optimizer, "inner_optimizer", optimizer)


class StepUpdate:
    """Applies the gradients of one step.

    Args:
        optimizer: The model's optimizer.
        variables: The model's variables that are not trainable, tables among them.
        buffers: Where gradients of tables are accumulated.
        first_rate: Learning rate that the optimizer began with. Tables whose rate is a number
            follow what changes it later, such as callbacks. None: they don't.

    Attributes:
        arrays: What the buffers must hold of each step, once `apply` was traced
            without any.
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
        steps: list[TableStep],
        after_reads: jax.Array,
    ) -> tuple[Arrays, Arrays, Arrays]:
        """Returns all variables after the dense and the sparse updates."""
        scale = 1.0 / self._loss_scale(ov)
        is_due = finite = self._all_finite(grads, steps)
        if finite is not None:
            # Keras looks at the dense gradients, and is to skip the step with the tables.
            grads = [jnp.where(finite, g, jnp.nan) for g in grads]
            steps = [step.kept_if(finite) for step in steps]
        row_scale = scale
        if self.count:
            # The scale of the loss may change until the update.
            steps = [step.scaled(scale) for step in steps]
            steps, ntv, is_due = self._accumulated(ov, ntv, steps)
            if finite is not None and is_due is not None:
                is_due = is_due & finite
            row_scale = jnp.float32(1.0)
        grads, row_scale = self._clipped(ov, grads, steps, scale, row_scale)
        rate_share = self._rate_share(ov)
        tv, ov = self.optimizer.stateless_apply(ov, grads, tv)
        index = {id(v): i for i, v in enumerate(self.variables)}
        for step in steps:
            at = [index[id(v)] for v in (*step.table.variables_by_row, step.table.steps)]
            values = [ntv[i] for i in at]
            values = step.updated(values, row_scale * after_reads, is_due, rate_share)
            for i, value in zip(at, values, strict=True):
                ntv[i] = value
        return tv, ntv, ov

    def _accumulated(
        self, ov: Arrays, ntv: Arrays, steps: list[TableStep]
    ) -> tuple[list[TableStep], Arrays, jax.Array | None]:
        """Returns the steps since the last update, the buffers, and whether one is due now."""
        count = self.count
        leaves, structure = jax.tree.flatten([(step.uses, step.grads) for step in steps])
        if not self.buffers.parts:
            self.arrays = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in leaves]
            return steps, ntv, None
        index = {id(v): i for i, v in enumerate(self.variables)}
        at = [index[id(variable)] for variable in self.buffers.parts]
        counter = ov[self._at(self.inner._iterations)]
        buffers = kept([ntv[i] for i in at], leaves, counter % count)
        for i, buffer in zip(at, buffers, strict=True):
            ntv[i] = buffer
        joined = [TableStep(step.table, step.optimizer) for step in steps]
        for turn in range(count):
            parts = jax.tree.unflatten(structure, [buffer[turn] for buffer in buffers])
            for step, (uses, grads) in zip(joined, parts, strict=True):
                step.uses.extend(uses)
                step.grads.extend(grad / count for grad in grads)
        return joined, ntv, (counter + 1) % count == 0

    def _rate_share(self, ov: Arrays) -> jax.Array | None:
        """Returns the learning rate of this step as a share of the first one, a scalar."""
        if self.first_rate is None:
            return None
        rate, first = ov[self._at(self.inner._learning_rate)], jnp.float32(self.first_rate)
        # Exactly 1 as long as nothing changed it: XLA may divide by multiplying.
        return jnp.where(rate == first, jnp.float32(1.0), rate / first)

    def _loss_scale(self, ov: Arrays) -> jax.Array:
        mapping = list(zip(self.optimizer.variables, ov, strict=True))
        with keras.StatelessScope(state_mapping=mapping):
            return jnp.asarray(self.optimizer.scale_loss(jnp.float32(1.0)), jnp.float32)

    def _clipped(
        self,
        ov: Arrays,
        grads: Arrays,
        steps: list[TableStep],
        scale: jax.Array,
        row_scale: jax.Array,
    ) -> tuple[Arrays, jax.Array]:
        """Clips by the norm of all gradients, dense and sparse; returns grads and rows' factor."""
        optimizer = self.inner
        limit = getattr(optimizer, "global_clipnorm", None)
        if limit is None:
            return grads, row_scale
        count = self.count
        before = [jnp.zeros((), g.dtype) for g in grads]
        if count:
            held = optimizer._accumulated_gradients
            before = [ov[self._at(v)] for v in held]
        totals = [(g * scale + b) / (count or 1) for g, b in zip(grads, before, strict=True)]
        dense = sum((jnp.sum(jnp.square(t)) for t in totals), jnp.float32(0))
        sparse = sum((step.squares() for step in steps), jnp.float32(0)) * row_scale**2
        factor = limit / jnp.maximum(jnp.sqrt(dense + sparse), limit)
        if count:
            # Keras adds what it holds to this, divides, and clips what is short already.
            is_due = (ov[self._at(optimizer._iterations)] + 1) % count == 0
            due = [(t * factor * count - b) / scale for t, b in zip(totals, before, strict=True)]
            grads = [jnp.where(is_due, d, g) for d, g in zip(due, grads, strict=True)]
            return grads, row_scale * factor
        return [g * factor.astype(g.dtype) for g in grads], row_scale * factor

    def _all_finite(self, grads: Arrays, steps: list[TableStep]) -> jax.Array | None:
        """Returns whether a step under loss scaling counts; None if it always does."""
        if not isinstance(self.optimizer, keras.optimizers.LossScaleOptimizer):
            return None
        arrays = [*grads, *(g for step in steps for g in step.grads)]
        return jnp.stack([jnp.all(jnp.isfinite(a)) for a in arrays]).all()

    def _at(self, wanted: Any) -> int:
        """Returns the place of a variable among the optimizer's."""
        return next(i for i, variable in enumerate(self.optimizer.variables) if variable is wanted)
