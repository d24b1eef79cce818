"""A Keras model whose training step updates only the touched rows of its tables.

`SparseModel` is a `keras.Model` with its own `train_step`; `compile`, `fit`, callbacks,
schedules, loss scaling, metrics and saving are those of Keras.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
from keras import ops
from keras.src.models.functional import Functional  # It has no public name.

from recsys.embedding.ids import checked_batch, checked_data, checked_ids
from recsys.embedding.layout import (
    LayoutDistribution,
    check_rules,
    on_mesh,
    place_variable,
    tables_of,
)
from recsys.embedding.lookup import StepCounts, Tape, reading_by_keras, recording, refuse
from recsys.embedding.step_check import StepProof, check_step
from recsys.embedding.table import Table, summary_lines
from recsys.embedding.table_rows import tables_by_name
from recsys.embedding.traffic import TableTraffic
from recsys.embedding.update import (
    GradientBuffers,
    StepUpdate,
    accumulation_steps,
    dependent_one,
    learning_rate,
    table_updates,
)
from recsys.errors import UsageError

_LIMB = 2**30


@keras.saving.register_keras_serializable(package="recsys")
class ExactCount(keras.metrics.Metric):
    """Sums int32 counts exactly; a float32 sum would stop growing at 2²⁴.

    The result is float32, so counts past 2²⁴ are shown rounded.
    """

    def __init__(self, name: str = "count", **kwargs: Any) -> None:
        super().__init__(name=name, **kwargs)
        self.low: Any = None
        self.high: Any = None

    def build(self) -> None:
        """Creates the variables under the active distribution."""
        if self.low is None:
            self.low = self.add_variable((), "zeros", dtype="int32", name="low")
            self.high = self.add_variable((), "zeros", dtype="int32", name="high")

    def update_state(self, count: Any, *_: Any, **__: Any) -> None:
        """Adds `count`, a scalar int32 below 2³⁰."""
        total = self.low + ops.cast(count, "int32")
        self.high.assign(self.high + total // _LIMB)
        self.low.assign(total % _LIMB)

    def result(self) -> Any:
        """Returns the count, float32."""
        return ops.cast(self.high, "float32") * float(_LIMB) + ops.cast(self.low, "float32")


class _Tables:
    """`model.tables`; a subclass may set its own attribute of that name."""

    def __get__(self, model: Any, owner: type) -> Any:
        return self if model is None else tables_by_name(model)


Arrays = list[jax.Array]
_LOG = logging.getLogger(__name__)


@keras.saving.register_keras_serializable(package="recsys")
class SparseModel(keras.Model):
    """A Keras model with `ShardedEmbedding` layers, whose tables get sparse updates on JAX.

    The optimizer of `compile` trains the dense weights; each table has its own optimizer.
    `global_clipnorm`, `gradient_accumulation_steps` and loss scaling of the model's optimizer
    include the tables' gradients. Logs have `unknown_ids`, the number of out-of-vocabulary ids
    in the epoch, and `exchange_overflows`, the rounds of exchanges beyond the first.

    Attributes:
        step_proof: Properties of the compiled training step, checked on the first batch; None
            before it.
        step_traffic: Collectives of each table in a training step, after it was traced.
        tables: `EmbeddingTable`s by name, to read, assign and add rows.
        tables_can_grow: Whether rows may be added to tables.

    Example:
        ```python
        model = SparseModel(inputs, outputs)  # or a subclass with `call`
        model.compile("adam", loss="mse")
        model.fit(x, y)
        ```
    """

    def __new__(cls, *args: Any, **kwargs: Any) -> SparseModel:
        """Makes a `FunctionalSparseModel` of inputs and outputs.

        Keras would add `Functional` to the bases of this class, which breaks other subclasses.
        """
        is_functional = len(args) + ("inputs" in kwargs) + ("outputs" in kwargs) == 2
        if cls is SparseModel and is_functional:
            return super().__new__(FunctionalSparseModel)
        return super().__new__(cls)

    tables = _Tables()
    tables_can_grow = True
    _summarizes = False
    _exports = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.unknown_ids = ExactCount(name="unknown_ids")
        self.exchange_overflows = ExactCount(name="exchange_overflows")
        self._step_counts: StepCounts | None = None
        self._tape: Tape | None = None
        self.gradient_buffers = GradientBuffers(name="gradient_buffers")
        self._ids_in_step = 0
        self._step_arrays: list[jax.ShapeDtypeStruct] = []
        self.step_proof: StepProof | None = None
        self.step_traffic: tuple[TableTraffic, ...] = ()
        self._first_rate: float | None = None
        self._input: str | None = None  # Spec of the first call's input, see `_described`.

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Compiles the model; see `keras.Model.compile`."""
        super().compile(*args, **kwargs)
        self.unknown_ids.build()
        self.exchange_overflows.build()
        self._first_rate = learning_rate(self.optimizer)

    def get_compile_config(self) -> dict[str, Any] | None:
        """Returns the arguments of `compile`, and the initial learning rate."""
        config: dict[str, Any] | None = super().get_compile_config()
        return config and {**config, "first_rate": self._first_rate}

    def compile_from_config(self, config: dict[str, Any]) -> None:
        """Compiles a loaded model; Keras doesn't if a subclass overrides `compile`."""
        config = dict(config)
        first_rate = config.pop("first_rate", None)
        self.compile(**keras.saving.deserialize_keras_object(config))
        self._first_rate = first_rate or self._first_rate
        if self.built:
            self.optimizer.build(self.trainable_variables)

    def forget_steps(self) -> None:
        """Makes the next training, evaluation and prediction compile again."""
        for name in ("train_function", "test_function", "predict_function", "step_proof"):
            setattr(self, name, None)

    # --- saving

    def get_build_config(self) -> dict[str, Any] | None:
        """Returns shapes and dtypes of the inputs; Keras would build with floats."""
        config: dict[str, Any] | None = super().get_build_config()
        return config if self._input is None else {**(config or {}), "input": self._input}

    def build_from_config(self, config: dict[str, Any]) -> None:
        """Builds a loaded model by a call with inputs of the saved shapes and dtypes."""
        text = (config or {}).pop("input", None)
        if text is None or type(self).build is not keras.Model.build:
            super().build_from_config(config)
        else:
            self(_inputs(text, lambda shape, dtype: keras.KerasTensor(shape, dtype)))

    def export(self, filepath: Any, *args: Any, input_signature: Any = None, **kwargs: Any) -> None:
        """Exports the model without optimizer state; see `keras.Model.export`."""
        if input_signature is None and self._input is not None:
            spec = _inputs(
                self._input, lambda shape, dtype: keras.InputSpec(dtype, (None, *shape[1:]))
            )
            input_signature = [spec]
        self._exports = True
        try:
            with reading_by_keras():
                super().export(filepath, *args, input_signature=input_signature, **kwargs)
        finally:
            self._exports = False

    # --- one step

    def train_step(self, state: Any, data: Any = None) -> Any:
        """Returns logs and the state after one step; see `keras.Model.train_step` on JAX."""
        if keras.backend.backend() != "jax":
            raise UsageError(
                "R309",
                "A SparseModel must be trained on Keras' JAX backend.",
                "Set KERAS_BACKEND=jax; other backends read tables.",
                keras.backend.backend(),
            )
        tv, ntv, ov, mv = state
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)

        def forward(tv: Arrays, taps: Arrays | None) -> Any:
            with recording(Tape(taps)) as tape:
                loss, aux = self.compute_loss_and_updates(
                    tv, ntv, mv, x, y, sample_weight, training=True, optimizer_variables=ov
                )
            return loss, (aux, tape)

        tapes: list[Tape] = []  # Of a step that is traced for shapes only.
        jax.eval_shape(lambda: tapes.append(forward(tv, None)[1][1]))
        untapped = tapes[0]
        taps = [jnp.zeros(output.shape, output.dtype) for output in untapped.outputs]

        def differentiable(tv: Arrays, taps: Arrays) -> Any:
            loss, (aux, tape) = forward(tv, taps)
            n_refused = [n_unknown for _, n_unknown in tape.refused]
            return loss, (aux, tape.reads, tape.outputs, tape.counts, n_refused)

        grad_fn = jax.value_and_grad(differentiable, argnums=(0, 1), has_aux=True)
        (_, (aux, reads, outputs, counts, n_refused)), (grads, tap_grads) = grad_fn(tv, taps)
        loss, y_pred, ntv, mv = aux
        self._step_counts = counts
        logs, mv = self._update_metrics_variables(mv, loss, x, y, y_pred, sample_weight)
        self._step_counts = None
        self._ids_in_step = sum(read.lookups.rows.shape[0] for read in reads)
        update = StepUpdate(
            self.optimizer, self.non_trainable_variables, self.gradient_buffers, self._first_rate
        )
        # The step may return other gathered rows, if XLA fuses them with the lookup.
        changed = [new for old, new in zip(state[1], ntv, strict=True) if new is not old]
        returned = jax.tree.leaves((loss, logs, mv, changed))
        most = sum(output.size for output in outputs)
        returned = [array for array in returned if array.size <= most]
        one = dependent_one([*grads, *tap_grads, *outputs, *returned])
        updates = table_updates(untapped.tables, reads, tap_grads)
        self.step_traffic = tuple(update.traffic for update in updates)
        tv, ntv, ov = update.apply(tv, list(ntv), ov, grads, updates, one)
        self._step_arrays = update.arrays
        refusing = [table for table, _ in untapped.refused]
        ntv = self._with_unknown(ntv, list(zip(refusing, n_refused, strict=True)))
        return logs, (tv, ntv, ov, mv)

    def test_step(self, state: Any, data: Any) -> Any:
        """Returns logs and the state after evaluating one batch."""
        with recording(Tape(trains=False)) as tape:
            self._tape = tape
            try:
                logs, (tv, ntv, mv) = super().test_step(state, data)
            finally:
                self._tape = None
        return logs, (tv, self._with_unknown(ntv, tape.refused), mv)

    def predict_step(self, state: Any, data: Any) -> Any:
        """Returns the outputs for one batch, and the variables that may have changed."""
        with recording(Tape(trains=False)) as tape:
            outputs, ntv = super().predict_step(state, data)
        return outputs, self._with_unknown(ntv, tape.refused)

    def _with_unknown(self, ntv: Arrays, unknown: list[tuple[Table, jax.Array]]) -> Arrays:
        """Adds unknown ids of tables that refuse them to the tables' counters in `ntv`.

        The host checks the counters after the step: a callback that raises on one device would
        block the others.
        """
        ntv = list(ntv)
        for table, n_unknown in unknown:
            ntv[self._index_of(table.unknown_ids)] += n_unknown
        return ntv

    def _index_of(self, variable: Any) -> int:
        variables = self.non_trainable_variables
        return next(i for i, other in enumerate(variables) if other is variable)

    def _refusing(self, function: Any) -> Any:
        """Wraps `function` to raise R360 if a table that refuses unknown ids had some."""
        strict = [table for table in tables_of(self) if table.refuses_unknown]
        if not strict:
            return function

        def checked(state: Any, iterator: Any) -> Any:
            result, state = function(state, iterator)
            for table in strict:
                count = state[1][self._index_of(table.unknown_ids)]
                refuse(table.name, table.rows, int(np.asarray(count)))
            return result, state

        return checked

    def compute_metrics(self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        """Computes the metrics, with the counts of unknown ids and overflows."""
        counts = self._step_counts if self._tape is None else self._tape.counts
        if counts is not None:
            self.unknown_ids.update_state(counts.unknown)
            self.exchange_overflows.update_state(counts.extra_rounds)
        return super().compute_metrics(x, y, y_pred, sample_weight)

    # --- proof

    def make_train_function(self, force: bool = False) -> None:
        """Makes the jitted training step, which is checked on its first batch."""
        if self.run_eagerly or not self.jit_compile:
            if accumulation_steps(self.optimizer):
                raise UsageError(
                    "R307",
                    "A model that accumulates gradients must be compiled by JAX.",
                    "Leave run_eagerly and jit_compile at their defaults.",
                    {"run_eagerly": self.run_eagerly, "jit_compile": self.jit_compile},
                )
            super().make_train_function(force)
        elif self.train_function is None or force:
            self.train_function: Any = self._refusing(self._make_function(self._proving()))

    def make_test_function(self, force: bool = False) -> None:
        """Makes the function that evaluates batches."""
        if self.test_function is None or force:
            super().make_test_function(force)
            self.test_function: Any = self._refusing(self.test_function)

    def make_predict_function(self, force: bool = False) -> None:
        """Makes the function that predicts batches."""
        if self.predict_function is None or force:
            super().make_predict_function(force)
            self.predict_function: Any = self._refusing(self.predict_function)

    def _proving(self) -> Callable[[Any, Any], Any]:
        """Returns the jitted step, which checks its compiled form on the first call."""
        step: Any = None
        layouts: Any = None

        def proven(state: Any, data: Any) -> Any:
            nonlocal step, layouts
            if step is None:
                variables = self._state_variables()
                try:
                    state = self._with_buffers(on_mesh(state, self._layouts()), data)
                    variables = self._state_variables()
                    (step, _), layouts = self._proven_step(state, data), self._layouts()
                except BaseException:
                    restore(variables, state)
                    raise
            return step(on_mesh(state, layouts), data)

        return proven

    def prove(self, data: Any) -> Any:
        """Compiles and checks the training step ahead of time, from shapes.

        The model must have been built and compiled in an open
        `keras.StatelessScope(initialize_variables=False)`, so that variables have no values.

        Args:
            data: Batch for `train_step`, as `jax.ShapeDtypeStruct`s.

        Returns:
            The compiled step, `jax.stages.Compiled`.
        """
        for variable in self.variables:
            place_variable(variable)
        self.optimizer.build(self.trainable_variables)
        self._with_buffers(self._shapes(), data)
        return self._proven_step(self._shapes(), data)[1]

    def _shapes(self) -> tuple[list[jax.ShapeDtypeStruct], ...]:
        """Returns the shapes of the state of `train_step`."""
        parts = self._state_variables()
        return tuple([place_variable(variable) for variable in part] for part in parts)

    def _proven_step(self, state: Any, data: Any) -> tuple[Any, Any]:
        """Returns the jitted step and its checked compiled form."""
        distribution = keras.distribution.distribution()
        if isinstance(distribution, LayoutDistribution):
            check_rules(self, distribution.layout)
        step = _jitted(self.train_step, state)
        # jit caches this compilation.
        compiled = step.lower(state, data).compile()
        dense = {variable.path: variable.shape for variable in self.trainable_variables}
        self.step_proof = check_step(compiled, tables_of(self), self._ids_in_step, dense)
        for path in self.step_proof.dense_per_row:
            _LOG.warning(
                "Weight %r has a number for each row of a table, and every step computes all of"
                " its gradient. A table of embedding_dim=1 in a ShardedEmbedding costs what the"
                " batch costs.",
                path,
            )
        return step, compiled

    def _layouts(self) -> Any:
        """Returns the sharding of each value of the state; None without a distribution."""
        if keras.distribution.distribution() is None:
            return None
        for variable in (v for part in self._state_variables() for v in part):
            variable._initialize_layout()  # Metrics may be older than the distribution.
        return [[v._layout.backend_layout for v in part] for part in self._state_variables()]

    def _state_variables(self) -> tuple[list[Any], ...]:
        """Returns the variables of the state of `train_step`."""
        return (
            self.trainable_variables,
            self.non_trainable_variables,
            self.optimizer.variables,
            self.metrics_variables,
        )

    def _with_buffers(self, state: Any, data: Any) -> Any:
        """Returns the state with buffers for accumulation, sized for batches like `data`."""
        count = accumulation_steps(self.optimizer)
        if not count or self.gradient_buffers.parts:
            return state
        if not self.trainable_variables:
            raise UsageError(
                "R312",
                "A model that accumulates gradients must have dense weights: Keras counts by them.",
                "Leave gradient_accumulation_steps out, and take larger batches.",
                count,
            )
        tv, ntv, ov, mv = state
        known = {id(v): value for v, value in zip(self.non_trainable_variables, ntv, strict=True)}
        jax.eval_shape(self.train_step, state, data)  # fills _step_arrays
        self.gradient_buffers.build_for(self._step_arrays, count)
        variables = self.non_trainable_variables
        ntv = [known[id(v)] if id(v) in known else v.value for v in variables]  # noqa: SIM401 purged
        return tv, ntv, ov, mv

    # --- summary

    def summary(self, *args: Any, **kwargs: Any) -> None:
        """Prints the layers and tables; see `keras.Model.summary`.

        Weights of trained tables count as trainable; their slots, padding included, as
        non-trainable.
        """
        self._summarizes = True
        try:
            super().summary(*args, **kwargs)
        finally:
            self._summarizes = False
        print_fn = kwargs.get("print_fn") or (args[2] if len(args) > 2 else None)
        lines = [" Tables:", *summary_lines(tables_of(self))]
        if len(lines) > 1:
            (print_fn or print)("\n".join(lines))

    @property
    def trainable_variables(self) -> list[Any]:
        """Keras' trainable variables; during export also the tables' weights."""
        own: list[Any] = super().trainable_variables
        return [*own, *(t.embeddings for t in tables_of(self))] if self._exports else own

    @property
    def non_trainable_variables(self) -> list[Any]:
        """Keras' non-trainable variables; during export without the tables' variables."""
        others: list[Any] = super().non_trainable_variables
        if not self._exports:
            return others
        left_out = {id(v) for table in tables_of(self) for v in table.variables}
        return [v for v in others if id(v) not in left_out]

    @property
    def trainable_weights(self) -> list[Any]:
        """Keras' trainable weights; in `summary` also the weights of trained tables."""
        return [*super().trainable_weights, *self._summarized()]

    @property
    def non_trainable_weights(self) -> list[Any]:
        """Keras' non-trainable weights; in `summary` without the weights of trained tables."""
        learned = {id(weights) for weights in self._summarized()}
        return [w for w in super().non_trainable_weights if id(w) not in learned]

    def _summarized(self) -> list[Any]:
        if not self._summarizes:
            return []
        return [t.embeddings for t in tables_of(self) if t.built and t.learns]

    # --- data

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the model with checked 64-bit ids; a functional model would truncate them."""
        args = tuple(checked_batch(argument) for argument in args)
        if not self.built and len(args) == 1 and not isinstance(self, Functional):
            self._input = _described(args[0])
        return super().__call__(*args, **kwargs)

    def fit(self, x: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Trains with checked 64-bit ids, which JAX would truncate; see `keras.Model.fit`."""
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
    """The class of `SparseModel(inputs, outputs)`."""

    def _convert_inputs_to_tensors(self, flat_inputs: list[Any]) -> list[Any]:
        """Refuses floats that Keras would silently cast to integers and read as ids."""
        for x, spec in zip(flat_inputs, self._inputs, strict=True):
            if x is not None and "int" in spec.dtype:
                checked_ids(x, spec.name)
        return super()._convert_inputs_to_tensors(flat_inputs)


def _described(inputs: Any) -> str | None:
    """Returns structure, dtypes and shapes of inputs as JSON; None if one is a `Ragged`."""

    def described(node: Any) -> Any:
        if isinstance(node, dict):
            return {str(name): described(part) for name, part in node.items()}
        if type(node) in (list, tuple):
            return [described(part) for part in node]
        return " ".join(map(str, (keras.backend.standardize_dtype(node.dtype), *node.shape)))

    try:
        return json.dumps(described(inputs))
    except AttributeError:  # Not an array.
        return None


def _inputs(described: str, make: Callable[[tuple[int | None, ...], str], Any]) -> Any:
    """Returns `make(shape, dtype)` for each array in the structure of `_described`."""

    def made(text: str) -> Any:
        dtype, *shape = text.split()
        return make(tuple(None if n == "None" else int(n) for n in shape), dtype)

    return keras.tree.map_structure(made, json.loads(described))


def _jitted(step: Any, state: Any) -> Any:
    """Returns `step` jitted, with the state's shardings preserved and its arrays donated."""
    distribution = keras.distribution.distribution()
    if distribution is None:
        return jax.jit(step, donate_argnums=0)
    shardings = jax.tree.map(lambda x: x.sharding, state)
    n_devices = int(distribution.device_mesh.devices.size)
    if {len(sharding.device_set) for sharding in jax.tree.leaves(shardings)} != {n_devices}:
        raise UsageError(
            "R305",
            f"Every variable of the model and its optimizer must lie on all {n_devices} devices.",
            "Call recsys.embedding.activate before the model and its optimizer are made.",
            sorted({len(sharding.device_set) for sharding in jax.tree.leaves(shardings)}),
        )
    return jax.jit(step, donate_argnums=0, out_shardings=(None, shardings))


def restore(variables: Any, state: Any) -> None:
    """Assigns the values of `state`, the arguments of a step, to its `variables`.

    Keras' `fit` on JAX moves the values of all variables into the step's state, and assigns the
    results of the last successful step. If the first step fails while it is traced or checked,
    the variables would be left without values.
    """
    for part, values in zip(variables, state, strict=True):
        for variable, value in zip(part, values, strict=True):
            variable.assign(value)
