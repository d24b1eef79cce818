"""A source of one's own: the rows of a table in an SQLite file.

    python examples/custom_source.py

Anything that can name its columns and read its rows is a source. With `split` several
workers read it at a time; the number of a row is its place in the dead letters.
"""

import dataclasses
import sqlite3
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

import recsys
from recsys import Piece, RawBatch
from recsys.config import DataConfig

ROWS = 100_000


@recsys.register_source("sqlite")
class SqliteSource(recsys.Source):
    """A table of an SQLite file: `format: {type: sqlite, table: clicks}`."""

    title: ClassVar[str] = "SQLite"
    extensions: ClassVar[tuple[str, ...]] = (".sqlite", ".db")
    table: str = "events"
    """The table, or the view."""

    def column_names(self, file: Piece) -> list[str]:
        return [column[0] for column in self._select(file, "*", "LIMIT 0").description]

    def split(self, file: Piece, piece_bytes: int) -> Iterable[Piece]:
        last = self._select(file, "max(rowid)").fetchone()[0] or 0
        for start in range(0, last, ROWS):
            yield dataclasses.replace(file, start=start, stop=start + ROWS)

    def read(self, piece: Piece) -> Iterator[RawBatch]:
        columns = ", ".join(f'"{name}"' for name in ("rowid", *piece.columns))
        where = f"WHERE rowid > {piece.start} AND rowid <= {piece.stop} ORDER BY rowid"
        rows = self._select(piece, columns, where).fetchall()
        numbers, *values = zip(*rows, strict=True) if rows else [()] * (1 + len(piece.columns))
        texts = [pa.array([None if v is None else str(v) for v in column]) for column in values]
        yield RawBatch.at(piece, texts, np.array(numbers, np.int64))

    def _select(self, file: Piece, columns: str, rest: str = "") -> sqlite3.Cursor:
        query = f'SELECT {columns} FROM "{self.table}" {rest}'  # noqa: S608 names of the config
        return sqlite3.connect(file.file).execute(query)


def main() -> Any:
    with tempfile.TemporaryDirectory() as folder, sqlite3.connect(f"{folder}/shop.db") as shop:
        shop.execute("CREATE TABLE clicks (who TEXT, what INTEGER, at INTEGER)")
        clicks = [(f"u{n % 50}", n % 31, 1_600_000_000 + 9_000 * n) for n in range(1_000)]
        shop.executemany("INSERT INTO clicks VALUES (?, ?, ?)", [*clicks, (None, 7, 1)])
        shop.commit()
        interactions = {
            "files": f"{folder}/shop.db",
            "format": {"type": "sqlite", "table": "clicks"},
            "columns": {"user": "who", "item": "what", "timestamp": "at"},
        }
        config = DataConfig.model_validate(
            {"interactions": interactions, "gate": {"max_rejected_share": 0.5}}
        )
        data = recsys.ingest(config, Path(folder) / "data", progress=False)
        print(data)
        return data.facts


if __name__ == "__main__":
    main()
