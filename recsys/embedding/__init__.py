"""Embedding tables: their shape, the layer that reads them, their place on the mesh."""

from recsys.embedding.layer import Bag, TableLookup
from recsys.embedding.placement import (
    TABLE_RULE,
    Placement,
    activate,
    prove_placement,
    table_layout,
)
from recsys.embedding.table import TableSpec

__all__ = [
    "TABLE_RULE",
    "Bag",
    "Placement",
    "TableLookup",
    "TableSpec",
    "activate",
    "prove_placement",
    "table_layout",
]
