"""Shared by the rankers of `benchmarks.rank_quality`: rows of tokens, and what is answered."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import numpy as np
import numpy.typing as npt

TRAIN, VALID, TEST = range(3)


@dataclasses.dataclass(frozen=True)
class RankCase:
    """Labelled rows, in three parts.

    Attributes:
        label: Label of each row `[n]` 0 or 1.
        part: Part of each row `[n]`.
        time: Time of each row `[n]`; equal ones know nothing of each other.
        tokens: Tokens of each row by feature `[n]` or `[n, width]`, `user` and `item` among them;
            0 is padding.
    """

    label: npt.NDArray[np.float64]
    part: npt.NDArray[np.int64]
    time: npt.NDArray[np.int64]
    tokens: dict[str, npt.NDArray[np.int32]]

    @classmethod
    def load(cls, path: str) -> RankCase:
        """Reads what `save` wrote."""
        with np.load(path) as file:
            tokens = {name[7:]: file[name] for name in file.files if name.startswith("tokens.")}
            return cls(file["label"], file["part"], file["time"], tokens)

    def save(self, path: str) -> None:
        """Writes it as an .npz."""
        named: dict[str, Any] = {f"tokens.{name}": rows for name, rows in self.tokens.items()}
        np.savez(path, label=self.label, part=self.part, time=self.time, **named)

    def is_in(self, part: int) -> npt.NDArray[np.bool_]:
        """Returns which rows are in a part `[n]`."""
        return self.part == part

    @functools.cached_property
    def statistics(self) -> npt.NDArray[np.float64]:
        """Statistics of strictly earlier rows `[n, 11]`.

        They are the counts and mean labels of the user, the item, and the user with the item's
        genres, and the user's last five labels.
        """
        user, item = (self.tokens[name].astype(np.int64) for name in ("user", "item"))
        columns = [*self._earlier(user[:, None]), *self._earlier(item[:, None])]
        if "genres" in self.tokens:
            genres = self.tokens["genres"].astype(np.int64)
            columns += self._earlier(np.where(genres, user[:, None] * 1000 + genres, 0))
        order = np.lexsort((self.time, user))
        first = _first_of(np.stack([user, self.time], 1)[order])
        start = _first_of(user[order, None])
        for back in range(1, 6):
            known = first - back >= start
            last = np.where(known, self.label[order][np.maximum(first - back, 0)], np.nan)
            columns.append(_put(order, last))
        return np.stack(columns, axis=1)

    def _earlier(self, keys: npt.NDArray[np.int64]) -> list[npt.NDArray[np.float64]]:
        """Returns count and mean label of earlier rows with a key of `keys` `[n, width]`."""
        row, place = np.nonzero(keys)
        key = keys[row, place]
        order = np.lexsort((self.time[row], key))
        label = np.concatenate([[0.0], np.cumsum(self.label[row][order])])
        first = _first_of(np.stack([key, self.time[row]], 1)[order])
        start = _first_of(key[order, None])
        count, likes = first - start, label[first] - label[start]
        n_rows = np.bincount(row[order], count, len(keys)).astype(np.float64)
        n_likes = np.bincount(row[order], likes, len(keys))
        return [n_rows, (n_likes + 2.5) / (n_rows + 5)]


def _first_of(sorted_keys: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """Returns the position of the first row with each row's key `[n]`."""
    is_new = np.append(True, (np.diff(sorted_keys, axis=0) != 0).any(axis=1))
    return np.maximum.accumulate(np.where(is_new, np.arange(len(is_new)), 0))


def _put(order: npt.NDArray[np.int64], values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    out = np.empty_like(values)
    out[order] = values
    return out
