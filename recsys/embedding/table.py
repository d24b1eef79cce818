"""What an embedding table is, before any device holds it."""

from __future__ import annotations

import dataclasses

BYTES_PER_FLOAT = 4


@dataclasses.dataclass(frozen=True)
class TableSpec:
    """One embedding table.

    Attributes:
        name: Name of the table, and of the layer that reads it.
        rows: Rows that mean something, row 0 (unknown, padding) included.
        dim: Width of a row [floats].
    """

    name: str
    rows: int
    dim: int

    def padded_rows(self, n_shards: int) -> int:
        """Returns `rows` rounded up so that `n_shards` devices hold equally many."""
        return -(-self.rows // n_shards) * n_shards

    def bytes_per_device(self, n_shards: int) -> int:
        """Returns the bytes of the table that each of `n_shards` devices holds."""
        return self.padded_rows(n_shards) // n_shards * self.dim * BYTES_PER_FLOAT
