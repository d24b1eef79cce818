"""The metrics of accuracy at literal numbers, and against scikit-learn."""

import math
from typing import ClassVar

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given
from sklearn.metrics import average_precision_score, ndcg_score, roc_auc_score

from recsys import metrics
from recsys.config import EvaluateConfig
from recsys.errors import RecsysError, UsageError
from recsys.metrics import RankedLists, per_user
from recsys.metrics.rankings import Recall
from recsys.registry import register_metric

ACCURACY = [metric for metric in EvaluateConfig().metrics if metric.decides]


def per_query(ranks, query, n_queries, ks, n_ranked=None):
    lists = RankedLists(ranks, query, n_queries, n_ranked)
    return metrics.per_query(ACCURACY, lists, ks)


def of_one(ranks, ks, n_ranked=100):
    found = per_query(np.array(ranks), np.zeros(len(ranks), int), 1, ks, np.array([n_ranked]))
    return {name: values[0] for name, values in found.items()}


@pytest.mark.parametrize(
    ("metric", "value"),
    [
        ("recall@2", 1 / 3),
        ("recall@10", 2 / 3),
        ("precision@2", 1 / 2),
        ("precision@10", 2 / 10),
        ("hit_rate@2", 1.0),
        ("ndcg@2", 1 / (1 + 1 / math.log2(3))),
        ("ndcg@10", (1 + 1 / math.log2(5)) / (1 + 1 / math.log2(3) + 1 / 2)),
        ("map@2", 1 / 3),
        ("map@10", (1 / 1 + 2 / 4) / 3),
        ("map@100", (1 / 1 + 2 / 4 + 3 / 50) / 3),
        ("mrr", 1.0),
        # Before the three stand 0, 2 and 47 of the 97 others.
        ("auc", 1 - (0 + 2 + 47) / (3 * 97)),
    ],
)
def test_positives_at_the_ranks_1_4_and_50(metric, value):
    assert of_one([1, 4, 50], [2, 10, 100])[metric] == pytest.approx(value)


def test_a_positive_that_is_no_candidate_is_never_found():
    found = of_one([1, 11], [10, 100], n_ranked=10)
    assert found["recall@10"] == found["recall@100"] == found["map@100"] == 0.5
    assert found["auc"] == 0.5  # One pair of two halves: all others, and none.
    alone = of_one([61], [100], n_ranked=60)
    assert set(alone.values()) == {0.0}


def test_auc_of_a_list_of_nothing_but_positives_is_even():
    assert of_one([1, 2], [1], n_ranked=2)["auc"] == 0.5


def test_queries_do_not_mix():
    found = per_query(np.array([1, 100, 1]), np.array([0, 1, 2]), 3, [10], np.array([200] * 3))
    assert found["recall@10"].tolist() == [1.0, 0.0, 1.0]
    assert found["mrr"].tolist() == [1.0, 0.01, 1.0]
    assert found["map@10"].tolist() == [1.0, 0.0, 1.0]


def test_a_query_without_positives_has_no_metrics():
    found = per_query(np.array([1]), np.array([1]), 2, [10], np.array([5, 5]))
    assert {name for name, values in found.items() if not math.isnan(values[0])} == set()
    assert not any(math.isnan(values[1]) for values in found.values())


@given(st.data())
def test_metrics_equal_those_of_scikit_learn(data):
    n = data.draw(st.integers(2, 30))
    order = data.draw(st.permutations(range(n)))
    right = data.draw(st.sets(st.integers(0, n - 1), min_size=1, max_size=n - 1))
    k = data.draw(st.integers(1, n))
    scores = np.array([float(-order.index(item)) for item in range(n)])
    is_right = np.array([item in right for item in range(n)])
    ranks = sorted(order.index(item) + 1 for item in right)
    found = of_one(ranks, [k, n], n_ranked=n)
    assert found["auc"] == pytest.approx(roc_auc_score(is_right, scores))
    assert found[f"map@{n}"] == pytest.approx(average_precision_score(is_right, scores))
    assert found[f"ndcg@{k}"] == pytest.approx(ndcg_score([is_right], [scores], k=k))


def test_users_count_equally_however_many_queries_they_have():
    values = np.array([1.0, 1.0, 1.0, 0.0, math.nan])
    means = per_user(values, np.array([0, 0, 0, 2, 2]), 3)
    assert means[0] == 1.0
    assert math.isnan(means[1])
    assert means[2] == 0.0


@pytest.mark.parametrize(
    "values",
    [np.ones(2), np.ones((3, 1)), np.array(["a", "b", "c"]), np.float64(1)],
    ids=["too-few", "rank", "text", "scalar"],
)
def test_a_metric_that_is_nan_for_each_query_is_refused(monkeypatch, values):
    monkeypatch.setattr(Recall, "per_query", lambda self, lists, k: values)
    lists = RankedLists(np.array([1, 2, 3]), np.arange(3), 3)
    with pytest.raises(RecsysError, match=r"R334.*'recall'.*3 queries"):
        metrics.per_query([Recall()], lists, [10])


def test_a_metric_without_a_title_is_refused_when_it_is_registered():
    class Nameless(metrics.Metric):
        meaning: ClassVar[str] = "Nothing."

    with pytest.raises(UsageError, match=r"R109.*title"):
        register_metric("nameless")(Nameless)
