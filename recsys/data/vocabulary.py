"""Ids to rows: the only module that turns one into the other.

An *id* is what the world calls a thing (text); a *row* is its int32 place in a
table. Row 0 stands for every unknown id; the ids of a vocabulary have the rows
1 … n.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from recsys.errors import RecsysError

UNKNOWN_ROW = 0


class Vocabulary:
    """The ids of one kind of thing, in the order of their rows.

    Args:
        ids: Ids `[n]`, text, unique; the id at position `i` has row `i + 1`.
        counts: Training positives of each id `[n]`, int64.
    """

    def __init__(self, ids: pa.Array, counts: np.ndarray) -> None:
        self.ids: pa.Array = ids.cast(pa.large_string())
        self.row_counts = np.concatenate([[0], counts]).astype(np.int64)
        if len(self.row_counts) != self.n_rows:
            raise RecsysError(
                "R210",
                "A vocabulary must have one count for each id.",
                "Build the vocabulary again.",
                (len(ids), len(counts)),
            )

    @property
    def n_rows(self) -> int:
        """Rows of the table that this vocabulary addresses, row 0 included."""
        return len(self.ids) + 1

    def rows(self, ids: pa.Array | Sequence[str]) -> np.ndarray:
        """Returns the rows `[n]` int32 of `ids` `[n]`; 0 for an unknown id."""
        values = pa.array(ids, pa.large_string()) if isinstance(ids, Sequence) else ids
        found = pc.index_in(values.cast(pa.large_string()), value_set=self.ids)
        return (pc.fill_null(found, -1).to_numpy(zero_copy_only=False) + 1).astype(np.int32)

    def fingerprint(self) -> str:
        """Returns the sha256 of the ids in the order of their rows, in hex."""
        digest = hashlib.sha256()
        for id_ in self.ids.to_pylist():
            encoded = id_.encode()
            digest.update(len(encoded).to_bytes(8, "little"))
            digest.update(encoded)
        return digest.hexdigest()

    def save(self, path: Path) -> None:
        """Writes the vocabulary to the Parquet file `path`."""
        table = pa.table({"id": self.ids, "count": self.row_counts[1:]})
        pq.write_table(table, path)

    @classmethod
    def load(cls, path: Path) -> Vocabulary:
        """Reads the vocabulary that `save` wrote to `path`."""
        table = pq.read_table(path)
        return cls(
            table["id"].combine_chunks(),
            table["count"].to_numpy(),
        )
