"""Where tables lie: the layout's rules, and the proof that the devices follow them."""

import keras
import numpy as np
import pytest
from embedding_meshes import Lookup
from hypothesis import given
from hypothesis import strategies as st

from recsys.embedding import (
    SGD,
    Adagrad,
    FeatureConfig,
    Ftrl,
    LazyAdam,
    RowWiseAdagrad,
    ShardedEmbedding,
    SparseModel,
    TableConfig,
    TablePlacement,
    activate,
    device_mesh,
    sharding,
    table_layout,
    verify_placement,
)
from recsys.embedding.sharding import sharding_of
from recsys.errors import RecsysError, UsageError

DIM = 8
ROW = TableConfig("row", 5000, DIM, optimizer=Adagrad(), placement="row")
COLUMN = TableConfig("column", 50, DIM, optimizer=LazyAdam(), placement="column")
FLAT = TableConfig("flat", 50, DIM, optimizer=Ftrl(), placement="replicated")
ROWWISE = TableConfig("rowwise", 50, DIM, optimizer=RowWiseAdagrad(), placement="column")
HALF = TableConfig("half", 50, DIM, optimizer=RowWiseAdagrad(), placement="row", dtype="bfloat16")
PLAIN = TableConfig("plain", 50, DIM, optimizer=SGD(), placement="row")
READ = TableConfig("read", 50, DIM, optimizer=None, placement="row")
ALL = [ROW, COLUMN, FLAT, ROWWISE, HALF, PLAIN, READ]


class Tower(Lookup):
    """A dense layer over the lookups."""

    def build(self, input_shape=None):
        super().build()
        self.dense = keras.layers.Dense(16, name="dense")
        self.dense.build((None, DIM * len(self.features)))

    def call(self, inputs):
        return self.dense(super().call(inputs))


def build(layout, tables=ALL, **options):
    activate(layout)
    model = Tower({t.name: t for t in tables}, **options)
    model.build()
    return model


def shards(variable):
    return {s.data.shape for s in variable.value.addressable_shards}


@pytest.mark.parametrize(("n_model", "n"), [(None, 8), (2, 2), (8, 8)])
def test_every_device_holds_what_is_planned_of_each_kind(n_model, n):
    """Literal bytes for 8; for the others a share of the whole."""
    layout = table_layout(ALL, mesh=device_mesh(model=n_model))
    model = build(layout)
    found = {p.table: p for p in verify_placement(model, layout)}
    assert list(found) == [t.name for t in ALL]
    assert found["row"] == TablePlacement(
        "row", "row", 5000, 7680, DIM, n, 7680 * 32 // n, 7680 * 32 // n
    )
    assert found["column"] == TablePlacement(
        "column", "column", 50, 50, DIM, n, 50 * 32 // n, 2 * 50 * 32 // n
    )
    assert found["flat"] == TablePlacement(
        "flat", "replicated", 50, 50, DIM, 1, 50 * 32, 2 * 50 * 32
    )
    # One number a row: of all rows on every device, as no row is whole on any.
    assert found["rowwise"] == TablePlacement(
        "rowwise", "column", 50, 50, DIM, n, 50 * 32 // n, 50 * 4
    )
    assert found["half"] == TablePlacement(
        "half", "row", 50, 3840, DIM, n, 3840 * 16 // n, 3840 * 4 // n
    )
    assert (found["plain"].slot_bytes_per_device, found["read"].slot_bytes_per_device) == (0, 0)
    table = model.embedding.tables[0]
    assert shards(table.embeddings) == shards(table.slots[0]) == {(7680 // n, DIM)}
    assert shards(model.embedding.tables[3].slots[0]) == {(50, 1)}
    assert shards(model.dense.kernel) == {(DIM * len(ALL), 16)}
    # Every device has its part, and no row is on two of one axis.
    assert len(table.embeddings.value.addressable_shards) == 8


@pytest.mark.parametrize("n_model", [None, 2])
def test_the_layouts_rules_are_one_for_each_table_that_is_split(n_model):
    layout = table_layout(ALL, mesh=device_mesh(model=n_model))
    axis = "devices" if n_model is None else "model"
    assert layout.device_mesh.shape == ((8,) if n_model is None else (4, 2))
    rules = {
        "model/embedding/row/embeddings": (axis, None),
        "embedding/row/accumulator": (axis, None),
        "row/embeddings": (axis, None),
        "embedding/column/momentum": (None, axis),
        "embedding/column/velocity": (None, axis),
        "embedding/rowwise/embeddings": (None, axis),
        "embedding/half/accumulator": (axis, None),
    }
    for path, axes in rules.items():
        assert layout[path].axes == axes, path
    whole = ["flat/embeddings", "flat/linear", "rowwise/accumulator", "row/steps", "dense/kernel"]
    # Keras also looks up the outputs of layers, and the slots of its own optimizers.
    for path in (*whole, "row/output", "embedding/output", "adam/dense_kernel_momentum", "row"):
        assert layout[f"embedding/{path}"] is None, path
    assert layout["narrow/embeddings"] is None


def test_a_table_that_matches_no_rule_stops_the_run():
    layout = table_layout([COLUMN, FLAT])
    model = build(layout, [ROW, COLUMN])
    with pytest.raises(
        RecsysError, match=r"R301.*'tower\w*/embedding/row/embeddings' must match exa"
    ):
        verify_placement(model, layout)


def test_a_slot_that_matches_no_rule_stops_the_run():
    layout = keras.distribution.LayoutMap(table_layout([ROW]).device_mesh)
    layout[".*row/embeddings"] = ("devices", None)
    model = build(layout, [ROW])
    with pytest.raises(RecsysError, match=r"R301.*'tower\w*/embedding/row/accumulator' must match"):
        verify_placement(model, layout)


def test_a_table_that_matches_two_rules_stops_the_run():
    layout = table_layout([ROW])
    model = build(layout, [ROW])
    layout[".*/row/embeddings"] = ("devices", None)
    with pytest.raises(RecsysError, match=r"R301.*exactly one layout rule.*\(\.\*/\)\?row"):
        verify_placement(model, layout)


@pytest.mark.parametrize(
    ("rule", "path"),
    [
        (".*dense/kernel", "dense/kernel"),
        (".*flat/embeddings", "embedding/flat/embeddings"),
        (".*rowwise/accumulator", "embedding/rowwise/accumulator"),
    ],
)
def test_a_rule_that_would_split_what_is_to_be_whole_stops_the_run(rule, path):
    layout = table_layout(ALL)
    model = build(layout)
    layout[rule] = (None, None)
    with pytest.raises(RecsysError, match=rf"R301.*'tower\w*/{path}' is not to be split"):
        verify_placement(model, layout)


@pytest.mark.parametrize("placement", ["row", "column"])
def test_a_table_that_every_device_holds_whole_stops_the_run(placement):
    """As one does that was made before the layout was active."""
    table = TableConfig("t", 50, DIM, optimizer="adagrad", placement=placement)
    layout = table_layout([table])
    model = Tower({"t": table}, n_shards=8)
    model.build()
    rows = 3840 if placement == "row" else 50
    with pytest.raises(
        RecsysError, match=rf"R302.*8 devices must hold {rows * 4:,} bytes of table 't'"
    ):
        verify_placement(model, layout)


def test_a_table_split_the_other_way_stops_the_run():
    table = TableConfig("t", 3840, DIM, optimizer="sgd", placement="row")
    layout = keras.distribution.LayoutMap(table_layout([table]).device_mesh)
    layout[".*t/embeddings"] = (None, "devices")
    model = build(layout, [table])
    with pytest.raises(RecsysError):
        verify_placement(model, layout)


# --- rules for dense weights and activations


class Dense(SparseModel):
    """Two dense layers over a table that is split and one that is not."""

    def __init__(self):
        super().__init__(name="model")
        features = {
            "a": FeatureConfig("a", ROW, (None,), (None, DIM)),
            "b": FeatureConfig("b", FLAT, (None, 3), (None, DIM)),
        }
        self.embedding = ShardedEmbedding(features)
        self.first = keras.layers.Dense(16, activation="relu", name="first")
        self.last = keras.layers.Dense(1, name="last")

    def call(self, inputs):
        read = self.embedding(inputs)
        return self.last(self.first(keras.ops.concatenate([read["a"], read["b"]], axis=-1)))


def trained(mesh, rules):
    """Returns the model after four steps under a layout, and its losses."""
    keras.utils.set_random_seed(0)
    layout = table_layout([ROW, FLAT], mesh=mesh, rules=rules)
    activate(layout)
    rng = np.random.default_rng(0)
    x = {"a": rng.integers(0, 5000, 64), "b": rng.integers(0, 50, (64, 3))}
    y = rng.normal(size=(64, 1)).astype(np.float32)
    model = Dense()
    model.compile("adam", "mse")
    history = model.fit(x, y, batch_size=32, epochs=2, shuffle=False, verbose=0).history
    verify_placement(model, layout)
    return model, history["loss"]


RULES = {
    "first/kernel": (None, "model"),
    "model/first/bias": ("model",),
    "l[a]st/kernel": ("model", None),
    "first/output": ("data", "model"),
}


@pytest.fixture(scope="module")
def losses_on_one_axis():
    losses = trained(None, None)[1]
    keras.distribution.set_distribution(None)
    return losses


@pytest.mark.parametrize(
    "shape", [(2, 4), *(pytest.param(n, marks=pytest.mark.thorough) for n in ((8, 1), (1, 8)))]
)
def test_every_mesh_trains_alike_with_dense_weights_split_by_rules(shape, losses_on_one_axis):
    model, losses = trained(device_mesh(*shape), RULES)
    np.testing.assert_allclose(losses, losses_on_one_axis, rtol=1e-6)
    assert shards(model.first.kernel) == {(16, 16 // shape[1])}
    assert shards(model.last.kernel) == {(16 // shape[1], 1)}
    slot = next(v for v in model.optimizer.variables if "first_kernel_momentum" in v.path)
    assert shards(slot) == {(16, 16 // shape[1])}
    out = model.first(np.ones((8, 16), np.float32))
    assert {s.data.shape for s in out.addressable_shards} == {(8 // shape[0], 16 // shape[1])}


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ({"first/kernl": (None, "model")}, r"R315.*'first/kernl'.*first/kernel"),
        ({"second/output": ("data", None)}, r"R315.*'second/output'.*first/output"),
        ({"(model/)?.*/bias": (None,), "kernel": (None, None)}, r"R315.*'kernel'"),
        ({"first/kernel": ("model",)}, r"R314.*'first/kernel'.*\(16, 16\)"),
        ({"last/kernel": (None, "model")}, r"R314.*divide.*\(16, 1\)"),
        ({"first/(kernel": ("model",)}, r"R314.*regex"),
        ({"first/kernel": (None, "modle")}, r"R314.*'modle'.*data, model"),
        ({".*kernel": (None, None), "first/kernel": (None, "model")}, r"R316.*first/kernel"),
    ],
)
def test_a_rule_that_can_not_be_followed_is_refused(rules, message):
    with pytest.raises(UsageError, match=message):
        trained(device_mesh(4, 2), rules)


def test_a_mesh_of_other_devices_is_refused():
    with pytest.raises(UsageError, match=r"R313.*data=4, model=4.*Received: 8"):
        device_mesh(4, 4)


def test_a_layout_says_which_devices_are_a_node():
    table = TableConfig("t", 5000, 8, placement="row")
    for mesh, node, expected in [
        (device_mesh(), 4, (4, 2, True)),
        (device_mesh(), 16, (8, 1, False)),
        # One process has all devices.
        (device_mesh(), None, (8, 1, False)),
        (device_mesh(4, 2), 4, (2, 1, False)),
    ]:
        activate(table_layout([table], mesh=mesh, node_devices=node))
        sharding = sharding_of("t/embeddings")
        sizes = (sharding.node.size, sharding.peers.size, sharding.has_nodes)
        assert sizes == expected
    # Neighbours along `data` are two devices apart, so a node of four has two of them.
    assert sharding.devices_in_node("data") == 2
    with pytest.raises(UsageError, match=r"R313.*8 devices.*nodes of 3"):
        table_layout([table], node_devices=3)


# --- interleaved rows


DEVICES = [n for n in range(1, 257) if sharding.SLOTS % n == 0]


@pytest.mark.parametrize("rows", [1, 3840, 3841, 100_000])
def test_every_position_holds_one_row(rows):
    padded = sharding.padded_rows(rows, 8)
    assert rows <= padded < rows + sharding.SLOTS
    places = sharding.physical_rows(np.arange(padded), padded)
    assert np.array_equal(np.sort(places), np.arange(padded))
    assert np.array_equal(sharding.logical_rows(places, padded), np.arange(padded))


@given(st.integers(1, 2**31 - 1 - 3840), st.data())
def test_positions_and_rows_are_inverse_in_32_bits_too(rows, data):
    padded = sharding.padded_rows(rows, 1)
    row = data.draw(st.integers(0, padded - 1))
    place = sharding.physical_rows(row, padded)
    assert 0 <= place < padded
    assert sharding.logical_rows(place, padded) == row
    assert sharding.physical_rows(np.array([row], np.int32), padded) == place
    assert sharding.logical_rows(np.array([place], np.int32), padded) == row


def devices_of(n_rows, n_devices):
    padded = sharding.padded_rows(n_rows, n_devices)
    return sharding.physical_rows(np.arange(n_rows), padded) // (padded // n_devices)


@pytest.mark.parametrize("n", DEVICES)
def test_the_first_rows_fall_on_all_devices_alike(n):
    """One device gets 2 of the first n rows at most, and is never 8 rows from its share."""
    device = devices_of(sharding.SLOTS, n)
    counts = np.cumsum(device[:, None] == np.arange(n), axis=0)
    share = (np.arange(sharding.SLOTS)[:, None] + 1) / n
    assert counts[n - 1].max() <= 2
    assert np.abs(counts - share).max() < 8
    assert np.array_equal(counts[-1], np.full(n, sharding.SLOTS // n))


@pytest.mark.parametrize("rows", [7, 5000, 123_456])
def test_a_row_keeps_its_position_on_every_mesh_that_divides_the_slots(rows):
    assert {sharding.padded_rows(rows, n) for n in DEVICES} == {sharding.padded_rows(rows, 1)}


def test_other_numbers_of_devices_get_equal_shards_too():
    padded = sharding.padded_rows(5000, 7)
    assert padded % 7 == 0
    places = sharding.physical_rows(np.arange(5000), padded)
    assert len(set(places.tolist())) == 5000
    assert np.bincount(places // (padded // 7)).max() < 5000 / 7 * 1.05
