"""Towers in training: gradients, dropout, the learned temperature, bfloat16."""

import math

import keras
import numpy as np
import pytest
from tower_models import (
    DIM,
    DROPPED,
    EVERY,
    HISTORY,
    ITEMS,
    USERS,
    batch,
    build,
    histories,
    in_training,
    run,
    trained,
    weights,
)

from recsys.config import TrainConfig, TwoTowerConfig
from recsys.embedding import SGD
from recsys.errors import UsageError
from recsys.models import ModelSpec, TwoTower
from recsys.models.config import LEARNED_TEMPERATURE, SasRecConfig

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("kind", [kind for kind in EVERY if kind not in ("nobody", "sequence")])
def test_a_step_changes_every_weight_by_a_finite_gradient(kind):
    model = build(optimizer=SGD(0.1), **EVERY[kind])
    before = weights(model)
    [logs] = trained(model, [batch()])
    after = weights(model)
    assert np.isfinite(logs["loss"])
    for path, weight in after.items():
        assert np.isfinite(weight).all(), path
        # A key's bias moves all scores of a query alike: the softmax doesn't see it.
        assert "key/bias" in path or (weight != before[path]).any(), path


def test_regularised_rows_shrink_as_often_as_they_are_read():
    """With the rate 1 a step takes 2 λ / B off a row, times itself, for each of its readings."""
    kinds = {"widths": None, "user_id": True, "item_bias": True}
    plain, model = (build(optimizer=SGD(1.0), **kinds) for _ in range(2))
    weight = {"users": 0.3, "items": 0.1, "item_bias": 0.2}
    model.train_by(TrainConfig(table_regularisation=weight))
    before, x = weights(model), batch()
    x["user_row"][:3] = x["id_row"][:3] = 4
    for one in (plain, model):
        trained(one, [x])
    expected, found = weights(plain), weights(model)
    for table in weight:
        rows = x["user_row" if table == "users" else "id_row"]
        readings = np.bincount(rows, minlength=len(before[table]))[:, None]
        assert readings.min() == 0
        assert readings.max() >= 3
        shrunk = 2 * weight[table] / len(x["user_row"]) * readings * before[table]
        np.testing.assert_allclose(found[table], expected[table] - shrunk, atol=1e-6)


def test_a_table_that_is_not_there_is_not_regularised():
    with pytest.raises(UsageError, match=r"R369.*model\.item_bias") as error:
        build().train_by(TrainConfig(table_regularisation={"items": 0.1, "item_bias": 0.2}))
    assert "'item_bias': 0.2" in str(error.value)


def test_dropout_is_of_training_alone_and_follows_the_seed():
    one, two = (build(dropout=0.5, widths=(6,)) for _ in range(2))
    x = batch()
    served = [run(one, "embed_query", x) for _ in range(2)]
    np.testing.assert_array_equal(*served)
    np.testing.assert_array_equal(run(one, "call", x, training=False)["query"], served[0])
    first, second = (in_training(one, x) for _ in range(2))
    assert np.abs(first - served[0]).max() > 0.05
    assert np.abs(first - second).max() > 0.05  # The random state went on.
    np.testing.assert_array_equal([in_training(two, x) for _ in range(2)], [first, second])


def test_the_state_of_dropout_is_a_variable_to_go_on_from():
    one, two = (build(dropout=0.5, widths=(6,), **DROPPED) for _ in range(2))
    x = batch()
    in_training(one, x)
    states = {v.path: v for v in two.non_trainable_variables if "seed_generator" in v.path}
    assert len(states) == 4  # Of two towers, a block, and what it reads.
    for variable in one.non_trainable_variables:
        if variable.path in states:
            assert (np.asarray(variable.value) != np.asarray(states[variable.path].value)).any()
            states[variable.path].assign(variable.value)
    np.testing.assert_array_equal(in_training(one, x), in_training(two, x))


@pytest.mark.parametrize("kind", ["dropout", "temperature"])
def test_paths_are_unique_and_the_same_each_time(kind):
    paths = []
    for _ in range(2):
        model = build(optimizer=SGD(0.1), **EVERY[kind])
        model.compile(optimizer=keras.optimizers.Adam(0.1, name="towers"))
        model.optimizer.build(model.trainable_variables)
        metrics = {id(v) for metric in model.metrics for v in metric.variables}
        every = [*model.variables, *model.optimizer.variables]
        paths.append([v.path for v in every if id(v) not in metrics])
    assert paths[0] == paths[1]
    assert len(set(paths[0])) == len(paths[0])


def test_a_learned_temperature_moves_and_is_logged():
    model = build(optimizer=SGD(0.1), learn_temperature=True, temperature=0.5)
    x = batch()
    x["id_row"] = x["item_row"] = np.arange(1, ITEMS, dtype=np.int32)
    y_pred = run(model, "call", x, training=False)
    query, candidate = (y_pred[name].astype(np.float64) for name in ("query", "candidate"))

    def loss(temperature):
        logits = query @ candidate.T / temperature - x["log_q"]
        return -np.log(np.diag(np.exp(logits)) / np.exp(logits).sum(axis=1)).mean()

    # By the logarithm of the temperature.
    slope = (loss(0.5 * math.exp(1e-5)) - loss(0.5 * math.exp(-1e-5))) / 2e-5
    [logs] = trained(model, [x])
    assert logs["temperature"] == pytest.approx(0.5)
    assert logs["loss"] == pytest.approx(loss(0.5), rel=1e-5)
    log = float(model.temperature.log.value)
    assert log - math.log(0.5) == pytest.approx(-0.1 * slope, rel=1e-3)
    [logs] = [model.train_on_batch(x, return_dict=True)]
    assert logs["temperature"] == pytest.approx(math.exp(log))


@pytest.mark.parametrize(("start", "sign"), [(0.1, 1.0), (1.0, -1.0)])
def test_a_learned_temperature_stays_in_its_range(start, sign):
    model = build(optimizer=SGD(0.1), learn_temperature=True, temperature=start, widths=None)
    # Every positive is certain, or the worst of all: colder or hotter is better each time.
    items = np.zeros((ITEMS, DIM), np.float32)
    items[np.arange(1, DIM + 1), np.arange(DIM)] = 1.0
    users = np.zeros((USERS, DIM), np.float32)
    users[:DIM] = sign * items[1 : DIM + 1]
    for table, rows in zip(model.embedding.tables, (users, items), strict=True):
        table.embeddings.assign(rows)
    rows = np.arange(8, dtype=np.int32)
    x = {
        "user_row": rows,
        "history": histories(*[[]] * 8),
        "id_row": rows + 1,
        "item_row": rows + 1,
        "log_q": np.zeros(8, np.float32),
    }
    logs = trained(model, [x] * 4, "adam", rate=5.0)
    bound = LEARNED_TEMPERATURE[0] if sign > 0 else LEARNED_TEMPERATURE[1]
    assert logs[-1]["temperature"] == pytest.approx(bound, rel=1e-5)
    # And it comes back where the gradient turns.
    model.temperature.log.assign(math.log(start))
    assert model.temperature.temperature() == pytest.approx(start, rel=1e-5)


@pytest.mark.parametrize("start", [0.009, 11.0])
def test_a_temperature_that_starts_outside_its_range_is_refused(start):
    with pytest.raises(ValueError, match=r"between 0\.01 and 10"):
        TwoTowerConfig(learn_temperature=True, temperature=start)
    TwoTowerConfig(learn_temperature=False, temperature=start)


@pytest.mark.parametrize("pooling", ["mean", SasRecConfig(dropout=0.0)], ids=["mean", "sasrec"])
def test_bfloat16_rounds_in_training_alone(pooling):
    options = {"dim": DIM, "history": HISTORY, "pooling": pooling, "widths": (16,)}
    config = TwoTowerConfig(**options)
    spec = ModelSpec(config=config, user_rows=USERS, item_rows=ITEMS, features=())
    full, half = (TwoTower(spec, seed=7, compute_dtype=dtype) for dtype in ("float32", "bfloat16"))
    for model in (full, half):
        model.build()
    assert {str(v.dtype) for v in half.trainable_variables} == {"float32"}
    x = batch()
    served = [run(model, "call", x, training=False) for model in (full, half)]
    for name in ("query", "candidate"):
        np.testing.assert_array_equal(*(found[name] for found in served))
    exact, rounded = (in_training(model, x) for model in (full, half))
    assert rounded.dtype == np.float32
    assert 1e-5 < np.abs(rounded - exact).max() < 0.03


def test_a_model_in_bfloat16_trains_its_float32_weights():
    config = TwoTowerConfig(dim=DIM, history=HISTORY, dropout=0.1, pooling="attention")
    spec = ModelSpec(config=config, user_rows=USERS, item_rows=ITEMS, features=())
    model = TwoTower(spec, TwoTower.make_tables(spec, SGD(0.1)), compute_dtype="bfloat16")
    logs = trained(model, [batch()] * 30, "adam", rate=0.01)
    assert logs[-1]["loss"] < logs[0]["loss"] - 0.5
    assert {str(v.dtype) for v in model.trainable_variables} == {"float32"}
