"""The part of a batch that a process holds."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from jax.sharding import Sharding


@dataclasses.dataclass(frozen=True)
class BatchPart:
    """The rows of each array of a batch that a process' devices hold, and their random numbers.

    A batch is the same for any number of processes, so the random numbers of all are drawn.

    Attributes:
        shards: Which of the parts that devices split an array into, ascending.
        n_shards: How many there are; they are equal.
    """

    shards: tuple[int, ...]
    n_shards: int

    @property
    def is_whole(self) -> bool:
        """Whether it is all of a batch."""
        return len(self.shards) == self.n_shards

    def size(self, n: int) -> int:
        """Returns how many of `n` rows belong to the part."""
        return n // self.n_shards * len(self.shards)

    def rows(self, n: int) -> np.ndarray:
        """Returns which of `n` rows belong to the part `[size(n)]` int64, ascending."""
        of_shard = np.arange(n // self.n_shards)
        return (np.array(self.shards)[:, None] * len(of_shard) + of_shard).ravel()

    def uniform(self, shape: tuple[int, ...], random: np.random.Generator) -> np.ndarray:
        """Returns the part's numbers of what a whole batch draws, and moves past all of them.

        Args:
            shape: Shape of the part `(rows, …)`.
            random: Source of randomness of the batch.

        Returns:
            Numbers in [0, 1) `[rows, …]` float32.
        """
        of_shard = (shape[0] // len(self.shards), *shape[1:])
        whole = random.random((self.n_shards, *of_shard), np.float32)
        return whole[list(self.shards)].reshape(shape)


WHOLE = BatchPart((0,), 1)
"""All rows."""


def held_part(sharding: Sharding, n_shards: int) -> BatchPart:
    """Returns which of `n_shards` equal parts of an array this process' devices hold."""
    held = sharding.addressable_devices_indices_map((n_shards,)).values()
    starts = {index[0].indices(n_shards)[0] for index in held if index is not None}
    return BatchPart(tuple(sorted(starts)), n_shards)
