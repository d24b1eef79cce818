"""Tables of data lakes, Delta and Iceberg: the data files of one snapshot, read through the table.

The table's client applies partitions, renamed and added columns, and deleted rows. Only the
columns that a run reads are fetched. A piece is a data file, which dead letters name.
"""

from __future__ import annotations

import abc
import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar
from urllib.parse import unquote

import pyarrow as pa
from pydantic import NonNegativeInt

from recsys.data.sources.nested import find_path, leaf_names, pick
from recsys.data.sources.source import Piece, RawBatch, Source, check_columns, moved
from recsys.data.sources.source_files import SourceFile
from recsys.data.sources.tables import Landing, Table, answering, required
from recsys.errors import RecsysError
from recsys.storage.bucket import is_url

_BATCH_ROWS = 1 << 17


@dataclasses.dataclass(frozen=True)
class Snapshot:
    """The content of a table at one time.

    Attributes:
        key: Its identity, plain JSON; equal for equal content.
        version: Its number or id.
        schema: The table's columns.
        sizes: Size of each data file [bytes].
        read: Returns the rows of a data file with some of the table's columns.
    """

    key: dict[str, Any]
    version: int
    schema: pa.Schema
    sizes: Mapping[str, int]
    read: Callable[[str, Sequence[str]], Iterator[pa.RecordBatch]]


class LakeTable(Table, Source):
    """A table of data files with snapshots."""

    lands: ClassVar[bool] = False
    version: NonNegativeInt | None = None
    """Version to read: of Delta a number, of Iceberg the id of a snapshot; `null`: the newest."""

    @property
    @abc.abstractmethod
    def name(self) -> str:
        """The table, in messages."""

    @abc.abstractmethod
    def opened(self) -> Snapshot:
        """Opens the stated version, or the newest one."""

    def reach(self, columns: Sequence[str]) -> None:
        """Checks that the table can be opened and has the columns."""
        check_columns(self.name, leaf_names(self.opened().schema), columns)

    def pinned(self, columns: Sequence[str], landing: Landing) -> dict[str, Any]:
        """Returns `format` with the newest version, if it has none."""
        del columns, landing
        if self.version is not None:
            return {}
        return {"format": self.model_copy(update={"version": self.opened().version})}

    def snapshot(self) -> dict[str, Any]:
        """Returns the identity of the pinned version, plain JSON."""
        return _snapshot(self).key

    def files(self) -> list[SourceFile]:
        """Returns the data files of the pinned version, by path.

        Raises:
            RecsysError: It has none.
        """
        sizes = _snapshot(self).sizes
        if not sizes:
            raise RecsysError("R202", f"{self.name} must hold rows.", "Write rows into it.")
        return [SourceFile(path, size) for path, size in sorted(sizes.items())]

    def column_names(self, file: Piece) -> list[str]:
        """Returns the names of the table's columns, nested ones as `a.b`."""
        del file
        return leaf_names(_snapshot(self).schema)

    def read(self, piece: Piece) -> Iterator[RawBatch]:
        """Yields the rows of a data file, numbered from 1 on."""
        snapshot, position = _snapshot(self), 1
        paths = [find_path(snapshot.schema, name) for name in piece.columns]
        roots = list(dict.fromkeys(path[0] for path in paths if path))
        with answering(self.name, f"Check that {piece.file} can be read."):
            for batch in snapshot.read(piece.file, roots):
                own = [find_path(batch.schema, name) for name in piece.columns]
                rows = RawBatch.of(piece, [pick(batch, path) for path in own], position)
                yield rows if piece.explode is None else moved(rows, 0)
                position += batch.num_rows


def _snapshot(table: LakeTable) -> Snapshot:
    return table.opened() if table.version is None else _opened_once(table)


@functools.lru_cache(maxsize=8)
def _opened_once(table: LakeTable) -> Snapshot:
    return table.opened()


class DeltaSource(LakeTable):
    """A Delta table."""

    title: ClassVar[str] = "Delta"
    folder: str
    """Folder or URL of the table."""

    @property
    def name(self) -> str:
        """The folder."""
        return f"The Delta table {self.folder!r}"

    def opened(self) -> Snapshot:
        """Opens the stated version, or the newest one.

        Raises:
            RecsysError: There is no such table or version, or it uses features that the client
                can't read.
        """
        deltalake = required("deltalake", "delta")
        with answering(self.name, "Correct format.folder and format.version."):
            # A plain HTTP address is only used if the environment names one.
            http = {"allow_http": "true"} if is_url(self.folder) else None
            table = deltalake.DeltaTable(self.folder, version=self.version, storage_options=http)
            dataset = table.to_pyarrow_dataset()
            added = pa.table(table.get_add_actions(flatten=True))
            columns = (added.column(name).to_pylist() for name in ("path", "size_bytes"))
            sizes = {unquote(path): size for path, size in zip(*columns, strict=True)}
            fragments = {unquote(part.path): part for part in dataset.get_fragments()}
        root = self.folder.rstrip("/")

        def read(file: str, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
            return fragments[file.removeprefix(f"{root}/")].to_batches(
                schema=dataset.schema,
                columns=list(columns),
                batch_size=_BATCH_ROWS,
                batch_readahead=1,
                use_threads=False,
            )

        return Snapshot(
            {"table": str(table.metadata().id), "version": table.version()},
            table.version(),
            dataset.schema,
            {f"{root}/{path}": sizes[path] for path in fragments},
            read,
        )


class IcebergSource(LakeTable):
    """An Iceberg table of a catalog."""

    title: ClassVar[str] = "Iceberg"
    table: str
    """Name of the table, with its namespace: `shop.events`."""
    catalog: str = "default"
    """Name of the catalog in PyIceberg's own configuration: `.pyiceberg.yaml`, or environment
    variables such as `PYICEBERG_CATALOG__DEFAULT__URI`."""

    @property
    def name(self) -> str:
        """Catalog and table."""
        return f"The Iceberg table {self.catalog}:{self.table}"

    def opened(self) -> Snapshot:
        """Opens the stated snapshot, or the current one.

        Raises:
            RecsysError: There is no such catalog, table or snapshot.
        """
        catalogs = required("pyiceberg.catalog", "iceberg")
        from pyiceberg.expressions import AlwaysTrue
        from pyiceberg.io.pyarrow import ArrowScan

        cure = "Correct format.catalog, format.table and format.version."
        with answering(self.name, cure):
            table = catalogs.load_catalog(self.catalog).load_table(self.table)
            current, at = table.current_snapshot(), self.version
            if current is None:
                raise RecsysError("R202", f"{self.name} must hold rows.", "Write rows into it.")
            at = current.snapshot_id if at is None else at
            scan = table.scan(snapshot_id=at)
            schema = scan.projection().as_arrow()
            tasks = {task.file.file_path: task for task in scan.plan_files()}

        def read(file: str, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
            projected = table.scan(selected_fields=tuple(columns), snapshot_id=at).projection()
            scan_of_file = ArrowScan(table.metadata, table.io, projected, AlwaysTrue())
            return iter(scan_of_file.to_record_batches([tasks[file]]))

        return Snapshot(
            {"table": str(table.metadata.table_uuid), "snapshot": at},
            at,
            schema,
            {path: task.file.file_size_in_bytes for path, task in tasks.items()},
            read,
        )
