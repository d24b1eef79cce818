"""Which items a query wants to see alone, by the names of the tokens of their features."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from recsys.serving.input_names import filter_inputs
from recsys.serving.server.signature import Arrays


@dataclasses.dataclass(frozen=True)
class TokenItems:
    """The items of each token of a feature.

    Attributes:
        tokens: Names of the tokens, those of the most items first; and their places.
        rows: Item rows, token after token `[n]` int32.
        offsets: First of each token's rows, and the end `[tokens + 1]` int64.
    """

    tokens: dict[bytes, int]
    rows: np.ndarray
    offsets: np.ndarray

    @classmethod
    def of(cls, column: pa.ListArray) -> TokenItems:
        """Returns the items of a column of the catalogue, whose first line is row 1."""
        encoded = column.flatten().dictionary_encode()
        codes = encoded.indices.to_numpy()
        counts = np.bincount(codes, minlength=len(encoded.dictionary))
        place_of = np.empty(len(counts), np.int64)
        order = np.argsort(-counts, kind="stable")
        place_of[order] = np.arange(len(counts))
        lines = pc.list_parent_indices(column).to_numpy()
        names = [name.encode() for name in encoded.dictionary.take(pa.array(order)).to_pylist()]
        return cls(
            dict(zip(names, range(len(names)), strict=True)),
            (lines[np.argsort(place_of[codes], kind="stable")] + 1).astype(np.int32),
            np.concatenate([[0], np.cumsum(counts[order])]),
        )

    def mark(self, name: bytes, mask: np.ndarray) -> None:
        """Sets the rows of the items with a token in `mask` `[item rows]`."""
        place = self.tokens.get(name)
        if place is not None:
            mask[self.rows[self.offsets[place] : self.offsets[place + 1]]] = True


class ItemFilters:
    """Filters of `recommend_filtered`.

    Args:
        features: Names of the tokens of each item row from 1 on, by feature.
        n_rows: Item rows.

    Attributes:
        feature_of: The feature of each filter, by the name of its input.
    """

    def __init__(self, features: Mapping[str, pa.ListArray], n_rows: int) -> None:
        self.feature_of = filter_inputs(features)
        self._n_rows = n_rows
        self._items = {
            name: TokenItems.of(features[feature]) for name, feature in self.feature_of.items()
        }

    def tokens(self, name: str, words: str, n: int) -> list[str]:
        """Returns tokens of a filter that hold all `words`, those of the most items first."""
        parts = words.lower().split()
        every = (token.decode() for token in self._items[name].tokens)
        found = (token for token in every if all(part in token.lower() for part in parts))
        return list(itertools.islice(found, n))

    def groups(
        self, inputs: Arrays, at: np.ndarray
    ) -> Iterator[tuple[np.ndarray, np.ndarray | None]]:
        """Yields the queries that want the same, and the rows that they allow.

        Args:
            inputs: Of the signature; padding alone wants any item.
            at: Places of the queries `[n]`.

        Yields:
            Some of `at`, and `[item rows]` bool; None: all items.
        """
        names = [name for name in self._items if name in inputs]
        wishes: dict[tuple[frozenset[bytes], ...], list[int]] = {}
        for place in at.tolist():
            wish = tuple(frozenset(inputs[name][place].tolist()) - {b""} for name in names)
            wishes.setdefault(wish, []).append(place)
        for wish, places in wishes.items():
            yield np.array(places), self._allowed(dict(zip(names, wish, strict=True)))

    def _allowed(self, wanted: Mapping[str, frozenset[bytes]]) -> np.ndarray | None:
        said = {name: tokens for name, tokens in wanted.items() if tokens}
        if not said:
            return None
        allowed = np.ones(self._n_rows, bool)
        for name, tokens in said.items():
            mask = np.zeros(self._n_rows, bool)
            for token in tokens:
                self._items[name].mark(token, mask)
            allowed &= mask
        return allowed
