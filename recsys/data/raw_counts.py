"""How many different ids and tokens the raw files hold, without a run.

Files are streamed, and nothing is touched row by row. What a run leaves out later is
counted here: damaged rows, users without a training positive, items listed twice. So a
vocabulary is never larger than these counts say, and mostly little smaller.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from recsys.config import DataConfig, ItemFeature
from recsys.data.csv_columns import CsvBatch
from recsys.data.csv_source import match_files, read_batches
from recsys.data.encode import count_ids
from recsys.data.items import example_column, parse_items, raw_columns

_LOOSE = 1 << 20
_NO_WORD = r"[^\pL\pM\pN_]+"  # As in components.transform_items.


def count_raw(data: DataConfig) -> dict[str, int]:
    """Returns how many users, items and tokens of each feature there are, by table.

    Raises:
        RecsysError: A file is missing, can't be read, is empty, is of another
            format, or lacks a column.
    """
    users, items = _Distinct(), _Distinct()
    tokens: dict[str, dict[str, int]] = {feature.name: {} for feature in data.items.features}
    for batch in _batches(data.items.files, "items", raw_columns(data.items)):
        catalogue, _ = parse_items(batch, data.items)
        items.add(catalogue.column("item_id"))
        for feature in data.items.features:
            text = catalogue.column(example_column(data.items, feature.column))
            count_ids(pa.chunked_array([_tokens(text, feature)]), tokens[feature.name])
    columns = data.interactions.columns
    wanted = [columns.user, columns.item]
    for batch in _batches(data.interactions.files, "interactions", wanted):
        users.add(pc.utf8_trim_whitespace(batch.columns.column(columns.user)))
        items.add(pc.utf8_trim_whitespace(batch.columns.column(columns.item)))
    known = {
        feature.name: sum(n >= feature.min_count for n in tokens[feature.name].values())
        for feature in data.items.features
    }
    return {"users": len(users), "items": len(items), **known}


def _batches(pattern: str, what: str, columns: list[str]) -> Iterator[CsvBatch]:
    for file in match_files(pattern, what):
        yield from read_batches(file, columns)


def _tokens(text: pa.Array, feature: ItemFeature) -> pa.Array:
    """Returns the tokens of all texts, one after the other."""
    if feature.kind == "words":
        spaced = pc.replace_substring_regex(pc.utf8_lower(text), _NO_WORD, " ")
        tokens = pc.split_pattern(spaced, " ").flatten()
    else:
        tokens = pc.utf8_trim_whitespace(pc.split_pattern(text, feature.separator).flatten())
    return tokens.filter(pc.not_equal(tokens, ""))


class _Distinct:
    """Counts different texts; those that are empty don't count."""

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
        every = pa.chunked_array([self._known, *self._loose])
        known = pc.unique(every)
        self._known, self._loose, self._n_loose = known.filter(pc.not_equal(known, "")), [], 0

    def __len__(self) -> int:
        self._join()
        return len(self._known)
