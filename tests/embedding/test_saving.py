"""Models saved and loaded again, on the mesh that they come from and on any other."""

import functools

import keras
import keras_rs
import numpy as np
import pytest
from embedding_meshes import half_squares, on_mesh

from recsys.embedding import (
    Adagrad,
    FeatureConfig,
    Ftrl,
    LazyAdam,
    RowWiseAdagrad,
    ShardedEmbedding,
    SparseModel,
    TableConfig,
)
from recsys.embedding.table import logical_chunks, logical_order, physical_order

# Keras' own numpy() of a variable, which saving an optimizer calls.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy")

ROWS, DIM, BATCH = 50, 8, 16
TABLES = [
    TableConfig("row", ROWS, DIM, optimizer=Adagrad(0.1), placement="row"),
    TableConfig("wise", ROWS, DIM, optimizer=RowWiseAdagrad(0.1), placement="row", combiner="sum"),
    TableConfig("column", ROWS, DIM, optimizer=Ftrl(0.1), placement="column"),
    TableConfig("flat", ROWS, DIM, optimizer=LazyAdam(0.01), placement="replicated"),
    TableConfig("a", 7, DIM, optimizer=Adagrad(0.1), placement="row"),
    TableConfig("b", ROWS, DIM, optimizer=Adagrad(0.1), placement="row", combiner="max"),
]
STACKS = [["a", "b"]]


def make():
    inputs = {t.name: keras.Input((3,), dtype="int32", name=t.name) for t in TABLES}
    configs = {t.name: FeatureConfig(t.name, t, (None, 3), (None, DIM)) for t in TABLES}
    layer = ShardedEmbedding(configs, STACKS, name="embedding", seed=4)
    found = layer(inputs)
    out = keras.ops.concatenate([found[t.name] for t in TABLES], axis=-1)
    start = keras.initializers.GlorotUniform(seed=1)
    model = SparseModel(inputs, keras.layers.Dense(2, kernel_initializer=start, name="dense")(out))
    model.compile(keras.optimizers.Adam(0.01, name="adam"), half_squares)
    return model


def batches(n, seed=0):
    rng = np.random.default_rng(seed)
    for _ in range(n):
        x = {t.name: rng.integers(-1, ROWS, (BATCH, 3)) for t in TABLES}
        yield x, rng.normal(size=(BATCH, 2)).astype(np.float32)


def train(model, n, seed=0):
    for x, y in batches(n, seed):
        model.train_on_batch(x, y)
    return model


def state(model):
    """Returns everything that training changes, tables in the order of their rows."""
    (layer,) = [found for found in model.layers if isinstance(found, ShardedEmbedding)]
    tables = {
        f"{table.name}/{v.path.split('/')[-1]}": logical_order(table, v)
        for table in layer.tables
        for v in table.variables_by_row
    }
    steps = {f"{t.name}/steps": np.asarray(t.steps.value) for t in layer.tables}
    dense = {v.path: np.asarray(v.value) for v in model.trainable_variables}
    # Without its own name, which Keras numbers.
    names = [v.path.split("/")[-1] for v in model.optimizer.variables]
    adam = {n: np.asarray(v.value) for n, v in zip(names, model.optimizer.variables, strict=True)}
    return {**tables, **steps, **dense, **adam}


def assert_same_bits(one, two):
    assert one.keys() == two.keys()
    for name, value in one.items():
        assert np.array_equal(value, two[name]), name


def assert_close(one, two):
    for name, value in one.items():
        np.testing.assert_allclose(value, two[name], rtol=1e-6, atol=1e-6, err_msg=name)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Returns the folder with both kinds of files of two epochs of one batch, and what followed."""

    @functools.cache
    def of(mesh):
        folder = tmp_path_factory.mktemp("saved")
        (x, y) = next(batches(1))
        with on_mesh(mesh, TABLES, STACKS):
            model = make()
            callback = keras.callbacks.OrbaxCheckpoint(
                str(folder / "orbax"), save_on_background=False, max_to_keep=2
            )
            model.fit(x, y, batch_size=BATCH, epochs=2, callbacks=[callback], verbose=0)
            model.save(folder / "saved.keras")
            then = state(model)
            return folder, then, state(train(model, 2, seed=1))

    return of


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("8", "2×2"),
        pytest.param("one device", "8", marks=pytest.mark.thorough),
        pytest.param("2×2", "one device", marks=pytest.mark.thorough),
    ],
)
def test_a_keras_file_comes_back_on_any_mesh_and_trains_on(saved, source, target):
    folder, then, later = saved(source)
    with on_mesh(target, TABLES, STACKS):
        model = keras.saving.load_model(
            folder / "saved.keras", custom_objects={"half_squares": half_squares}
        )
        assert isinstance(model, SparseModel)
        assert_same_bits(state(model), then)
        assert_close(state(train(model, 2, seed=1)), later)
        shards = model.get_layer("embedding").tables[0].embeddings.value.addressable_shards
        assert len({str(shard.index) for shard in shards}) == int(target[-1].replace("e", "1"))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "target", ["2×2", *(pytest.param(n, marks=pytest.mark.thorough) for n in ("8", "1"))]
)
def test_an_orbax_checkpoint_comes_back_on_any_mesh_and_trains_on(saved, target):
    folder, then, later = saved("8")
    with on_mesh(target, TABLES, STACKS):
        model = train(make(), 1, seed=9)
        model.load_weights(str(folder / "orbax"))
        assert_same_bits(state(model), then)
        assert_close(state(train(model, 2, seed=1)), later)


def test_an_accumulation_that_is_half_done_goes_on_where_it_was(tmp_path):
    whole = make()
    optimizer = keras.optimizers.SGD(0.1, gradient_accumulation_steps=2)
    whole.compile(optimizer, half_squares)
    untouched = state(train(whole, 2))
    first, last = batches(2, seed=1)
    whole.train_on_batch(*first)
    whole.save(tmp_path / "half.keras")
    half = keras.saving.load_model(
        tmp_path / "half.keras", custom_objects={"half_squares": half_squares}
    )
    for model in (whole, half):
        model.train_on_batch(*last)
    assert_close(state(half), state(whole))
    assert not np.array_equal(state(half)["row/embeddings"], untouched["row/embeddings"])


@pytest.mark.parametrize("mesh", ["one device", "8", "2×2"])
def test_rows_are_read_in_their_order_in_chunks_and_put_back(mesh, monkeypatch):
    monkeypatch.setattr("recsys.embedding.table._CHUNK_BYTES", 4 * DIM * 13)
    with on_mesh(mesh, TABLES, STACKS):
        (layer,) = [x for x in make().layers if isinstance(x, ShardedEmbedding)]
        for table in layer.tables:
            values = np.random.default_rng(0).normal(size=(table.rows, DIM)).astype(np.float32)
            table.embeddings.assign(physical_order(table, values))
            chunks = list(logical_chunks(table, table.embeddings))
            assert [len(c) for c in chunks[:-1]] == [13] * (len(chunks) - 1)
            assert len(chunks) == -(-table.rows // 13)
            assert np.array_equal(np.concatenate(chunks), values)
        rows = layer.get_embedding_tables()["row"]
        assert np.array_equal(layer({"row": np.array([[7]])})["row"], rows[[7]])


def test_tables_of_keras_rs_keep_their_own_settings_in_a_file(tmp_path):
    """Keras takes what has the id of another object for that object."""
    rows = keras_rs.layers
    tables = [
        rows.TableConfig(f"t{n}", 5, 4, initializer=keras.initializers.Constant(n), optimizer="sgd")
        for n in range(30)
    ]
    configs = {t.name: rows.FeatureConfig(t.name, t, (2,), (2, 4)) for t in tables}
    inputs = {name: keras.Input((), dtype="int32", name=name) for name in configs}
    model = keras.Model(inputs, ShardedEmbedding(configs, name="rows")(inputs))
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras").get_layer("rows")
    written = loaded.get_config()["tables"].values()
    assert [table["initializer"]["config"]["value"] for table in written] == list(range(30))


# --- the summary


SUMMARY_ROWS, SUMMARY_DIM = 1000, 8


def model_of(*tables):
    inputs = {t.name: keras.Input((), dtype="int32", name=t.name) for t in tables}
    features = {t.name: FeatureConfig(t.name, t, (None,), (None, SUMMARY_DIM)) for t in tables}
    layer = ShardedEmbedding(features, name="embedding")
    rows = keras.layers.Concatenate()(list(layer(inputs).values()))
    return SparseModel(inputs, keras.layers.Dense(1)(rows)), layer


def summary_of(model):
    lines = []
    assert model.summary(print_fn=lines.append) is None
    return "\n".join(lines)


def counted(text, what):
    (line,) = [line for line in text.splitlines() if line.startswith(f" {what} params")]
    return int(line.split(":")[1].split("(")[0].strip().replace(",", ""))


@pytest.fixture
def pair():
    items = TableConfig("items", SUMMARY_ROWS, SUMMARY_DIM, optimizer=Adagrad(0.1))
    users = TableConfig("users", 2 * SUMMARY_ROWS, SUMMARY_DIM, optimizer=RowWiseAdagrad(0.1))
    return model_of(items, users)


def test_tables_that_learn_are_trainable(pair):
    text = summary_of(pair[0])
    dense = 2 * SUMMARY_DIM + 1
    assert counted(text, "Trainable") == 3 * SUMMARY_ROWS * SUMMARY_DIM + dense
    slots = SUMMARY_ROWS * SUMMARY_DIM + 2 * SUMMARY_ROWS
    assert slots <= counted(text, "Non-trainable") <= slots + 10  # and a few counts
    total = counted(text, "Trainable") + counted(text, "Non-trainable")
    assert counted(text, "Total") == total
    assert "items: 1,000 rows × 8" in text
    assert "trained by RowWiseAdagrad" in text


def test_fixed_tables_are_not(pair):
    model, layer = pair
    layer.trainable = False
    text = summary_of(model)
    assert counted(text, "Trainable") == 2 * SUMMARY_DIM + 1
    assert text.count("; fixed") == 2


def test_a_summary_changes_nothing_of_what_is_trained(pair):
    model, _ = pair
    model.compile("sgd", "mse")
    before = [v.path for v in model.trainable_variables]
    summary_of(model)
    assert [v.path for v in model.trainable_variables] == before
    ids = np.arange(16)
    model.fit({"items": ids, "users": ids}, np.ones((16, 1)), batch_size=16, verbose=0)
    assert (
        counted(summary_of(model), "Trainable")
        == 3 * SUMMARY_ROWS * SUMMARY_DIM + 2 * SUMMARY_DIM + 1
    )
