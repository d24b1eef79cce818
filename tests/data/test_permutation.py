"""The computed shuffle is a permutation, as even as a drawn one, and another for each key."""

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from recsys.data.shuffle import Permutation


@given(st.integers(1, 3000), st.integers(0, 2**31), st.integers(0, 100))
def test_every_number_comes_once(n, seed, epoch):
    shuffled = Permutation(n, (seed, 0, epoch))[np.arange(n)]
    assert np.array_equal(np.sort(shuffled), np.arange(n))


def test_a_million_numbers_come_once_in_any_blocks():
    n = 1_000_003
    permutation = Permutation(n, (3, 0, 1))
    whole = permutation[np.arange(n)]
    assert np.array_equal(np.bincount(whole, minlength=n), np.ones(n))
    some = np.random.default_rng(0).integers(0, n, 1000)
    assert np.array_equal(permutation[some], whole[some])


@pytest.mark.parametrize("n", [5, 7, 12])
def test_each_pair_goes_to_each_pair_equally_often(n):
    keys, pair = 100 * n * (n - 1), np.array([0, 1])
    seen = np.zeros((n, n))
    for key in range(keys):
        first, second = Permutation(n, (key, 0, 0))[pair]
        seen[first, second] += 1
    counts = seen[~np.eye(n, dtype=bool)]
    degrees = n * (n - 1) - 1
    chi_square = ((counts - 100) ** 2 / 100).sum()
    assert abs(chi_square - degrees) < 4 * np.sqrt(2 * degrees)


def test_neighbours_go_apart_as_in_a_drawn_permutation():
    n = 200_000
    shuffled = Permutation(n, (1, 0, 0))[np.arange(n)]
    steps = np.histogram((shuffled[1:] - shuffled[:-1]) % n, 100, (0, n))[0]
    expected = (n - 1) / 100
    assert ((steps - expected) ** 2 / expected).sum() < 99 + 6 * np.sqrt(2 * 99)
    # Which numbers a batch holds is even too: the first tenth has as many of each part.
    first = np.histogram(shuffled[: n // 10], 100, (0, n))[0]
    assert ((first - 200) ** 2 / 200).sum() < 99 + 6 * np.sqrt(2 * 99)


def test_epochs_and_seeds_have_shuffles_of_their_own():
    n = 10_000
    shuffles = [Permutation(n, key)[np.arange(n)] for key in [(0, 0, 0), (0, 0, 1), (1, 0, 0)]]
    for one in range(3):
        for other in range(one):
            # Two random permutations agree in one place on average.
            assert (shuffles[one] == shuffles[other]).sum() < 10


def test_a_permutation_of_many_billions_stays_in_its_range():
    n = 10**11 + 7
    places = np.concatenate([np.arange(1000), n - 1 - np.arange(1000)])
    shuffled = Permutation(n, (0, 0, 0))[places]
    assert shuffled.min() >= 0
    assert shuffled.max() < n
    assert len(np.unique(shuffled)) == 2000


def test_the_shuffle_of_a_seed_is_the_same_for_good():
    shuffled = Permutation(10, (3, 0, 0))[np.arange(10)]
    assert shuffled.tolist() == [7, 9, 1, 0, 3, 5, 6, 8, 2, 4]
