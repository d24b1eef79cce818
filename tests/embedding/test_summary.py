"""`summary()` of a model: its tables are trained, and it says so."""

import keras
import numpy as np
import pytest

from recsys.embedding import (
    Adagrad,
    FeatureConfig,
    RowWiseAdagrad,
    ShardedEmbedding,
    SparseModel,
    TableConfig,
)

ROWS, DIM = 1000, 8


def model_of(*tables):
    inputs = {t.name: keras.Input((), dtype="int32", name=t.name) for t in tables}
    features = {t.name: FeatureConfig(t.name, t, (None,), (None, DIM)) for t in tables}
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
    items = TableConfig("items", ROWS, DIM, optimizer=Adagrad(0.1))
    users = TableConfig("users", 2 * ROWS, DIM, optimizer=RowWiseAdagrad(0.1))
    return model_of(items, users)


def test_tables_that_learn_are_trainable(pair):
    text = summary_of(pair[0])
    dense = 2 * DIM + 1
    assert counted(text, "Trainable") == 3 * ROWS * DIM + dense
    slots = ROWS * DIM + 2 * ROWS
    assert slots <= counted(text, "Non-trainable") <= slots + 10  # and a few counts
    total = counted(text, "Trainable") + counted(text, "Non-trainable")
    assert counted(text, "Total") == total
    assert "items: 1,000 rows × 8" in text
    assert "trained by RowWiseAdagrad" in text


def test_fixed_tables_are_not(pair):
    model, layer = pair
    layer.trainable = False
    text = summary_of(model)
    assert counted(text, "Trainable") == 2 * DIM + 1
    assert text.count("; fixed") == 2


def test_a_summary_changes_nothing_of_what_is_trained(pair):
    model, _ = pair
    model.compile("sgd", "mse")
    before = [v.path for v in model.trainable_variables]
    summary_of(model)
    assert [v.path for v in model.trainable_variables] == before
    ids = np.arange(16)
    model.fit({"items": ids, "users": ids}, np.ones((16, 1)), batch_size=16, verbose=0)
    assert counted(summary_of(model), "Trainable") == 3 * ROWS * DIM + 2 * DIM + 1
