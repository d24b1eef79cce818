"""Users solved from their histories against numpy in float64 and against iALS, and a training."""

import jax
import numpy as np
import pytest
import scipy.sparse
from tower_models import DIM, ITEMS, batch, build, histories, queries, run, weights
from training_runs import train_here

from benchmarks.public_splits import Csr, write_data_folder
from recsys.config import TrainStage, TwoTowerConfig
from recsys.data.split import SplitRule
from recsys.models.config import FoldInConfig
from recsys.models.inference import embed_queries
from recsys.tasks.model_folder import load_model
from recsys.tasks.retrieval.judging.baselines import Objective, solve

SOLVED = {"widths": None, "similarity": "dot", "temperature": 1.0}
HISTORIES = histories([3], [5, 2], [1, 2, 3, 4, 5], [0, 6, 0, 7], [9, 9, 9])


def solved(items, gramian, negative_weight, regularisation):
    """The closed form in float64, item by item."""
    system = regularisation * np.sqrt(len(items)) * np.eye(items.shape[1])
    for y in items:
        system += np.outer(y, y) + negative_weight * gramian
    return np.linalg.solve(system, items.sum(axis=0))


def settled(vectors, **options):
    model = build(**SOLVED, pooling=FoldInConfig(**options))
    model.settle(vectors)
    return model


@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("options", [{}, {"negative_weight": 2.0, "regularisation": 1.5}])
def test_a_history_is_solved_as_numpy_does(options, devices, monkeypatch):
    """By LAPACK where a process has one device; by elimination where several would hang."""
    monkeypatch.setattr(jax, "local_device_count", lambda: devices)
    vectors = np.random.default_rng(0).normal(size=(40, DIM)).astype(np.float32)
    model = settled(iter([vectors[:30], vectors[30:]]), **options)
    gramian = vectors.astype(np.float64).T @ vectors / len(vectors)
    items, config = weights(model)["items"], FoldInConfig(**options)
    expected = [
        solved(items[[row for row in rows if row]], gramian, *config.model_dump().values())
        for rows in HISTORIES
    ]
    # Whoever asks: the row of a known user is not in it.
    for user in (0, 4):
        found = queries(model, HISTORIES, [user] * len(HISTORIES))
        np.testing.assert_allclose(found, expected, atol=1e-5)


def test_it_is_what_ials_folds_in():
    """The objective of iALS with the weights of a user with this number of items."""
    vectors = np.random.default_rng(1).normal(size=(ITEMS - 1, DIM)).astype(np.float32)
    model = settled([vectors], negative_weight=3.0, regularisation=0.4)
    rows = np.concatenate([np.zeros((1, DIM), np.float32), vectors])
    next(table for table in model.embedding.tables if table.name == "items").embeddings.assign(rows)
    taken, n_items = np.array([2, 4, 7, 11]), len(vectors)
    n, shape = len(taken), (1, n_items)
    row = scipy.sparse.csr_matrix((np.ones(n), taken - 1, [0, n]), shape=shape, dtype=np.float32)
    unobserved = 3.0 * n / n_items
    length = 0.4 * np.sqrt(n) / (n + unobserved * n_items)
    expected = solve(row, vectors, n_items, Objective(unobserved, length))
    np.testing.assert_allclose(queries(model, histories(taken)), expected, atol=1e-5)


def test_who_has_no_history_is_the_own_row():
    model = settled([])
    found = queries(model, histories([], [], [4]), [3, 0, 3])
    np.testing.assert_array_equal(found[:2], weights(model)["users"][[3, 0]])
    assert np.abs(found[2] - found[0]).max() > 0.01


def test_training_learns_rows_and_reads_no_history():
    model = build(**SOLVED, pooling="fold_in")
    x = batch()
    del x["history"]
    query = run(model, "call", x, training=True)["query"]
    np.testing.assert_array_equal(query, weights(model)["users"][x["user_row"]])
    assert "gramian" not in " ".join(v.path for v in model.trainable_variables)


@pytest.mark.parametrize(
    "options",
    [
        {"similarity": "cosine"},
        {"temperature": 0.1},
        {"user_id": False},
        {"item_bias": True},
        {"item_neighbours": 4},
        {"widths": ()},
    ],
)
def test_incompatible_options_are_refused(options):
    with pytest.raises(ValueError, match="fold_in"):
        TwoTowerConfig(pooling="fold_in", **{**SOLVED, **options})


def test_another_loss_is_refused():
    with pytest.raises(ValueError, match=r"set train\.loss to least_squares"):
        TrainStage(model=TwoTowerConfig(pooling="fold_in", **SOLVED))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("devices", "layers", "validation"),
    [
        pytest.param(1, {"widths": None}, None, id="rows", marks=pytest.mark.thorough),
        pytest.param(
            2, {"widths": [], "history_tower": True}, {"share": 0.1}, id="features on two devices"
        ),
    ],
)
def test_a_trained_model_solves_any_user_by_the_vectors_of_its_items(
    devices, layers, validation, tmp_path
):
    """Its users have one of two tastes; new users get as good answers as known ones."""
    random = np.random.default_rng(0)
    lists = [(2 * random.permutation(20)[:12] + user % 2).tolist() for user in range(64)]
    tokens = {"colour": [[f"c{item % 3}"] for item in range(44)]} if layers["widths"] == [] else {}
    train = Csr.of_lists(lists, 44)  # The last four are nobody's.
    write_data_folder(train, tmp_path / "data", tokens, rule=SplitRule("random", "none"))
    stage = {
        "model": {"dim": 8, "history": 8, "pooling": "fold_in", **SOLVED, **layers},
        "train": {
            "loss": "least_squares",
            "batch_size": 64,
            "uniform_negatives": 64,
            "epochs": 12,
            "table_learning_rate": 0.3,
            "validation": validation,
        },
    }
    train_here(stage, tmp_path / "data", tmp_path / "model", devices)
    saved = load_model(tmp_path / "model")
    items = np.load(tmp_path / "model" / "candidates.npy").astype(np.float64)
    seen = saved.items.row_counts > 0
    assert 0 < seen.sum() <= 40
    gramian = items[seen].T @ items[seen] / seen.sum()
    history = np.array([[1, 3, 5, 7, 9, 0, 0, 0]] * 2, np.int32)
    found = embed_queries(saved.model, np.array([1, 0], np.int32), history, saved.inputs)
    config = FoldInConfig()
    expected = solved(items[[1, 3, 5, 7, 9]], gramian, *config.model_dump().values())
    np.testing.assert_allclose(found, [expected] * 2, atol=1e-4)
    scores = found[1] @ items[11:41].T
    # Rows from 1 on: the odd ones are of the first taste.
    assert scores[::2].mean() > 1.5 * scores[1::2].mean()
