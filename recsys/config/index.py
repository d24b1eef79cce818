"""The index that `recsys serve` finds the best items with."""

from __future__ import annotations

from typing import Literal

from pydantic import PositiveInt

from recsys.strict import Share, Strict


class IndexConfig(Strict):
    """How `recsys serve` finds the best items of a query."""

    kind: Literal["auto", "exact", "ann"] = "auto"
    """`exact`: by looking at every item; `ann`: by an approximate index, which looks at
    those of the nearest lists; `auto`: exact up to `exact_up_to` items."""
    exact_up_to: PositiveInt = 200_000
    """Items up to which `auto` is exact; beyond, one look at all of them takes longer
    than 5 ms."""
    min_recall: Share = 0.95
    """Share of the exact best `export.k` that the index must find [0..1]; else the export
    fails."""
    lists: PositiveInt | None = None
    """Lists that the index spreads the items over; `null`: four times the root of their
    number."""
