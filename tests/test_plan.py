"""The plan says what the engine does: bytes of tables to the byte, traffic as compiled."""

import contextlib
import dataclasses
import math
import re
from collections import Counter
from functools import partial
from unittest import mock

import jax
import keras
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recsys import kernels
from recsys.config.load import default_config_path, load_config
from recsys.data.table_rows import TableRows
from recsys.embedding import (
    Adagrad,
    FeatureConfig,
    Ragged,
    ShardedEmbedding,
    SparseModel,
    TableConfig,
    activate,
    device_mesh,
    table_layout,
    verify_placement,
)
from recsys.embedding import model as model_module
from recsys.embedding import (
    rows as row_operations,
)
from recsys.embedding.config import resolve
from recsys.embedding.layer import stacks
from recsys.embedding.optimizers import row_optimizer
from recsys.embedding.planner import FeatureShape, chunks, planned_without_devices, table_step
from recsys.embedding.row_exchange import Axis
from recsys.errors import UsageError
from recsys.models.retrieval import model_tables
from recsys.models.size import n_activations
from recsys.models.two_tower import TwoTower
from recsys.plan import feature_shapes, make_plan, model_spec, n_tower_weights
from recsys.plan_advice import changes, obstacles
from recsys.training.optimizers import tower_optimizer

N = 8
ROWS = TableRows(
    {"users": 7000, "items": 60_000, "genres": 21, "words": 3000}, {"genres": 8, "words": 5}, ""
)


def config(*overrides):
    return load_config(default_config_path(), overrides)


@contextlib.contextmanager
def built(config, rows=ROWS):
    """Builds the model of a config on eight devices; yields it with its layout."""
    spec = model_spec(config, rows)
    tables = model_tables(spec, row_optimizer(config.train.table_optimizer))
    mesh = config.mesh and device_mesh(**config.mesh.model_dump())
    layout = table_layout(list(tables.values()), mesh=mesh)
    activate(layout)
    try:
        model = TwoTower(spec, tables)
        model.build()
        yield model, layout
    finally:
        keras.distribution.set_distribution(None)


# --- weights and slots


@pytest.mark.parametrize(
    ("placement", "optimizer", "dtype"),
    [
        ("row", "adagrad", "float32"),
        ("row", "row_wise_adagrad", "bfloat16"),
        ("column", "row_wise_adagrad", "float32"),
        ("column", "ftrl", "bfloat16"),
        ("auto", "lazy_adam", "float32"),
    ],
)
def test_bytes_are_those_that_the_devices_hold(placement, optimizer, dtype):
    chosen = config(
        f"model.table_placement={placement}",
        f"train.table_optimizer={optimizer}",
        f"model.table_dtype={dtype}",
    )
    plan = make_plan(chosen, ROWS, N)
    with built(chosen) as (model, layout):
        proven = verify_placement(model, layout)
        towers = list(model.trainable_variables)
    assert [part.placement for part in plan.parts[:-2]] == proven
    part = plan.parts[-2]
    n_bytes = sum(math.prod(v.shape) * 4 for v in towers)
    assert (part.name, part.weights, part.slots) == ("towers", n_bytes, 2 * n_bytes)


def test_a_stack_is_planned_as_one_table():
    kinds = [
        resolve(TableConfig(name, rows, 16, optimizer=Adagrad(), placement="row"))
        for name, rows in (("a", 100), ("b", 7000))
    ]
    [stack] = stacks(kinds, "auto")
    placed = planned_without_devices(stack, N)
    assert (placed.table, placed.rows, placed.padded_rows) == ("a_b", 7100, 7680)
    assert placed.bytes_per_device == placed.slot_bytes_per_device == 7680 * 16 * 4 // N


@given(st.integers(1, 4096), st.sampled_from(["row", "column", "replicated"]))
def test_any_number_of_devices_can_be_planned(n, placement):
    plan = make_plan(config(f"model.table_placement={placement}"), ROWS, n)
    for part in plan.parts[:-2]:
        placed = part.placement
        assert placed.shards == (1 if placement == "replicated" else n)
        assert placed.padded_rows >= placed.rows
        if placement == "row":
            assert placed.padded_rows % n == 0
            assert placed.bytes_per_device * n == placed.padded_rows * placed.dim * 4
    assert (plan.sent_bytes == 0) == (n == 1)
    assert plan.bytes_per_device == sum(part.bytes_per_device for part in plan.parts)


@pytest.mark.parametrize(
    "overrides",
    [
        ["model.pooling=attention", "model.user_id=false", "model.widths=[]"],
        ["model.pooling=sequence", "model.learn_temperature=true", "model.widths=[16, 8]"],
        ["model.pooling=sequence", "model.sequence.layers=3", "model.sequence.width=24"],
        ["model.widths=null", "model.user_id=false"],
    ],
    ids=["attention", "two-blocks", "three-blocks", "no-layers"],
)
def test_the_weights_of_other_towers_are_counted(overrides):
    chosen = config(*overrides)
    rows = dataclasses.replace(ROWS, widths={}) if chosen.model.widths is None else ROWS
    plan = make_plan(chosen, rows, N)
    with built(chosen, rows) as (model, layout):
        proven = verify_placement(model, layout)
        n_bytes = sum(math.prod(v.shape) * 4 for v in model.trainable_variables)
    assert [part.placement for part in plan.parts[:-2]] == proven
    assert plan.parts[-2].weights == n_bytes


@pytest.mark.parametrize(
    "kind", ["adam", "adamw", "adagrad", "lion", "rmsprop", "sgd", "ema", "accumulate"]
)
def test_the_slots_of_the_towers_are_those_of_their_optimizer(kind):
    others = {"ema": ["train.ema=0.99"], "accumulate": ["train.accumulate=4"]}
    chosen = config(*others.get(kind, [f"train.tower_optimizer={kind}"]))
    optimizer = tower_optimizer(chosen.train, 10)
    weights = keras.Variable(np.zeros((30, 40)))
    optimizer.build([weights])
    slots = sum(math.prod(v.shape) for v in optimizer.variables if len(v.shape) == 2)
    part = make_plan(chosen, ROWS, N).parts[-2]
    assert part.slots / part.weights == slots / (30 * 40)


# --- what is sent


class _CompiledError(Exception):
    pass


def compiled_step(model, batch, *patches):
    """Returns the compiled training step of `model`, without running it."""
    found = []

    def stop(compiled, *_):
        found.append(compiled)
        raise _CompiledError

    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.object(model_module, "check_step", stop))
        for patch in patches:
            stack.enter_context(patch)
        with pytest.raises(_CompiledError):
            model.train_on_batch(*batch)
    return found[0]


def ring(op, n):
    """Returns what each of `n` devices sends of a collective's result, as a share of it."""
    return {
        "all-gather": (n - 1) / n,
        "all-to-all": (n - 1) / n,
        "reduce-scatter": n - 1,
        "all-reduce": 2 * (n - 1) / n,
    }[op]


def group_size(rest):
    """Returns the devices that take part in a collective together."""
    if shape := re.search(r"replica_groups=\[\d+,(\d+)\]", rest):
        return int(shape[1])
    if named := re.search(r"replica_groups=mesh\[(.*?)\] \{(.*?)\}", rest):
        sizes = dict(re.findall(r"'(\w+)'=(\d+)", named[1]))
        return math.prod(int(sizes[axis]) for axis in re.findall(r"'(\w+)'", named[2]))
    groups = re.search(r"replica_groups=\{\{([\d,]+)\}", rest)
    return groups[1].count(",") + 1 if groups else N


def sent_by_hlo(text):
    """Returns the bytes that a device sends by each collective of a compiled program."""
    found = Counter()
    for shape, op, rest in re.findall(r" = (.+?) ([a-z][\w-]*)\((.*)", text):
        op = op.removesuffix("-start")
        if op in ("all-gather", "all-to-all", "reduce-scatter", "all-reduce"):
            arrays = re.findall(r"\b(?:s32|f32)\[([\d,]*)\]", shape)
            size = 4 * sum(math.prod(int(d) for d in dims.split(",") if d) for dims in arrays)
            found[op] += size * ring(op, group_size(rest))
        found["permutes"] += op.startswith("collective-permute")
    return found


def one_capacity(share):
    """Makes the chunks of exchanges, compiled or planned, `share` times the even part wide."""

    def capacities(self, n_places):
        return (math.ceil(n_places / self.size * share),)

    return mock.patch.object(Axis, "capacities", capacities)


def without_kernels():
    return [
        mock.patch.object(row_operations, "use_native", return_value=False),
        mock.patch.object(kernels, "available", return_value=False),
    ]


def batch_of(config, rows=ROWS):
    n, history = config.train.batch_size, config.model.history
    m = n + config.train.uniform_negatives
    zeros = partial(np.zeros, dtype=np.int32)
    bags = {name: zeros((m, width)) for name, width in rows.widths.items()}
    events = {"user_row": zeros(n), "history": zeros((n, history)), "id_row": zeros(m)}
    return {**events, "item_row": zeros(m), "log_q": np.zeros(m, np.float32), **bags}


@pytest.mark.parametrize(
    ("placement", "optimizer"),
    [("row", "adagrad"), ("column", "row_wise_adagrad"), ("replicated", "lazy_adam")],
)
@pytest.mark.parametrize("mesh", [(), ("mesh.data=4", "mesh.model=2")], ids=["one axis", "grid"])
def test_a_step_sends_what_its_compiled_form_sends(placement, optimizer, mesh):
    sends_as_planned(placement, optimizer, *mesh)


@pytest.mark.parametrize("placement", ["row", "column", "replicated"])
def test_a_grid_holds_what_is_planned(placement):
    chosen = config(f"model.table_placement={placement}", "mesh.data=2", "mesh.model=4")
    plan = make_plan(chosen, ROWS, N)
    with built(chosen) as (model, layout):
        assert [part.placement for part in plan.parts[:-2]] == verify_placement(model, layout)


def test_a_grid_of_other_devices_is_no_plan():
    with pytest.raises(UsageError, match=r"R313.*data=4, model=4.*Received: 8"):
        make_plan(config("mesh.data=4", "mesh.model=4"), ROWS, N)


def test_a_grid_grows_by_the_devices_that_share_a_table():
    chosen = config("mesh.data=2", "mesh.model=2", "model.table_placement=row")
    plan = make_plan(chosen, ROWS, 4)
    [first, *_] = changes(chosen, ROWS, plan, plan.bytes_per_device - 10_000)
    assert first.fits
    assert first.words.startswith("--mesh data=2,model=3")


@pytest.mark.parametrize(
    ("placement", "overrides"),
    [
        ("row", ["model.pooling=attention", "model.user_id=false"]),
        pytest.param(
            *("row", ["model.pooling=sequence", "model.learn_temperature=true"]),
            marks=pytest.mark.thorough,
        ),
        ("replicated", ["model.pooling=attention", "model.widths=[]"]),
    ],
    ids=["attention", "sequence", "replicated"],
)
def test_other_towers_send_what_is_planned(placement, overrides):
    sends_as_planned(placement, "adagrad", "model.history=6", *overrides)


def sends_as_planned(placement, optimizer, *overrides):
    chosen = config(
        f"model.table_placement={placement}",
        f"train.table_optimizer={optimizer}",
        "train.uniform_negatives=512",
        *overrides,
    )
    with built(chosen) as (model, _), one_capacity(4):
        model.compile(optimizer="adam", jit_compile=True)
        compiled = compiled_step(model, [batch_of(chosen)])
        plan = make_plan(chosen, ROWS, N)
    planned = Counter()
    for part in plan.parts:
        planned.update(part.step.by_collective())
    found = sent_by_hlo(compiled.as_text())
    # On a grid XLA also splits the weights of bags over `model`, and brings them together again.
    least = 0.96 if chosen.mesh is None else 0.92
    assert chosen.mesh is not None or not found["permutes"]
    del found["permutes"]
    assert planned.keys() == found.keys()
    for op, n_bytes in found.items():
        # Left out: scalars, metrics, and the sums by which a mean is divided.
        assert least * n_bytes <= planned[op] <= n_bytes, op


class Bags(SparseModel):
    """A model of every kind of feature."""

    def __init__(self, features, stacking):
        super().__init__()
        self.embedding = ShardedEmbedding(features, table_stacking=stacking)
        self.out = keras.layers.Dense(4, activation="tanh")

    def call(self, x):
        ragged = Ragged(x["values"], x["lengths"])
        ids = {name: x[name] for name in ("one", "two", "other", "max", "plain")}
        found = self.embedding({**ids, "ragged": ragged})
        return self.out(keras.ops.concatenate(list(found.values()), axis=-1))


def test_every_kind_of_feature_sends_what_is_planned():
    a, b, tops = (
        TableConfig(name, 4000, 16, optimizer=Adagrad(), placement="row", combiner=combiner)
        for name, combiner in (("a", "sum"), ("b", "mean"), ("tops", "max"))
    )
    n, length = 64, 6
    tables = {"one": a, "two": a, "other": b, "max": tops, "plain": a, "ragged": b}
    features = {
        name: FeatureConfig(name, table, (None,), (None, 16)) for name, table in tables.items()
    }
    shapes = [
        FeatureShape("a", n),
        FeatureShape("a", n),
        FeatureShape("b", n),
        FeatureShape("tops", n, length),
        FeatureShape("a", n, length),
        FeatureShape("b", n, length, is_weighted=True, is_ragged=True),
    ]
    stacking = [["a", "b"]]
    zeros = partial(np.zeros, dtype=np.int32)
    batch = {name: zeros(n) for name in ("one", "two", "other")}
    batch |= {name: zeros((n, length)) for name in ("max", "plain")}
    batch |= {"values": zeros(n * length), "lengths": np.full(n, length, np.int32)}
    activate(table_layout([a, b, tops], stacking))
    try:
        model = Bags(features, stacking)
        model.compile(optimizer="adam", loss="mse", jit_compile=True)
        with one_capacity(8):
            compiled = compiled_step(model, [batch, np.zeros((n, 4), np.float32)])
    finally:
        keras.distribution.set_distribution(None)
    planned = Counter()
    with one_capacity(8):
        for stack in stacks([resolve(table) for table in (a, b, tops)], stacking):
            planned.update(table_step(stack, shapes, N).by_collective())
    found = sent_by_hlo(compiled.as_text())
    del found["all-reduce"], found["permutes"]  # Scalars, and the loss.
    assert planned.keys() == found.keys()
    for op, n_bytes in found.items():
        assert planned[op] == pytest.approx(n_bytes, rel=0.03), op


def test_a_table_that_is_only_read_sends_and_holds_no_gradients():
    kind = resolve(TableConfig("t", 4000, 16, optimizer=None, placement="row"))
    trained = dataclasses.replace(kind, optimizer=Adagrad())
    shapes = [FeatureShape("t", 64), FeatureShape("t", 64, 5)]
    read, step = (table_step([k], shapes, N) for k in (kind, trained))
    assert {sent.what for sent in read.sent} == {"ids", "rows"}
    assert {sent.what for sent in step.sent} == {"ids", "rows", "gradients"}
    assert step.sent_bytes > 1.5 * read.sent_bytes


@pytest.mark.parametrize(("n_places", "n_devices"), [(512, 8), (4096, 8), (1024, 64), (64, 8)])
def test_chunks_hold_different_and_evenly_spread_ids(n_places, n_devices):
    capacity, rounds = chunks(n_places, n_devices)
    random = np.random.default_rng(0)
    draws = random.multinomial(n_places, np.full(n_devices, 1 / n_devices), (200, n_devices))
    fullest = draws.max(axis=(1, 2))
    assert np.mean(fullest <= capacity * rounds) > 0.5
    narrower = [c for c in Axis("", n_devices).capacities(n_places) if c < capacity]
    if rounds == 1 and narrower:
        assert np.mean(fullest <= narrower[-1]) < 0.5


# --- what a step holds


def test_buffers_bound_what_the_compiled_step_needs_without_kernels():
    chosen = config("train.batch_size=2048", "train.uniform_negatives=2048")
    # The widest of the capacities; all of them take longer to compile.
    with built(chosen) as (model, _), one_capacity(1.5):
        model.compile(optimizer="adam", jit_compile=True)
        compiled = compiled_step(model, [batch_of(chosen)], *without_kernels())
        held = sum(part.step.held_bytes for part in make_plan(chosen, ROWS, N).parts)
    needed = compiled.memory_analysis().temp_size_in_bytes
    assert needed <= held <= 3 * needed


@pytest.mark.parametrize(
    "overrides",
    [
        ["model.pooling=attention"],
        ["model.pooling=sequence", "model.sequence={layers: 1, heads: 4, dropout: 0.0}"],
        ["model.pooling=sequence", "model.sequence={layers: 3, width: 128, dropout: 0.0}"],
    ],
    ids=["attention", "one-block", "three-blocks"],
)
def test_activations_bound_what_a_pooling_and_its_gradients_need(overrides):
    chosen = config("model.history=50", "model.widths=null", *overrides)
    spec = model_spec(chosen, dataclasses.replace(ROWS, widths={}))
    model, n = TwoTower(spec), 64
    model.build()
    variables = model.encoder.trainable_variables

    def total(values, items, rows):
        with keras.StatelessScope(list(zip(variables, values, strict=True))):
            return jax.numpy.square(model.encoder(items, rows, training=True)).sum()

    values = [variable.value for variable in variables]
    items, rows = np.ones((n, 50, spec.config.dim), np.float32), np.ones((n, 50), np.int32)
    step = jax.jit(jax.grad(total, argnums=(0, 1))).lower(values, items, rows).compile()
    needed = step.memory_analysis().temp_size_in_bytes
    assert needed <= 4 * n_activations(spec, n, 0) <= 3 * needed


def test_buffers_grow_with_the_batch_and_not_with_the_rows():
    def held(rows, batch_size):
        chosen = config(f"train.batch_size={batch_size}")
        plan = make_plan(chosen, dataclasses.replace(ROWS, rows={**ROWS.rows, "users": rows}), N)
        return sum(part.step.held_bytes for part in plan.parts)

    assert held(10**6, 256) == held(10**9, 256)
    assert held(10**6, 4096) > 4 * held(10**6, 256)


# --- advice

BIG = dataclasses.replace(ROWS, rows={**ROWS.rows, "users": 10**8})


def test_the_fewest_devices_are_found_that_fit():
    chosen = config()
    memory = 5 * 10**9
    [change] = [
        c for c in changes(chosen, BIG, make_plan(chosen, BIG, 2), memory) if "devices" in c.words
    ]
    fitting = [n for n in range(1, 300) if make_plan(chosen, BIG, n).bytes_per_device <= memory]
    even = [n for n in fitting if 256 % n == 0]
    assert change.words == f"--devices {min(even)}"
    assert change.fits
    assert change.bytes_per_device == make_plan(chosen, BIG, min(even)).bytes_per_device


def test_where_no_number_of_devices_divides_the_batch_its_size_is_changed_too():
    chosen = config("train.batch_size=14", "train.uniform_negatives=0")
    memory = 5 * 10**8
    found = changes(chosen, BIG, make_plan(chosen, BIG, 14), memory)
    [change] = [c for c in found if "devices" in c.words]
    devices, size = map(int, re.findall(r"\d+", change.words))
    assert size % devices == 0
    assert make_plan(chosen, BIG, devices).bytes_per_device <= memory
    assert make_plan(chosen, BIG, devices - 1).bytes_per_device > memory


def test_advice_says_what_other_tables_would_hold():
    chosen = config("train.table_optimizer=adagrad")
    plan = make_plan(chosen, BIG, N)
    found = {c.words: c for c in changes(chosen, BIG, plan, 4 * 10**9)}
    weights = sum(part.weights for part in plan.parts[:-2])
    row_wise = found["--set train.table_optimizer=row_wise_adagrad"]
    # One number a row in place of 64; dim is 64 in nearly all of the tables.
    assert row_wise.saved_bytes == pytest.approx(weights * 63 / 64, rel=0.01)
    assert found["--set model.table_dtype=bfloat16"].saved_bytes == weights // 2
    assert row_wise.fits == (plan.bytes_per_device - row_wise.saved_bytes <= 4 * 10**9)
    assert found["--set model.dim=32"].saved_bytes == pytest.approx(weights, rel=0.01)


def test_settings_are_joined_where_none_is_enough():
    chosen = config("model.table_placement=replicated", "train.table_optimizer=lazy_adam")
    plan = make_plan(chosen, BIG, N)
    found = changes(chosen, BIG, plan, 2 * 10**9)
    joined = "model.table_placement=row", "row_wise_adagrad", "bfloat16"
    [change] = [c for c in found if all(word in c.words for word in joined)]
    assert change.fits
    assert [c.fits for c in found] == sorted((c.fits for c in found), reverse=True)


def test_a_smaller_width_must_divide_where_columns_are_split():
    chosen = config("model.table_placement=column")
    found = changes(chosen, BIG, make_plan(chosen, BIG, 32), 10**6)
    assert [c.words for c in found if "model.dim" in c.words] == ["--set model.dim=32"]


@pytest.mark.parametrize(
    ("overrides", "rows", "devices", "codes"),
    [
        ([], ROWS, 8, []),
        ([], ROWS, 12, ["R321", "R321"]),
        (["train.uniform_negatives=0"], ROWS, 12, ["R321"]),
        (["model.table_placement=column"], ROWS, 64, ["R355"] * 2),
        ([], dataclasses.replace(ROWS, rows={**ROWS.rows, "users": 2**31 - 1}), 8, ["R354"]),
        (["model.widths=null"], ROWS, 8, ["R345"]),
    ],
    ids=["none", "batches", "batch", "columns", "rows", "nothing-to-read-features"],
)
def test_what_a_training_would_stop_with_is_named(overrides, rows, devices, codes):
    chosen = config(*overrides)
    assert [e.code for e in obstacles(chosen, rows, make_plan(chosen, rows, devices))] == codes


def test_the_shapes_of_features_are_those_of_a_batch():
    chosen = config()
    batch, spec = batch_of(chosen), model_spec(chosen, ROWS)
    shapes = feature_shapes(spec, 256, 512)
    given = {name: x for name, x in batch.items() if name not in ("item_row", "log_q")}
    sizes = sorted((s.bags,) if s.length is None else (s.bags, s.length) for s in shapes)
    assert sizes == sorted(x.shape for x in given.values())


def test_a_feature_of_the_users_is_read_by_the_user_tower_of_the_plan():
    rows = dataclasses.replace(ROWS, of_users=frozenset({"words"}))
    spec = model_spec(config(), rows)
    assert [(f.name, f.side) for f in spec.features] == [("genres", "item"), ("words", "user")]
    model = TwoTower(spec)
    model.build()
    built = sum(math.prod(variable.shape) for variable in model.trainable_variables)
    assert n_tower_weights(spec) == built
    asked = {shape.table: shape.bags for shape in feature_shapes(spec, 8, 24)}
    assert (asked["genres"], asked["words"]) == (24, 8)
