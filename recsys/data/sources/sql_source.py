"""The rows of an SQL query, by ADBC, as a Parquet file.

One query in one transaction gives one state of a database, which no later reader could get again.
So its rows are copied into a file, which workers read and dead letters name. The database
computes only the columns that a run reads.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Annotated, Any, ClassVar

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import Field

from recsys.data.sources.source import check_columns
from recsys.data.sources.tables import (
    LANDED,
    Landing,
    PlainOptions,
    PlainUri,
    Table,
    answering,
    from_environment,
    required,
)
from recsys.system.files import commit_text, replacing

FILE = "rows.parquet"
_GROUP_ROWS = 1 << 17
_SQLITE = {"adbc.sqlite.query.batch_rows": 1 << 16}
"""SQLite has no types for the columns of a query: ADBC infers them from the first batch."""


class SqlTable(Table):
    """The result of an SQL query."""

    title: ClassVar[str] = "SQL"
    driver: Annotated[str, Field(pattern="^[a-z][a-z0-9_]*$")]
    """ADBC driver: `postgresql`, `sqlite`, `bigquery`, `snowflake`, `flightsql`, or that of another
    package `adbc_driver_NAME`."""
    query: str
    """Query whose rows are read: SELECT …, without a semicolon."""
    uri: PlainUri | None = None
    """URI of the database, without a password; or `$NAME`, an environment variable with the URI.
    For SQLite, its file."""
    options: PlainOptions = Field(default={})
    """Options of the driver; secret values are `$NAME`, environment variables."""

    def reach(self, columns: Sequence[str]) -> None:
        """Checks that the database answers and the query has the columns."""
        with self._answering(), self._cursor() as cursor:
            self._select(cursor, columns)

    def pinned(self, columns: Sequence[str], landing: Landing) -> dict[str, Any]:
        """Returns the keys for a file with the rows that the query returns now."""
        folder = landing.folder
        folder.mkdir(parents=True, exist_ok=True)
        with self._answering(), self._cursor() as cursor, replacing(folder / FILE) as temporary:
            cursor.execute(self._select(cursor, columns))
            _write(cursor.fetch_record_batch(), temporary)
            landing.clean(temporary)
            n_rows = pq.read_metadata(temporary).num_rows
        landed = {"driver": self.driver, "query": self.query, "columns": [*columns], "rows": n_rows}
        commit_text(json.dumps(landed, indent=1) + "\n", folder / LANDED)
        return {"files": str(folder / FILE), "format": "parquet"}

    def _select(self, cursor: Any, columns: Sequence[str]) -> str:
        """Returns the query with only some columns."""
        cursor.execute(f"SELECT * FROM ({self.query}) landed WHERE 1 = 0")  # noqa: S608 the user's
        names = [column[0] for column in cursor.description]
        check_columns("the query", names, columns)
        quote = "`" if self.driver in ("bigquery", "mysql") else '"'
        chosen = ", ".join(f"{quote}{name}{quote}" for name in columns)
        return f"SELECT {chosen} FROM ({self.query}) landed"  # noqa: S608 the user's own query

    @contextmanager
    def _cursor(self) -> Iterator[Any]:
        driver = required(f"adbc_driver_{self.driver}.dbapi", "sql")
        uri = [] if self.uri is None else [from_environment(self.uri)]
        options = {name: from_environment(value) for name, value in self.options.items()}
        own = {"adbc_stmt_kwargs": _SQLITE} if self.driver == "sqlite" else {}
        connected = driver.connect(*uri, **{"db_kwargs": options} if options else {})
        with closing(connected) as database, closing(database.cursor(**own)) as cursor:
            yield cursor

    def _answering(self) -> Any:
        texts = [text for text in (self.uri, *self.options.values()) if text is not None]
        secrets = [from_environment(text) for text in texts if text.startswith("$")]
        cure = "Try the query in the database's own client; correct format, or its credentials."
        return answering(f"The database ({self.driver})", cure, secrets)


def _write(batches: pa.RecordBatchReader, file: Path) -> None:
    """Writes batches as Parquet with large row groups."""
    schema = pa.schema([(field.name, _storage(field.type)) for field in batches.schema])
    group: list[pa.RecordBatch] = []
    with pq.ParquetWriter(file, schema) as writer:

        def flush() -> None:
            writer.write_table(pa.Table.from_batches(group, schema))
            group.clear()

        for batch in batches:
            columns = [getattr(column, "storage", column) for column in batch.columns]
            group.append(pa.RecordBatch.from_arrays(columns, schema=schema))
            if sum(part.num_rows for part in group) >= _GROUP_ROWS:
                flush()
        flush()


def _storage(kind: pa.DataType) -> pa.DataType:
    return kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind
