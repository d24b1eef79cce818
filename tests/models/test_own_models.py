"""Requirements of a custom model, loss or metric, and the errors if it breaks them."""

import json

import keras
import numpy as np
import pytest
from keras import ops
from training_runs import STAGE, on_devices, write_data

import recsys
from recsys.config import TrainStage
from recsys.data.dataset import open_data
from recsys.embedding import FeatureConfig, ShardedEmbedding, TableConfig
from recsys.errors import RecsysError, UsageError
from recsys.losses import Bpr, LeastSquares, SampledSoftmax
from recsys.models import ModelSpec
from recsys.stages.train import write_model
from recsys.training.trainer import Trainer

DIM, HISTORY = 8, 4


class Config(recsys.RetrievalConfig):
    pass


def own(**parts):
    """Registers a model class with other methods, under a name of its own; returns it."""
    own.count = getattr(own, "count", 0) + 1

    def query(self, features, training=False):
        return features["user_row"]

    def candidate(self, features, training=False):
        return features["id_row"]

    config = type("Config", (recsys.RetrievalConfig,), {"__module__": __name__})
    members = {"query": query, "candidate": candidate, **parts}
    cls = type(
        "Own", (recsys.RetrievalModel,), {"Config": config, "__module__": __name__, **members}
    )
    cls.__qualname__ = f"Own{own.count}"
    return recsys.register_model(f"own_model_{own.count}")(cls)


def make(cls, **kwargs):
    spec = ModelSpec(
        config=cls.Config(dim=DIM, history=HISTORY), user_rows=9, item_rows=9, features=()
    )
    return cls(spec, **kwargs)


BATCH = {
    "user_row": np.arange(1, 5, dtype=np.int32),
    "history": np.zeros((4, HISTORY), np.int32),
    "id_row": np.arange(1, 7, dtype=np.int32),
    "item_row": np.arange(1, 7, dtype=np.int32),
    "log_q": np.zeros(6, np.float32),
}


def compiled(model):
    model.build()
    model.compile(optimizer=keras.optimizers.SGD(0.1))
    return model


def loss_of(model):
    """Returns the logs of the first step."""
    return {k: float(v) for k, v in model.train_on_batch(BATCH, return_dict=True).items()}


def wide(self, features, training=False):
    return ops.tile(features["id_row"], (1, 2))


def rank_3(self, features, training=False):
    return features["user_row"][:, None]


def whole(self, features, training=False):
    return ops.cast(features["user_row"], "int32")


def of_the_batch(self, features, training=False):
    return ops.concatenate([features["id_row"], features["id_row"]])


def not_finite(self, features, training=False):
    count = ops.sum(ops.cast(features["history_rows"] > 0, "float32"), axis=1, keepdims=True)
    return features["user_row"] / count


@pytest.mark.parametrize(
    ("method", "function", "received"),
    [
        ("candidate", wide, r"same width.*query float32\[1, 8\], candidate float32\[1, 16\]"),
        ("query", rank_3, r"query\(\) must be vectors \[1, width\].*float32\[1, 1, 8\]"),
        ("query", whole, r"query\(\) must be vectors.*int32\[1, 8\]"),
        ("candidate", of_the_batch, r"candidate\(\) must be vectors \[1, width\].*float32\[2, 8\]"),
        ("query", lambda self, features, training=False: None, r"query\(\).*NoneType"),
        ("query", not_finite, r"query\(\) must be finite.*division by 0"),
    ],
    ids=["width", "rank", "type", "rows", "none", "nan"],
)
def test_a_wrong_vector_is_refused_when_the_model_is_built(method, function, received):
    with pytest.raises(RecsysError, match=rf"R334.*Own.*{received}"):
        make(own(**{method: function})).build()


def test_a_width_that_only_training_has_is_refused_before_the_first_step():
    def candidate(self, features, training=False):
        return wide(self, features) if training else features["id_row"]

    model = compiled(make(own(candidate=candidate)))
    with pytest.raises(RecsysError, match=r"R334.*width.*float32\[4, 8\].*float32\[6, 16\]"):
        model.train_on_batch(BATCH)


def test_a_feature_that_is_not_there_is_answered_by_those_that_are():
    def query(self, features, training=False):
        return features["taste"]

    with pytest.raises(
        UsageError, match=r"R339.*query\(\).*history, history_rows, user_row.*taste"
    ):
        make(own(query=query)).build()

    def candidate(self, features, training=False):
        return wrong()

    def wrong():
        return {"a": 1}["taste"]  # A mistake of its own.

    with pytest.raises(KeyError, match="taste"):
        make(own(candidate=candidate)).build()


@recsys.register_loss("of_each_query")
class OfEachQuery(recsys.Loss):
    def __call__(self, query, candidate, **batch):
        return ops.sum(query * candidate[: query.shape[0]], axis=-1)


def test_a_loss_that_is_no_scalar_is_refused():
    model = compiled(make(own(), loss="of_each_query"))
    with pytest.raises(RecsysError, match=r"R334.*OfEachQuery must be a scalar.*float32\[4\]"):
        model.train_on_batch(BATCH)


@pytest.mark.parametrize("loss", [SampledSoftmax(), LeastSquares(), Bpr()])
@pytest.mark.parametrize("width", [1, 2, 16])
def test_losses_refuse_queries_and_candidates_of_two_widths(loss, width):
    query, candidate = np.ones((4, 8), np.float32), np.ones((6, width), np.float32)
    batch = {"item_row": BATCH["item_row"], "log_q": BATCH["log_q"], "temperature": 1.0}
    with pytest.raises(RecsysError, match=r"R334.*width.*float32\[4, 8\]"):
        loss(query, candidate, **batch)


@pytest.mark.parametrize("name", ["item_row", "log_q", "sample_weight", "known"])
def test_a_loss_refuses_arrays_of_another_length(name):
    vectors = np.ones((4, 8), np.float32), np.ones((6, 8), np.float32)
    batch = {"item_row": BATCH["item_row"], "log_q": BATCH["log_q"], name: np.ones(3, np.int32)}
    with pytest.raises(RecsysError, match=rf"R334.*{name}.*int32\[3\]"):
        SampledSoftmax()(*vectors, **batch, temperature=1.0)


# --- auxiliary losses, add_loss and regularizers


def test_an_auxiliary_loss_counts_by_its_weight_and_is_shown_by_its_value():
    def candidate(self, features, training=False):
        self.add_auxiliary("size", ops.sum(ops.square(features["id_row"])), weight=0.5)
        return features["id_row"]

    plain, logs = (loss_of(compiled(make(cls))) for cls in (own(), own(candidate=candidate)))
    model = make(own())
    model.build()
    rows = np.asarray(model.embedding.tables[1].embeddings.value)[1:7]
    assert logs["size"] == pytest.approx(np.sum(rows**2), rel=1e-5)
    assert logs["loss"] == pytest.approx(plain["loss"] + 0.5 * logs["size"], rel=1e-5)


def dense(**options):
    """Returns a class of models whose towers share a layer."""

    def init(self, spec, **kwargs):
        super(cls, self).__init__(spec, **kwargs)
        self.shared = keras.layers.Dense(DIM, **options)

    def query(self, features, training=False):
        return self.shared(features["user_row"])

    def candidate(self, features, training=False):
        return self.shared(features["id_row"])

    cls = own(__init__=init, query=query, candidate=candidate)
    return cls


def test_weight_regularizers_are_in_the_loss_and_in_its_gradient():
    plain, model = (
        compiled(make(dense())),
        compiled(make(dense(kernel_regularizer=keras.regularizers.L2(0.3)))),
    )
    kernel = np.asarray(model.shared.kernel.value)
    np.testing.assert_array_equal(kernel, plain.shared.kernel.value)
    without, logs = loss_of(plain), loss_of(model)
    assert logs["regularization"] == pytest.approx(0.3 * np.sum(kernel**2), rel=1e-5)
    assert logs["loss"] == pytest.approx(without["loss"] + logs["regularization"], rel=1e-5)
    # The gradient of 0.3 w² is 0.6 w, at a rate of 0.1.
    moved = np.asarray(plain.shared.kernel.value) - np.asarray(model.shared.kernel.value)
    np.testing.assert_allclose(moved, 0.06 * kernel, rtol=1e-4, atol=1e-6)


def test_what_a_layer_of_both_towers_adds_counts_for_both():
    options = {"activity_regularizer": keras.regularizers.L1(0.01)}
    logs = [loss_of(compiled(make(cls))) for cls in (dense(), dense(**options))]
    model = make(dense())
    model.build()
    users, items = (np.asarray(t.embeddings.value) for t in model.embedding.tables)
    kernel = np.asarray(model.shared.kernel.value)
    # Keras divides what an activity costs by the batch: 4 queries, 6 candidates.
    of_users, of_items = np.abs(users[1:5] @ kernel).sum(), np.abs(items[1:7] @ kernel).sum()
    expected = 0.01 * (of_users / 4 + of_items / 6)
    assert logs[1]["added_losses"] == pytest.approx(expected, rel=1e-4)
    assert logs[1]["loss"] == pytest.approx(logs[0]["loss"] + expected, rel=1e-4)


def adding(name="size", weight=1.0, value=None, only_in_training=False):
    def query(self, features, training=False):
        if training or not only_in_training:
            x = ops.mean(features["user_row"]) if value is None else value(features)
            self.add_auxiliary(name, x, weight)
        return features["user_row"]

    return compiled(make(own(query=query)))


@pytest.mark.parametrize(
    ("options", "code", "received"),
    [
        ({"name": "loss"}, "R347", "'loss'"),
        ({"name": "a b"}, "R347", "'a b'"),
        ({"name": "val_size"}, "R347", "val_size"),
        ({"weight": float("nan")}, "R347", "nan"),
        ({"value": lambda features: features["user_row"]}, "R334", r"float32\[1, 8\]"),
        ({"only_in_training": True}, "R347", "size"),
    ],
    ids=["reserved", "name", "validation", "weight", "value", "unknown"],
)
def test_an_auxiliary_loss_that_is_none_is_refused(options, code, received):
    with pytest.raises(RecsysError, match=rf"{code}.*{received}"):
        adding(**options).train_on_batch(BATCH)


def test_a_regularizer_of_a_sharded_table_is_refused():
    regularizer = keras.regularizers.L2(0.1)
    model = compiled(make(own()))
    model.embedding.tables[0].embeddings.regularizer = regularizer
    with pytest.raises(UsageError, match=r"R347.*'users'.*table_weight_decay"):
        model.train_on_batch(BATCH)
    table = TableConfig("items", 9, 4)
    features = {"item": FeatureConfig("item", table, (None,), (None, 4))}
    with pytest.raises(UsageError, match=r"R347.*weight_decay"):
        ShardedEmbedding(features, embeddings_regularizer=regularizer)
    table.embeddings_regularizer = regularizer
    with pytest.raises(UsageError, match=r"R347.*'items'"):
        ShardedEmbedding(features)


# --- trainings

SETTINGS = TrainStage.model_validate(
    {"model": STAGE["model"], "train": {**STAGE["train"], "epochs": 2, "batch_size": 32}}
)


@pytest.fixture(scope="module", autouse=True)
def one_device():
    with on_devices(1):
        yield


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    path = tmp_path_factory.mktemp("data")
    write_data(path)
    return open_data(path)


def stage_of(cls, **train):
    model = cls.Config(dim=DIM, history=HISTORY)
    return SETTINGS.model_copy(
        update={"model": model, "train": SETTINGS.train.model_copy(update=train)}
    )


def fit(cls, data, folder, callbacks=(), **train):
    stage = stage_of(cls, **train)
    trainer = Trainer(
        stage.train, folder, verbose=0, tensorboard=folder / "logs", callbacks=callbacks
    )
    return trainer.fit(cls.from_config(stage, data), data)


class Everything(recsys.RetrievalModel):
    """A model with an auxiliary loss, a regularizer, a metric, and a layer that is never called."""

    Config = type("Config", (recsys.RetrievalConfig,), {"__module__": __name__})

    def __init__(self, spec, **kwargs):
        super().__init__(spec, **kwargs)
        self.hidden = keras.layers.Dense(DIM, kernel_regularizer=keras.regularizers.L2(0.01))
        self.unused = keras.layers.Dense(DIM)

    def build_layers(self):
        super().build_layers()
        self.mean_length = keras.metrics.Mean(name="mean_length")

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        self.mean_length.update_state(ops.norm(y_pred["query"], axis=1))
        return super().compute_loss(x, y, y_pred, sample_weight, training)

    def query(self, features, training=False):
        hidden = self.hidden(features["user_row"])
        self.add_auxiliary("reconstruction", ops.mean(ops.square(hidden - 1.0)), weight=50.0)
        return hidden

    def candidate(self, features, training=False):
        return features["id_row"]


recsys.register_model("everything_of_mine")(Everything)


@pytest.fixture(scope="module")
def fitted(data, tmp_path_factory):
    """A folder, and the result of a training there."""
    folder = tmp_path_factory.mktemp("everything")
    return folder, fit(Everything, data, folder, accumulate=2)


def test_what_a_model_adds_to_its_loss_is_in_curve_epochs_tensorboard_and_folder(data, fitted):
    folder, result = fitted
    assert result.progress.step == 2 * 960 // 32
    first, last = result.curve[0], result.curve[-1]
    assert set(first) == {"step", "loss", "reconstruction", "regularization", "mean_length"}
    assert last["reconstruction"] < first["reconstruction"]
    assert {"reconstruction", "regularization"} <= set(result.history)
    write_model(folder / "model", result, data)
    saved = json.loads((folder / "model" / "training.json").read_text())
    assert saved["curve"] == result.curve
    [events] = [path for path in (folder / "logs").rglob("events*") if path.is_file()]
    assert b"train/reconstruction" in events.read_bytes()


def test_a_layer_that_is_called_in_training_alone_is_refused_by_name(data, tmp_path):
    def init(self, spec, **kwargs):
        super(cls, self).__init__(spec, **kwargs)
        self.late = keras.layers.Dense(DIM)

    def query(self, features, training=False):
        return self.late(features["user_row"]) if training else features["user_row"]

    cls = own(__init__=init, query=query)
    with pytest.raises(RecsysError, match=r"R334.*late"):
        fit(cls, data, tmp_path)


def test_what_is_added_is_the_same_on_two_devices_and_accumulates(data, fitted, tmp_path):
    with on_devices(2):
        on_two = fit(Everything, data, tmp_path, accumulate=2).curve
    for name in ("loss", "reconstruction", "regularization"):
        one, two = ([point[name] for point in curve] for curve in (fitted[1].curve, on_two))
        np.testing.assert_allclose(one, two, rtol=1e-4)


@pytest.mark.filterwarnings("ignore:Your input ran out of data")
def test_a_training_that_lost_a_batch_is_an_error(data, tmp_path, monkeypatch):
    # As Keras builds a model with a layer that is never called.
    monkeypatch.setattr(recsys.RetrievalModel, "_symbolic_build", keras.Model._symbolic_build)
    with pytest.raises(RecsysError, match=r"R399.*last step, 60.*step 59"):
        fit(Everything, data, tmp_path)


class NotFinite(recsys.RetrievalModel):
    """A model whose loss is NaN from its fourth step on."""

    Config = type("Config", (recsys.RetrievalConfig,), {"__module__": __name__})

    def build_layers(self):
        super().build_layers()
        self.step = self.add_weight(name="step", shape=(), initializer="zeros", trainable=False)

    def query(self, features, training=False):
        if training:
            self.step.assign_add(1.0)
            return features["user_row"] * ops.log(ops.where(self.step > 3, -1.0, 1.0))
        return features["user_row"]

    def candidate(self, features, training=False):
        return features["id_row"]


recsys.register_model("not_finite_of_mine")(NotFinite)


def test_nan_of_a_plugin_is_not_blamed_on_the_learning_rate(data, tmp_path):
    with pytest.raises(RecsysError, match=r"R322.*step 4\b.*NotFinite") as raised:
        fit(NotFinite, data, tmp_path)
    assert "learning_rate" not in str(raised.value)
