"""The part of a batch that a process holds."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from jax.sharding import Sharding


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
        """Draws the random numbers of a whole batch, and returns those of the part.

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
