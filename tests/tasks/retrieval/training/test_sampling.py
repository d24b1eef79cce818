"""Inclusion probabilities against exact arithmetic and against draws."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recsys.tasks.retrieval.training.sampling import inclusion_log_probability


def of_one(p, n):
    return float(inclusion_log_probability((np.array([p]), n))[0])


@pytest.mark.parametrize(
    ("p", "n", "expected"),
    [
        (0.5, 1, np.log(0.5)),
        (0.5, 2, np.log(0.75)),
        (0.1, 3, np.log(0.271)),
        (1e-12, 1, np.log(1e-12)),
        (1e-12, 4096, np.log(4096e-12) - 4095 * 0.5e-12),
        (1e-300, 10, np.log(1e-299)),
        (1.0, 1, 0.0),
        (1.0, 0, -np.inf),
        (0.0, 65536, -np.inf),
        (0.5, 60, -(2.0**-60)),
        (0.9, 10**6, 0.0),
    ],
)
def test_the_probability_of_at_least_one_draw(p, n, expected):
    assert of_one(p, n) == pytest.approx(expected, rel=1e-14, abs=0)


@given(
    p=st.fractions(0, 1, max_denominator=1000),
    n=st.integers(0, 60),
    other=st.fractions(0, 1, max_denominator=1000),
    m=st.integers(0, 60),
)
def test_two_samplers_miss_an_item_if_both_do(p, n, other, m):
    samplers = [(np.array([float(x)]), draws) for x, draws in ((p, n), (other, m))]
    found = float(inclusion_log_probability(*samplers)[0])
    # Exact for the given numbers: near 1, rounding p changes 1 - p in the 13th digit.
    exact = 1 - (1 - Fraction(float(p))) ** n * (1 - Fraction(float(other))) ** m
    if exact == 0:
        assert found == -np.inf
    else:
        # The logarithm of a fraction near 1 by its distance from 1.
        expected = np.log1p(-float(1 - exact)) if exact > Fraction(1, 2) else np.log(float(exact))
        assert found == pytest.approx(expected, rel=1e-12, abs=1e-300)


@pytest.mark.parametrize(
    ("samplers", "rule"),
    [
        *(([([0.5, p], 3)], "between 0 and 1") for p in (-0.1, 1.1, np.nan)),
        ([([0.5], -1)], "must not be negative"),
        ([], "at least one sampler"),
    ],
)
def test_an_invalid_sampler_is_refused(samplers, rule):
    with pytest.raises(ValueError, match=rule):
        inclusion_log_probability(*((np.array(p), n) for p, n in samplers))
