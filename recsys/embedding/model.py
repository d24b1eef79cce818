"""The model whose training step updates the touched rows of its tables, and no others.

`SparseModel` is a `keras.Model` with another `train_step`; `compile`, `fit`,
callbacks, schedules, loss scaling, metrics and saving are Keras' own.
"""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import keras
from keras.src import backend
from keras.src.models.functional import Functional
from keras.src.models.model import functional_init_arguments
from keras.src.trainers.data_adapters import data_adapter_utils

from recsys.embedding import accumulation, exchange
from recsys.embedding.accumulation import GradientBuffers
from recsys.embedding.batches import checked_data
from recsys.embedding.counting import ExactCount
from recsys.embedding.exchange import Use
from recsys.embedding.ids import checked_batch, checked_ids
from recsys.embedding.optimizers import RowOptimizer
from recsys.embedding.proof import StepProof, prove_step
from recsys.embedding.rounding import mixed
from recsys.embedding.rows import Numbers
from recsys.embedding.table import Table
from recsys.embedding.taps import Counts, Reading, Tape, recording
from recsys.errors import UsageError

Arrays = list[jax.Array]
_GOLDEN = 0x9E3779B9


class TableStep:
    """What one step knows of one table: its uses, and the gradients of what they returned."""

    def __init__(self, table: Table, optimizer: RowOptimizer) -> None:
        self.table, self.optimizer = table, optimizer
        self.uses: list[Use] = []
        self.grads: Arrays = []

    def add(self, use: Use, grad: jax.Array) -> None:
        """Adds a use of the table."""
        self.uses.append(use)
        self.grads.append(grad)

    def kept_if(self, condition: jax.Array) -> TableStep:
        """Returns this with nothing to update unless `condition`."""
        kept = TableStep(self.table, self.optimizer)
        for use, grad in zip(self.uses, self.grads, strict=True):
            rows = jnp.where(condition, use.lookups.rows, -1)
            kept.add(dataclasses.replace(use, lookups=use.lookups._replace(rows=rows)), grad)
        return kept

    def scaled(self, scale: jax.Array) -> TableStep:
        """Returns this with gradients times `scale`."""
        scaled = TableStep(self.table, self.optimizer)
        for use, grad in zip(self.uses, self.grads, strict=True):
            scaled.add(use, grad * scale)
        return scaled

    def squares(self) -> jax.Array:
        """Returns the sum of squares of the table's gradient, a scalar."""
        table = self.table
        return exchange.squares(table.site, table.places, self.uses, self.grads)

    def updated(self, values: Arrays, scale: jax.Array, is_due: jax.Array | None) -> Arrays:
        """Returns the new values of the table's weights, slots and step count.

        Args:
            values: The values.
            scale: Factor on every gradient.
            is_due: Whether to update at all, a scalar bool; None for always.
        """
        if is_due is None:
            return self._apply(values, scale)
        return accumulation.only_if(is_due, lambda v: self._apply(v, scale), values)

    def _apply(self, values: Arrays, scale: jax.Array) -> Arrays:
        *values, step = values
        table, optimizer = self.table, self.optimizer
        rate = optimizer.rate(step)
        name = zlib.crc32(f"{table.seed} {table.name}".encode())
        numbers = Numbers(
            rate=rate,
            step_size=optimizer.step_size(rate, step),
            scale=jnp.asarray(scale, jnp.float32),
            seed=mixed(step.astype(jnp.uint32) * jnp.uint32(_GOLDEN) ^ jnp.uint32(name)),
            row_offset=jnp.int32(0),
        )
        weights, slots = exchange.apply(
            table.site,
            optimizer,
            values[0],
            tuple(values[1:]),
            self.uses,
            self.grads,
            numbers,
        )
        return [weights, *slots, step + 1]


@keras.saving.register_keras_serializable(package="recsys")
class SparseModel(keras.Model):
    """A Keras model with `ShardedEmbedding` layers; on JAX its tables train row by row.

    The optimizer given to `compile` trains the dense weights; each table has its own.
    `global_clipnorm` of the model's optimizer measures dense and sparse gradients
    together, and `gradient_accumulation_steps` and loss scaling count the tables in.
    Logs hold `unknown_ids`, the ids of the epoch that no vocabulary held, and
    `exchange_overflows`, the rounds that exchanges took beyond the first.

    Attributes:
        step_proof: What the compiled training step holds, checked on the first batch;
            None before it.
    """

    def __new__(cls, *args: Any, **kwargs: Any) -> SparseModel:
        """Makes a functional model a `FunctionalSparseModel`.

        Keras would put `Functional` among the bases of this class for good, and every
        other subclass would break.
        """
        if cls is SparseModel and functional_init_arguments(args, kwargs):
            return super().__new__(FunctionalSparseModel)
        return super().__new__(cls)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.unknown_ids = ExactCount(name="unknown_ids")
        self.exchange_overflows = ExactCount(name="exchange_overflows")
        self._step_counts: Counts | None = None
        self._tape: Tape | None = None
        self.gradient_buffers = GradientBuffers(name="gradient_buffers")
        self._ids_in_step = 0
        self._step_arrays: list[jax.ShapeDtypeStruct] = []
        self.step_proof: StepProof | None = None

    # --- one step

    def train_step(self, state: Any, data: Any) -> Any:
        """Returns logs and the state after one step; see `keras.Model.train_step` on JAX."""
        tv, ntv, ov, mv = state
        x, y, sample_weight = data_adapter_utils.unpack_x_y_sample_weight(data)

        def forward(tv: Arrays, taps: Arrays | None) -> Any:
            with recording(Tape(taps)) as tape:
                loss, aux = self.compute_loss_and_updates(
                    tv, ntv, mv, x, y, sample_weight, training=True, optimizer_variables=ov
                )
            return loss, (aux, tape.readings, tape.total())

        tables, taps = _discovered(lambda: forward(tv, None))

        def differentiable(tv: Arrays, taps: Arrays) -> Any:
            loss, (aux, readings, counts) = forward(tv, taps)
            return loss, (aux, [(r.use, r.out) for r in readings], counts)

        grad_fn = jax.value_and_grad(differentiable, argnums=(0, 1), has_aux=True)
        (_, (aux, read, counts)), (grads, tap_grads) = grad_fn(tv, taps)
        loss, y_pred, ntv, mv = aux
        reads = [*grads, *tap_grads, *(out for _, out in read)]
        uses = [use for use, _ in read]
        self._ids_in_step = sum(use.lookups.rows.shape[0] for use in uses)
        steps = _by_table(tables, uses, tap_grads)
        tv, ntv, ov = self._applied(tv, list(ntv), ov, grads, steps, _after(reads))
        self._step_counts = counts
        logs, mv = self._update_metrics_variables(mv, loss, x, y, y_pred, sample_weight)
        self._step_counts = None
        return logs, (tv, ntv, ov, mv)

    def _applied(
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
        is_due = self._all_finite(grads, steps)
        if is_due is not None:
            steps = [step.kept_if(is_due) for step in steps]
        row_scale = scale
        if self._accumulation_steps():
            # The scale of the loss may change until the update.
            steps = [step.scaled(scale) for step in steps]
            steps, ntv, is_due = self._accumulated(ov, ntv, steps)
            row_scale = jnp.float32(1.0)
        grads, row_scale = self._clipped(ov, grads, steps, scale, row_scale)
        tv, ov = self.optimizer.stateless_apply(ov, grads, tv)
        index = {id(v): i for i, v in enumerate(self.non_trainable_variables)}
        for step in steps:
            at = [index[id(v)] for v in (*step.table.variables_by_row, step.table.steps)]
            values = step.updated([ntv[i] for i in at], row_scale * after_reads, is_due)
            for i, value in zip(at, values, strict=True):
                ntv[i] = value
        return tv, ntv, ov

    def _accumulated(
        self, ov: Arrays, ntv: Arrays, steps: list[TableStep]
    ) -> tuple[list[TableStep], Arrays, jax.Array | None]:
        """Returns the steps since the last update, the buffers, and whether one is due now."""
        count = self._accumulation_steps()
        leaves, structure = jax.tree.flatten([(step.uses, step.grads) for step in steps])
        if not self.gradient_buffers.parts:
            self._step_arrays = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in leaves]
            return steps, ntv, None
        index = {id(v): i for i, v in enumerate(self.non_trainable_variables)}
        at = [index[id(variable)] for variable in self.gradient_buffers.parts]
        counter = ov[_index(self.optimizer.variables, _innermost(self.optimizer)._iterations)]
        buffers = accumulation.kept([ntv[i] for i in at], leaves, counter % count)
        for i, buffer in zip(at, buffers, strict=True):
            ntv[i] = buffer
        joined = [TableStep(step.table, step.optimizer) for step in steps]
        for turn in range(count):
            parts = jax.tree.unflatten(structure, [buffer[turn] for buffer in buffers])
            for step, (uses, grads) in zip(joined, parts, strict=True):
                step.uses += uses
                step.grads += [grad / count for grad in grads]
        return joined, ntv, (counter + 1) % count == 0

    def _accumulation_steps(self) -> int:
        return getattr(_innermost(self.optimizer), "gradient_accumulation_steps", None) or 0

    def _loss_scale(self, ov: Arrays) -> jax.Array:
        mapping = list(zip(self.optimizer.variables, ov, strict=True))
        with backend.StatelessScope(state_mapping=mapping):
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
        optimizer = _innermost(self.optimizer)
        limit = getattr(optimizer, "global_clipnorm", None)
        if limit is None:
            return grads, row_scale
        count = self._accumulation_steps()
        before = [jnp.zeros((), g.dtype) for g in grads]
        if count:
            held = optimizer._accumulated_gradients
            before = [ov[_index(self.optimizer.variables, v)] for v in held]
        totals = [(g * scale + b) / (count or 1) for g, b in zip(grads, before, strict=True)]
        dense = sum((jnp.sum(jnp.square(t)) for t in totals), jnp.float32(0))
        sparse = sum((step.squares() for step in steps), jnp.float32(0)) * row_scale**2
        factor = limit / jnp.maximum(jnp.sqrt(dense + sparse), limit)
        if count:
            # Keras adds what it holds to this, divides, and clips what is short already.
            is_due = (ov[_index(self.optimizer.variables, optimizer._iterations)] + 1) % count == 0
            due = [(t * factor * count - b) / scale for t, b in zip(totals, before, strict=True)]
            grads = [jnp.where(is_due, d, g) for d, g in zip(due, grads, strict=True)]
            return grads, row_scale * factor
        return [g * factor.astype(g.dtype) for g in grads], row_scale * factor

    def _all_finite(self, grads: Arrays, steps: list[TableStep]) -> jax.Array | None:
        """Tells whether a step under loss scaling counts; None if it always does."""
        if not isinstance(self.optimizer, keras.optimizers.LossScaleOptimizer):
            return None
        arrays = [*grads, *(g for step in steps for g in step.grads)]
        return jnp.stack([jnp.all(jnp.isfinite(a)) for a in arrays]).all()

    def test_step(self, state: Any, data: Any) -> Any:
        """Returns logs and the state after evaluating one batch."""
        with recording(Tape(trains=False)) as tape:
            self._tape = tape
            try:
                return super().test_step(state, data)
            finally:
                self._tape = None

    def compute_metrics(self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        """Adds the engine's own counts to the metrics."""
        counts = self._step_counts if self._tape is None else self._tape.total()
        if counts is not None:
            self.unknown_ids.update_state(counts.unknown)
            self.exchange_overflows.update_state(counts.extra_rounds)
        return super().compute_metrics(x, y, y_pred, sample_weight)

    # --- proof

    def make_train_function(self, force: bool = False) -> None:
        """Makes the jitted step, which proves itself on its first batch."""
        if self.run_eagerly or not self.jit_compile:
            super().make_train_function(force)
        elif self.train_function is None or force:
            self.train_function: Any = self._make_function(self._proving())

    def _proving(self) -> Callable[[Any, Any], Any]:
        """Returns the jitted step, which checks its own compiled form when called first."""
        step: Any = None

        def proven(state: Any, data: Any) -> Any:
            nonlocal step
            if step is None:
                state = self._with_buffers(state, data)
                step = _jitted(self.train_step, state)
                # jit keeps what is compiled here, so nothing is compiled twice.
                compiled = step.lower(state, data).compile()
                self.step_proof = prove_step(compiled, self._tables(), self._ids_in_step)
            return step(state, data)

        return proven

    def _with_buffers(self, state: Any, data: Any) -> Any:
        """Returns the state with buffers to accumulate in, made for batches like `data`."""
        if not self._accumulation_steps() or self.gradient_buffers.parts:
            return state
        tv, ntv, ov, mv = state
        known = {id(v): value for v, value in zip(self.non_trainable_variables, ntv, strict=True)}
        jax.eval_shape(self.train_step, state, data)  # fills _step_arrays
        self.gradient_buffers.build_for(self._step_arrays, self._accumulation_steps())
        variables = self.non_trainable_variables
        ntv = [known[id(v)] if id(v) in known else v.value for v in variables]  # noqa: SIM401 purged
        return tv, ntv, ov, mv

    def _tables(self) -> list[Table]:
        return [layer for layer in self._flatten_layers() if isinstance(layer, Table)]

    # --- data

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the model; a functional one would cut 64-bit ids down to its inputs' type."""
        return super().__call__(*(checked_batch(argument) for argument in args), **kwargs)

    def fit(self, x: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Trains; 64-bit ids are checked before JAX cuts them down. See `keras.Model.fit`."""
        validation = kwargs.get("validation_data")
        if isinstance(validation, tuple | list):
            head, *rest = validation
            kwargs["validation_data"] = (checked_data(head), *rest)
        elif validation is not None:
            kwargs["validation_data"] = checked_data(validation)
        return super().fit(checked_data(x), *args, **kwargs)

    def evaluate(self, x: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Evaluates; see `fit`."""
        return super().evaluate(checked_data(x), *args, **kwargs)

    def predict(self, x: Any, *args: Any, **kwargs: Any) -> Any:
        """Predicts; see `fit`."""
        return super().predict(checked_data(x), *args, **kwargs)

    def train_on_batch(self, x: Any, *args: Any, **kwargs: Any) -> Any:
        """Trains on one batch; see `fit`."""
        return super().train_on_batch(checked_data(x), *args, **kwargs)

    def test_on_batch(self, x: Any, *args: Any, **kwargs: Any) -> Any:
        """Evaluates one batch; see `fit`."""
        return super().test_on_batch(checked_data(x), *args, **kwargs)

    def predict_on_batch(self, x: Any) -> Any:
        """Predicts one batch; see `fit`."""
        return super().predict_on_batch(checked_data(x))


@keras.saving.register_keras_serializable(package="recsys")
class FunctionalSparseModel(SparseModel, Functional):
    """What `SparseModel(inputs, outputs)` makes."""

    def _convert_inputs_to_tensors(self, flat_inputs: list[Any]) -> list[Any]:
        """Refuses what Keras would cast to whole numbers, and read as ids, without a word."""
        for x, spec in zip(flat_inputs, self._inputs, strict=True):
            if x is not None and "int" in spec.dtype:
                checked_ids(x, spec.name)
        return super()._convert_inputs_to_tensors(flat_inputs)


def _jitted(step: Any, state: Any) -> Any:
    """Returns `step` compiled to leave the state where it finds it."""
    distribution = keras.distribution.distribution()
    if distribution is None:
        return jax.jit(step, donate_argnums=0)
    places = jax.tree.map(lambda x: x.sharding, state)
    n_devices = int(distribution.device_mesh.devices.size)
    if {len(place.device_set) for place in jax.tree.leaves(places)} != {n_devices}:
        raise UsageError(
            "R305",
            f"Every variable of the model and its optimizer must lie on all {n_devices} devices.",
            "Call recsys.embedding.activate before the model and its optimizer are made.",
            sorted({len(place.device_set) for place in jax.tree.leaves(places)}),
        )
    return jax.jit(step, donate_argnums=0, out_shardings=(None, places))


def _after(reads: Arrays) -> jax.Array:
    """Returns 1.0, which isn't known before all of `reads` are.

    An update writes where lookups read, and where the gradients of learned weights do.
    It must wait for all of them, also where it doesn't need them, or XLA copies the
    table; an optimization barrier is gone by the time that XLA orders its program.
    """
    total = sum((jnp.sum(x, dtype=jnp.float32) for x in reads), jnp.float32(0))
    return jnp.where(total > jnp.inf, jnp.float32(2.0), jnp.float32(1.0))


def _discovered(forward: Callable[[], Any]) -> tuple[list[Table], Arrays]:
    """Returns the tables in the order that a step reads them, and a tap for each reading."""
    found: list[Reading] = []

    def trace() -> jax.Array:
        loss, (_, readings, _) = forward()
        found.extend(readings)
        return loss

    jax.eval_shape(trace)
    return [r.table for r in found], [jnp.zeros(r.out.shape, r.out.dtype) for r in found]


def _by_table(tables: list[Table], uses: list[Use], grads: Arrays) -> list[TableStep]:
    steps: dict[int, TableStep] = {}
    for table, use, grad in zip(tables, uses, grads, strict=True):
        if table.optimizer is not None:
            steps.setdefault(id(table), TableStep(table, table.optimizer)).add(use, grad)
    return list(steps.values())


def _index(variables: list[Any], wanted: Any) -> int:
    return next(i for i, variable in enumerate(variables) if variable is wanted)


def _innermost(optimizer: Any) -> Any:
    return getattr(optimizer, "inner_optimizer", optimizer)
