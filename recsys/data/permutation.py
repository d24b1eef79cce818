"""A computed shuffle: a pseudo-random permutation that needs no memory.

A keyed pseudo-random permutation of 0 … n - 1 for any n: the generalized Feistel cipher
with cycle walking of Black and Rogaway, "Ciphers with Arbitrary Finite Domains",
CT-RSA 2002, sections 4 and 5. A number is a pair (left, right) of a grid of a × b cells,
a · b barely above n; each round adds to one half, modulo its size, a hash of the other.
A result outside of 0 … n - 1 is permuted again.
"""

from __future__ import annotations

import math

import numpy as np

_ROUNDS = 8  # With six, pairs of a few numbers still go together.
_MIX = np.uint64(0x9E3779B97F4A7C15)


class Permutation:
    """A permutation of 0 … n - 1; needs no memory for it.

    Args:
        n: Numbers that are permuted.
        seed: Selects the permutation.
    """

    def __init__(self, n: int, seed: tuple[int, ...]) -> None:
        self._n = n
        self._rows = max(1, math.isqrt(max(n - 1, 0)) + 1)
        self._columns = max(1, -(-n // self._rows))
        self._keys = np.random.SeedSequence(seed).generate_state(_ROUNDS, np.uint64)

    def __len__(self) -> int:
        return self._n

    def __getitem__(self, positions: np.ndarray) -> np.ndarray:
        """Returns the images `[b]` int64 of `positions` `[b]` in 0 … n - 1."""
        places = self._once(positions.astype(np.uint64))
        outside = np.flatnonzero(places >= self._n)
        while len(outside):
            again = self._once(places[outside])
            places[outside] = again
            outside = outside[again >= self._n]
        return places.astype(np.int64)

    def _once(self, numbers: np.ndarray) -> np.ndarray:
        sizes = np.uint64(self._rows), np.uint64(self._columns)
        left = numbers // sizes[1]
        halves = [left, numbers - left * sizes[1]]
        for number, key in enumerate(self._keys):
            turn = number % 2
            _add(halves[turn], _hash_below(halves[1 - turn], key, sizes[turn]), sizes[turn])
        return halves[0] * sizes[1] + halves[1]


def _add(half: np.ndarray, more: np.ndarray, size: np.uint64) -> None:
    half += more
    half -= size * (half >= size)


def _hash_below(half: np.ndarray, key: np.uint64, size: np.uint64) -> np.ndarray:
    """Returns a hash below `size` of each number, which is below 2^32."""
    mixed = half ^ key
    mixed *= _MIX
    mixed ^= mixed >> np.uint64(32)
    mixed *= _MIX
    mixed >>= np.uint64(32)
    # The upper half of a product of 32 bits is as even as what it is made of.
    mixed *= size
    mixed >>= np.uint64(32)
    return mixed
