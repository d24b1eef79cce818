"""The layer: structures of features, stacked tables, configs, and what it refuses."""

import keras
import keras_rs
import numpy as np
import pytest
from embedding_meshes import (
    Lookup,
    assert_equal,
    bags_of,
    compiled,
    half_squares,
    on_mesh,
    step_references,
)

from recsys.embedding import Adagrad, FeatureConfig, ShardedEmbedding, SparseModel, TableConfig
from recsys.embedding.ids import ragged
from recsys.embedding.optimizers import LazyAdam
from recsys.errors import UsageError

ROWS, DIM, BATCH = 20, 4, 16
schedules = keras.optimizers.schedules


def table(name, rows=ROWS, **options):
    options = {"optimizer": Adagrad(0.1), "placement": "row", "combiner": "sum", **options}
    return TableConfig(name, rows, options.pop("dim", DIM), **options)


def feature(config, name="f"):
    return FeatureConfig(name, config, (None,), (None, config.embedding_dim))


# --- structures


def test_features_may_be_nested_and_outputs_are_so_too():
    one, two = table("one"), table("two", dim=3)
    layer = ShardedEmbedding({"a": [feature(one), feature(two)], "b": {"c": feature(one)}})
    layer.build()
    rows = layer.get_embedding_tables()
    ids = {"a": [[1, 2], [3, 4]], "b": {"c": [[5, 6], [7, 8]]}}
    ids["a"] = [np.array(i) for i in ids["a"]]
    ids["b"]["c"] = np.array(ids["b"]["c"])
    out = layer(ids)
    assert np.array_equal(out["a"][0], rows["one"][[1, 2]])
    assert np.array_equal(out["a"][1], rows["two"][[3, 4]])
    np.testing.assert_allclose(
        out["b"]["c"], rows["one"][[5, 7]] + rows["one"][[6, 8]], rtol=1e-6, atol=1e-7
    )


def test_features_may_be_left_out():
    layer = ShardedEmbedding({"a": feature(table("one")), "b": feature(table("two"))})
    layer.build()
    assert set(layer({"b": np.array([1])})) == {"b"}


def test_weights_may_be_left_out_for_some_features():
    layer = ShardedEmbedding({"a": feature(table("one")), "b": feature(table("two"))})
    layer.build()
    rows = layer.get_embedding_tables()
    ids = {"a": np.array([[1, 2]]), "b": np.array([[1, 2]])}
    for weights in ({"a": np.array([[0.5, 0]])}, {"a": np.array([[0.5, 0]]), "b": None}):
        out = layer(ids, weights)
        np.testing.assert_allclose(out["a"][0], rows["one"][1] / 2, rtol=1e-6, atol=1e-7)
        np.testing.assert_allclose(
            out["b"][0], rows["two"][[1, 2]].sum(axis=0), rtol=1e-6, atol=1e-7
        )


def test_configs_of_one_name_are_one_table():
    layer = ShardedEmbedding({"a": feature(table("one")), "b": feature(table("one"))})
    assert len(layer.tables) == 1


def test_a_config_of_keras_rs_is_taken():
    config = keras_rs.layers.TableConfig("t", ROWS, DIM, combiner="sqrtn", optimizer="adagrad")
    layer = ShardedEmbedding({"f": keras_rs.layers.FeatureConfig("f", config, (2,), (2, DIM))})
    layer.build()
    rows = layer.get_embedding_tables()["t"]
    expected = rows[[1, 2]].sum(axis=0) / 2**0.5
    np.testing.assert_allclose(
        layer({"f": np.array([[1, 2]])})["f"][0], expected, rtol=1e-6, atol=1e-7
    )
    again = ShardedEmbedding.from_config(layer.get_config())
    assert again.get_config() == layer.get_config()


@pytest.mark.parametrize("mesh", ["one device", "8", "2×2"])
def test_a_partial_batch_can_be_predicted_with_the_layer(mesh):
    """Its bags don't divide by the devices: XLA finds the way."""
    config = table("t", combiner="mean")
    with on_mesh(mesh, [config]):
        layer = ShardedEmbedding({"f": feature(config)})
        layer.build()
        rows = layer.get_embedding_tables()["t"]
        assert np.array_equal(layer({"f": np.arange(5)})["f"], rows[:5])
        bags = np.arange(10).reshape(5, 2)
        np.testing.assert_allclose(
            layer({"f": bags})["f"], rows[:10].reshape(5, 2, DIM).mean(axis=1), rtol=1e-6, atol=1e-7
        )
        bags = ragged([[1], [2, 3], [], [4, 5, 6], [7]], capacity=8)
        means = [rows[1], rows[2:4].mean(axis=0), 0 * rows[0], rows[4:7].mean(axis=0), rows[7]]
        np.testing.assert_allclose(layer({"f": bags})["f"], means, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(
    ("input_shape", "output_shape", "wrong"),
    [
        ((None, 5), (None, 5, DIM), "output_shape"),
        ((None,), (None, DIM + 1), "output_shape"),
        ((None,), (None,), "output_shape"),
        ((None,), None, "output_shape"),
        ((None, 5, 3), (None, DIM), "input_shape"),
        ((), (None, DIM), "input_shape"),
        (("batch",), (None, DIM), "input_shape"),
    ],
)
def test_shapes_that_the_layer_does_not_take_or_return_are_refused(
    input_shape, output_shape, wrong
):
    declared = FeatureConfig("clicks", table("t"), input_shape, output_shape)
    with pytest.raises(UsageError, match=f"R365.*'{wrong}' of feature 'clicks'") as caught:
        ShardedEmbedding({"f": declared})
    received = input_shape if wrong == "input_shape" else output_shape
    assert repr(received) in str(caught.value)
    assert f"(batch, {DIM})" in str(caught.value) or wrong == "input_shape"


# --- stacks

STACKS = {
    "auto": ("auto", [("a", "b", "c")]),
    "lists": ([["c", "a"]], [("c", "a")]),
    "none": (None, []),
}


@pytest.mark.parametrize(
    ("stacking", "mesh"),
    [
        ("auto", "one device"),
        ("auto", "8"),
        ("lists", "2×2"),
        ("none", "8"),
        *(
            pytest.param(stacking, mesh, marks=pytest.mark.thorough)
            for stacking, mesh in [
                ("auto", "2×2"),
                ("lists", "one device"),
                ("lists", "8"),
                ("none", "one device"),
                ("none", "2×2"),
            ]
        ),
    ],
)
def test_stacked_tables_are_the_tables(stacking, mesh):
    """Tables of different sizes, combiners and policies equal the reference, stacked or not."""
    tables = [
        table("a", 7, combiner="mean"),
        table("b", 50),
        table("c", 3, combiner="max"),
        table("other", 9, optimizer=LazyAdam(0.01)),
        table("wide", 9, dim=8),
        table("flat", 9, placement="replicated"),
    ]
    option, stacks = STACKS[stacking]
    features = {t.name: t for t in tables} | {"again": tables[1]}
    rng = np.random.default_rng(0)
    with on_mesh(mesh, tables, stacks):
        model = compiled(Lookup(features, table_stacking=option))
        model.build()
        names = [t.name for t in model.embedding.tables]
        assert names[: len(stacks)] == ["_".join(stack) for stack in stacks]
        assert len(names) == 6 - sum(len(stack) - 1 for stack in stacks)
        references = model.reference()
        for _ in range(2):
            # Ids past a table's end would be rows of its neighbour in the stack.
            x = {
                n: rng.integers(-2, t.vocabulary_size + 3, (BATCH, 3)) for n, t in features.items()
            }
            y = rng.normal(size=(BATCH, sum(t.embedding_dim for t in features.values())))
            known = bags_of(features, references, x)
            model.train_on_batch(x, y)
            step_references(features, references, known, y)
        found = model.embedding.get_embedding_tables()
        for name, reference in references.items():
            np.testing.assert_allclose(found[name], reference.weights, rtol=1e-6, atol=1e-6)
        if not stacks:
            assert_equal(model, references)


@pytest.mark.parametrize(
    "options",
    [{"dim": 8}, {"optimizer": LazyAdam()}, {"placement": "replicated"}, {"dtype": "bfloat16"}],
    ids=str,
)
def test_tables_that_differ_are_not_stacked(options):
    features = {"a": feature(table("a")), "b": feature(table("b", **options))}
    assert len(ShardedEmbedding(features, table_stacking="auto").tables) == 2
    with pytest.raises(UsageError, match=r"R358.*'a', 'b'"):
        ShardedEmbedding(features, table_stacking=[["a", "b"]])


def test_tables_that_say_auto_are_split_from_fifty_thousand_rows_on():
    features = {n: feature(table(str(n), n, placement="auto")) for n in (49_999, 50_000)}
    layer = ShardedEmbedding(features)
    assert [t.spec.placement for t in layer.tables] == ["replicated", "row"]


# --- configs


def test_a_layer_comes_back_from_its_config():
    tables = [
        table("a", optimizer=LazyAdam(schedules.ExponentialDecay(0.1, 5, 0.5), beta_1=0.5)),
        table("b", combiner="max", unknown="error", dtype="bfloat16", placement="replicated"),
        table("c", optimizer=None, initializer=keras.initializers.RandomNormal(seed=3)),
    ]
    features = {"x": [feature(tables[0], "x0"), feature(tables[1], "x1")], "y": feature(tables[2])}
    layer = ShardedEmbedding(features, table_stacking=[["a"]], n_shards=4, seed=7, name="layer")
    text = keras.saving.serialize_keras_object(layer)
    again = keras.saving.deserialize_keras_object(text)
    assert again.get_config() == layer.get_config()
    assert (again.name, again.seed, again.n_shards) == ("layer", 7, 4)
    for old, new in zip(layer.tables, again.tables, strict=True):
        old.build()
        new.build()
        assert np.array_equal(old.embeddings, new.embeddings)
        assert new.spec.combiner == old.spec.combiner
        assert (new.spec.unknown, new.spec.dtype) == (old.spec.unknown, old.spec.dtype)
    rate = again.tables[0].optimizer.learning_rate
    assert float(rate(5)) == pytest.approx(0.05)
    assert again.tables[0].optimizer.beta_1 == 0.5
    assert again.tables[2].optimizer is None


# --- what is refused


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"combiner": "median"}, r"'combiner' of table 't' must be one of sum, mean, sqrtn, max"),
        ({"placement": "disk"}, r"'placement'.*row, column, replicated"),
        ({"unknown": "drop"}, r"'unknown'.*row0, error"),
        ({"dtype": "float16"}, r"'dtype'.*float32, bfloat16"),
        ({"rows": 0}, r"'vocabulary_size'"),
        ({"rows": 2**31}, r"'vocabulary_size'"),
        ({"dim": 0}, r"'embedding_dim'"),
    ],
)
def test_a_config_that_means_nothing_is_refused_by_name(options, message):
    with pytest.raises(UsageError, match=rf"R353.*{message}"):
        ShardedEmbedding({"f": feature(table("t", **options))})


def test_a_table_that_padding_would_push_past_32_bits_is_refused():
    with pytest.raises(UsageError, match=r"R354.*'t' must have fewer than 2³¹"):
        ShardedEmbedding({"f": feature(table("t", 2**31 - 1))})


def test_columns_that_do_not_divide_are_refused():
    with pytest.raises(UsageError, match=r"R355.*multiple of the 8.*embedding_dim=8"):
        ShardedEmbedding({"f": feature(table("t", placement="column"))}, n_shards=8)


@pytest.mark.parametrize(
    ("inputs", "code"),
    [({"g": [1]}, "R356.*Features: f"), ({"f": {"g": [1]}}, "R362.*dict")],
    ids=str,
)
def test_inputs_of_another_structure_are_refused(inputs, code):
    layer = ShardedEmbedding({"f": feature(table("t"))})
    layer.build()
    with pytest.raises(UsageError, match=code):
        layer(inputs)


def test_two_tables_of_one_name_are_refused():
    features = {"a": feature(table("t")), "b": feature(table("t", rows=21))}
    with pytest.raises(UsageError, match=r"R357.*'t'"):
        ShardedEmbedding(features)


@pytest.mark.parametrize("shape", [(), (2, 3, 4)])
def test_ids_of_another_rank_are_refused(shape):
    layer = ShardedEmbedding({"f": feature(table("t"))})
    layer.build()
    with pytest.raises(Exception, match=r"R359.*\[batch\] or \[batch, length\]"):
        layer({"f": np.zeros(shape, np.int32)})


class Plain(keras.Model):
    def __init__(self, **options):
        super().__init__()
        self.embedding = ShardedEmbedding({"f": feature(table("t"))}, **options)
        self.dense = keras.layers.Dense(2)

    def call(self, inputs):
        return self.dense(self.embedding({"f": inputs})["f"])


def functional():
    inputs = keras.Input((), dtype="int32")
    embed = ShardedEmbedding({"f": feature(table("t"))})
    return keras.Model(inputs, keras.layers.Dense(2)(embed({"f": inputs})["f"]))


X, Y = np.arange(8, dtype=np.int32), np.ones((8, 2), np.float32)


@pytest.mark.parametrize("make", [functional, Plain])
def test_another_model_is_not_let_train_and_leave_the_tables(make):
    model = make()
    model.compile("sgd", half_squares)
    with pytest.raises(Exception, match=r"R306.*SparseModel"):
        model.fit(X, Y, verbose=0)


class Frozen(SparseModel, Plain):
    """A SparseModel over tables that are fixed."""


@pytest.mark.parametrize("kind", [Plain, Frozen])
def test_towers_over_fixed_tables_train_and_no_table_does(kind):
    model = kind(trainable=False)
    model.compile("sgd", half_squares)
    model(X)
    before = model.embedding.get_embedding_tables()["t"]
    kernel = np.asarray(model.dense.kernel)
    model.fit(X, Y, verbose=0)
    assert np.array_equal(model.embedding.get_embedding_tables()["t"], before)
    assert not np.array_equal(model.dense.kernel, kernel)
    assert model.predict(X, verbose=0).shape == (8, 2)
