"""`catalogue/items.parquet` of a bundle: ids, titles and named features of the items."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from recsys.data.catalogue import Catalogue, FeatureBags
from recsys.errors import UsageError

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


def allowed_items(
    bundle: Path, ids: pa.Array, exclude_ids: Sequence[str], only: Mapping[str, Sequence[str]]
) -> np.ndarray:
    """Returns which items a filter allows `[n]` bool, as `recommend_filtered` does.

    Args:
        bundle: The bundle.
        ids: The id of each line of its catalogue `[n]` string.
        exclude_ids: Items that are left out.
        only: Names of tokens by feature; an item must have one of them in each feature.

    Raises:
        UsageError: A feature isn't there, or its tokens have no names (R549).
    """
    allowed = np.ones(len(ids), bool)
    if exclude_ids:
        found = pc.is_in(ids, value_set=pa.array(exclude_ids, ids.type))
        allowed &= ~found.to_numpy(zero_copy_only=False)
    known = features_of(bundle) if only else []
    for feature, tokens in only.items():
        if feature not in known:
            raise _no_feature(feature, known)
        if tokens:
            allowed &= _with_token(bundle, feature, tokens)
    return allowed


_RENAMED = ("feature_id", "feature_title")


def _column(feature: str) -> str:
    return f"feature_{feature}" if f"feature_{feature}" in _RENAMED else feature


def _names(feature: FeatureBags, tokens: pa.Array, rows: slice) -> pa.Array:
    """Returns the names of the tokens of some items, a list each."""
    bags = np.asarray(feature.bags[rows])
    is_there = bags > 0
    offsets = np.concatenate([[0], np.cumsum(is_there.sum(axis=1))]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), tokens.take(pa.array(bags[is_there])))


def _with_token(bundle: Path, feature: str, tokens: Sequence[str]) -> np.ndarray:
    column = pq.read_table(bundle / FILE, columns=[_column(feature)])[0].combine_chunks()
    hits = pc.is_in(column.flatten(), value_set=pa.array(list(tokens), pa.string()))
    items = pc.list_parent_indices(column).filter(hits)
    found = np.zeros(len(column), bool)
    found[items.to_numpy()] = True
    return found


def _no_feature(feature: str, known: list[str]) -> UsageError:
    return UsageError(
        "R549",
        "Items can be filtered by features whose tokens have names:"
        f" {', '.join(known) or 'there are none'}.",
        "Name one of them; hashed tokens have no names.",
        feature,
    )
