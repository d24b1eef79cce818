"""A rare token of a bag weighs more: by counting in plain Python, and in the towers by numpy."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tower_models import HISTORY, ITEMS, build, run, trained, weights
from tower_models import batch as a_batch

from benchmarks.public_splits import Csr, write_data_folder
from recsys import TwoTower, open_data
from recsys.config import TwoTowerConfig
from recsys.data.catalogue import FeatureBags
from recsys.models.inputs import FeatureSpec
from recsys.models.terms import bag_weights
from recsys.models.terms.bag_weights import inverse_frequencies

GENRES = FeatureSpec(name="genres", rows=4, width=3, dim=3)
LINEAR = {"widths": (), "similarity": "dot", "user_id": False}
BAGS = np.random.default_rng(3).integers(0, 4, (ITEMS, 3)).astype(np.int32)
BAGS[0], BAGS[1], BAGS[2] = 0, 0, [1, 1, 0]


@given(st.lists(st.lists(st.integers(0, 5), min_size=3, max_size=3), max_size=9), st.integers(1, 4))
def test_a_weight_is_the_inverse_frequency_of_the_bags_that_have_the_token(lists, block):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bag_weights, "_BAGS_AT_ONCE", block)
        found = inverse_frequencies(np.array(lists, np.int32).reshape(-1, 3), 7)
    bags = [set(bag) - {0} for bag in lists]
    n = sum(map(bool, bags))
    expected = [1 + math.log((1 + n) / (1 + sum(t in bag for bag in bags))) for t in range(1, 7)]
    assert (found.shape, found.dtype) == ((7,), np.float32)
    np.testing.assert_allclose(found[1:], expected, rtol=1e-6)


def model_of_bags(**options):
    model = build((GENRES,), **LINEAR, bag_weights="idf", **options)
    catalogue = SimpleNamespace(features=[FeatureBags("genres", 4, BAGS)])
    model.adapt(None, SimpleNamespace(catalogue=catalogue, user_features=()))
    return model


def mean_of_tokens(table, bags):
    """Returns each bag's mean, weighted by inverse frequencies; 0 for one without a token."""
    weight = inverse_frequencies(BAGS, 4) * (np.arange(4) > 0)
    total = weight[bags].sum(axis=-1, keepdims=True)
    return (weight[bags][..., None] * table[bags]).sum(axis=-2) / np.where(total > 0, total, 1.0)


def candidates(w):
    """Returns the vectors of all items."""
    inputs = np.concatenate([w["items"], mean_of_tokens(w["genres"], BAGS)], axis=1)
    return w["items"] + inputs @ w["candidate_tower/out/kernel"]


def test_a_candidate_reads_the_weighted_mean_of_its_tokens():
    model = model_of_bags()
    inputs = {"id_row": np.arange(ITEMS, dtype=np.int32), "genres": BAGS}
    found = run(model, "embed_candidate", inputs)
    np.testing.assert_allclose(found, candidates(weights(model)), atol=1e-6)


def test_the_items_of_a_history_read_it_too():
    model = model_of_bags(pooling="attention", history_tower=True)
    history = np.array([[2, 0, 0, 0, 0], [7, 0, 0, 0, 0]], np.int32)
    bags = BAGS[history]
    assert history.shape[1] == HISTORY
    found = run(model, "embed_query", {"history": history, "history.genres": bags})
    # Attention to a single item is the item.
    pooled = candidates(w := weights(model))[history[:, 0]]
    np.testing.assert_allclose(found, pooled + pooled @ w["query_tower/out/kernel"], atol=1e-6)


def test_no_step_changes_the_weights():
    model = model_of_bags()
    before = np.asarray(model.terms["bag_weights"].of_feature["genres"])
    x = a_batch()
    (log,) = trained(model, [{**x, "genres": BAGS[x["id_row"]]}])
    assert np.isfinite(log["loss"])
    assert np.array_equal(before, model.terms["bag_weights"].of_feature["genres"])
    assert {v.path for v in model.adapted} == {"two_tower/bag_weights/genres"}
    assert not any("bag_weights" in v.path for v in model.trainable_variables)


def test_the_tokens_of_items_and_users_are_counted_in_the_data(tmp_path):
    random = np.random.default_rng(0)
    lists = [random.choice(40, 6, replace=False).tolist() for _ in range(60)]
    genres = [[f"g{n}" for n in random.choice(5, 2)] for _ in range(40)]
    plans = [[f"p{min(n, 2)}"] for n in range(60)]
    write_data_folder(Csr.of_lists(lists, 40), tmp_path, {"genres": genres}, {"plan": plans})
    data = open_data(tmp_path)
    model = TwoTower.from_config(TwoTowerConfig(dim=8, bag_weights="idf"), data)
    model.build()
    model.adapt(None, data)
    for feature in (*data.catalogue.features, *data.user_features):
        found = np.asarray(model.terms["bag_weights"].of_feature[feature.name])
        np.testing.assert_array_equal(found, inverse_frequencies(feature.bags, feature.rows))
        assert len(set(found.tolist())) > 1


def test_even_tokens_need_no_weights():
    assert not build((GENRES,), **LINEAR).terms
    assert not build((), **LINEAR, bag_weights="idf").terms["bag_weights"].weights
