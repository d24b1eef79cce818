"""The raw files that a config names, looked at before the work starts."""

from __future__ import annotations

from recsys.config import DataConfig, InteractionColumns
from recsys.data.csv_source import check_files
from recsys.data.items import raw_columns


def interaction_columns(columns: InteractionColumns) -> list[str]:
    """Returns the columns of the raw interactions that a run reads."""
    rating = [] if columns.rating is None else [columns.rating]
    return [columns.user, columns.item, columns.timestamp, *rating]


def check_sources(data: DataConfig) -> None:
    """Looks at the start of every raw file.

    Raises:
        RecsysError: A file is missing, can't be read, is empty, is of another
            format, or lacks a column.
    """
    interactions, items = data.interactions, data.items
    check_files(interactions.files, "interactions", interaction_columns(interactions.columns))
    check_files(items.files, "items", raw_columns(items))
