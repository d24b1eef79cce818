"""Checks the raw files that a config names before the run starts."""

from __future__ import annotations

from recsys.config import DataConfig, InteractionsConfig
from recsys.data import entities, interactions
from recsys.data.ingest.window import has_spans, read_window, restrict, unreadable_span
from recsys.data.sources.pieces import EMPTY, WHOLE_FILES, plan_pieces
from recsys.errors import RecsysError, UsageError


def check_sources(data: DataConfig) -> None:
    """Checks the start of every raw file.

    A span without rows isn't broken, and a span that may be set aside raises no error.

    Raises:
        RecsysError: A file is missing, can't be read, is empty, is of another
            format, or lacks a column.
        UsageError: The config describes no format or no span.
    """
    if data.interactions.query is None:
        _check_interactions(data.interactions)
    if data.items is not None:
        plan_pieces(data.items, "items", entities.raw_columns(data.items), WHOLE_FILES)
    if data.users is not None:
        plan_pieces(data.users, "users", entities.raw_columns(data.users), WHOLE_FILES)


def _check_interactions(config: InteractionsConfig) -> None:
    columns = interactions.interaction_columns(config)
    if not has_spans(config):
        plan_pieces(config, "interactions", columns, WHOLE_FILES)
        return
    for span in read_window(config):
        for path in span.paths:
            try:
                plan_pieces(restrict(config, [path]), "interactions", columns, WHOLE_FILES)
            except UsageError:
                raise
            except RecsysError as error:
                if error.code != EMPTY and config.bad_spans == "stop":
                    raise unreadable_span(span.name, path, error) from error
