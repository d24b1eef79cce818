"""The metrics beyond accuracy at literal numbers, and against pairs taken one by one."""

import itertools
import math

import numpy as np
import pytest

from recsys.metrics import Items, RankedLists, per_query, popularity_before, totals
from recsys.metrics.rankings import Coverage, Diversity, Novelty, PopularityLift, gini
from recsys.ragged import RaggedRows

COUNTS = np.array([0, 7, 3, 0, 1])
IS_ITEM = np.array([False, True, True, True, True])
ITEMS = Items(COUNTS, IS_ITEM, np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32))
TOP = np.array([[1, 2, 3], [4, 0, 0]])
SEEN = RaggedRows.of([np.array([2, 4, 0]), np.array([], int)])


def ranked(top, items, before=None):
    """Lists without positives."""
    none = np.zeros(0, int)
    return RankedLists(none, none, len(top), top=top, items=items, popularity_before=before)


def of_each_list(top, items, ks):
    return per_query([Novelty(), Diversity()], ranked(top, items), ks)


@pytest.fixture(scope="module")
def found():
    return of_each_list(TOP, ITEMS, [1, 3])


def test_novelty_is_the_mean_of_the_bits_that_an_item_tells(found):
    bits = [-math.log2((count + 1) / 15) for count in COUNTS]
    assert found["novelty@1"].tolist() == pytest.approx([bits[1], bits[4]])
    assert found["novelty@3"].tolist() == pytest.approx(
        [(bits[1] + bits[2] + bits[3]) / 3, bits[4]]
    )


def test_popularity_lift_is_beside_the_history_and_leaves_out_users_without_one():
    before = popularity_before(SEEN, ITEMS)
    assert before[0] == (3 + 1) / 2  # Row 0 is no item.
    assert np.isnan(before[1])
    lift = totals([PopularityLift()], ranked(TOP, ITEMS, before), [3])
    assert lift["popularity_lift@3"] == pytest.approx(((7 + 3 + 0) / 3) / 2 - 1)


def test_without_a_history_there_is_no_popularity_lift():
    assert totals([PopularityLift()], ranked(TOP, ITEMS, np.full(2, np.nan)), [3]) == {}


def test_rows_that_several_items_share_are_no_history(monkeypatch):
    is_item = np.array([False, False, True, True, True])  # Row 1 is a hash row.
    items = Items(np.array([0, 100_000, 3, 0, 1]), is_item, ITEMS.embeddings)
    seen = RaggedRows.of([np.array([1, 2]), np.array([1]), np.array([2, 4])])
    whole = popularity_before(seen, items)
    assert whole.tolist() == pytest.approx([3.0, np.nan, 2.0], nan_ok=True)
    monkeypatch.setattr("recsys.metrics._BLOCK_ROWS", 1)
    assert popularity_before(seen, items).tolist() == pytest.approx(whole.tolist(), nan_ok=True)


def test_items_that_the_model_does_not_know_are_no_pairs_of_a_list():
    vectors = np.array([[0, 0], [1, 0], [0, 1], [0, 0], [0, 0]], np.float32)
    top = np.array([[1, 2, 3], [3, 4, 0]])
    found = of_each_list(top, Items(COUNTS, IS_ITEM, vectors), [3])
    assert found["diversity@3"].tolist() == pytest.approx([1.0, np.nan], nan_ok=True)


def test_gini_of_nothing_shown_is_even():
    assert gini(np.zeros(3, int)) == 0.0


def test_diversity_is_the_mean_over_all_pairs(found):
    unit = ITEMS.embeddings / np.linalg.norm(ITEMS.embeddings, axis=1, keepdims=True)
    pairs = [1 - unit[a] @ unit[b] for a, b in itertools.combinations([1, 2, 3], 2)]
    assert found["diversity@3"][0] == pytest.approx(np.mean(pairs), abs=1e-6)
    assert np.isnan(found["diversity@1"]).all()  # One item has no pair.
    assert np.isnan(found["diversity@3"][1])


def test_of_a_shorter_catalogue_than_k_all_is_taken():
    found = of_each_list(TOP, ITEMS, [3, 50])
    assert found["novelty@50"].tolist() == found["novelty@3"].tolist()


def test_coverage_is_the_share_of_items_that_are_shown():
    assert totals([Coverage()], ranked(TOP[:1], ITEMS), [1, 3]) == {
        "coverage@1": 1 / 4,
        "coverage@3": 3 / 4,
    }


@pytest.mark.parametrize(
    ("times", "value"),
    [
        ([5, 5, 5], 0.0),
        ([0, 0, 9], 1.0),
        ([1, 2, 3], (-2 * 1 + 0 * 2 + 2 * 3) / (2 * 6)),
        ([4], 0.0),
    ],
    ids=["all alike", "one alone", "a staircase", "one item"],
)
def test_gini(times, value):
    assert gini(np.array(times)) == pytest.approx(value)
