"""Propagation over the graph of users and items: by loops and dense matrices, and in training."""

import jax
import keras
import numpy as np
import pytest
from baseline_worlds import dense, log_of, random_histories
from hypothesis import given
from hypothesis import strategies as st
from tower_models import BARE, ITEMS, batch, build, run, trained, weights

from recsys.data import neighbours
from recsys.data.hold_out import KeptEvents
from recsys.data.neighbours import graph_neighbours
from recsys.embedding import SGD


def normalised(taken):
    """Returns LightGCN's matrix of users and items, entries over √(d_u d_i)."""
    of_user, of_item = (np.maximum(taken.sum(axis=axis), 1) for axis in (1, 0))
    return taken / np.sqrt(of_user[:, None] * of_item)


def closest(taken, n, least_common):
    """Returns the weights of each item's `n` strongest neighbours `[items, items]`."""
    both = normalised(taken)
    weights = both.T @ both * (taken.T @ taken >= least_common)
    np.fill_diagonal(weights, 0.0)
    for row in weights:
        row[np.argsort(-row, kind="stable")[n:]] = 0.0
    return weights


def of_lists(rows, shares):
    found = np.zeros((len(rows), len(rows)))
    np.put_along_axis(found, rows.astype(int), shares, axis=1)
    return found


@given(st.integers(0, 10**6), st.integers(1, 9), st.integers(1, 3), st.integers(1, 90))
def test_neighbours_are_the_strongest_of_the_graph(seed, n, n_shards, pairs):
    histories = random_histories(seed, n_users=12, n_items=9, longest=7)
    events = KeptEvents(log_of(histories, n_shards=n_shards))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(neighbours, "_BLOCK_PAIRS", pairs)
        rows, shares = graph_neighbours(events, 11, n)
    assert (rows.shape, rows.dtype, shares.dtype) == ((11, n), np.int32, np.float32)
    assert not rows[shares == 0].any()
    assert (np.diff(shares, axis=1) <= 0).all()
    expected = closest(dense(histories, 11), n, 2)
    # Rounding decides which of equal neighbours are kept.
    np.testing.assert_allclose(np.sort(of_lists(rows, shares)), np.sort(expected), atol=1e-6)


def test_without_a_least_number_of_users_it_is_two_layers_without_the_way_back(monkeypatch):
    monkeypatch.setattr(neighbours, "_LEAST_COMMON", 1)
    histories = random_histories(5, n_users=12, n_items=9, longest=7)
    rows, shares = graph_neighbours(KeptEvents(log_of(histories)), 11, 10)
    rng = np.random.default_rng(0)
    items = rng.normal(size=(11, 4))
    both = normalised(dense(histories, 11))
    users = both @ items  # Layer 1 of users, of items' rows.
    expected = both.T @ users - (both**2).sum(axis=0)[:, None] * items
    np.testing.assert_allclose(of_lists(rows, shares) @ items, expected, atol=1e-6)


def test_of_equal_neighbours_the_smaller_row_goes_first():
    rows, shares = graph_neighbours(KeptEvents(log_of([[1, 2, 3]] * 2)), 4, 2)
    assert rows.tolist() == [[0, 0], [2, 3], [1, 3], [1, 2]]
    assert (shares[1:] == shares[1, 0]).all()


def test_held_back_events_and_row_0_are_in_no_pair():
    histories = [[1, 2, 0], [1, 2, 0], [1, 3], [1, 3, 4]]
    log = log_of(histories)
    held = np.array([len(log) - 2])  # The 3 of the last user.
    rows, shares = graph_neighbours(KeptEvents(log, held), 5, 3)
    assert rows.tolist() == [[0] * 3, [2, 0, 0], [1, 0, 0], [0] * 3, [0] * 3]
    assert (shares > 0).tolist() == (rows > 0).tolist()


def test_of_many_events_some_users_and_their_newest_events_are_read(monkeypatch):
    histories = [[1, 2], [3, 4], [1, 2], [3, 4], [5, 1, 2], [3, 4], [5, 1, 2], [3, 4]]
    events = KeptEvents(log_of(histories))
    monkeypatch.setattr(neighbours, "_EVENTS_OF_USER", 2)
    rows, _ = graph_neighbours(events, 6, 2)
    assert rows[5].tolist() == [0, 0]
    assert rows[[1, 3], 0].tolist() == [2, 4]
    monkeypatch.setattr(neighbours, "_MOST_EVENTS", len(events) // 2)
    rows, _ = graph_neighbours(events, 6, 2)
    assert rows[[1, 3], 0].tolist() == [2, 0]


# --- the model


def graph_of(model, seed=0):
    """Gives a model random neighbours, which some items have and some have not."""
    rng = np.random.default_rng(seed)
    n = model.config.item_neighbours
    rows = np.stack([rng.choice(ITEMS - 1, n, replace=False) + 1 for _ in range(ITEMS)])
    shares = rng.random((ITEMS, n)) * (rng.random((ITEMS, n)) < 0.7)
    rows, shares[:2] = rows * (shares > 0), 0.0
    graph = model.terms["item_neighbours"]
    graph.neighbours.assign(rows.astype(np.int32))
    graph.shares.assign(shares.astype(np.float32))
    return rows, shares


def averaged(items, rows, shares):
    """Returns each item's mean with the weighted mean of its neighbours."""
    total = shares.sum(axis=1, keepdims=True)
    mean = (shares[..., None] * items[rows]).sum(axis=1) / np.where(total > 0, total, 1.0)
    return (items + mean) / 2


@pytest.mark.parametrize("similarity", ["dot", "cosine"])
def test_a_candidate_is_the_mean_with_its_neighbours(similarity):
    model = build(**{**BARE, "similarity": similarity}, item_neighbours=3)
    expected = averaged(weights(model)["items"], *graph_of(model))
    if similarity == "cosine":
        expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    found = run(model, "embed_candidate", {"id_row": np.arange(ITEMS, dtype=np.int32)})
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_a_step_teaches_neighbours_and_leaves_the_graph_alone():
    model = build(**BARE, item_neighbours=3, optimizer=SGD(0.1))
    rows, shares = graph_of(model)
    items, x = weights(model)["items"], batch()

    def loss(table):
        """The loss of `x` by JAX' own gradient, the lookups written out."""
        every = (table + (shares[..., None] * table[rows]).sum(1) / np.maximum(total, 1e-9)) / 2
        place = jax.nn.softplus(weights(model)["history/place"]) * (x["history"] > 0)
        size = place.sum(axis=1, keepdims=True)
        pooled = (place[..., None] * table[x["history"]]).sum(1) / np.where(size > 0, size, 1.0)
        pooled = jax.numpy.where(size > 0, pooled, weights(model)["nobody"])
        return keras.ops.convert_to_tensor(
            model.training_loss(
                pooled.astype("float32"),
                every[x["id_row"]].astype("float32"),
                item_row=x["item_row"],
                log_q=x["log_q"],
                temperature=model.config.temperature,
            )
        )

    total = shares.sum(axis=1, keepdims=True)
    gradient = np.asarray(jax.grad(loss)(items.astype(np.float32)))
    trained(model, [x])
    np.testing.assert_allclose(weights(model)["items"], items - 0.1 * gradient, atol=1e-5)
    graph = model.terms["item_neighbours"]
    np.testing.assert_array_equal(graph.neighbours.value, rows)
    np.testing.assert_array_equal(graph.shares.value, shares.astype(np.float32))
