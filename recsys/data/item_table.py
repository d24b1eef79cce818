"""`catalogue/items.parquet` of a bundle: ids, titles and named features of the items."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from recsys.data.catalogue import TITLES, Catalogue, FeatureBags

CATALOGUE = "catalogue/items.parquet"
_ROWS = 65_536
_RENAMED = {"feature_id": "id", "feature_title": "title"}
"""Features whose names collide with the catalogue's own columns, by their columns."""


def write_catalogue(folder: Path, catalogue: Catalogue) -> None:
    """Writes `catalogue/items.parquet` into the bundle `folder`.

    Its columns are `id` and `title`, and for each feature a list of its token names, in the
    order of the item's bag. A feature whose tokens have no names, such as hashed ones, has no
    column. It has a line for each item row from 1 on; the id is empty for a row that is no
    item. A feature named `id` or `title` has the column `feature_id` or `feature_title`.

    Raises:
        OSError: The disk is full.
        RecsysError: The names of a feature's tokens are damaged (R230).
    """
    path = folder / CATALOGUE
    path.parent.mkdir(exist_ok=True)
    with pq.ParquetWriter(path, catalogue_schema(catalogue)) as writer:
        for batch in catalogue_batches(catalogue, _ROWS):
            writer.write_batch(batch)


def catalogue_schema(catalogue: Catalogue) -> pa.Schema:
    """Returns the schema of `catalogue_batches`: `id`, `title` and the named features."""
    named = [feature for feature in catalogue.features if feature.tokens is not None]
    lists = [pa.field(column_of(f.name), pa.list_(pa.string())) for f in named]
    return pa.schema([("id", pa.string()), ("title", pa.string()), *lists])


def catalogue_batches(catalogue: Catalogue, n_lines: int) -> Iterator[pa.RecordBatch]:
    """Yields a line for each item row from 1 on, in batches of `n_lines`."""
    named = [feature for feature in catalogue.features if feature.tokens is not None]
    tokens = {f.name: pa.array(list(f.tokens or ()), pa.string()) for f in named}
    for start in range(1, max(2, catalogue.n_rows), n_lines):
        rows = slice(start, start + n_lines)
        texts = [pa.array(x[rows], pa.string()) for x in (catalogue.ids, catalogue.titles)]
        bags = [token_lists(feature, tokens[feature.name], rows) for feature in named]
        yield pa.RecordBatch.from_arrays([*texts, *bags], schema=catalogue_schema(catalogue))


def column_of(feature: str) -> str:
    """Returns the column of a feature."""
    columns = {feature: column for column, feature in _RENAMED.items()}
    return columns.get(feature, feature)


def token_lists(feature: FeatureBags, tokens: pa.Array, rows: slice) -> pa.ListArray:
    """Returns the token names of some items as lists.

    Args:
        feature: The feature.
        tokens: Name of each of its token rows.
        rows: Item rows.
    """
    bags = np.asarray(feature.bags[rows])
    is_there = bags > 0
    offsets = np.concatenate([[0], np.cumsum(is_there.sum(axis=1))]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), tokens.take(pa.array(bags[is_there])))


def read_is_item(bundle: Path) -> np.ndarray:
    """Returns which item rows of a bundle are candidates `[item rows]` bool.

    Raises:
        OSError: There is no `titles.parquet`.
        ValueError: It is damaged.
    """
    ids = pq.read_table(bundle / TITLES, columns=["id"])["id"].combine_chunks()
    is_filled = pc.fill_null(pc.not_equal(ids, ""), False)
    return np.concatenate([[False], is_filled.to_numpy(zero_copy_only=False)])


def read_catalogue(bundle: Path, n_rows: int) -> dict[str, pa.ListArray]:
    """Returns the token names of each item row from 1 on, by feature.

    Raises:
        OSError: The file doesn't exist.
        ValueError: It is damaged.
    """
    table = pq.read_table(bundle / CATALOGUE).drop(["id", "title"])
    if table.num_columns and len(table) != n_rows - 1:
        raise ValueError(f"{len(table)} lines for {n_rows} item rows")
    if not all(pa.types.is_list(field.type) for field in table.schema):
        raise ValueError(f"no lists of names: {table.schema}")
    columns = zip(table.column_names, table.columns, strict=True)
    return {_RENAMED.get(name, name): column.combine_chunks() for name, column in columns}
