"""What `summary()` of a model says of its tables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from recsys.embedding.plan import planned
from recsys.embedding.table import Table
from recsys.formats import count, size


def learns(table: Table) -> bool:
    """Tells whether a `SparseModel` trains the rows of a table."""
    return bool(table.trainable) and table.optimizer is not None


def table_lines(tables: Iterable[Table]) -> Iterator[str]:
    """Yields a line for each table: its rows and width, its bytes, and what trains it."""
    for table in tables:
        placement = planned(table, 1)
        what = f" {table.name}: {count(table.rows)} rows × {count(table.dim)}"
        weights = f"{what}, {size(placement.bytes_per_device)}"
        if not learns(table):
            yield f"{weights}; fixed"
            continue
        slots = size(placement.slot_bytes_per_device)
        yield f"{weights}; trained by {type(table.optimizer).__name__}, with slots of {slots}"
