"""The metrics at literal numbers."""

import math

import numpy as np
import pytest

from recsys.evaluation.metrics import per_query, per_user


def test_one_positive_at_rank_three():
    metrics = per_query(np.array([3]), np.array([0]), 1, [2, 10])
    assert metrics["recall@2"][0] == 0.0
    assert metrics["recall@10"][0] == 1.0
    assert metrics["ndcg@2"][0] == 0.0
    assert metrics["ndcg@10"][0] == pytest.approx(0.5)  # 1 / log2(4)
    assert metrics["mrr"][0] == pytest.approx(1 / 3)


def test_three_positives_of_which_two_are_found():
    metrics = per_query(np.array([1, 4, 50]), np.zeros(3, int), 1, [10])
    assert metrics["recall@10"][0] == pytest.approx(2 / 3)
    ideal = 1 + 1 / math.log2(3) + 1 / 2
    assert metrics["ndcg@10"][0] == pytest.approx((1 + 1 / math.log2(5)) / ideal)
    assert metrics["mrr"][0] == 1.0


def test_more_positives_than_places_can_still_be_perfect_in_ndcg():
    metrics = per_query(np.arange(1, 21), np.zeros(20, int), 1, [10])
    assert metrics["ndcg@10"][0] == pytest.approx(1.0)
    assert metrics["recall@10"][0] == pytest.approx(0.5)


def test_queries_do_not_mix():
    metrics = per_query(np.array([1, 100, 1]), np.array([0, 1, 2]), 3, [10])
    assert metrics["recall@10"].tolist() == [1.0, 0.0, 1.0]
    assert metrics["mrr"].tolist() == [1.0, 0.01, 1.0]


def test_users_count_equally_however_many_queries_they_have():
    values = np.array([1.0, 1.0, 1.0, 0.0])
    means = per_user(values, np.array([0, 0, 0, 2]), 3)
    assert means[0] == 1.0
    assert math.isnan(means[1])
    assert means[2] == 0.0
    assert np.nanmean(means) == 0.5
