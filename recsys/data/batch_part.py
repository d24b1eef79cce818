"""Which part of a batch a process builds, and the random numbers of that part.

A batch is the same for any number of processes, so its random numbers are those of the whole.
A part is had without drawing the whole: PCG64 can be moved on by any number of draws (O'Neill,
"PCG: A Family of Simple Fast Space-Efficient Statistically Good Algorithms", 2014, section 4.3).
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from jax.sharding import Sharding


@dataclasses.dataclass(frozen=True)
class BatchPart:
    """The rows of each array of a batch that a process' devices hold.

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
            random: Source of randomness of the batch, a PCG64.

        Returns:
            Numbers in [0, 1) `[rows, …]` float32.
        """
        of_shard = (shape[0] // len(self.shards), *shape[1:])
        n, first, end = math.prod(of_shard), self.shards[0], self.shards[-1] + 1
        _skip(first * n, random)
        numbers = random.random((end - first, *of_shard), np.float32)
        _skip((self.n_shards - end) * n, random)
        if len(numbers) > len(self.shards):
            numbers = numbers[np.array(self.shards) - first]
        return numbers.reshape(shape)


WHOLE = BatchPart((0,), 1)
"""All rows."""


def held_part(sharding: Sharding, n_shards: int) -> BatchPart:
    """Returns which of `n_shards` equal parts of an array this process' devices hold."""
    held = sharding.addressable_devices_indices_map((n_shards,)).values()
    starts = {index[0].indices(n_shards)[0] for index in held if index is not None}
    return BatchPart(tuple(sorted(starts)), n_shards)


def _skip(n: int, random: np.random.Generator) -> None:
    """Moves `random` past `n` draws of float32, of which PCG64 makes two a step."""
    if not n:
        return
    if random.bit_generator.state["has_uint32"]:  # The second half of a step is left.
        random.random(dtype=np.float32)
        n -= 1
    random.bit_generator.advance(n // 2)  # type: ignore[attr-defined]
    if n % 2:
        random.random(dtype=np.float32)
