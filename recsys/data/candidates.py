"""Items drawn for rows: what a retriever returned before the row, and random ones.

A ranker that trains behind a retriever learns from them as negatives. `recsys.pair.draw` writes

    rows.npy        [n] int64             rows of `InteractionStore.train_rows`, ascending
    item_row.npy    [n, 1 + k] int32      the row's own item, then k drawn ones
    retriever.npy   [n, 1 + k, 3] float32 place of each in the list, see `recsys.pair.lists`
    log_rate.npy    [n, 1 + k] float32    logarithm of the expected number of draws of each item
                                          for the row; 0: it is never drawn
    facts.json      how they were drawn, and the sha256 of the files

beside `inner/`, the retriever's model folder.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np

from recsys.data.vocabulary import reading_data
from recsys.system import manifest

FACTS, INNER = "facts.json", "inner"
ARRAYS = {"rows": np.int64, "item_row": np.int32, "retriever": np.float32, "log_rate": np.float32}


class Listed(NamedTuple):
    """Entries of `Candidates`; zeros for rows without.

    Attributes:
        is_there: Whether items were drawn for each row `[b]` bool.
        item_row: Its item `[b]` int32.
        retriever: What the retriever says of it `[b, 3]` float32.
        log_rate: Logarithm of the expected number of its draws `[b]` float32.
    """

    is_there: np.ndarray
    item_row: np.ndarray
    retriever: np.ndarray
    log_rate: np.ndarray


@dataclasses.dataclass(frozen=True, eq=False)
class Candidates:
    """The drawn items of some rows, memory-mapped.

    Attributes:
        rows, item_row, retriever, log_rate: The arrays.
        digest: sha256 of the manifest.
        model: Model folder of the retriever.
    """

    rows: np.ndarray
    item_row: np.ndarray
    retriever: np.ndarray
    log_rate: np.ndarray
    digest: str
    model: Path

    @classmethod
    def open(cls, folder: Path) -> Self:
        """Maps the arrays of a folder into memory, and verifies their sizes.

        Raises:
            RecsysError: The folder holds none, or a file is damaged (R221).
        """
        what = "the candidates that were drawn for a ranker"
        with reading_data(folder, what, "R221", "Delete it and run again: they are drawn anew."):
            manifest.verify_files(folder, manifest.read_manifest(folder / FACTS)["files"], True)
            arrays = {name: np.load(folder / f"{name}.npy", mmap_mode="r") for name in ARRAYS}
        digest = manifest.manifest_digest(folder / FACTS)
        columns = {n: np.asarray(x) for n, x in arrays.items()}
        return cls(**columns, digest=str(digest), model=folder.parent / INNER)

    @property
    def n_negatives(self) -> int:
        """Number of items drawn for each row."""
        return self.item_row.shape[1] - 1

    def of(self, rows: np.ndarray, column: np.ndarray) -> Listed:
        """Returns entries of rows `[b]`: their own items in `column` 0 `[b]`, else drawn ones."""
        at = np.minimum(np.searchsorted(self.rows, rows), len(self.rows) - 1)
        is_there = self.rows[at] == rows

        def entries(array: np.ndarray) -> np.ndarray:
            found = array[at, column]
            found[~is_there] = 0
            return found

        return Listed(is_there, *map(entries, (self.item_row, self.retriever, self.log_rate)))


def seal(folder: Path, facts: Mapping[str, Any]) -> None:
    """Writes the manifest of a folder that holds the arrays."""
    files = manifest.checksums(folder, [f"{name}.npy" for name in ARRAYS])
    manifest.write_manifest(folder / FACTS, facts, files)
