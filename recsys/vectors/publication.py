"""Publishing item vectors: numbered folders, each compared with the one before.

    3/manifest.json            model, dim, metric, columns, counts, and a sha256 of each file
    3/ids/part-00000.parquet   id of every item, and a digest of what is published of it
    3/deleted/part-….parquet   ids of the publication before that are gone
    3/parquet/, vertex/, milvus/    what an engine imports, see `recsys.vectors.vector_files`

A publication is written under a hidden name and renamed when all of it is on the disk: a
reader sees whole publications alone, whatever stops the writer.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from recsys.bundles.publishing import versions
from recsys.errors import RecsysError, UsageError
from recsys.system import manifest as manifests
from recsys.system.commit import commit_folder
from recsys.system.disk import free_there
from recsys.system.held_folder import HeldFolder
from recsys.vectors.item_vectors import EMBEDDING, ID, Columns, ItemVectors, published
from recsys.vectors.vector_files import FORMATS

MANIFEST = "manifest.json"
_FORMAT = 1
_HIDDEN = ".partial-"
_IDS, _DELETED, _DIGEST = "ids", "deleted", "digest"

Report = Callable[[int, int], None]
"""Called with the item rows that are written, and all of them."""


@dataclasses.dataclass(frozen=True)
class VectorPublication:
    """What was published.

    Attributes:
        folder: The publication.
        items: Items of the model.
        written: Items whose vectors were written.
        unchanged: Items that were left out, as they are as they were.
        deleted: Items of the publication before that are gone.
        dim: Numbers of a vector.
    """

    folder: Path
    items: int
    written: int
    unchanged: int
    deleted: int
    dim: int


def publish_vectors(
    source: str | Path,
    out: str | Path,
    *,
    formats: Sequence[str] = ("parquet",),
    columns: Sequence[str] | None = None,
    shard_rows: int = 500_000,
    changed_only: bool = False,
    keep: int = 2,
    report: Report | None = None,
) -> VectorPublication:
    """Writes the item vectors of a model for search engines, as the next number in `out`.

    A vector's dot product with a query's embedding is the score, a bias included: it is the
    last number, where a query has 1. Ids that the publication before had and this one
    hasn't are its deletions.

    Args:
        source: A model folder, a bundle, a folder of versions, or the root of a run.
        out: Folder of the publications; made if missing.
        formats: `parquet`, `vertex`, `milvus`.
        columns: What is published beside the vectors, `name` or `name:type` each, of type
            `text`, `list`, `whole` or `number`; None: the title and all named features.
        shard_rows: Items of a file, at the most.
        changed_only: Leave items out whose vector and columns are as in the publication
            before.
        keep: Newest publications that stay, this one included.
        report: Called now and then with the item rows that are written, and all of them.

    Raises:
        UsageError: An option is wrong (R590, R593, R594, R596), or `out` is a file (R592).
        RecsysError: The model is damaged (R501, R502, R591), the publication before is
            (R595), or the folder can't be written (R592).
    """
    _check_options(formats, shard_rows, keep)
    vectors = ItemVectors.open(Path(source))
    chosen = vectors.typed(columns)
    with _only_writer(Path(out)) as held:
        before = versions(held.path)
        previous = _Previous.open(before[-1], vectors) if before else None
        if changed_only and previous is not None:
            previous.check_formats(formats)
        number = 1 + (int(before[-1].name) if before else 0)
        folder, final = held.path / f"{_HIDDEN}{number}", held.path / str(number)
        try:
            with _Writing(folder, vectors, chosen, formats, shard_rows) as writing:
                publication = writing.run(previous, changed_only=changed_only, report=report)
            commit_folder(folder, final)
        finally:
            with contextlib.suppress(OSError):
                held.remove(folder)  # A full disk gets its space back.
        for old in versions(held.path)[:-keep]:
            hidden = held.path / f"{_HIDDEN}old-{old.name}"
            held.retire(old, hidden)
    return dataclasses.replace(publication, folder=final)


def _check_options(formats: Sequence[str], shard_rows: int, keep: int) -> None:
    wrong = [name for name in formats if name not in FORMATS]
    if wrong or not formats or len(set(formats)) < len(formats) or shard_rows < 1 or keep < 1:
        rule = (
            f"Vectors are published as {', '.join(FORMATS)}, each once, with at least one item a"
            " file and one publication that stays."
        )
        received = {"formats": list(formats), "shard_rows": shard_rows, "keep": keep}
        raise UsageError("R596", rule, "Correct --format, --shard-rows or --keep.", received)


@contextlib.contextmanager
def _only_writer(out: Path) -> Iterator[HeldFolder]:
    """Waits for other writers, and sweeps after those that were killed."""
    try:
        with HeldFolder.for_writer(out, _HIDDEN) as held:
            yield held
    except (FileExistsError, NotADirectoryError) as error:
        rule = f"The vectors must be written into a folder; {str(out)!r} is a file, or inside one."
        raise UsageError("R592", rule, "Name a folder: --out DIR.", str(error)) from None
    except OSError as error:
        rule = f"The vectors must be written completely into {str(out)!r}{free_there(out)}."
        cure = (
            "Free disk space, or correct the permissions, and run again; the last publication is"
            " untouched."
        )
        raise RecsysError("R592", rule, cure, str(error)) from None


class _Writing:
    """One publication that is being written."""

    def __init__(
        self,
        folder: Path,
        vectors: ItemVectors,
        columns: Columns,
        formats: Sequence[str],
        shard_rows: int,
    ) -> None:
        self._folder, self._vectors, self._columns = folder, vectors, columns
        options = columns, vectors.dim, shard_rows
        self._files = {name: FORMATS[name](folder / name, *options) for name in formats}
        self._shard_rows = shard_rows

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for files in self._files.values():
            files.abandon()

    def run(
        self, previous: _Previous | None, *, changed_only: bool, report: Report | None
    ) -> VectorPublication:
        """Writes everything; the manifest comes last."""
        n_items = n_written = 0
        ids = _TableFiles(self._folder / _IDS, self._shard_rows)
        n_rows = len(self._vectors.embeddings)
        for row, items in self._vectors.slices(self._columns):
            digests = _digests(items, self._columns)
            ids.write(pa.table({ID: items[ID], _DIGEST: digests}))
            n_items += len(items)
            if changed_only and previous is not None:
                items = items.filter(pa.array(previous.differs(items[ID], digests)))
            n_written += len(items)
            for files in self._files.values():
                files.write(items)
            if report is not None:
                report(row, n_rows)
        ids.close()
        for files in self._files.values():
            files.close()
        n_deleted = self._delete(previous) if previous is not None else 0
        publication = VectorPublication(
            self._folder, n_items, n_written, n_items - n_written, n_deleted, self._vectors.dim
        )
        self._describe(publication, previous, changed_only=changed_only)
        return publication

    def _delete(self, previous: _Previous) -> int:
        gone = _TableFiles(self._folder / _DELETED, self._shard_rows)
        for block in previous.gone():
            gone.write(pa.table({ID: block}))
        gone.close()
        if previous.n_gone:
            for files in self._files.values():
                files.delete(previous.gone())
        return previous.n_gone

    def _describe(
        self, publication: VectorPublication, previous: _Previous | None, *, changed_only: bool
    ) -> None:
        names = ("items", "written", "unchanged", "deleted")
        fields = {
            "format": _FORMAT,
            "model": dict(self._vectors.origin),
            "dim": publication.dim,
            "dtype": "float32",
            "metric": "dot product",
            "bias": "last number; a query has 1 there" if self._vectors.has_bias else None,
            "query": {"signatures": ["prepare_query", "embed_query"], "output": EMBEDDING},
            "columns": {published(name): type_ for name, type_ in self._columns.items()},
            "formats": list(self._files),
            "previous": None if previous is None else previous.number,
            "changed_only": changed_only and previous is not None,
            "counts": {name: getattr(publication, name) for name in names},
        }
        files = manifests.checksums(self._folder, manifests.file_names(self._folder))
        manifests.write_manifest(self._folder / MANIFEST, fields, files)


class _TableFiles:
    """Parquet files of small tables; none where there are no rows."""

    def __init__(self, folder: Path, shard_rows: int) -> None:
        self._folder, self._shard_rows = folder, shard_rows
        self._pending: list[pa.Table] = []
        self._n_files = 0

    def write(self, table: pa.Table) -> None:
        self._pending.append(table)
        while sum(map(len, self._pending)) >= self._shard_rows:
            self._write(self._shard_rows)

    def close(self) -> None:
        if any(map(len, self._pending)):
            self._write(self._shard_rows)

    def _write(self, n: int) -> None:
        table = pa.concat_tables(self._pending)
        self._pending = [table.slice(n)]
        self._folder.mkdir(exist_ok=True)
        pq.write_table(table.slice(0, n), self._folder / f"part-{self._n_files:05}.parquet")
        self._n_files += 1


class _Previous:
    """The publication before, compared with a model.

    Args:
        folder: The publication.
        vectors: What is published now.
    """

    def __init__(self, folder: Path, vectors: ItemVectors) -> None:
        self.number = int(folder.name)
        manifest = manifests.read_manifest(folder / MANIFEST)
        files: manifests.Files = manifest["files"]
        listed = {name: files[name] for name in sorted(files) if name.startswith(f"{_IDS}/")}
        manifests.verify_files(folder, listed)
        self._formats: list[str] = manifest["formats"]
        self._paths = [folder / name for name in listed]
        self._items = vectors.vocabulary()
        # 8 bytes a row: by far less than its vector.
        self._digest = np.zeros(self._items.n_rows, np.uint64)
        self._is_there = np.zeros(self._items.n_rows, bool)
        self.n_gone = 0
        for table in self._tables():
            rows = self._items.rows(table[ID])
            is_own = rows >= self._items.first_own_row
            self._digest[rows[is_own]] = table[_DIGEST].to_numpy()[is_own]
            self._is_there[rows[is_own]] = True
            self.n_gone += int((~is_own).sum())

    @classmethod
    def open(cls, folder: Path, vectors: ItemVectors) -> _Previous:
        """Reads a publication.

        Raises:
            RecsysError: It is damaged (R595).
        """
        try:
            return cls(folder, vectors)
        except (
            manifests.ManifestError,
            OSError,
            LookupError,
            TypeError,
            ValueError,
            pa.ArrowException,
        ) as error:
            rule = f"{str(folder)!r} must be a complete publication, to find removed items."
            cure = (
                "Restore it; or publish into another folder, and make the index of the engine again"
                " from that."
            )
            received = f"{type(error).__name__}: {error}"
            raise RecsysError("R595", rule, cure, received) from None

    def check_formats(self, formats: Sequence[str]) -> None:
        """Raises UsageError if it lacks one of `formats`: its changes are unknown (R596)."""
        if not set(formats) <= set(self._formats):
            rule = (
                f"Changes alone can be published in the formats of publication {self.number}:"
                f" {', '.join(self._formats)}."
            )
            cure = "Name those with --format, or leave --changed-only out once."
            raise UsageError("R596", rule, cure, list(formats))

    def differs(self, ids: pa.ChunkedArray, digests: np.ndarray) -> np.ndarray:
        """Returns which items are new, or not as they were `[n]` bool."""
        rows = self._items.rows(ids)
        return ~self._is_there[rows] | (self._digest[rows] != digests)

    def gone(self) -> Iterator[pa.Array]:
        """Yields the ids that the model doesn't have, file by file."""
        for table in self._tables():
            is_gone = self._items.rows(table[ID]) < self._items.first_own_row
            ids = table[ID].combine_chunks().filter(pa.array(is_gone))
            if len(ids):
                yield ids

    def _tables(self) -> Iterator[pa.Table]:
        for path in self._paths:
            yield pq.read_table(path, partitioning=None)


def _digests(items: pa.Table, columns: Columns) -> np.ndarray:
    """Returns a digest of the vector and the columns of each item `[n]` uint64."""
    numbers = items[EMBEDDING].combine_chunks().flatten().to_numpy(zero_copy_only=True)
    size = 4 * len(numbers) // max(1, len(items))
    memory = np.ascontiguousarray(numbers).view(np.uint8).data
    described = repr(sorted(columns.items())).encode()
    start = hashlib.blake2b(described, digest_size=8)
    digests = np.empty(len(items), np.uint64)
    for place, text in enumerate(_texts(items, columns)):
        digest = start.copy()
        digest.update(memory[place * size : (place + 1) * size])
        digest.update(text.encode())
        digests[place] = int.from_bytes(digest.digest(), "little")
    return digests


def _texts(items: pa.Table, columns: Columns) -> list[str]:
    """Returns what the columns of each item hold, as one text."""
    texts = [items[published(name)] for name in columns]
    joined = [
        pc.fill_null(
            pc.binary_join(x, "\x1f") if pa.types.is_list(x.type) else x.cast(pa.string()), "\x1d"
        )
        for x in texts
    ]
    if not joined:
        return [""] * len(items)
    result: list[str] = pc.binary_join_element_wise(*joined, "\x1e").to_pylist()
    return result
