"""The raw files that a config names, looked at before the work starts."""

from __future__ import annotations

from recsys.config import DataConfig
from recsys.data import entities, interactions
from recsys.data.sources.pieces import check_files


def check_sources(data: DataConfig) -> None:
    """Looks at the start of every raw file.

    Raises:
        RecsysError: A file is missing, can't be read, is empty, is of another
            format, or lacks a column.
        UsageError: The config describes no format or no span.
    """
    if data.interactions.query is None:
        columns = interactions.interaction_columns(data.interactions)
        check_files(data.interactions, "interactions", columns)
    if data.items is not None:
        check_files(data.items, "items", entities.raw_columns(data.items))
    if data.users is not None:
        check_files(data.users, "users", entities.raw_columns(data.users))
