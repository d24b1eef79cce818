"""`catalogue/items.parquet` of a bundle: ids, titles and named features of the items."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from recsys.data.catalogue import Catalogue, FeatureBags

FILE = Path("catalogue") / "items.parquet"
_ROWS = 65_536


def write_catalogue(folder: Path, catalogue: Catalogue) -> None:
    """Writes `catalogue/items.parquet` into the bundle `folder`.

    Its columns: `id` and `title`, and for each feature a list of the names of its tokens,
    in the order of the item's bag; a feature whose tokens have no names, as hashed ones,
    has no column. One line for each item row from 1 on; a row that is no item has an
    empty id. A feature called `id` or `title` has the column `feature_id`, `feature_title`.

    Raises:
        OSError: The disk is full.
        RecsysError: The names of a feature's tokens are damaged (R230).
    """
    path = folder / FILE
    path.parent.mkdir(exist_ok=True)
    named = [feature for feature in catalogue.features if feature.tokens is not None]
    tokens = {f.name: pa.array(list(f.tokens or ()), pa.string()) for f in named}
    names = [pa.field(_column(f.name), pa.list_(pa.string())) for f in named]
    schema = pa.schema([("id", pa.string()), ("title", pa.string()), *names])
    with pq.ParquetWriter(path, schema) as writer:
        for start in range(1, max(2, catalogue.n_rows), _ROWS):
            rows = slice(start, start + _ROWS)
            columns = [pa.array(x[rows], pa.string()) for x in (catalogue.ids, catalogue.titles)]
            columns += [_names(feature, tokens[feature.name], rows) for feature in named]
            writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=schema))


def features_of(bundle: Path) -> list[str]:
    """Returns the features that the items of a bundle can be filtered by.

    Raises:
        OSError: There is no such file.
        ValueError: It is damaged.
    """
    return [name.removeprefix("feature_") if name in _RENAMED else name
            for name in pq.read_schema(bundle / FILE).names[2:]]  # fmt: skip


_RENAMED = ("feature_id", "feature_title")


def _column(feature: str) -> str:
    return f"feature_{feature}" if f"feature_{feature}" in _RENAMED else feature


def _names(feature: FeatureBags, tokens: pa.Array, rows: slice) -> pa.Array:
    """Returns the names of the tokens of some items, a list each."""
    bags = np.asarray(feature.bags[rows])
    is_there = bags > 0
    offsets = np.concatenate([[0], np.cumsum(is_there.sum(axis=1))]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), tokens.take(pa.array(bags[is_there])))
