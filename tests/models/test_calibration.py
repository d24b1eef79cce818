"""Calibration against scikit-learn, and on rows whose probabilities are known."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.isotonic import IsotonicRegression
from sklearn.linear_model import LogisticRegression

from recsys.models.calibration import Isotonic, Temperature

KINDS = pytest.mark.parametrize("kind", [Temperature, Isotonic])


def rows_of(n, seed, slope=0.5, bias=-1.0):
    """Returns log odds, labels and weights of rows with log odds `slope * logit + bias`."""
    rng = np.random.default_rng(seed)
    logit = np.round(rng.normal(size=n) * 2, 2)
    p = 1 / (1 + np.exp(-(slope * logit + bias)))
    return logit, (rng.random(n) < p).astype(float), rng.choice([0.0, 0.5, 1.0, 3.0], n)


def sigmoid(x):
    return 1 / (1 + np.exp(-np.asarray(x, float)))


def test_temperature_is_the_logistic_regression_of_smoothed_labels():
    logit, label, weight = rows_of(4000, seed=0)
    found = Temperature.fit(logit, label, weight)
    positive, negative = weight @ label, weight @ (1 - label)
    yes = np.where(label == 1, (positive + 1) / (positive + 2), 1 / (negative + 2))
    # A probability is two rows, by their shares.
    doubled = (np.tile(logit, 2)[:, None], np.repeat([1, 0], len(logit)))
    shares = np.concatenate([weight * yes, weight * (1 - yes)])
    expected = LogisticRegression(penalty=None, tol=1e-12, solver="newton-cholesky").fit(
        *doubled, shares
    )
    assert found.scale == pytest.approx(expected.coef_[0, 0], rel=1e-6)
    assert found.bias == pytest.approx(expected.intercept_[0], rel=1e-6)
    assert found.scale == pytest.approx(0.5, abs=0.05)


@settings(max_examples=50)
@given(n=st.integers(1, 60), seed=st.integers(0, 2**32 - 1))
def test_isotonic_is_that_of_scikit_learn(n, seed):
    logit, label, weight = rows_of(n, seed)
    weight[0] = 1.0
    found = Isotonic.fit(logit, label, weight)
    expected = IsotonicRegression(out_of_bounds="clip").fit(logit, label, weight)
    least = 1 / (weight.sum() + 2)
    asked = np.concatenate([logit, np.linspace(-9, 9, 50)])
    wanted = np.clip(expected.predict(asked), least, 1 - least)
    at = np.clip(expected.predict(logit), least, 1 - least)
    np.testing.assert_allclose(found.apply(logit)[weight > 0], at[weight > 0], atol=1e-9)
    assert np.abs(found.apply(asked) - wanted).max() < 1e-9 + least


@KINDS
def test_probabilities_are_right_on_rows_that_were_not_seen(kind):
    fitted = kind.fit(*rows_of(20_000, seed=1)[:2])
    logit = np.linspace(-4, 4, 50)
    assert np.abs(fitted.apply(logit) - sigmoid(0.5 * logit - 1)).max() < 0.06
    held_out, label, _ = rows_of(20_000, seed=2)
    assert fitted.apply(held_out).mean() == pytest.approx(label.mean(), abs=0.01)


@KINDS
def test_weights_of_thinned_rows_restore_the_rates(kind):
    logit, label, _ = rows_of(40_000, seed=3)
    is_kept = (label == 1) | (np.random.default_rng(4).random(len(label)) < 0.2)
    rate = np.where(label == 1, 1.0, 0.2)[is_kept]
    fitted = kind.fit(logit[is_kept], label[is_kept], 1 / rate)
    assert fitted.apply(logit).mean() == pytest.approx(label.mean(), abs=0.01)


@KINDS
@pytest.mark.parametrize(
    ("logit", "label"),
    [([], []), ([1, 2, 3], [1, 1, 1]), ([1, 2, 3], [0, 0, 1]), ([2, 2], [1, 0]), ([1, 2], [1, 0])],
    ids=["empty", "one label", "separable", "one score", "reversed"],
)
def test_few_rows_give_finite_maps_that_never_decrease(kind, logit, label):
    fitted = kind.fit([*logit, 9.0], [*label, np.nan])
    found = fitted.apply(np.linspace(-50, 50, 101))
    assert np.all(np.diff(found) >= 0)
    assert np.all((found >= 0) & (found <= 1))
    inside = fitted.apply(logit)
    assert np.isfinite(np.log(inside)).all()
    assert np.isfinite(np.log1p(-inside)).all()


@KINDS
def test_a_halved_map_changes_log_odds_by_half(kind):
    fitted = kind.fit(*rows_of(500, seed=6))
    at = np.asarray(getattr(fitted, "logit", np.linspace(-3, 3, 13)))
    once, half = (of.apply(at) for of in (fitted, fitted.halved()))
    np.testing.assert_allclose(np.log(half / (1 - half)), (at + np.log(once / (1 - once))) / 2)


@KINDS
def test_the_state_is_json(kind):
    fitted = kind.fit(*rows_of(500, seed=5))
    read = kind.model_validate_json(fitted.model_dump_json())
    logit = np.linspace(-5, 5, 41)
    assert np.array_equal(read.apply(logit), fitted.apply(logit))
