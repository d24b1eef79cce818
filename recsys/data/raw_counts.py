"""How many different ids and tokens the raw files hold, without a run.

Files are streamed, and nothing is touched row by row. What a run leaves out later is
counted here: damaged rows, users without a training positive, items listed twice. So a
vocabulary is never larger than these counts say, and mostly little smaller.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from recsys.config import DataConfig, Feature, SourceConfig
from recsys.data.entities import (
    EntityConfig,
    example_columns,
    id_column,
    parse_entities,
    raw_columns,
)
from recsys.data.sources.pieces import plan_pieces, read_piece
from recsys.data.sources.raw_batch import RawBatch
from recsys.data.sources.values import to_ids
from recsys.data.tokens import has_vocabulary, table_rows
from recsys.errors import RecsysError

_LOOSE = 1 << 20
_NO_WORD = r"[^\pL\pM\pN_]+"  # As in components.transform_features.


def count_raw(data: DataConfig) -> dict[str, int]:
    """Returns how many users, items and tokens of each feature there are, by table.

    Raises:
        RecsysError: A file is missing, can't be read, is empty, is of another
            format, or lacks a column; or a query takes the place of files.
    """
    if data.interactions.query is not None:
        raise RecsysError(
            "R257",
            "Rows are counted in files; data.interactions.query names none.",
            "Run once, so that they are known.",
        )
    users, items = Distinct(), Distinct()
    tokens: dict[str, int] = {}
    if data.items is not None:
        tokens |= _count_side(data.items, "items", items)
    if data.users is not None:
        tokens |= _count_side(data.users, "users", Distinct())
    columns = data.interactions.columns
    for batch in _batches(data.interactions, "interactions", [columns.user, columns.item]):
        users.add(to_ids(batch.columns.column(columns.user)))
        items.add(to_ids(batch.columns.column(columns.item)))
    return {"users": len(users), "items": len(items), **tokens}


def _count_side(config: EntityConfig, what: str, ids: Distinct) -> dict[str, int]:
    """Adds the ids of items or users to `ids`; returns the rows of each feature without row 0."""
    known = [feature for feature in config.features if has_vocabulary(feature)]
    names = example_columns(config)
    counts: dict[str, Counter[str]] = {feature.name: Counter() for feature in known}
    for batch in _batches(config, what, raw_columns(config)):
        rows, _ = parse_entities(batch, config)
        ids.add(rows.column(id_column(config)))
        for feature in known:
            tokens = _tokens(rows.column(names[feature.name]), feature)
            for entry in pc.value_counts(tokens).to_pylist():
                counts[feature.name][entry["values"]] += entry["counts"]
    n_tokens = {
        feature.name: sum(n >= feature.min_count for n in counts[feature.name].values())
        for feature in known
    }
    return {f.name: table_rows(f, n_tokens.get(f.name, 0)) - 1 for f in config.features}


def _batches(source: SourceConfig, what: str, columns: list[str]) -> Iterator[RawBatch]:
    for piece in plan_pieces(source, what, columns):
        yield from read_piece(piece)


def _tokens(column: pa.Array, feature: Feature) -> pa.Array:
    """Returns the tokens of all values, one after the other."""
    if feature.kind == "categories":
        return column.flatten()
    tokens = column
    if feature.kind == "words":
        spaced = pc.replace_substring_regex(pc.utf8_lower(column), _NO_WORD, " ")
        tokens = pc.split_pattern(spaced, " ").flatten()
    return tokens.filter(pc.fill_null(pc.not_equal(tokens, ""), False))


class Distinct:
    """Counts different texts; those that are empty or null don't count."""

    def __init__(self) -> None:
        self._known = pa.array([], pa.large_string())
        self._loose: list[pa.Array] = []
        self._n_loose = 0

    def add(self, texts: pa.Array) -> None:
        """Adds texts `[n]`."""
        unique = pc.unique(texts).cast(pa.large_string())
        self._loose.append(unique)
        self._n_loose += len(unique)
        # Seldom enough that the work grows with the texts alone.
        if self._n_loose > max(_LOOSE, len(self._known)):
            self._join()

    def _join(self) -> None:
        known = pc.unique(pa.chunked_array([self._known, *self._loose]))
        is_one = pc.fill_null(pc.not_equal(known, ""), False)
        self._known, self._loose, self._n_loose = known.filter(is_one), [], 0

    def __len__(self) -> int:
        self._join()
        return len(self._known)
