"""What people know of a bundle: users, and items with their titles."""

from __future__ import annotations

import bisect
import dataclasses
import functools
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from recsys.data.vocabulary import Vocabulary
from recsys.errors import RecsysError
from recsys.serving.catalogue import FILE, features_of

_SHOWN_TOKENS = 12
_SAMPLE = 200
"""Items that tell whether a feature only repeats the titles."""
_OWN_COLUMNS = 2
"""Of the catalogue: `id` and `title`."""


@dataclasses.dataclass(frozen=True)
class Names:
    """Users and items of a bundle, to be found and to be shown.

    Attributes:
        users: Ids of the users `[users]` large_string, ascending.
        items: Vocabulary of the items.
        titles: Title of each item row `[item rows]` large_string; empty for no item.
        lower_titles: The same in small letters, after the id.
        embeddings: Of each item row `[item rows, dim]`; a memory map.
        features: Names of the tokens of each item row from 1 on, by feature; a
            feature whose tokens have no names isn't there.
    """

    users: pa.Array
    items: Vocabulary
    titles: pa.Array
    lower_titles: pa.Array
    embeddings: np.ndarray
    features: Mapping[str, pa.ListArray] = dataclasses.field(default_factory=dict)

    @classmethod
    def open(cls, bundle: Path) -> Names:
        """Reads a bundle."""
        users = pq.read_table(bundle / "vocabulary" / "users.parquet", columns=["id"])["id"]
        users = users.combine_chunks().drop_null()
        items = Vocabulary.load(bundle / "vocabulary" / "items.parquet")
        written = pq.read_table(bundle / "titles.parquet")
        blank, space = pa.array([""], pa.large_string()), pa.scalar(" ", pa.large_string())
        titles, ids = (
            pa.concat_arrays([blank, written[column].combine_chunks().cast(pa.large_string())])
            for column in ("title", "id")
        )
        return cls(
            users=users.take(pc.array_sort_indices(users)),
            items=items,
            titles=titles,
            lower_titles=pc.utf8_lower(pc.binary_join_element_wise(ids, titles, space)),
            embeddings=np.load(bundle / "item_embeddings.npy", mmap_mode="r", allow_pickle=False),
            features=_features(bundle, items.n_rows),
        )

    def find_users(self, prefix: str, n: int) -> list[str]:
        """Returns the first `n` users whose id begins with `prefix`."""
        start = bisect.bisect_left(self.users, prefix, key=lambda one: one.as_py())
        found = self.users.slice(start, n).to_pylist()
        return [id_ for id_ in found if id_.startswith(prefix)]

    def find_items(self, words: str, n: int) -> list[dict[str, Any]]:
        """Returns the `n` items with the most training events whose id or title has all `words`."""
        has_id = self.items.has_id()
        rows, texts = np.arange(len(has_id)), self.lower_titles
        # The longest first, and only in what is left: a client may send hundreds of words.
        for word in sorted(set(words.lower().split()), key=len, reverse=True):
            matches = pc.match_substring(texts, word)
            rows = rows[matches.to_numpy(zero_copy_only=False)]
            texts = texts.filter(matches)
        rows = rows[has_id[rows]]
        return self.shown(_best(rows, self.items.row_counts[rows], n))

    def item_rows(self, ids: Sequence[str]) -> list[int]:
        """Returns the row of each of `ids`; 0 for who is no item."""
        rows = self.items.rows(ids) if ids else np.zeros(0, np.int32)
        return np.where(rows >= self.items.first_own_row, rows, 0).tolist()

    def similar(self, row: int, n: int) -> list[dict[str, Any]]:
        """Returns the `n` items whose embeddings have the largest cosine with that of `row`."""
        query = np.asarray(self.embeddings[row], np.float32)
        scores = self.embeddings @ query / np.maximum(self._norms * self._norms[row], 1e-12)
        is_other = self.items.has_id()
        is_other[row] = False
        rows = np.flatnonzero(is_other)
        best = _best(rows, scores[rows], n)
        return self.shown(best, scores[best].tolist())

    @functools.cached_property
    def _norms(self) -> np.ndarray:
        """Lengths of the embeddings `[item rows]`; 1 where scores are cosines."""
        return np.sqrt(np.einsum("rd,rd->r", self.embeddings, self.embeddings, dtype=np.float32))

    @functools.cached_property
    def _shown_features(self) -> list[tuple[str, pa.ListArray]]:
        """The features that tell people more than the titles do: words of a title don't."""
        features = self.features.items()
        return [(name, one) for name, one in features if not _repeats(one, self.titles)]

    def shown(
        self, rows: Iterable[int], scores: Sequence[float] | None = None
    ) -> list[dict[str, Any]]:
        """Returns `id`, `title` and `features` of items, and `score` where there are `scores`.

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


def _best(rows: np.ndarray, scores: np.ndarray, n: int) -> np.ndarray:
    """Returns the `n` of `rows` with the highest scores, the first rows where they are equal."""
    if len(rows) > n:
        least = np.partition(scores, -n)[-n]
        rows, scores = rows[scores >= least], scores[scores >= least]
    return rows[np.argsort(-scores, kind="stable")][:n]


def _tokens(column: pa.ListArray, row: int) -> list[str]:
    """Returns the names of an item's tokens; line 0 of `column` is row 1."""
    names: list[str] = column[row - 1].as_py() if row else []
    return names[:_SHOWN_TOKENS]


def _repeats(column: pa.ListArray, titles: pa.Array) -> bool:
    """Returns whether all tokens of a feature stand in the titles of their items."""
    lines = np.flatnonzero(pc.fill_null(pc.list_value_length(column), 0).to_numpy())[:_SAMPLE]
    return len(lines) > 0 and all(
        token.casefold() in titles[line + 1].as_py().casefold()
        for line in lines.tolist()
        for token in column[line].as_py()
    )


def _features(bundle: Path, n_rows: int) -> dict[str, pa.ListArray]:
    """Returns the features of the items whose tokens have names; older bundles tell none."""
    if not (bundle / FILE).exists():
        return {}
    names = features_of(bundle)
    table = pq.read_table(bundle / FILE)
    columns = [column.combine_chunks() for column in table.columns[_OWN_COLUMNS:]]
    if len(table) != n_rows - 1 or not all(pa.types.is_list(one.type) for one in columns):
        raise RecsysError(
            "R583",
            f"{str(bundle / FILE)!r} must have a line for each item row, and lists of names.",
            "Export the model again: recsys export.",
            str(table.schema),
        )
    return dict(zip(names, columns, strict=True))
