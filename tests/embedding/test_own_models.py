"""Subclassed models: metrics of their own, files of Keras, and exports."""

import importlib.util
import json
import os
import re
import subprocess
import sys

import keras
import numpy as np
import pytest
from embedding_meshes import on_mesh
from on_tensorflow import run_on_tensorflow
from places import ROOT, SUPPORT
from training_runs import on_devices

from recsys.embedding import (
    SGD,
    Adagrad,
    FeatureConfig,
    ShardedEmbedding,
    SparseModel,
    TableConfig,
    activate,
    table_layout,
)

# Keras' own numpy() of a variable, which saving an optimizer calls.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy")

ROWS, DIM, BATCH = 50, 8, 16
ITEMS = TableConfig("items", ROWS, DIM, optimizer=Adagrad(0.1), placement="row", combiner="mean")


@keras.saving.register_keras_serializable(package="tests")
class Own(SparseModel):
    """Single ids, bags and numbers; a metric that is made with the model."""

    def __init__(self, rows=ROWS, **kwargs):
        super().__init__(**kwargs)
        self.rows = rows
        self.mean = keras.metrics.Mean(name="mean_output")
        config = TableConfig.from_config({**ITEMS.get_config(), "vocabulary_size": rows})
        self.embedding = ShardedEmbedding(
            {
                "item": FeatureConfig("item", config, (None,), (None, DIM)),
                "bag": FeatureConfig("bag", config, (None, 3), (None, DIM)),
            }
        )
        self.out = keras.layers.Dense(1)

    def call(self, inputs):
        rows = self.embedding({name: inputs[name] for name in ("item", "bag")})
        return self.out(keras.ops.concatenate([*rows.values(), inputs["number"]], axis=-1))

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        self.mean.update_state(y_pred)
        return keras.ops.mean(keras.ops.square(y_pred - y))

    def get_config(self):
        return {**super().get_config(), "rows": self.rows}


def batch(seed=0):
    rng = np.random.default_rng(seed)
    x = {"item": rng.integers(-1, ROWS, BATCH), "bag": rng.integers(0, ROWS, (BATCH, 3))}
    x["number"] = rng.normal(size=(BATCH, 2)).astype(np.float32)
    return x, rng.normal(size=(BATCH, 1)).astype(np.float32)


def trained(steps=2):
    model = Own()
    model.compile("adam")
    for step in range(steps):
        model.train_on_batch(*batch(step))
    return model


def test_a_metric_that_is_older_than_the_layout_is_kept_by_it():
    mean = keras.metrics.Mean(name="mean_output")
    activate(table_layout([ITEMS]))
    model = Own()
    model.mean = mean
    model.compile("adam")
    x, y = batch()
    logs = model.train_on_batch(x, y, return_dict=True)
    assert logs["mean_output"] != 0
    assert model.mean.result() == logs["mean_output"]


@pytest.mark.parametrize("mesh", ["one device", "8"])
def test_a_subclassed_model_comes_back_from_a_file_and_trains_on(mesh, tmp_path):
    x, y = batch(9)
    with on_mesh(mesh, [ITEMS]):
        model = trained()
        model.save(tmp_path / "own.keras")
        again = keras.saving.load_model(tmp_path / "own.keras")
        np.testing.assert_array_equal(again.predict(x, verbose=0), model.predict(x, verbose=0))
        for one in (model, again):
            one.train_on_batch(x, y)
        np.testing.assert_allclose(
            again.predict(x, verbose=0), model.predict(x, verbose=0), rtol=1e-6, atol=1e-6
        )


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_an_exported_model_computes_the_same_and_holds_no_slots(tmp_path):
    model, (x, _) = trained(), batch(9)
    model.export(tmp_path / "export", verbose=False)
    short = {name: values[:5].tolist() for name, values in x.items()}
    (tmp_path / "x.json").write_text(json.dumps(short))
    run_on_tensorflow(SUPPORT / "serve_export.py", tmp_path)
    served, shapes = json.loads((tmp_path / "y.json").read_text())
    np.testing.assert_allclose(served, model.predict(x, verbose=0)[:5], rtol=1e-5, atol=1e-6)
    table = [shape for shape in shapes if shape[-1:] == [DIM]]
    assert len(table) == 1
    model.train_on_batch(*batch())  # It still trains.


def sgd_model(rate):
    config = TableConfig("items", ROWS, DIM, optimizer=SGD(rate))
    inputs = keras.Input((), dtype="int32", name="item")
    rows = ShardedEmbedding({"item": FeatureConfig("item", config, (None,), (None, DIM))})
    model = SparseModel(inputs, rows({"item": inputs})["item"])
    model.compile(keras.optimizers.SGD(0.5), loss=lambda y, y_pred: keras.ops.mean(y_pred))
    return model


def moved(model):
    """Returns how far a step moves the sum of row 3, whose gradient is 1."""
    layer = next(layer for layer in model.layers if isinstance(layer, ShardedEmbedding))
    before = layer.get_embedding_tables()["items"][3].copy()
    model.train_on_batch(np.full(BATCH, 3), np.zeros((BATCH, DIM), np.float32))
    return float((before - layer.get_embedding_tables()["items"][3]).mean() * DIM)


def test_tables_follow_the_learning_rate_that_a_callback_sets(tmp_path):
    model = sgd_model(0.25)
    assert moved(model) == pytest.approx(0.25, rel=1e-4)
    x, y = np.full(BATCH, 5), np.zeros((BATCH, DIM), np.float32)
    schedule = keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate / 2)
    model.fit(x, y, batch_size=BATCH, epochs=2, callbacks=[schedule], verbose=0)
    assert moved(model) == pytest.approx(0.25 / 4, rel=1e-4)
    model.optimizer.learning_rate = 1.0
    assert moved(model) == pytest.approx(0.5, rel=1e-4)
    model.compile(keras.optimizers.SGD(7.0), loss=lambda y, y_pred: keras.ops.mean(y_pred))
    assert moved(model) == pytest.approx(0.25, rel=1e-4)


def test_a_table_with_a_schedule_of_its_own_follows_that():
    model = sgd_model(keras.optimizers.schedules.PiecewiseConstantDecay([0], [0.25, 0.125]))
    assert moved(model) == pytest.approx(0.25, rel=1e-4)
    model.optimizer.learning_rate = 5.0
    assert moved(model) == pytest.approx(0.125, rel=1e-4)


def test_a_file_keeps_the_share_of_the_learning_rate(tmp_path):
    model = trained()
    model.optimizer.learning_rate = 0.0005
    model.save(tmp_path / "own.keras")
    again = keras.saving.load_model(tmp_path / "own.keras")
    for one in (model, again):
        one.train_on_batch(*batch(5))
    tables = [one.embedding.get_embedding_tables()["items"] for one in (model, again)]
    np.testing.assert_array_equal(*tables)
    once_more = trained()
    once_more.train_on_batch(*batch(5))
    assert not np.array_equal(once_more.embedding.get_embedding_tables()["items"], tables[0])


# --- the example's DLRM


EXAMPLE = ROOT / "examples" / "own_keras_model.py"


def assert_learned(printed, devices):
    assert f"c4: 1,000,000 rows, {devices} shards" in printed
    assert "'c4'" in re.search(r"StepProof\(tables=\((.*?)\)", printed)[1]


def test_the_dlrm_learns_and_its_step_is_checked(monkeypatch, capsys):
    spec = importlib.util.spec_from_file_location("own_keras_model", EXAMPLE)
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    few = dict(list(example.TABLES.items())[:6])  # Each costs some seconds to compile.
    monkeypatch.setattr(example, "TABLES", few)
    monkeypatch.setattr(example, "ROWS", example.ROWS[:6])
    with on_devices(2):
        assert example.main() > 0.65
    assert_learned(capsys.readouterr().out, 2)


@pytest.mark.thorough
@pytest.mark.parametrize("devices", [1, 2, 8])
def test_the_whole_example_runs(devices):
    # Compiled as users do: it computes for longer than it compiles.
    flags = f"--xla_force_host_platform_device_count={devices}"
    flags += " --xla_cpu_collective_call_terminate_timeout_seconds=600"  # Under load.
    done = subprocess.run(
        [sys.executable, EXAMPLE],
        env={**os.environ, "XLA_FLAGS": flags},
        capture_output=True,
        text=True,
        check=True,
    )
    assert_learned(done.stdout, devices)
    assert float(re.search(r"AUC (0\.\d+)", done.stdout)[1]) > 0.65
