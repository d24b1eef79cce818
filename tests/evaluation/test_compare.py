"""Means over users, their intervals and their differences."""

import numpy as np
import pytest

from recsys.evaluation.significance import Key, UserMeans, interval, resampled_means

RNG = np.random.default_rng(0)
MODEL = Key("model", "recall@10")


def means(user, confidence=0.95, **values):
    found = UserMeans(np.asarray(user), 2_000, confidence)
    for subject, ones in values.items():
        found.add(Key(subject, "recall@10"), np.asarray(ones, float))
    found.resample([Key(subject, "recall@10") for subject in values])
    return found


def test_the_interval_of_a_mean_is_that_of_the_normal_law():
    values = RNG.normal(5.0, 2.0, 4_000)
    low, high = means(np.arange(4_000), other=values).interval(Key("other", "recall@10"))
    error = values.std() / np.sqrt(4_000)
    assert low == pytest.approx(values.mean() - 1.96 * error, abs=0.15 * error)
    assert high == pytest.approx(values.mean() + 1.96 * error, abs=0.15 * error)


def test_a_95_percent_interval_holds_the_truth_about_95_times_of_100():
    held = 0
    for seed in range(400):
        values = np.random.default_rng(seed).exponential(1.0, 200)
        low, high = interval(resampled_means(values[:, None], 500, seed)[:, 0], 0.95)
        held += low <= 1.0 <= high
    assert 0.91 <= held / 400 <= 0.98


def test_what_both_owe_to_easy_users_cancels_out():
    easy = RNG.uniform(0.0, 1.0, 500)
    found = means(np.arange(500), model=easy + 0.01, base=easy)
    difference = found.difference(MODEL, "base")
    assert difference.difference_interval == pytest.approx((0.01, 0.01))
    low, high = found.interval(MODEL)
    assert high - low > 0.04


def test_a_model_compared_with_itself_differs_by_nothing():
    values = RNG.uniform(size=50)
    difference = means(np.arange(50), model=values, base=values).difference(MODEL, "base")
    assert (difference.relative, difference.difference) == (0.0, 0.0)
    assert (*difference.interval, *difference.difference_interval) == (0.0, 0.0, 0.0, 0.0)


def test_users_are_drawn_whole_with_all_of_their_queries():
    # Ten users with a hundred equal queries each: the interval is that of ten, not of 1,000.
    own = RNG.uniform(size=10)
    found = means(np.repeat(np.arange(10), 100), model=np.repeat(own, 100))
    low, high = found.interval(MODEL)
    assert high - low == pytest.approx(2 * 1.96 * own.std() / np.sqrt(10), rel=0.15)


def test_over_a_mean_of_zero_there_is_a_difference_and_no_ratio():
    difference = means(np.arange(20), model=np.ones(20), base=np.zeros(20)).difference(
        MODEL, "base"
    )
    assert (difference.relative, difference.interval) == (None, None)
    assert (difference.difference, difference.difference_interval) == (1.0, (1.0, 1.0))


def test_one_user_has_a_mean_and_no_interval():
    values = np.full(30, np.nan)
    values[3] = 0.5
    found = means(np.arange(30), model=values)
    assert found.mean(MODEL) == 0.5
    assert found.interval(MODEL) is None


def test_nine_users_are_too_few_for_an_interval():
    values = np.full(30, np.nan)
    values[:9] = np.arange(9)
    assert means(np.arange(30), model=values).interval(MODEL) is None
    values[9] = 1.0
    assert means(np.arange(30), model=values).interval(MODEL) is not None


def test_a_ratio_without_end_has_no_interval_but_the_difference_has():
    base = np.zeros(100)
    base[:3] = 1.0  # One draw in twenty takes none of the three.
    found = means(np.arange(100), model=base + 0.5, base=base)
    difference = found.difference(MODEL, "base")
    assert difference.relative == pytest.approx(0.5 / 0.03)
    assert difference.interval is None
    assert difference.difference_interval == pytest.approx((0.5, 0.5))


def test_nobody_has_no_mean():
    assert means([0, 1], model=[np.nan, np.nan]).mean(MODEL) is None


def test_a_margin_is_the_lower_end_of_the_mean_less_a_share_of_the_other_one():
    base = RNG.uniform(0.5, 1.0, 100)
    found = means(np.arange(100), model=2 * base, base=base)
    assert found.margin(MODEL, "base", 2.0)[0] == pytest.approx(0.0, abs=1e-12)
    assert found.margin(MODEL, "base", 1.5)[0] > 0
    assert found.margin(MODEL, "base", 2.5)[0] < 0


def test_draws_do_not_depend_on_the_size_of_a_block(monkeypatch):
    values = RNG.uniform(size=(30, 2))
    whole = resampled_means(values, 200, seed=5)
    monkeypatch.setattr("recsys.evaluation.significance._BLOCK_DRAWS", 64)
    np.testing.assert_allclose(resampled_means(values, 200, seed=5), whole, rtol=1e-12)
