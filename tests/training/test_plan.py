"""The plan holds what the step of the real model, on real arrays, is proven to hold."""

import contextlib
import functools

import keras
import numpy as np
import pytest

import recsys
from recsys.config import MeshConfig
from recsys.config.load import default_config_path, load_config
from recsys.data.dataset import FeatureTable
from recsys.embedding import activate, device_mesh, table_layout, verify_placement
from recsys.embedding import traffic as collectives
from recsys.errors import RecsysError, UsageError
from recsys.models.lookups import model_class
from recsys.plan.plan import changes, make_plan, model_spec
from recsys.plan.table_rows import TableRows
from recsys.tasks.retrieval.training.sequences import packing
from recsys.training.optimization import (
    exclude_vectors,
    saved_variables,
    table_optimizers,
    tower_optimizer,
)

N = 8
ROWS = TableRows(
    {"users": 7000, "items": 60_000, "genres": 21, "words": 3000, "device": 6},
    (
        FeatureTable("genres", "item", 21, 8),
        FeatureTable("words", "user", 3000, 5),
        FeatureTable("device", "event", 6, 1, is_context=True, is_attribute=True),
        FeatureTable("dwell", "event", 0, 1, floats=2, is_attribute=True),
    ),
    "",
)


def config(*overrides):
    towers = "model={type: two_tower, table_placement: row}"
    return load_config(default_config_path(), [towers, *overrides])


def rows(users, items):
    return TableRows({"users": users, "items": items}, (), "")


@contextlib.contextmanager
def trained(config):
    """Yields the model of a config after one real step on eight devices, and its placements."""
    spec, train = model_spec(config, ROWS), config.train
    tables = model_class(spec.config).make_tables(spec, *table_optimizers(train, 1))
    mesh = device_mesh(**(config.mesh.model_dump() if config.mesh else {}))
    layout = table_layout(list(tables.values()), mesh=mesh, rules=config.layout)
    activate(layout)
    try:
        model = model_class(spec.config)(spec, tables, train.seed, train.loss, train.compute_dtype)
        model.train_by(train)
        optimizer = tower_optimizer(train, 1)
        model.build()
        placements = verify_placement(model, layout)
        exclude_vectors(optimizer, model)
        model.compile(optimizer=optimizer, jit_compile=True)
        optimizer.build(model.trainable_variables)
        rows, new = packing(config.model, train, mesh.shape[0])
        n = rows * new if config.model.over_positions else train.batch_size
        m = n + train.uniform_negatives
        sizes = {x.name: (n if x.side == "user" else m, *x.shape) for x in model.inputs_of_sides}
        if config.model.over_positions:
            of_rows = (rows, config.model.history)
            sizes |= {"history": of_rows, "segment": of_rows, "at": (rows, new)}
            bags = [x for x in model.inputs_of_sides if x.name.startswith("history.")]
            sizes |= {x.name: (rows, *x.shape) for x in bags}
        sizes["item_row"] = (m,)
        dtypes = {x.name: x.dtype for x in model.inputs_of_sides}
        batch = {n: np.zeros(size, dtypes.get(n, "int32")) for n, size in sizes.items()}
        batch["log_q"] = np.zeros(m, np.float32)
        if train.known_positives:
            batch["known"] = np.zeros((n, train.known_positives), np.int32)
        model.fit((b for b in [(batch,)]), steps_per_epoch=1, shuffle=False, verbose=0)
        yield model, tuple(placements)
    finally:
        keras.distribution.set_distribution(None)


@pytest.mark.parametrize(
    "overrides",
    [
        pytest.param(
            ["model.table_placement=row", "train.known_positives=3"],
            marks=pytest.mark.thorough,
        ),
        [
            "mesh={data: 4, model: 2}",
            "model.table_placement=column",
            "train.table_optimizer={type: row_wise_adagrad, clipnorm: 1.0}",
            "model.item_neighbours=4",
            "train.accumulate=2",
            "train.ema=0.9",
            "train.negative_groups=2",
            "train.negatives_dtype=bfloat16",
            "layout={query_tower/hidden_0/kernel: [null, model]}",
        ],
        pytest.param(
            [
                "model.table_placement=replicated",
                "model.pooling=ligr",
                "model.history_tower=true",
                "train.clip_norm=1.0",
            ],
            marks=pytest.mark.thorough,
        ),
    ],
    ids=["rows", "columns on a grid", "replicated"],
)
def test_a_plan_is_what_the_step_of_the_real_model_holds(overrides):
    chosen = config(*overrides)
    plan = make_plan(chosen, ROWS, N)
    with trained(chosen) as (model, placements):
        assert plan.step == model.step_proof
        expected = [feature for table in model.step_traffic for feature in table.by_feature()]
        assert list(plan.traffic) == expected
        assert {"id_row + history", "history", "genres"} & {f.feature for f in plan.traffic}
        assert plan.tables == placements
        saved = sum(variable.value.nbytes for variable in saved_variables(model).values())
        assert plan.checkpoint_bytes == pytest.approx(saved, rel=0.01)
    assert plan.other_bytes > 0


# --- hosts


@functools.cache
def on_hosts(n):
    chosen = config("train.batch_size=64", f"train.node_devices={N // n}")
    plan = make_plan(chosen, rows(70_000, 60_000), N)
    return plan, plan.on_hosts(n, N // n, link=10**9, fabric=10**8, disk=10**7)


def test_traffic_between_hosts_is_distinguished():
    apart = {n: on_hosts(n) for n in (1, 2, 8)}
    [sent] = {collectives.total(list(plan.sent)) for plan, _ in apart.values()}
    assert all(
        found["within_bytes"] + found["leaving_bytes"] == sent for _, found in apart.values()
    )
    assert apart[1][1]["leaving_bytes"] == 0
    assert apart[8][1]["within_bytes"] == 0
    plan, found = apart[2]
    by_op = {op: [c for c in plan.sent if c.op == op] for op in ("all-to-all", "all-reduce")}
    assert all(by_op.values())
    for op, share in (("all-to-all", 4 / 7), ("all-reduce", 1 / 4)):
        left = collectives.leaving(by_op[op])
        assert left == pytest.approx(share * collectives.total(by_op[op]), rel=1e-3)
    assert found["within_s"] == found["within_bytes"] / 10**9
    assert found["leaving_s"] == found["leaving_bytes"] / 10**8
    assert found["floor_s"] == max(found["within_s"], found["leaving_s"])
    assert found["bytes_per_host"] == 4 * plan.bytes_per_device
    assert found["checkpoint_s"] == found["checkpoint_bytes"] / 2 / 10**7


def test_the_tables_of_a_step_send_what_is_planned_for_them():
    plan, _ = on_hosts(2)
    of_tables = sum(f.read_bytes + f.update_bytes for f in plan.traffic)
    # The rest are the loss' candidates, both ways, and sums of dense weights.
    n = 64 + config().train.uniform_negatives
    of_loss = 2 * n * 65 * 4 * 7 / 8
    sent = collectives.total(list(plan.sent))
    assert of_tables < sent < of_tables + 4 * of_loss + 8 * plan.other_bytes


@recsys.register_model("plan_of_mine")
class Mine(recsys.RetrievalModel):
    """Adds a layer to the query."""

    def __init__(self, spec, *args, **kwargs):
        super().__init__(spec, *args, **kwargs)
        self.out = keras.layers.Dense(spec.config.dim)

    def query(self, features, training=False):
        return self.out(features["user_row"])

    def candidate(self, features, training=False):
        return features["id_row"]


def test_a_model_of_a_plugin_with_a_billion_rows_is_planned():
    chosen = config("model.dim=16").model_copy(update={"model": Mine.Config(dim=16)})
    plan = make_plan(chosen, rows(10**9, 10**8), N)
    assert set(plan.step.tables) == {"users", "items"}
    users = plan.tables[0]
    assert users.bytes_per_device == users.padded_rows * 16 * 4 // N
    assert plan.step.temporary_bytes < 2**24
    assert keras.distribution.distribution() is None


@pytest.mark.parametrize(
    ("overrides", "of_rows", "devices", "code"),
    [
        (["mesh={data: 4, model: 2}"], ROWS, 4, "R313"),
        (["mesh={data: 8, model: 1}", "train.batch_size=60"], ROWS, N, "R321"),
        (["model.widths=null"], ROWS, N, "R345"),
        (["model.table_placement=column", "model.dim=12"], rows(9, 9), N, "R355"),
        (["model.table_placement=row"], rows(2**31 - 1, 9), N, "R354"),
        (["layout={nothing: [devices]}"], ROWS, N, "R315"),
    ],
)
def test_what_a_training_would_stop_with_stops_the_plan(overrides, of_rows, devices, code):
    with pytest.raises(RecsysError, match=code):
        make_plan(config(*overrides), of_rows, devices)


def test_an_uneven_batch_names_the_key_and_a_valid_size():
    chosen = config("mesh={data: 4, model: 2}", "train.batch_size=62")
    with pytest.raises(UsageError, match=r"R321.*train\.batch_size.*4.*62") as error:
        make_plan(chosen, ROWS, N)
    assert "64" in error.value.cure


def total(plan):
    return sum(t.bytes_per_device + t.slot_bytes_per_device for t in plan.tables)


def test_advice_says_what_other_tables_would_hold():
    chosen = config("mesh={data: 4, model: 1}", "model.table_placement=row", "model.widths=[8]")
    plan = make_plan(chosen, ROWS, 4)
    proposed = changes(chosen, ROWS, plan, plan.bytes_per_device - 1)
    words = [change.words for change in proposed]
    row_wise, narrow = (
        "--set train.table_optimizer=row_wise_adagrad",
        "--set model.table_dtype=bfloat16",
    )
    assert words == ["--mesh data=4,model=2", row_wise, narrow, f"{row_wise} {narrow}"]
    assert all(change.fits for change in proposed)
    wider = chosen.model_copy(update={"mesh": MeshConfig(data=4, model=2)})
    assert proposed[0].saved_bytes == total(plan) - total(make_plan(wider, ROWS, 8))
    floats = (1 + 1) * sum(t.padded_rows * t.dim for t in plan.tables)
    assert proposed[2].saved_bytes * 2 == floats * 4 / 2
