"""The order of events in an epoch, computed without memory, and a process' part of a batch.

Permutation    a uniform shuffle of all events
ShardShuffle   shard by shard, shuffled within a buffer, for stores larger than memory
BatchPart      the rows of a batch that a process' devices hold
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING

import numpy as np

from recsys.data.config import ShuffleConfig

if TYPE_CHECKING:
    from jax.sharding import Sharding

_ROUNDS = 8  # With six, pairs of a few numbers are still correlated.
_MIX = np.uint64(0x9E3779B97F4A7C15)


class Permutation:
    """A pseudo-random permutation of 0 … n - 1, for any n, that needs no memory.

    It is the generalized Feistel cipher with cycle walking of Black and Rogaway, "Ciphers
    with Arbitrary Finite Domains", CT-RSA 2002, sections 4 and 5. A number is a pair (left,
    right) in a grid of a × b cells, with a · b slightly above n. Each round adds a hash of one
    half to the other, modulo its size. A result outside 0 … n - 1 is permuted again.

    Args:
        n: Size of the permutation.
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
    # The upper half of a 32-bit product is as uniform as its factor.
    mixed *= size
    mixed >>= np.uint64(32)
    return mixed


class ShardShuffle:
    """Takes entries shard by shard, shuffled within runs of the buffer's size.

    The shards are concatenated in a random order and rotated by a random offset, so that no
    entry is always first; each run of `buffer` entries is permuted. So consecutive positions
    map to a part of one or two shards, and each page of a memory map is read once per epoch.

    Args:
        starts: First entry of each shard, and the end `[shards + 1]` int64.
        buffer: Number of entries that are shuffled together.
        seed: Selects the order.
    """

    def __init__(self, starts: np.ndarray, buffer: int, seed: tuple[int, ...]) -> None:
        random = np.random.default_rng(seed)
        order = random.permutation(len(starts) - 1)
        self._n, self._buffer, self._seed = int(starts[-1]), buffer, seed
        self._ends = np.cumsum(np.diff(starts)[order])
        # Difference between an entry's number and its position in this order.
        self._shifts = starts[order + 1] - self._ends
        self._turn = int(random.integers(max(1, self._n)))

    def __len__(self) -> int:
        return self._n

    def __getitem__(self, places: np.ndarray) -> np.ndarray:
        """Returns the entries `[b]` int64 at positions `[b]` in 0 … n - 1."""
        laid = np.empty(len(places), np.int64)
        runs = places // self._buffer
        for run in np.unique(runs).tolist():
            inside, first = runs == run, run * self._buffer
            n = min(self._buffer, self._n - first)
            laid[inside] = first + Permutation(n, (*self._seed, run))[places[inside] - first]
        laid = (laid + self._turn) % self._n
        return laid + self._shifts[np.searchsorted(self._ends, laid, side="right")]


def epoch_order(
    starts: np.ndarray, shuffle: ShuffleConfig, seed: int, epoch: int, size: int = 1
) -> Permutation | ShardShuffle:
    """Returns the order of entries in an epoch.

    Args:
        starts: First entry of each shard, and the end `[shards + 1]` int64.
        shuffle: The kind of shuffle, and its buffer in events.
        seed: Seed of the training.
        epoch: Index of the epoch.
        size: Number of events per entry.
    """
    if shuffle.kind == "global":
        return Permutation(int(starts[-1]), (seed, 0, epoch))
    return ShardShuffle(starts, max(1, shuffle.buffer // size), (seed, 3, epoch))


@dataclasses.dataclass(frozen=True)
class BatchPart:
    """The rows of a batch that a process' devices hold, and their share of random numbers.

    A batch must not depend on the number of processes, so each draws the random numbers of all.

    Attributes:
        shards: Indices of the held shards, ascending.
        n_shards: Number of equal shards that the devices split an array into.
    """

    shards: tuple[int, ...]
    n_shards: int

    @property
    def is_whole(self) -> bool:
        """Whether the part is the whole batch."""
        return len(self.shards) == self.n_shards

    def size(self, n: int) -> int:
        """Returns the number of the part's rows in an array of `n` rows."""
        return n // self.n_shards * len(self.shards)

    def rows(self, n: int) -> np.ndarray:
        """Returns the indices of the part's rows in `n` rows `[size(n)]` int64, ascending."""
        of_shard = np.arange(n // self.n_shards)
        return (np.array(self.shards)[:, None] * len(of_shard) + of_shard).ravel()

    def uniform(self, shape: tuple[int, ...], random: np.random.Generator) -> np.ndarray:
        """Draws the random numbers of a whole batch, and returns the part's.

        Args:
            shape: Shape of the part `(rows, …)`.
            random: Random generator of the batch.

        Returns:
            Numbers in [0, 1) `[rows, …]` float32.
        """
        of_shard = (shape[0] // len(self.shards), *shape[1:])
        whole = random.random((self.n_shards, *of_shard), np.float32)
        return whole[list(self.shards)].reshape(shape)


WHOLE = BatchPart((0,), 1)
"""All rows."""


def held_part(sharding: Sharding, n_shards: int) -> BatchPart:
    """Returns the part that this process' devices hold of an array with `n_shards` equal shards."""
    held = sharding.addressable_devices_indices_map((n_shards,)).values()
    starts = {index[0].indices(n_shards)[0] for index in held if index is not None}
    return BatchPart(tuple(sorted(starts)), n_shards)
