"""Raw text to the rows of the catalogue."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from recsys.config import ItemsConfig
from recsys.data.csv_columns import CsvBatch
from recsys.data.duplicates import POSITION, keep_first, positions
from recsys.data.interactions import NO_ITEM


def raw_columns(config: ItemsConfig) -> list[str]:
    """Returns the columns of the raw file that a run reads."""
    features = [feature.column for feature in config.features]
    return list(dict.fromkeys([config.columns.item, config.columns.title, *features]))


def example_column(config: ItemsConfig, raw: str) -> str:
    """Returns the name that the raw column `raw` has in the examples.

    The item's column becomes `item_id`, the title's `title`; others keep their
    names, unless they take one of these two.
    """
    if raw == config.columns.item:
        return "item_id"
    if raw == config.columns.title:
        return "title"
    return f"raw_{raw}" if raw in ("item_id", "title") else raw


def parse_items(
    batch: CsvBatch, config: ItemsConfig, file_index: int = 0
) -> tuple[pa.RecordBatch, pa.RecordBatch]:
    """Renames the columns of a batch and rejects rows without an id.

    Args:
        batch: Rows of text with the columns `raw_columns(config)`.
        config: Which column holds what.
        file_index: Place of the batch's file among the files of the run.

    Returns:
        The good rows, with the column `position`, and the dead letters, those of
        the batch included. An item without a title has its id as title.
    """
    raw = raw_columns(config)
    columns = {example_column(config, name): batch.columns.column(name) for name in raw}
    columns["item_id"] = pc.utf8_trim_whitespace(columns["item_id"])
    if config.columns.title != config.columns.item:
        title = pc.utf8_trim_whitespace(columns["title"])
        columns["title"] = pc.if_else(pc.equal(title, ""), columns["item_id"], title)
    else:
        columns["title"] = columns["item_id"]
    columns[POSITION.name] = positions(file_index, batch.line)
    items = pa.RecordBatch.from_pydict(columns)
    bad = pc.equal(columns["item_id"], "")
    return items.filter(pc.invert(bad)), batch.reject(bad, [NO_ITEM] * bad.true_count)


def drop_duplicate_items(table: pa.Table) -> tuple[pa.Table, int]:
    """Keeps the first row of each item; returns the rest's number too."""
    return keep_first(table, ("item_id",))
