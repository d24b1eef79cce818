"""Optimizers and schedules follow the config."""

import keras
import numpy as np
import pytest

from recsys.config import TrainConfig, TwoTowerConfig
from recsys.data.catalogue import Catalogue
from recsys.embedding.optimizers import LazyAdam
from recsys.models import ModelSpec, TwoTower
from recsys.training.optimization import (
    WarmupAndDecay,
    averaged,
    exclude_vectors,
    finalize,
    table_optimizers,
    tower_optimizer,
)


def rates(kind, updates=100, warmup=0, end=0.0):
    schedule = WarmupAndDecay(2.0, updates, kind, warmup, end)
    return np.array([float(schedule(step)) for step in range(updates + 5)])


def test_a_constant_rate_is_warmed_up_along_a_line():
    found = rates("constant", warmup=4)
    assert found[:6] == pytest.approx([0.5, 1.0, 1.5, 2.0, 2.0, 2.0])


def test_a_line_goes_down_to_its_end_and_stays_there():
    found = rates("linear", warmup=20, end=0.1)
    assert found[20] == pytest.approx(2.0)
    assert found[60] == pytest.approx(2.0 * (0.1 + 0.9 * 0.5))
    assert found[100:] == pytest.approx(0.2)


def test_towers_and_tables_have_one_schedule_whatever_is_accumulated():
    train = TrainConfig(
        table_learning_rate=2.0,
        tower_learning_rate=2.0,
        accumulate=4,
        schedule={"kind": "linear", "warmup_steps": 8},
    )
    tables, _ = table_optimizers(train, 10)
    towers = tower_optimizer(train, 10)
    # Keras counts steps, of which four are an update; a table counts updates.
    of_towers = [float(towers._learning_rate(step)) for step in range(40)]
    of_tables = [float(tables.rate(np.int32(update))) for update in range(10)]
    assert of_towers[3::4] == pytest.approx(of_tables)
    assert of_tables[:3] == pytest.approx([1.0, 2.0, 2.0])
    assert of_tables[9] == pytest.approx(2.0 * 1 / 8)


def test_half_a_cosine_is_keras_own():
    own = keras.optimizers.schedules.CosineDecay(2.0, 100, alpha=0.1)
    expected = [float(own(step)) for step in range(105)]
    assert rates("cosine", end=0.1) == pytest.approx(expected, rel=1e-6)


def test_a_schedule_is_the_same_after_saving():
    schedule = WarmupAndDecay(0.3, 50, "cosine", 7, 0.2)
    again = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(schedule))
    assert [float(again(s)) for s in (0, 6, 20, 50)] == [float(schedule(s)) for s in (0, 6, 20, 50)]


def test_users_have_a_rate_of_their_own_where_it_is_given():
    train = TrainConfig(
        table_optimizer="lazy_adam", table_learning_rate=0.2, table_weight_decay=0.01
    )
    tables, users = table_optimizers(train, 10)
    assert tables == users == LazyAdam(0.2, weight_decay=0.01)
    _, users = table_optimizers(train.model_copy(update={"user_learning_rate": 0.02}), 10)
    assert users == LazyAdam(0.02, weight_decay=0.01)


@pytest.mark.parametrize("kind", ["adam", "adamw", "adagrad", "lion", "rmsprop", "sgd"])
def test_each_optimizer_of_the_towers_is_keras_own(kind):
    train = TrainConfig(tower_optimizer=kind, clip_norm=3.0, accumulate=2, ema=0.9)
    optimizer = tower_optimizer(train, 10)
    assert type(optimizer).__name__.lower() == kind
    assert optimizer.global_clipnorm == 3.0
    assert optimizer.gradient_accumulation_steps == 2
    assert optimizer.use_ema
    assert optimizer.ema_momentum == 0.9


@pytest.mark.parametrize("ema", [None, 0.5])
def test_weights_are_their_averages_for_a_while_and_then_themselves(ema):
    model = keras.Sequential([keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")])
    model.build((None, 1))
    train = TrainConfig(tower_optimizer="sgd", tower_learning_rate=1.0, ema=ema)
    model.compile(optimizer=tower_optimizer(train, 10), loss=lambda y, p: p)
    optimizer = model.optimizer
    optimizer.build(model.trainable_variables)
    weight = model.trainable_variables[0]
    for _ in range(2):  # The weight goes 1, 0, -1.
        optimizer.apply([np.ones((1, 1), np.float32)], [weight])
    expected = -1.0 if ema is None else float(optimizer._model_variables_moving_average[0][0, 0])
    with averaged(model):
        assert float(weight.value[0, 0]) == pytest.approx(expected)
    assert float(weight.value[0, 0]) == -1.0
    finalize(model)
    assert float(weight.value[0, 0]) == pytest.approx(expected)
    # Keras starts the average at the first updated weight: 0, then 0.5 · 0 + 0.5 · -1.
    assert expected == (-1.0 if ema is None else -0.5)


def test_adamw_leaves_alone_what_is_no_matrix():
    model = keras.Sequential([keras.layers.Dense(2), keras.layers.LayerNormalization()])
    model.build((None, 3))
    optimizer = tower_optimizer(TrainConfig(tower_optimizer="adamw", tower_weight_decay=0.5), 10)
    exclude_vectors(optimizer, model)
    optimizer.build(model.trainable_variables)
    decayed = {v.name for v in model.trainable_variables if optimizer._use_weight_decay(v)}
    assert decayed == {"kernel"}
    assert optimizer.weight_decay == 0.5


@pytest.mark.parametrize("pooling", ["mean", "attention", "sasrec"])
def test_positions_are_not_decayed(pooling):
    config = TwoTowerConfig(dim=8, history=4, pooling=pooling)
    ids = ["", *(f"i{n}" for n in range(1, 9))]
    model = TwoTower(ModelSpec.for_data(config, 5, Catalogue(ids, ids, ()), ()))
    model.build()
    optimizer = tower_optimizer(TrainConfig(tower_optimizer="adamw"), 10)
    exclude_vectors(optimizer, model)
    optimizer.build(model.trainable_variables)
    decayed = {v.name for v in model.trainable_variables if optimizer._use_weight_decay(v)}
    assert any(v.name == "place" for v in model.trainable_variables)
    assert decayed == {"kernel"}
