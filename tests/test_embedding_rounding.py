"""Stochastic rounding to bfloat16: its formula to the bit, and what is true on average."""

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from recsys.embedding.rounding import round_stochastically

MASK = 0xFFFFFFFF


def fmix32(x):
    """The finalizer of MurmurHash3, from Appleby's published constants, in whole numbers."""
    x ^= x >> 16
    x = x * 0x85EBCA6B & MASK
    x ^= x >> 13
    x = x * 0xC2B2AE35 & MASK
    return x ^ x >> 16


def rounded_by_hand(value, place, column, seed):
    key = fmix32((place * 0x9E3779B1 & MASK) ^ fmix32((column * 0x85EBCA77 & MASK) ^ seed))
    if not np.isfinite(value):
        return np.float32(value)
    bits = int(np.float32(value).view(np.uint32)) + (key >> 16) & MASK
    return np.uint32(bits & 0xFFFF0000).view(np.float32)


def rounded(x, places, seed, first_column=0):
    out = round_stochastically(
        jnp.asarray(x, jnp.float32),
        jnp.asarray(places, jnp.int32),
        jnp.uint32(seed),
        jnp.bfloat16,
        first_column,
    )
    assert out.dtype == jnp.bfloat16
    return np.asarray(out).astype(np.float32)


def test_fmix32_is_murmurs():
    assert [fmix32(x) for x in (0, 1, 0xDEADBEEF)] == [0, 0x514E28B7, 0x0DE5C6A9]


def test_the_formula_holds_to_the_bit():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(6, 5)).astype(np.float32) * 10.0 ** rng.integers(-20, 20, (6, 5))
    x[0] = [np.inf, -np.inf, 0.0, -0.0, 1e-45]
    places, seed = [0, 1, 7, 3839, 2**31 - 1, 12], 0xFEDCBA98
    expected = [
        [rounded_by_hand(x[i, c], place, c + 2, seed) for c in range(5)]
        for i, place in enumerate(places)
    ]
    assert np.array_equal(rounded(x, places, seed, first_column=2), np.array(expected))


def test_what_is_no_number_stays_none():
    assert np.isnan(rounded([[np.nan]], [3], 5)).all()


def test_a_bfloat16_number_stays_itself():
    x = np.random.default_rng(1).normal(size=(50, 8)).astype(ml_dtypes.bfloat16)
    x = x.astype(np.float32)
    assert np.array_equal(rounded(x, np.arange(50), 9), x)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("sign", [1, -1])
def test_it_rounds_up_as_often_as_the_number_is_near(share, sign):
    """Over rows, columns and seeds, each of which must change the draw."""
    low, gap = 1.5, 2.0**-7
    x = np.full((1000, 20), sign * (low + share * gap), np.float32)
    draws = [rounded(x, np.arange(1000), seed) for seed in range(1, 6)]
    for draw in draws:
        assert set(np.unique(np.abs(draw))) == {low, low + gap}
        ups = np.abs(draw) > low
        # Four standard deviations of a mean of 20,000, of 1,000, and of 20 draws.
        spread = np.sqrt(share * (1 - share))
        assert abs(ups.mean() - share) < 4 * spread / np.sqrt(20_000)
        assert np.abs(ups.mean(axis=0) - share).max() < 4 * spread / np.sqrt(1000)
        assert ups.mean(axis=1).std() == pytest.approx(spread / np.sqrt(20), rel=0.15)
    # Seeds are independent of each other.
    both = np.mean((np.abs(draws[0]) > low) & (np.abs(draws[1]) > low))
    assert abs(both - share**2) < 4 * share / np.sqrt(20_000)
