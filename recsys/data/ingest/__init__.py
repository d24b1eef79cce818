"""From raw files to the data folder, by Apache Beam; the only Beam code of `recsys`.

    standalone.py     `ingest`: all steps without TFX
    ingestion.py      interactions: read, without duplicates, split
    entity_rows.py    items and users
    vocabularies.py   ids → rows that stay
    store_writer.py   → the interaction store
    data_folder.py    → catalogue and features
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from recsys.data.ingest.standalone import ingest

__all__ = ["ingest"]


def __getattr__(name: str) -> Any:
    """Imports `ingest` when it is used: a worker needs a part of it alone."""
    if name == "ingest":
        return importlib.import_module("recsys.data.ingest.standalone").ingest
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
