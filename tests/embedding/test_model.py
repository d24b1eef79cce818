"""The training step of a whole model: dense and sparse weights together, in float64 by hand."""

import jax
import keras
import numpy as np
import pytest
from embedding_meshes import NATIVE, Lookup, compiled, half_squares, on_mesh, row_operations

from recsys.embedding import SGD, Adagrad, LazyAdam, TableConfig
from recsys.embedding.model import ExactCount
from recsys.errors import UsageError

optimizers = keras.optimizers
ROWS, DIM, BATCH, OUT = 20, 4, 16, 3
RATE = 0.3


class Tower(Lookup):
    """A dense layer over the lookups, whose gradient is known: out = embeddings · kernel."""

    def build(self, input_shape=None):
        super().build()
        self.dense = keras.layers.Dense(OUT, use_bias=False, name="dense")
        self.dense.build((None, DIM * len(self.features)))

    def call(self, inputs):
        return self.dense(super().call(inputs))


class ReferenceTower:
    """The same, its kernel trained by plain gradient descent."""

    def __init__(self, model, limit=None):
        self.tables, self.features, self.limit = model.reference(), model.features, limit
        self.kernel = np.asarray(model.dense.kernel.value, np.float64)

    def gradients(self, batches):
        """Returns the kernel's gradient and each table's uses, means over the batches."""
        uses, kernel = {name: [] for name in self.tables}, 0.0
        for x, y in batches:
            bags = {n: self.tables[t.name].bags(x[n][:, None]) for n, t in self.features.items()}
            read = [self.tables[t.name].read(bags[n]) for n, t in self.features.items()]
            read = np.concatenate(read, axis=1)
            by_out = (read @ self.kernel - y) / len(y) / len(batches)
            kernel = kernel + read.T @ by_out
            by_read = np.split(by_out @ self.kernel.T, len(self.features), axis=1)
            for (name, table), grad in zip(self.features.items(), by_read, strict=True):
                uses[table.name].append((bags[name], grad))
        return kernel, uses

    def norm(self, kernel, uses):
        squares = np.sum(kernel**2)
        for name, table in self.tables.items():
            squares += sum(np.sum(g**2) for g in table.gradients(uses[name]).values())
        return squares**0.5

    def train(self, *batches):
        kernel, uses = self.gradients(batches)
        factor = min(1.0, self.limit / self.norm(kernel, uses)) if self.limit else 1.0
        self.kernel = self.kernel - RATE * factor * kernel
        for name, table in self.tables.items():
            table.train(uses[name], factor)


def tables(placements=("row", "row", "row")):
    kinds = (SGD(RATE), Adagrad(0.1), LazyAdam(0.01))
    return [
        TableConfig(f"t{n}", ROWS, DIM, optimizer=kind, placement=placement)
        for n, (kind, placement) in enumerate(zip(kinds, placements, strict=True))
    ]


def features(configs):
    """Every table is read, the first one twice."""
    return {t.name: t for t in configs} | {"again": configs[0]}


def batches(n, seed=0, batch=BATCH):
    rng = np.random.default_rng(seed)
    for _ in range(n):
        x = {name: rng.integers(0, ROWS, batch) for name in ("t0", "t1", "t2", "again")}
        yield x, rng.normal(size=(batch, OUT)).astype(np.float32)


def assert_same(model, reference, tolerance=1e-6):
    np.testing.assert_allclose(model.dense.kernel.value, reference.kernel, atol=tolerance)
    for name, values in model.state().items():
        table = reference.tables[name]
        for found, expected in zip(values, [table.weights, *table.slots], strict=True):
            np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)


def tower(optimizer=None, configs=None, **kwargs):
    keras.utils.set_random_seed(0)  # Whatever test ran before: rounding depends on the weights.
    model = Tower(features(configs or tables()))
    model.build()
    return compiled(model, optimizer or optimizers.SGD(RATE), **kwargs)


MIXED = ("row", "column", "replicated")


def cases(*always, thorough=()):
    """Returns parameters whose second is the kind of the row operations."""
    marks = {"pure": [], "native": list(NATIVE.marks)}
    return [
        pytest.param(*of, marks=marks[of[1]] + [pytest.mark.thorough] * (of in thorough))
        for of in (*always, *thorough)
    ]


@pytest.mark.parametrize(
    ("mesh", "kind"),
    cases(("2×2", "pure"), ("8", "native"), thorough=[("one device", "pure")]),
)
def test_global_clipping_measures_dense_and_sparse_together(mesh, kind):
    """Duplicates summed first; where the limit is far, nothing is clipped."""
    placements = MIXED if mesh != "8" else ("row", "replicated", "row")
    configs = tables(placements)
    steps = list(batches(3))
    with on_mesh(mesh, configs), row_operations(kind):
        for limit in (0.05, 100.0):
            model = tower(optimizers.SGD(RATE, global_clipnorm=limit), configs)
            reference = ReferenceTower(model, limit)
            free = ReferenceTower(model)
            assert (reference.norm(*reference.gradients(steps[:1])) > limit) == (limit < 1)
            for step in steps:
                model.train_on_batch(*step)
                reference.train(step)
                free.train(step)
            assert_same(model, reference)
            assert (np.abs(free.kernel - reference.kernel).max() > 1e-2) == (limit < 1)


def test_a_scaled_loss_changes_nothing():
    inner = optimizers.SGD(RATE, global_clipnorm=0.05)
    optimizer = optimizers.LossScaleOptimizer(inner, 2.0**12, dynamic_growth_steps=2)
    model = tower(optimizer)
    reference = ReferenceTower(model, 0.05)
    for step in batches(4):
        model.train_on_batch(*step)
        reference.train(step)
    assert float(optimizer.dynamic_scale) == 2.0**14
    assert_same(model, reference)


def everything(model):
    tables = [v for values in model.state().values() for v in values]
    steps = [np.asarray(t.steps.value) for t in model.embedding.tables]
    return [*tables, *steps, np.asarray(model.dense.kernel.value)]


@pytest.mark.parametrize(
    ("mesh", "kind"),
    cases(("8", "native"), thorough=[("one device", "pure")]),
)
def test_a_step_whose_gradient_is_nan_is_skipped_under_a_scaled_loss(mesh, kind):
    configs = tables()
    good, bad = batches(2)
    with on_mesh(mesh, configs), row_operations(kind):
        inner = optimizers.SGD(RATE, global_clipnorm=1.0)
        model = tower(optimizers.LossScaleOptimizer(inner, 2.0**10), configs)
        reference = ReferenceTower(model, 1.0)
        model.train_on_batch(*good)
        reference.train(good)
        for value, scale in ((np.nan, 2.0**9), (np.inf, 2.0**8)):
            before = everything(model)
            y = bad[1].copy()
            y[3, 1] = value
            model.train_on_batch(bad[0], y)
            for old, new in zip(before, everything(model), strict=True):
                assert np.array_equal(old, new)
            assert float(model.optimizer.dynamic_scale) == scale
            model.train_on_batch(*bad)
            reference.train(bad)
            assert_same(model, reference)


class Rooted(Tower):
    """Has a loss whose gradient is infinite by an embedding of zero, and by nothing dense."""

    def call(self, inputs):
        read = Lookup.call(self, inputs)
        zeros, others = keras.ops.split(read, 2, axis=1)
        self.add_loss(keras.ops.mean(keras.ops.sqrt(keras.ops.abs(zeros))))
        return self.dense(keras.ops.concatenate([keras.ops.stop_gradient(zeros), others], axis=1))


def test_a_gradient_of_rows_alone_that_is_nan_skips_the_dense_weights_too():
    zeros = TableConfig("zeros", ROWS, DIM, initializer="zeros", optimizer=SGD(RATE))
    others = TableConfig("others", ROWS, DIM, optimizer=SGD(RATE))
    model = Rooted({"zeros": zeros, "others": others})
    model.build()
    model.compile(optimizers.LossScaleOptimizer(optimizers.SGD(RATE), 2.0**10), half_squares)
    before = everything(model)
    x = {name: np.arange(BATCH, dtype=np.int32) for name in model.features}
    model.train_on_batch(x, np.ones((BATCH, OUT), np.float32))
    for old, new in zip(before, everything(model), strict=True):
        assert np.array_equal(old, new)
    assert float(model.optimizer.dynamic_scale) == 2.0**9


@pytest.mark.parametrize(
    ("policy", "kind"),
    cases(("mixed_bfloat16", "native"), ("mixed_float16", "pure")),
)
def test_a_mixed_policy_trains_float32_tables(policy, kind):
    keras.config.set_dtype_policy(policy)
    try:
        with row_operations(kind):
            model = tower()
    finally:
        keras.config.set_dtype_policy("float32")
    reference = ReferenceTower(model)
    with row_operations(kind):
        assert model.embedding({"t0": np.array([1])})["t0"].dtype == policy.removeprefix("mixed_")
        for step in batches(3):
            model.train_on_batch(*step)
            reference.train(step)
    assert {t.embeddings.dtype for t in model.embedding.tables} == {"float32"}
    assert isinstance(model.optimizer, optimizers.LossScaleOptimizer) == (
        policy[-2:] == "16" and "b" not in policy
    )
    assert_same(model, reference, 2e-2)
    with pytest.raises(AssertionError):
        assert_same(model, reference, 1e-6)


@pytest.mark.parametrize(
    ("mesh", "kind", "limit"),
    cases(
        ("2×2", "pure", 0.05),
        thorough=[("one device", "pure", None), ("8", "native", 0.05)],
    ),
)
def test_accumulated_gradients_are_those_of_one_large_batch(mesh, kind, limit):
    configs = tables(MIXED if mesh != "8" else ("row", "replicated", "row"))
    with on_mesh(mesh, configs), row_operations(kind):
        optimizer = optimizers.SGD(RATE, gradient_accumulation_steps=2, global_clipnorm=limit)
        if limit:
            optimizer = optimizers.LossScaleOptimizer(optimizer, 2.0**10)
        model = tower(optimizer, configs)
        reference = ReferenceTower(model, limit)
        steps = list(batches(4))
        for first, second in zip(steps[::2], steps[1::2], strict=True):
            before = everything(model)
            model.train_on_batch(*first)
            for old, new in zip(before, everything(model), strict=True):
                assert np.array_equal(old, new)
            model.train_on_batch(*second)
            reference.train(first, second)
            assert_same(model, reference)


@pytest.mark.parametrize("at", [1, pytest.param(0, marks=pytest.mark.thorough)])
def test_a_skipped_step_is_no_part_of_what_is_accumulated(at):
    inner = optimizers.SGD(RATE, gradient_accumulation_steps=2)
    model = tower(optimizers.LossScaleOptimizer(inner, 2.0**10))
    reference = ReferenceTower(model)
    first, second, third, fourth = batches(4)
    bad = (first[0], np.full_like(first[1], np.nan))
    steps = [first, second, third, fourth]
    for step in (*steps[:at], bad, *steps[at:]):
        model.train_on_batch(*step)
    reference.train(first, second)
    reference.train(third, fourth)
    assert_same(model, reference)


def test_accumulated_batches_of_another_size_are_refused():
    model = tower(optimizers.SGD(RATE, gradient_accumulation_steps=2))
    for step in batches(2, batch=BATCH):
        model.train_on_batch(*step)
    with pytest.raises(UsageError, match=r"R308.*equally long"):
        model.train_on_batch(*next(iter(batches(1, batch=BATCH // 2))))


def test_dense_weights_may_have_optimizers_by_their_paths():
    """Tables keep their own."""
    by_path = optimizers.OptimizerMap(
        optimizers.Adam(100.0), {".*/dense/kernel": optimizers.SGD(RATE)}
    )
    model = tower(optimizers.MultiOptimizer(by_path))
    reference = ReferenceTower(model)
    for step in batches(3):
        model.train_on_batch(*step)
        reference.train(step)
    assert_same(model, reference)


VARIANTS = {
    "steps_per_execution": {"steps_per_execution": 2},
    "eager": {"run_eagerly": True},
    "not compiled": {"jit_compile": False},
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_however_it_runs_a_model_trains_alike(variant):
    model = tower(**VARIANTS[variant])
    reference = ReferenceTower(model)
    steps = list(batches(4))
    x = {n: np.concatenate([s[0][n] for s in steps]) for n in steps[0][0]}
    y = np.concatenate([s[1] for s in steps])
    model.fit(x, y, batch_size=BATCH, shuffle=False, verbose=0)
    for step in steps:
        reference.train(step)
    assert_same(model, reference)
    out = model.predict(x, batch_size=BATCH, verbose=0)
    read = [reference.tables[t.name].weights[x[n]] for n, t in model.features.items()]
    np.testing.assert_allclose(out, np.concatenate(read, 1) @ reference.kernel, atol=1e-6)


def test_counts_begin_again_with_each_epoch():
    model = tower()
    (x, y) = next(batches(1))
    x["t1"][:5] = -1
    logs = model.fit(x, y, batch_size=BATCH, epochs=3, validation_data=(x, y), verbose=0).history
    assert logs["unknown_ids"] == logs["val_unknown_ids"] == [5, 5, 5]
    assert logs["exchange_overflows"] == [0, 0, 0]


def test_a_step_is_compiled_once():
    compiled_here = []

    def listen(event, duration_s, **about):
        if event.endswith("backend_compile_duration") and "train_step" in about["fun_name"]:
            compiled_here.append(duration_s)

    configs = tables()
    with on_mesh("8", configs):
        model, (x, y) = tower(configs=configs), next(batches(1))
        jax.monitoring.register_event_duration_secs_listener(listen)
        try:
            model.fit(x, y, batch_size=BATCH, epochs=3, verbose=0)
        finally:
            jax.monitoring.unregister_event_duration_listener(listen)
    assert len(compiled_here) == 1


def test_a_count_goes_on_past_what_float32_distinguishes():
    count = ExactCount(name="n")
    count.build()
    for n in (2**24, 1, 2**30 - 1, 2**30 - 1, 2):
        count.update_state(n)
    assert int(count.high) * 2**30 + int(count.low) == 2**24 + 1 + 2**31
    assert float(count.result()) == np.float32(2**24 + 1 + 2**31)
    count.reset_state()
    assert float(count.result()) == 0


class Wide(Tower):
    """Has a layer as wide as a device's part of a table has rows."""

    def build(self, input_shape=None):
        super().build()
        self.wide = keras.layers.Dense(480, use_bias=False)
        self.wide.build((None, OUT))

    def call(self, inputs):
        return keras.ops.sum(self.wide(super().call(inputs)), axis=1, keepdims=True)


def test_a_layer_as_wide_as_a_shard_is_long_is_not_taken_for_a_table():
    configs = tables()
    with on_mesh("8", configs):
        model = compiled(Wide(features(configs)))
        model.build()
        model.train_on_batch(next(batches(1))[0], np.ones((BATCH, 1)))
        assert set(model.step_proof.tables) == {"t0", "t1", "t2"}
