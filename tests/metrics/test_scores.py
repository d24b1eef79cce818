"""The metrics of scores, against scikit-learn and resampling row by row."""

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given
from sklearn import metrics as sklearn
from sklearn.calibration import calibration_curve

from recsys.config import EvaluateConfig, EvaluateStage
from recsys.errors import RecsysError
from recsys.evaluation.figures import Key, UserMeans, resampled_values
from recsys.metrics.scores import ScoredRows, equal_mass_bins
from recsys.registry import get

N_USERS, N_BINS = 12, 20


def metric(name):
    return get("metric", name)()


def area(rows):
    if len({*rows.label}) < 2:
        return np.nan
    return sklearn.roc_auc_score(rows.label, rows.score, sample_weight=rows.weights)


def loss(rows):
    return sklearn.log_loss(rows.label, rows.score, sample_weight=rows.weights, labels=[0, 1])


def entropy_ratio(rows):
    mean = np.average(rows.label, weights=rows.weights)
    constant = np.full(len(rows.label), mean)
    same = len({*rows.label}) < 2
    return np.nan if same else loss(rows) / loss(ScoredRows(constant, *vars_of(rows)))


def vars_of(rows):
    return rows.label, rows.weight, rows.user, rows.n_users


def mean_area(rows):
    parts = [rows.select(rows.user == user) for user in np.unique(rows.user)]
    pairs = [(area(part), part.weights.sum()) for part in parts]
    known = np.array([pair for pair in pairs if not np.isnan(pair[0])])
    return np.average(known[:, 0], weights=known[:, 1]) if len(known) else np.nan


def mean_ndcg(rows):
    values = []
    for user, impression in {*zip(rows.user, rows.impression, strict=True)}:
        part = rows.select((rows.user == user) & (rows.impression == impression))
        if impression and len({*part.label}) > 1:
            values.append(sklearn.ndcg_score([part.label], [part.score]))
    return np.mean(values) if values else np.nan


REFERENCES = {
    "roc_auc": area,
    "gauc": mean_area,
    "log_loss": loss,
    "normalized_entropy": entropy_ratio,
    "list_ndcg": mean_ndcg,
    "squared_error": lambda rows: sklearn.mean_squared_error(
        rows.label, rows.score, sample_weight=rows.weights
    ),
    "absolute_error": lambda rows: sklearn.mean_absolute_error(
        rows.label, rows.score, sample_weight=rows.weights
    ),
}


@st.composite
def scored_rows(draw):
    n, levels = draw(st.integers(1, 60)), draw(st.integers(2, 30))
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    score = random.integers(0, levels, n) / (levels - 1)  # Ties, and the ends 0 and 1.
    weight = random.uniform(0.1, 5, n) if draw(st.booleans()) else None
    label, impression = random.integers(0, 2, n) * 1.0, random.integers(0, 4, n)
    return ScoredRows(score, label, weight, random.integers(0, 5, n), 6, impression)


@pytest.mark.parametrize("name", REFERENCES)
@given(scored_rows())
def test_values_equal_those_of_scikit_learn(name, rows):
    found = metric(name).statistics(rows).value
    assert found == pytest.approx(REFERENCES[name](rows), rel=1e-9, abs=1e-12, nan_ok=True)


def test_graded_labels_are_gains():
    label = np.array([0.0, 3, 1, 2, 2, 0])
    score = np.array([0.9, 0.5, 0.5, 0.1, 0.2, 0.5])
    rows = ScoredRows(score, label, None, np.zeros(6, int), 1, np.ones(6, int))
    expected = sklearn.ndcg_score([label], [score])
    assert metric("list_ndcg").statistics(rows).value == pytest.approx(expected, rel=1e-12)


def world(weight=None, n=600):
    random = np.random.default_rng(0)
    score = random.beta(1, 2, n).round(2)
    label = (random.random(n) < score) * 1.0
    return ScoredRows(
        score, label, weight, random.integers(0, N_USERS, n), N_USERS, random.integers(0, 9, n)
    )


def calibration(rows, bins):
    sums = np.bincount(bins, rows.weights * (rows.label - rows.score))
    return np.abs(sums).sum() / rows.weights.sum()


@pytest.mark.parametrize("has_weights", [False, True])
@pytest.mark.parametrize("name", [*REFERENCES, "calibration_error"])
def test_a_resample_has_the_value_of_its_rows(name, has_weights):
    weight = np.random.default_rng(4).uniform(0.5, 2, 600) if has_weights else None
    rows, draws = world(weight), np.random.default_rng(7)
    bins, expected = equal_mass_bins(rows, N_BINS), []
    for _ in range(20):
        drawn = draws.integers(0, N_USERS, N_USERS)
        index = [np.flatnonzero(rows.user == user) for user in drawn]
        user, which = np.repeat(np.arange(N_USERS), [*map(len, index)]), np.concatenate(index)
        part = rows.select(which)
        again = ScoredRows(part.score, part.label, part.weight, user, N_USERS, part.impression)
        is_error = name == "calibration_error"
        expected.append(calibration(again, bins[which]) if is_error else REFERENCES[name](again))
    found = resampled_values([metric(name).statistics(rows)], 20, 7)[0]
    if is_error:  # Moved to have their median at the value: noise adds to an error.
        expected = np.array(expected) + (calibration(rows, bins) - np.median(expected))
    np.testing.assert_allclose(found, expected, rtol=1e-9)


def test_the_calibration_error_is_that_of_equal_mass_bins():
    random = np.random.default_rng(4)
    score = random.permutation(np.linspace(0.01, 0.99, 1000))
    label = (random.random(1000) < score**2) * 1.0
    rows = ScoredRows(score, label, None, np.zeros(1000, int), 1)
    shares, means = calibration_curve(label, score, n_bins=N_BINS, strategy="quantile")
    found = metric("calibration_error").statistics(rows).value
    assert found == pytest.approx(np.abs(shares - means).mean(), rel=1e-9)
    assert (np.bincount(equal_mass_bins(rows, N_BINS)) == 50).all()
    assert (equal_mass_bins(ScoredRows(score * 0, *vars_of(rows)), N_BINS) == N_BINS // 2).all()


def test_the_interval_of_a_calibration_error_is_around_it():
    """Rows of perfect probabilities, whose resamples are all above the error."""
    rows = world(n=3000)
    means, key = UserMeans(np.arange(N_USERS), 400, 0.95), Key("model", "calibration_error")
    statistics = metric("calibration_error").statistics(rows)
    means.add(key, statistics)
    means.resample([key])
    low, high = means.interval(key)
    assert low < means.mean(key) < high
    draws = np.random.default_rng(0).multinomial(N_USERS, np.ones(N_USERS) / N_USERS, 400)
    plain = statistics.of_counts(draws.astype(float))
    assert np.quantile(plain, 0.025) > statistics.value
    assert high - low == pytest.approx(np.ptp(np.quantile(plain, [0.025, 0.975])), rel=0.2)


def test_users_are_counted_if_they_have_a_value_in_the_slice():
    rows = world()
    inside = rows.select((rows.user < 7) & ((rows.user != 3) | (rows.label > 0)))
    means = UserMeans(np.arange(N_USERS), 100, 0.95)
    for name in ("roc_auc", "gauc"):
        means.add(Key("model", name), metric(name).statistics(inside))
        assert means.mean(Key("model", name)) == pytest.approx(REFERENCES[name](inside))
    assert [means.users_of(Key("model", name)) for name in ("roc_auc", "gauc")] == [7, 6]


def test_labels_of_one_class_have_no_area_and_no_entropy():
    rows = ScoredRows(np.full(3, 0.5), np.ones(3), None, np.arange(3), 3)
    for name in ("roc_auc", "gauc", "normalized_entropy", "list_ndcg"):
        assert np.isnan(metric(name).statistics(rows).value)
    assert metric("log_loss").statistics(rows).value == pytest.approx(np.log(2))


def test_a_score_that_is_not_finite_is_refused():
    with pytest.raises(RecsysError, match=r"R405.*nan for row 1, 1 of 2 rows"):
        ScoredRows(np.array([0.5, np.nan]), np.ones(2), None, np.zeros(2, int), 1)


def test_metrics_of_another_task_are_refused_with_those_that_fit():
    config = EvaluateConfig(metrics=("gauc", "log_loss"), baselines=())
    config.check_task("ranking")
    with pytest.raises(ValueError, match=r"retrieval: recall, .*received 'gauc', .* of ranking"):
        config.check_task("retrieval")
    assert {own.task for own in EvaluateStage().evaluate.metrics} == {"retrieval"}
