"""The lists that hard negatives are drawn from: for each item, those that are close to it."""

from __future__ import annotations

import dataclasses
import zipfile
from pathlib import Path
from typing import Self

import numpy as np

from recsys.commit import commit_file
from recsys.errors import RecsysError


@dataclasses.dataclass(frozen=True, eq=False)
class HardNegatives:
    """A list of close items for each item; `recsys.training.callbacks` makes them.

    Attributes:
        rows: Item rows of each list `[item rows, pool]` int32, padded with 0.
        lengths: Items of each list `[item rows]` int32; 0 for an item without a list.
        items: The rows that are items `[items]` int32: an item without a list has all.
    """

    rows: np.ndarray
    lengths: np.ndarray
    items: np.ndarray

    @classmethod
    def none_yet(cls, is_item: np.ndarray) -> Self:
        """Returns empty lists: until others are made, everything is drawn evenly.

        Args:
            is_item: Which item rows are items `[item rows]` bool.
        """
        n_rows, items = len(is_item), np.flatnonzero(is_item).astype(np.int32)
        return cls(np.zeros((n_rows, 1), np.int32), np.zeros(n_rows, np.int32), items)

    def draw(self, positives: np.ndarray, n: int, random: np.random.Generator) -> np.ndarray:
        """Returns an item of the lists of positives, one after the other `[n]` int32.

        Args:
            positives: Item rows of a batch's events `[batch]`.
            n: Draws; positives are taken again from the first on, if they are fewer.
            random: Source of randomness.
        """
        of = positives[np.arange(n) % len(positives)]
        chance, length = random.random(n), self.lengths[of]
        close = self.rows[of, (chance * length).astype(np.int64)]
        anything = self.items[(chance * len(self.items)).astype(np.int64)]
        return np.where(length > 0, close, anything)

    def probability(self, shares: np.ndarray) -> np.ndarray:
        """Returns the probability of each item row in one draw `[item rows]` float64.

        It is `h_j = sum_i share_i / |list_i|` over the items i in whose list j is.

        Args:
            shares: Share of each item row among the training events `[item rows]`.
        """
        n_rows = len(self.rows)
        of_one = np.where(self.lengths > 0, shares / np.maximum(self.lengths, 1), 0.0)
        probability = np.zeros(n_rows)
        # A column at a time: weights of all lists at once would be twice their size.
        for place in range(self.rows.shape[1]):
            used = np.where(place < self.lengths, of_one, 0.0)
            probability += np.bincount(self.rows[:, place], used, n_rows)
        probability[self.items] += shares[self.lengths == 0].sum() / len(self.items)
        return np.minimum(probability, 1.0)

    def save(self, path: Path) -> None:
        """Writes the lists into one `.npz` file, whole or not at all."""
        temporary = path.with_name(f".{path.name}")
        try:
            # As a file: NumPy would add to the name.
            with temporary.open("wb") as file:
                np.savez(file, rows=self.rows, lengths=self.lengths, items=self.items)
            commit_file(temporary, path)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise

    @classmethod
    def load(cls, path: Path, n_rows: int) -> Self:
        """Reads the lists of `n_rows` item rows.

        Raises:
            RecsysError: The file is missing or damaged, or is of another catalogue.
        """
        try:
            # NumPy would leave a file open that it can't read.
            with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
                found = cls(arrays["rows"], arrays["lengths"], arrays["items"])
            if len(found.rows) != n_rows or found.lengths.shape != (n_rows,):
                raise ValueError(f"lists of {len(found.rows)} items, where {n_rows} are")
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
            raise RecsysError(
                "R327",
                f"{str(path)!r} must hold the hard negatives of this catalogue.",
                "Delete the run's checkpoints, and train from the start.",
                f"{type(error).__name__}: {error}",
            ) from None
        return found
