"""The config of a search index."""

from __future__ import annotations

from typing import Literal

from pydantic import PositiveInt

from recsys.strict import Share, Strict


class IndexConfig(Strict):
    """How `recsys serve` searches for the best items of a query."""

    kind: Literal["auto", "exact", "ann"] = "auto"
    """`exact`: scores every item; `ann`: approximate nearest neighbours, which scores the items of
    the nearest lists; `auto`: exact up to `exact_up_to` items."""
    exact_up_to: PositiveInt = 200_000
    """Highest number of items for which `auto` is exact; above it, an exact search takes more than
    5 ms."""
    min_recall: Share = 0.95
    """Lowest share of the exact top `export.k` that the index must find; otherwise the export
    fails [0..1]."""
    lists: PositiveInt | None = None
    """Number of lists of the index; `null`: four times the square root of the number of items."""
