"""Means over users, their intervals and their differences."""

import numpy as np
import pytest

from recsys.evaluation.figures import Key, UserMeans, interval, resampled_means
from recsys.metrics import Statistics

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
    # Ten users with a hundred equal queries each: the interval is as wide as for ten queries, not
    # 1,000.
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
    monkeypatch.setattr("recsys.evaluation.figures._BLOCK_DRAWS", 64)
    np.testing.assert_allclose(resampled_means(values, 200, seed=5), whole, rtol=1e-12)


def auc(labels, scores):
    """The share of pairs of a positive and a negative in the right order, pair by pair."""
    right = scores[labels == 1][:, None] - scores[labels == 0]
    return ((right > 0) + (right == 0) / 2).mean()


def auc_statistics(user, labels, bucket, n_users, n_buckets):
    """Positives and negatives of each user by bucket of the score."""
    place = (user * 2 + labels) * n_buckets + bucket
    return np.bincount(place, minlength=n_users * 2 * n_buckets).reshape(n_users, -1).astype(float)


def auc_of_sums(sums):
    negatives, positives = np.split(sums, 2, axis=-1)
    below = np.cumsum(negatives, axis=-1) - negatives / 2
    with np.errstate(invalid="ignore"):
        pairs = positives.sum(-1) * negatives.sum(-1)
        return (positives * below).sum(-1) / pairs


def test_a_pooled_metric_is_recomputed_from_the_rows_of_each_draw():
    user = np.repeat(np.arange(30), 4)
    labels, bucket = RNG.integers(0, 2, 120), RNG.integers(0, 5, 120)
    statistics = Statistics.of_sums(auc_statistics(user, labels, bucket, 30, 5), auc_of_sums)
    found = UserMeans(user, 100, 0.9, seed=3)
    found.add(MODEL, statistics)
    found.resample([MODEL])
    assert found.mean(MODEL) == pytest.approx(auc(labels, bucket))
    draws, expected = np.random.default_rng(3), []
    for _ in range(100):
        rows = (draws.integers(0, 30, 30)[:, None] * 4 + np.arange(4)).ravel()
        expected.append(auc(labels[rows], bucket[rows]))
    assert found.interval(MODEL) == pytest.approx(np.percentile(expected, [5, 95]))


def test_a_pooled_metric_and_a_mean_of_the_same_users_are_paired():
    values = RNG.uniform(size=40)
    as_sums = Statistics.of_sums(
        np.stack([values, np.ones(40)], axis=1), lambda sums: sums[..., 0] / sums[..., 1]
    )
    found = UserMeans(np.arange(40), 200, 0.95)
    found.add(MODEL, values)
    found.add(MODEL._replace(system="other"), as_sums)
    found.resample([MODEL, MODEL._replace(system="other")])
    difference = found.difference(MODEL, "other")
    assert difference.difference_interval == pytest.approx((0.0, 0.0), abs=1e-12)
    assert found.users_of(MODEL._replace(system="other")) == 40


def test_a_pooled_metric_without_a_value_is_none():
    found = UserMeans(np.arange(20), 100, 0.95)
    found.add(
        MODEL,
        Statistics.of_sums(
            auc_statistics(np.arange(20), np.ones(20, int), np.zeros(20, int), 20, 5), auc_of_sums
        ),
    )
    found.resample([MODEL])
    assert found.mean(MODEL) is None
    assert found.interval(MODEL) is None
