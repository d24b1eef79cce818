"""The items of a batch's histories once each: in batches, and through the model."""

import numpy as np
import pytest
from batch_sources import again, small_source
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from tower_models import HISTORY, ITEMS, batch, build, trained, weights

from recsys.embedding import SGD, LazyAdam
from recsys.models.config import AttentionConfig, SasRecConfig
from recsys.models.inputs import FeatureSpec
from recsys.tasks.retrieval.training.batches import items_for, unique_items

GENRES = FeatureSpec(name="genres", rows=4, width=2, dim=3)
TOWER = {"pooling": "attention", "history_tower": True}
LARGE = {"history": 16, "batch_size": 40, "accumulate": 1, **TOWER}
HISTORIES = arrays.arrays(
    np.int32, st.tuples(st.integers(1, 6), st.integers(1, 6)), elements=st.integers(0, 9)
)


@given(HISTORIES, st.integers(1, 12))
def test_every_position_has_its_item_and_an_item_comes_once(history, n):
    once, distinct = unique_items(history, n), set(history.ravel().tolist())
    items, place = once["history_item"], once["history_place"]
    np.testing.assert_array_equal(items[place], history)
    sizes = [n, 2 * n, 4 * n, 8 * n, 16 * n]
    assert len(items) == min(size for size in sizes if size >= len(distinct))
    assert items[: len(distinct)].tolist() == sorted(distinct)
    assert set(items.tolist()) == distinct
    assert (items.dtype, place.dtype) == (np.int32, np.int32)


def test_there_is_room_for_more_items_than_were_seen_and_none_where_most_come_once():
    assert items_for([np.arange(1000) % 100, np.arange(1000) % 200]) == 256
    assert items_for([np.arange(1000) % 700]) == 0


def test_a_batch_has_the_features_of_the_items_once_each():
    source = again(small_source(), **LARGE, history_dropout=0.1, new_user_share=0.1)
    in_place = again(
        small_source(), **{**LARGE, "accumulate": 2}, history_dropout=0.1, new_user_share=0.1
    )
    (bags,) = (feature.bags for feature in source.catalogue.features)
    assert (source.history_items, in_place.history_items) == (128, 0)
    for step in range(len(source)):
        once, wanted = source[step], in_place[step]
        np.testing.assert_array_equal(
            once["history_item"][once["history_place"]], wanted["history"]
        )
        np.testing.assert_array_equal(once["history.genres"], bags[once["history_item"]])
        for name in wanted.keys() - {"history.genres"}:
            np.testing.assert_array_equal(once[name], wanted[name])


@pytest.mark.parametrize("change", [{"multiple": 2}, {"dropout": 0.5}, {"history_tower": False}])
def test_items_stay_in_place_on_several_devices_where_a_tower_drops_and_without_one(change):
    source = again(small_source(), **{**LARGE, **change})
    assert source.history_items == 0
    assert "history_place" not in source[0]


SASREC = SasRecConfig(layers=1, dropout=0.0)


@pytest.mark.parametrize(
    ("pooling", "optimizer"),
    [
        pytest.param(AttentionConfig(), LazyAdam(0.1), id="attention, lazy_adam"),
        pytest.param(SASREC, SGD(0.5), id="sasrec, sgd"),
        pytest.param(AttentionConfig(), SGD(0.5), marks=pytest.mark.thorough, id="attention, sgd"),
        pytest.param(SASREC, LazyAdam(0.1), marks=pytest.mark.thorough, id="sasrec, lazy_adam"),
    ],
)
def test_a_model_trains_the_same_on_items_once_each_as_in_place(pooling, optimizer):
    bags = np.random.default_rng(3).integers(0, 4, (ITEMS, 2)).astype(np.int32)
    ended = []
    for is_once in (True, False):
        model = build((GENRES,), optimizer, pooling=pooling, history_tower=True, widths=(6,))
        steps = []
        for seed in range(3):
            x = batch(seed=seed)
            if isinstance(pooling, SasRecConfig):
                x["segment"] = (x["history"] > 0).astype(np.int32)
                x["at"] = np.random.default_rng(seed).integers(-1, HISTORY, (8, 1)).astype(np.int32)
            more = unique_items(x["history"], (16, 2, 1)[seed]) if is_once else {}
            tokens = bags[more.get("history_item", x["history"])]
            steps.append({**x, **more, "genres": bags[x["item_row"]], "history.genres": tokens})
        logs = trained(model, steps)
        ended.append((weights(model), [log["loss"] for log in logs]))
    (once, losses), (in_place, expected) = ended
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
    for name, weight in in_place.items():
        np.testing.assert_allclose(once[name], weight, atol=2e-5, err_msg=name)
