"""The users and items of a bundle by name: search, display, and filters by feature."""

from __future__ import annotations

import bisect
import dataclasses
import difflib
import functools
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from recsys.data.catalogue import read_catalogue, read_is_item
from recsys.data.vocabulary import Vocabulary
from recsys.errors import RecsysError, UsageError
from recsys.index.search import best_of
from recsys.savedmodel.signatures import Arrays, filter_inputs

_FEW, _LONGEST, _MOST_LOOKED_AT = 3, 50, 500
"""Number of values that an error names, and limits of characters and values to compare for it."""


class ItemFilters:
    """Filters of the signature `recommend_filtered` by item features.

    Args:
        features: Token names of each item row from 1 on, by feature.
        n_rows: Item rows.

    Attributes:
        feature_of: Feature of each filter, by name of the input.
    """

    def __init__(self, features: Mapping[str, pa.ListArray], n_rows: int) -> None:
        self.feature_of = filter_inputs(features)
        self._features, self._n_rows = features, n_rows

    @functools.cached_property
    def _items(self) -> dict[str, dict[bytes, np.ndarray]]:
        """Item rows of each token, by filter; the most frequent tokens first."""
        return {
            name: _rows_by_token(self._features[feature])
            for name, feature in self.feature_of.items()
        }

    def tokens(self, name: str, words: str, n: int) -> list[str]:
        """Returns up to `n` tokens of a filter with all `words`, the most frequent first."""
        parts = words.lower().split()
        names = (token.decode() for token in self._items[name])
        tokens = (token for token in names if all(part in token.lower() for part in parts))
        return list(itertools.islice(tokens, n))

    def check_values(self, wanted: Mapping[str, Iterable[bytes]]) -> None:
        """Checks that some item has each requested value.

        Args:
            wanted: Token names by filter; the empty name is padding.

        Raises:
            UsageError: No item has a value (R537).
        """
        for name, tokens in wanted.items():
            unknown = next(
                (token for token in tokens if token and token not in self._items[name]), None
            )
            if unknown is None:
                continue
            text = unknown.decode(errors="replace")
            similar = ", ".join(map(repr, self._similar(name, text))) or "none"
            rule = f"A value of the filter {self.feature_of[name]!r} must be one that an item has."
            raise UsageError("R537", rule, f"Name one of the values, such as {similar}.", text)

    def _similar(self, name: str, text: str) -> list[str]:
        """Returns a few tokens of a filter, similar to a text, else the most frequent."""
        most_frequent = [
            token.decode() for token in itertools.islice(self._items[name], _MOST_LOOKED_AT)
        ]
        folded = {token.casefold(): token for token in reversed(most_frequent)}
        close = difflib.get_close_matches(text[:_LONGEST].casefold(), folded, _FEW)
        return [folded[token] for token in close] or most_frequent[:_FEW]

    def groups(
        self, inputs: Arrays, at: np.ndarray
    ) -> Iterator[tuple[np.ndarray, np.ndarray | None]]:
        """Groups queries with equal filters; yields each group with the allowed item rows.

        Args:
            inputs: Inputs of the signature; a row of only padding allows all items.
            at: Indices of the queries `[n]`.

        Yields:
            A part of `at`, and a mask `[item rows]` bool, or None for all items.
        """
        names = [name for name in self.feature_of if name in inputs]
        if not names:
            yield at, None
            return
        groups: dict[tuple[frozenset[bytes], ...], list[int]] = {}
        for place in at.tolist():
            filter_ = tuple(frozenset(inputs[name][place].tolist()) - {b""} for name in names)
            groups.setdefault(filter_, []).append(place)
        for filter_, places in groups.items():
            yield np.array(places), self._allowed(dict(zip(names, filter_, strict=True)))

    def _allowed(self, wanted: Mapping[str, frozenset[bytes]]) -> np.ndarray | None:
        allowed = None
        for name, tokens in wanted.items():
            if tokens:
                mask = np.zeros(self._n_rows, bool)
                for token in tokens & self._items[name].keys():
                    mask[self._items[name][token]] = True
                allowed = mask if allowed is None else allowed & mask
        return allowed


def _rows_by_token(column: pa.ListArray) -> dict[bytes, np.ndarray]:
    """Returns the item rows of each token of a feature; entry 0 of `column` is row 1."""
    encoded = column.flatten().dictionary_encode()
    codes = encoded.indices.to_numpy()
    counts = np.bincount(codes, minlength=len(encoded.dictionary))
    rows = pc.list_parent_indices(column).to_numpy()[np.argsort(codes, kind="stable")] + 1
    by_code = np.split(rows, np.cumsum(counts)[:-1]) if len(counts) else []
    names = encoded.dictionary.to_pylist()
    return {names[c].encode(): by_code[c] for c in np.argsort(-counts, kind="stable").tolist()}


_SHOWN_TOKENS = 12
_BLANK = pa.array([""], pa.large_string())
_SAMPLE = 200
"""Number of items to check whether a feature only repeats the titles."""


@dataclasses.dataclass(frozen=True)
class CatalogueSearch:
    """Users and items of a bundle by name.

    Attributes:
        user_ids: Ids of the users `[users]` large_string.
        items: Vocabulary of the items.
        titles: Title of each item row `[item rows]` large_string; empty for rows without an item.
        embeddings: Item embeddings `[item rows, dim]`, a memory map; of width 0 if
            the bundle has none.
        is_item: Whether each item row is a candidate `[item rows]` bool.
        width: Number of an embedding's entries that define similarity, see
            `recsys.models.summary.direction_width`.
        features: Token names of each item row from 1 on, by feature; without features whose tokens
            have no names.
    """

    user_ids: pa.Array
    items: Vocabulary
    titles: pa.Array
    embeddings: np.ndarray
    is_item: np.ndarray
    features: Mapping[str, pa.ListArray] = dataclasses.field(default_factory=dict)
    width: int | None = None

    @classmethod
    def open(
        cls, bundle: Path, width: int | None = None, *, has_embeddings: bool = True
    ) -> CatalogueSearch:
        """Reads a bundle whose files match its manifest.

        Args:
            bundle: The bundle.
            width: See the attribute.
            has_embeddings: Whether the bundle has item embeddings.

        Raises:
            RecsysError: A file is missing or damaged (R544).
        """
        try:
            users = pq.read_table(bundle / "vocabulary" / "users.parquet", columns=["id"])["id"]
            titles = pq.read_table(bundle / "titles.parquet", columns=["title"])["title"]
            items = Vocabulary.load(bundle / "vocabulary" / "items.parquet")
            path = bundle / "item_embeddings.npy"
            return cls(
                user_ids=users.combine_chunks().drop_null().cast(pa.large_string()),
                items=items,
                titles=pa.concat_arrays([_BLANK, titles.combine_chunks().cast(pa.large_string())]),
                embeddings=np.load(path, mmap_mode="r", allow_pickle=False)
                if has_embeddings
                else np.zeros((items.n_rows, 0), np.float32),
                is_item=read_is_item(bundle),
                features=read_catalogue(bundle, items.n_rows),
                width=width,
            )
        except (OSError, ValueError, KeyError, EOFError, pa.ArrowException) as error:
            rule = (
                "To be served, a bundle must hold titles.parquet, vocabulary/ and catalogue/, and"
                f" one of lists item_embeddings.npy; {str(bundle)!r} doesn't."
            )
            cure = "Export the model again: recsys export."
            raise RecsysError("R544", rule, cure, f"{type(error).__name__}: {error}") from None

    @functools.cached_property
    def _sorted_users(self) -> pa.Array:
        return self.user_ids.take(pc.array_sort_indices(self.user_ids))

    @functools.cached_property
    def _lower_titles(self) -> pa.Array:
        """Id and title of each item row, in lower case."""
        ids = self.items.ids_of_rows.fill_null("")
        space = pa.scalar(" ", pa.large_string())
        return pc.utf8_lower(pc.binary_join_element_wise(ids, self.titles, space))

    def find_users(self, prefix: str, n: int) -> list[str]:
        """Returns the first `n` users whose id begins with `prefix`."""
        start = bisect.bisect_left(self._sorted_users, prefix, key=lambda one: one.as_py())
        ids = self._sorted_users.slice(start, n).to_pylist()
        return [id_ for id_ in ids if id_.startswith(prefix)]

    def find_items(self, words: str, n: int) -> list[dict[str, Any]]:
        """Returns the `n` items with the most training events whose id or title has all `words`."""
        rows, texts = np.arange(len(self.is_item)), self._lower_titles
        # The longest word first, each only among the remaining items: a client may send hundreds of
        # words.
        for word in sorted(set(words.lower().split()), key=len, reverse=True):
            matches = pc.match_substring(texts, word)
            rows = rows[matches.to_numpy(zero_copy_only=False)]
            texts = texts.filter(matches)
        rows = rows[self.is_item[rows]]
        return self.shown(best_of(rows, self.items.row_counts[rows], n)[0])

    def item_rows(self, ids: Sequence[str]) -> list[int]:
        """Returns the row of each of `ids`; 0 if there is no such item."""
        rows = self.items.rows(ids) if ids else np.zeros(0, np.int32)
        return np.where(rows >= self.items.first_own_row, rows, 0).tolist()

    def similar(self, row: int, n: int) -> list[dict[str, Any]]:
        """Returns the `n` items whose embeddings have the largest cosine with the item in `row`."""
        embeddings = self.embeddings[:, : self.width]
        query = np.asarray(embeddings[row], np.float32)
        scores = embeddings @ query / np.maximum(self._norms * self._norms[row], 1e-12)
        rows = np.flatnonzero(self.is_item)
        rows = rows[rows != row]
        best, best_scores = best_of(rows, scores[rows], n)
        return self.shown(best, best_scores.tolist())

    def directions(self, rows: np.ndarray) -> np.ndarray:
        """Returns the embeddings of items as unit vectors `[n, dim]` float32."""
        embeddings = np.asarray(self.embeddings[rows, : self.width], np.float32)
        norms = np.linalg.norm(embeddings, axis=1, keepdims=True)
        return embeddings / np.maximum(norms, 1e-12)

    @functools.cached_property
    def _norms(self) -> np.ndarray:
        """Norms of the embeddings `[item rows]`; 1 if scores are cosines."""
        embeddings = self.embeddings[:, : self.width]
        return np.sqrt(np.einsum("rd,rd->r", embeddings, embeddings, dtype=np.float32))

    @functools.cached_property
    def _shown_features(self) -> list[tuple[str, pa.ListArray]]:
        """Features that don't only repeat words of the titles."""
        features = self.features.items()
        return [(name, lists) for name, lists in features if not _repeats(lists, self.titles)]

    def shown(
        self, rows: Iterable[int], scores: Sequence[float] | None = None
    ) -> list[dict[str, Any]]:
        """Returns `id`, `title` and `features` of items, and `score` if `scores` are given.

        A feature that only repeats words of the titles is left out.
        """
        items = [
            {
                "id": self.items.ids_of_rows[row].as_py(),
                "title": self.titles[row].as_py(),
                "features": {name: _tokens(column, row) for name, column in self._shown_features},
            }
            for row in map(int, rows)
        ]
        for item, score in zip(items, scores or (), strict=False):
            item["score"] = score
        return items


def _tokens(column: pa.ListArray, row: int) -> list[str]:
    """Returns the token names of an item; entry 0 of `column` is row 1."""
    names: list[str] = column[row - 1].as_py() if row else []
    return names[:_SHOWN_TOKENS]


def _repeats(column: pa.ListArray, titles: pa.Array) -> bool:
    """Returns whether all tokens of a feature occur in the titles of their items."""
    lines = np.flatnonzero(pc.fill_null(pc.list_value_length(column), 0).to_numpy())[:_SAMPLE]
    return len(lines) > 0 and all(
        token.casefold() in titles[line + 1].as_py().casefold()
        for line in lines.tolist()
        for token in column[line].as_py()
    )
