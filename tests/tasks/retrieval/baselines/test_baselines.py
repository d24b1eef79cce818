"""The training data of baselines, and the popularity baselines."""

import numpy as np
import pytest
from baseline_worlds import (
    DAY_S,
    data_of,
    fit,
    lists_of,
    log_of,
    queries_of,
    random_histories,
    scores_of,
)

from recsys.tasks.judging_side import LeftOutError

LEARNING = ["item_knn", "ials"]
ALL = ["popularity", "recent_popularity", *LEARNING]


def test_popularity_orders_by_training_positives_and_then_by_row():
    # Rows 0 and 1 are shared by many items, which can't be recommended.
    counts = np.array([90, 70, 1, 3, 2, 3, 0])
    data = data_of([[2]], 7, is_item=[False] * 2 + [True] * 5, counts=counts)
    popularity = fit("popularity", data)
    assert lists_of(popularity, data, [[], [3, 4]], 5) == [[3, 5, 4, 2, 6], [5, 2, 6, 0, 0]]
    assert scores_of(popularity, [[]])[0].tolist() == [0, 0, 2, 4, 3, 4, 1]


def test_popularity_distinguishes_counts_that_float32_does_not():
    counts = np.array([0, 2**24, 2**24 + 1, 2**24])
    data = data_of([[1]], 4, counts=counts)
    assert lists_of(fit("popularity", data), data, [[]], 3) == [[2, 1, 3]]


def test_recent_popularity_counts_the_last_days_before_the_cut():
    # Item 1 leads in all, item 2 in the last two days, whose first second counts.
    cut = 10 * DAY_S
    log = log_of(
        [[1, 1, 1, 2], [4, 2, 1]],
        times=[[0, 1, 2, cut - 5], [cut - 2 * DAY_S - 1, cut - 2 * DAY_S, cut - 1]],
    )
    data = data_of(None, 5, log=log, cut=cut, recent_days=2)
    recent = fit("recent_popularity", data)
    # Equal ones, as 3 and 4, by their events of all time.
    assert lists_of(recent, data, [[]], 4) == [[2, 1, 4, 3]]


def test_recent_popularity_goes_back_to_the_newest_event_where_nothing_is_recent():
    # Two days up to the newest event of an item: that on the border is too old.
    log = log_of([[1, 1, 2, 3, 0]], times=[[0, 10, 10 + 1, 10 + 2 * DAY_S, 20 * DAY_S]])
    data = data_of(None, 5, log=log, cut=21 * DAY_S, recent_days=2)
    recent = fit("recent_popularity", data)
    assert lists_of(recent, data, [[]], 4) == [[2, 3, 1, 4]]


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("histories", [[], [[0, 1, 1]]], ids=["no-event", "unknown-items"])
def test_without_events_of_known_items_a_baseline_is_left_out(name, histories):
    log = log_of(histories, n_shards=max(1, len(histories)))
    data = data_of(None, 4, is_item=[False, False, True, True], log=log)
    with pytest.raises(LeftOutError, match=r"^(No|There is no) .*training .*\.$"):
        fit(name, data)


@pytest.mark.parametrize("name", ALL)
def test_scores_are_finite_numbers_and_the_same_each_time(name):
    histories = random_histories(0, n_users=40, n_items=30, longest=20)
    data = data_of(histories, 32)
    asked = [[], [31], [0], *histories[:5]]
    scores = scores_of(fit(name, data), asked)
    assert scores.shape == (8, 32)
    assert scores.dtype == np.float32
    assert np.isfinite(scores).all()
    np.testing.assert_array_equal(scores, scores_of(fit(name, data), asked))


@pytest.mark.parametrize("name", ALL)
def test_histories_stay_as_they_are(name):
    queries = queries_of([[5, 3, 5, 1], [2, 1]])
    # SciPy would sort the indices in place.
    object.__setattr__(queries.seen, "offsets", queries.seen.offsets.astype(np.int32))
    fit(name, data_of([[5, 3, 1], [2, 1]], 6)).scorer(queries).scores(slice(0, 2))
    assert queries.seen.rows.tolist() == [5, 3, 5, 1, 2, 1]


@pytest.mark.parametrize("name", LEARNING)
def test_unknown_items_and_shared_rows_are_no_evidence(name):
    histories = random_histories(1, n_users=30, n_items=10, longest=6)
    known = [[item + 1 for item in items] for items in histories]
    # Rows 0 and 1 in between, at random.
    noisy = [[0, 1, *items[:2], 0, 1, 1, *items[2:]] for items in known]
    is_item = np.arange(12) > 1
    counts = np.bincount(np.concatenate(known), minlength=12)
    expected = scores_of(fit(name, data_of(known, 12, is_item, counts=counts)), known[:5])
    data = data_of(noisy, 12, is_item, counts=np.where(is_item, counts, 1000))
    baseline = fit(name, data)
    np.testing.assert_allclose(scores_of(baseline, noisy[:5])[:, 2:], expected[:, 2:], atol=1e-6)


@pytest.mark.parametrize("name", LEARNING)
def test_only_the_newest_events_are_learned_from_and_counted(name):
    histories = random_histories(2, n_users=30, n_items=20, longest=15)
    new = [items[len(items) // 2 :] for items in histories]
    # The first half of each history is long ago.
    times = [
        [at + (10**6 if at >= len(items) // 2 else 0) for at in range(len(items))]
        for items in histories
    ]
    n_new = sum(len(items) for items in new)
    data = data_of(None, 21, log=log_of(histories, times, n_shards=3), max_events=n_new)
    baseline = fit(name, data)
    expected = fit(name, data_of(None, 21, log=log_of(new), counts=data.counts))
    np.testing.assert_array_equal(scores_of(baseline, new), scores_of(expected, new))


def test_users_who_share_a_row_are_learned_from_separately():
    apart = data_of([[1, 2], [3, 4]], 5)
    shared = data_of(None, 5, log=log_of([[1, 2], [3, 4]], user_rows=[7, 7]))
    for name in LEARNING:
        expected = scores_of(fit(name, apart), [[1], [4]])
        np.testing.assert_array_equal(scores_of(fit(name, shared), [[1], [4]]), expected)
