"""Whatever number comes as an id: its own row or row 0, counted, and never NaN."""

import keras
import numpy as np
import pytest
from embedding_meshes import Lookup, compiled, on_mesh

from recsys.embedding import FeatureConfig, Ragged, ShardedEmbedding, SparseModel, TableConfig
from recsys.embedding.ids import as_int32, checked_batch, ragged
from recsys.errors import RecsysError, UsageError

ROWS, DIM = 10, 4
UNKNOWN = [-1, ROWS, 2**31 - 1, 2**31, 2**32 + 3, 2**63 - 1, -(2**63)]
IDS = np.array([*UNKNOWN, 3], np.int64)
ROWS_READ = [0] * len(UNKNOWN) + [3]
UNSIGNED = np.array([2**64 - 1, 2**63, 2**32 + 3, 2**31, 2**31 - 1, ROWS, 9, 3], np.uint64)
UNSIGNED_READ = [0] * 6 + [9, 3]


@pytest.mark.parametrize(
    ("ids", "expected"),
    [
        (IDS, [-1, ROWS, 2**31 - 1, -1, -1, -1, -1, 3]),
        (UNSIGNED, [-1, -1, -1, -1, 2**31 - 1, ROWS, 9, 3]),
        (np.array([-(2**31), 5], np.int32), [-(2**31), 5]),
        (np.array([2**32 - 1, 5], np.uint32), [-1, 5]),
        (np.array([[200], [7]], np.uint8), [[200], [7]]),
        ([2**64, 2**70, -(2**70), 5], [-1, -1, -1, 5]),
        (np.array([2**64, 5], object), [-1, 5]),
        ([], []),
        (np.zeros((3, 0), np.int64), np.zeros((3, 0))),
    ],
    ids=["int64", "uint64", "int32", "uint32", "uint8", "past 64 bits", "objects", "[]", "empty"],
)
def test_an_id_that_32_bits_do_not_hold_is_unknown(ids, expected):
    found = as_int32(ids)
    assert found.dtype == np.int32
    assert np.array_equal(found, expected)


@pytest.mark.parametrize(
    "ids",
    [[1.0, 2.0], np.array([np.nan]), ["a"], np.array([True]), np.array([1.5, "x"], object), [None]],
    ids=["float", "NaN", "string", "bool", "mixed", "None"],
)
def test_a_non_integer_is_refused(ids):
    with pytest.raises(UsageError, match=r"R362.*'item' must be integers"):
        as_int32(ids, "item")
    with pytest.raises(UsageError, match="R362"):
        layer()({"f": ids})


def test_numbers_of_a_batch_that_are_no_ids_keep_their_value():
    """Values that fit 32 bits are unchanged: labels and numeric features may be negative."""
    batch = ({"ids": IDS, "age": np.array([-5, 7])}, np.array([[-(2**31)], [2**31 - 1]]))
    x, y = checked_batch(batch)
    assert x["age"].tolist() == [-5, 7]
    assert y.tolist() == [[-(2**31)], [2**31 - 1]]
    assert x["ids"].tolist()[3:] == [-1, -1, -1, -1, 3]


def table(unknown="row0", **kwargs):
    return TableConfig("t", ROWS, DIM, optimizer="adagrad", unknown=unknown, **kwargs)


def layer(**kwargs):
    found = ShardedEmbedding({"f": FeatureConfig("item", table(**kwargs), (None,), (None, DIM))})
    found.build()
    return found


@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn", "max"])
@pytest.mark.parametrize("placement", ["row", "replicated"])
@pytest.mark.parametrize(("ids", "read"), [(IDS, ROWS_READ), (UNSIGNED, UNSIGNED_READ)])
def test_a_layer_reads_row_zero_for_an_unknown_id(ids, read, placement, combiner):
    found = layer(placement=placement, combiner=combiner)
    rows = found.get_embedding_tables()["t"]
    assert np.array_equal(found({"f": ids})["f"], rows[read])
    assert np.array_equal(found({"f": ids[:, None]})["f"], rows[read])
    assert np.array_equal(found({"f": ids.tolist()})["f"], rows[read])
    bags = ragged([[i] for i in ids.tolist()], 16)
    assert np.array_equal(found({"f": bags})["f"], rows[read])
    wide = Ragged(ids, np.ones(len(ids), np.int64))
    assert np.array_equal(found({"f": wide})["f"], rows[read])


def make(kind, **kwargs):
    """Returns the same model, subclassed or functional."""
    if kind == "subclass":
        return compiled(Lookup({"f": table(**kwargs)}))
    inputs = keras.Input((), dtype="int32", name="f")
    embed = ShardedEmbedding(
        {"f": FeatureConfig("item", table(**kwargs), (None,), (None, DIM))}, name="embedding"
    )
    return compiled(SparseModel({"f": inputs}, embed({"f": inputs})["f"]))


@pytest.fixture(scope="module", params=["subclass", "functional"])
def model(request):
    found = make(request.param)
    found({"f": np.array([0])})
    return found


def rows_of(model):
    (found,) = [x for x in model.layers if isinstance(x, ShardedEmbedding)]
    return found.get_embedding_tables()["t"]


class Batches(keras.utils.PyDataset):
    def __init__(self, with_target):
        super().__init__()
        self.with_target = with_target

    def __len__(self):
        return 2

    def __getitem__(self, index):
        return (X, Y) if self.with_target else (X,)


X, Y = {"f": IDS}, np.zeros((8, DIM), np.float32)


def generator(with_target):
    yield from [(X, Y), (X, Y)] if with_target else [(X,), (X,)]


def tensorflow_data(with_target):
    tf = pytest.importorskip("tensorflow")

    data = tf.data.Dataset.from_tensor_slices((X, Y) if with_target else (X,))
    return data.batch(8).repeat(2)


SOURCES = {"generator": generator, "PyDataset": Batches, "tf.data": tensorflow_data}


def test_a_call_and_predictions_from_arrays_read_row_zero(model):
    expected = rows_of(model)[ROWS_READ]
    assert np.array_equal(model(X), expected)
    assert np.array_equal(model.predict(X, verbose=0), expected)
    assert np.array_equal(model.predict_on_batch(X), expected)
    assert np.array_equal(model.predict({"f": UNSIGNED}, verbose=0), rows_of(model)[UNSIGNED_READ])


def check_trained(model, before, logs, batches):
    """Only rows 0 and 3 changed; out-of-vocabulary ids were counted."""
    after = rows_of(model)
    assert np.isfinite(after).all()
    assert np.array_equal(np.flatnonzero((after != before).any(axis=1)), [0, 3])
    assert logs["unknown_ids"] == len(UNKNOWN) * batches
    assert np.isfinite(logs["loss"])


def test_training_on_arrays_moves_row_zero_and_counts(model):
    before = rows_of(model)
    logs = model.fit(X, Y, batch_size=8, epochs=2, verbose=0).history
    assert logs["unknown_ids"] == [len(UNKNOWN)] * 2
    check_trained(model, before, {k: v[-1] for k, v in logs.items()}, 1)
    before = rows_of(model)
    model.reset_metrics()
    check_trained(model, before, model.train_on_batch(X, Y, return_dict=True), 1)


@pytest.mark.parametrize("source", SOURCES)
def test_any_source_trains_validates_and_asks_with_row_zero_and_counts(model, source):
    before, make = rows_of(model), SOURCES[source]
    more = {"validation_data": make(True), "validation_steps": 2}
    fitted = model.fit(make(True), steps_per_epoch=2, shuffle=False, verbose=0, **more)
    logs = {k: v[-1] for k, v in fitted.history.items()}
    check_trained(model, before, logs, 2)
    rows = rows_of(model)
    loss = np.square(rows[ROWS_READ]).sum(axis=1).mean() / 2
    evaluated = model.evaluate(make(True), steps=2, verbose=0, return_dict=True)
    for name in ("loss", "unknown_ids"):
        expected = {"loss": loss, "unknown_ids": 2 * len(UNKNOWN)}[name]
        assert evaluated[name] == pytest.approx(expected, rel=1e-5)
        assert logs[f"val_{name}"] == pytest.approx(expected, rel=1e-5)
    predicted = model.predict(make(False), steps=2, verbose=0)
    assert np.array_equal(predicted, np.tile(rows[ROWS_READ], (2, 1)))


def test_arrays_are_evaluated_with_row_zero_and_counted(model):
    rows = rows_of(model)
    loss = np.square(rows[ROWS_READ]).sum(axis=1).mean() / 2
    model.reset_metrics()
    for logs in (
        model.evaluate(X, Y, verbose=0, return_dict=True),
        model.test_on_batch(X, Y, return_dict=True),
    ):
        assert logs["loss"] == pytest.approx(loss, rel=1e-5)
        assert logs["unknown_ids"] == len(UNKNOWN)
        model.reset_metrics()
    assert np.array_equal(rows_of(model), rows)


def test_ids_of_weight_zero_are_not_counted():
    model = compiled(Lookup({"f": table(combiner="mean")}))
    x = {"f": np.array([[ROWS, 1], [2, -1]]), "f_weight": np.array([[0, 1], [1, 1]], np.float32)}
    logs = model.train_on_batch(x, np.zeros((2, DIM)), return_dict=True)
    assert logs["unknown_ids"] == 1


@pytest.mark.parametrize(
    "ids", [np.array([1.5, 2.0]), np.array([True, False]), np.array(["1", "2"])], ids=str
)
@pytest.mark.parametrize("kind", ["subclass", "functional"])
def test_a_model_refuses_a_non_integer(kind, ids):
    x, y = {"f": ids}, np.zeros((2, DIM))
    for use in (
        lambda model: model(x),
        lambda model: model.predict(x, verbose=0),
        lambda model: model.fit(x, y, verbose=0),
        lambda model: model.evaluate(x, y, verbose=0),
    ):
        # Keras wraps errors in its own, and refuses text before we see it.
        with pytest.raises(Exception, match=r"R362|Invalid dtype: str"):
            use(make(kind))


@pytest.mark.parametrize(("kind", "mesh"), [("functional", "one device"), ("subclass", "8")])
def test_an_unknown_id_stops_a_run_that_requested_it(kind, mesh):
    """Also on a mesh, on which a callback that raises would block the other devices."""
    for use in (
        lambda model: model.fit(X, Y, batch_size=8, verbose=0),
        lambda model: model.train_on_batch(X, Y),
        lambda model: model.predict(X, verbose=0),
        lambda model: model.evaluate(X, Y, verbose=0),
    ):
        with on_mesh(mesh, [table()]):
            model = make(kind, unknown="error")
            good = {"f": np.arange(8)}
            model.fit(good, Y, batch_size=8, verbose=0)
            assert np.isfinite(model.predict(good, verbose=0)).all()
            with pytest.raises(RecsysError, match=r"R360.*'t' must be in 0 … 9.*7 other ids"):
                use(model)


def test_a_direct_call_refuses_an_unknown_id_too():
    # Keras wraps what a call raises in an error of its own.
    with pytest.raises(RuntimeError, match=r"R360.*'t' must be in 0 … 9.*7 other ids"):
        make("subclass", unknown="error")(X)


@pytest.mark.parametrize("names", [("strict", "lenient"), ("lenient", "strict")], ids="-".join)
def test_a_stack_refuses_unknown_ids_only_of_the_tables_that_say_so(names):
    policies = {"strict": "error", "lenient": "row0"}
    options = {"optimizer": "adagrad", "placement": "row"}
    tables = {n: TableConfig(n, ROWS, DIM, unknown=policies[n], **options) for n in names}
    known, y = {name: np.arange(8) for name in names}, np.zeros((8, 2 * DIM))
    for use in (
        lambda model, x: model.fit(x, y, verbose=0),
        lambda model, x: model.predict(x, verbose=0),
    ):
        model = compiled(Lookup(tables, table_stacking="auto"))
        use(model, {**known, "lenient": IDS})
        with pytest.raises(RecsysError, match=r"R360.*strict.*7 other ids"):
            use(model, {**known, "strict": IDS})
