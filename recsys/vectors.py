"""Item vectors for search engines: numbered folders of Parquet, each with the deletions since.

    3/manifest.json             model, dim, metric, columns, counts, and a sha256 of each file
    3/items/part-00000.parquet  `id`, `embedding` and the columns
    3/deleted.parquet           `id` of the items that only the previous publication has

A publication is written under a hidden name and renamed when it is complete and on the disk.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from recsys.bundles.bundle import MANIFEST, answers_of, check_answers, manifest_digest, verify
from recsys.bundles.publishing import is_version, latest, versions
from recsys.data.catalogue import CATALOGUE, Catalogue, catalogue_batches, catalogue_schema
from recsys.data.dataset import CANDIDATES, verify_candidates, verify_inputs
from recsys.errors import RecsysError, UsageError
from recsys.models.summary import SUMMARY, direction_width, read_summary
from recsys.savedmodel.row_slices import read_rows
from recsys.system import manifest as manifests
from recsys.system.files import commit_folder, free_there, only_writer, remove, retire, undamaged

ITEMS, DELETED = "items", "deleted.parquet"
ID, EMBEDDING = "id", "embedding"
_EMBEDDINGS = "item_embeddings.npy"
_FORMAT = 2
_HIDDEN = ".partial-"
_NO_IDS = pa.array([], pa.large_string())


@dataclasses.dataclass(frozen=True)
class VectorPublication:
    """A published version of the item vectors.

    Attributes:
        folder: Folder of the version.
        items: Number of items.
        deleted: Number of items of the previous version that were removed.
        dim: Width of a vector [floats].
    """

    folder: Path
    items: int
    deleted: int
    dim: int


def publish_vectors(
    source: str | Path,
    out: str | Path,
    *,
    columns: Sequence[str] | None = None,
    shard_rows: int = 100_000,
    keep: int = 2,
) -> VectorPublication:
    """Writes the item vectors of a model for a search engine, as the next number in `out`.

    The score is the dot product of an item's vector and a query's embedding. A bias is the last
    number of an item's vector; in a query it is 1.

    Args:
        source: A model folder, a bundle, a folder of versions, or the root of a run.
        out: Folder of the publications; created if missing.
        columns: Columns to publish with the vectors. Default: the title and all named features.
        shard_rows: Maximum number of items per file.
        keep: Number of newest publications to keep, this one included.

    Raises:
        UsageError: An option is wrong (R590, R593, R596), or `out` is a file (R592).
        RecsysError: The model is damaged (R501, R502, R591), the previous publication is damaged
            (R595), or the folder can't be written (R592).
    """
    if shard_rows < 1 or keep < 1:
        received = {"shard_rows": shard_rows, "keep": keep}
        rule = "A file must have at least one item, and at least one publication must be kept."
        raise UsageError("R596", rule, "Correct --shard-rows or --keep.", received)
    vectors = ItemVectors.open(Path(source))
    chosen, out = vectors.chosen(columns), Path(out)
    with _only_publisher(out):
        before = versions(out)
        previous = _ids_of(before[-1]) if before else _NO_IDS
        number = 1 + (int(before[-1].name) if before else 0)
        folder, final = out / f"{_HIDDEN}{number}", out / str(number)
        try:
            ids = _write_items(folder / ITEMS, vectors, chosen, shard_rows)
            deleted = previous.filter(pc.invert(pc.is_in(previous, value_set=ids)))
            pq.write_table(pa.table({ID: deleted}), folder / DELETED)
            publication = VectorPublication(final, len(ids), len(deleted), vectors.dim)
            _write_manifest(folder, vectors, chosen, publication)
            commit_folder(folder, final)
        finally:
            with contextlib.suppress(OSError):
                remove(folder)  # Free the space, since the disk may be full.
        for old in versions(out)[:-keep]:
            retire(old, out / f"{_HIDDEN}old-{old.name}")
    return publication


@contextlib.contextmanager
def _only_publisher(out: Path) -> Iterator[None]:
    """Waits for other publishers, and removes what killed ones left."""
    try:
        with only_writer(out, _HIDDEN):
            yield
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


def _write_items(
    folder: Path, vectors: ItemVectors, columns: Sequence[str], shard_rows: int
) -> pa.Array:
    """Writes the items, a file for each `shard_rows` item rows, and returns their ids."""
    folder.mkdir(parents=True)
    ids = [_NO_IDS]
    for number, items in enumerate(vectors.shards(columns, shard_rows)):
        pq.write_table(items, folder / f"part-{number:05}.parquet")
        ids += items[ID].cast(pa.large_string()).chunks
    return pa.concat_arrays(ids)


def _ids_of(folder: Path) -> pa.Array:
    """Returns the ids of a publication.

    Raises:
        RecsysError: It is damaged or of an earlier version (R595).
    """
    rule = f"The publication {str(folder)!r} must be complete, to know what was deleted since."
    cure = "Restore it, or publish into another folder and build the engine's index anew."
    with undamaged(functools.partial(RecsysError, "R595", rule, cure)):
        manifest = manifests.read_manifest(folder / MANIFEST)
        if manifest["format"] != _FORMAT:
            raise ValueError(f"format {manifest['format']!r}")
        manifests.verify_folder(folder / MANIFEST, manifest)
        parts = sorted((folder / ITEMS).glob("*.parquet"))
        ids = [pq.read_table(part, columns=[ID])[ID].cast(pa.large_string()) for part in parts]
        return pa.concat_arrays([_NO_IDS, *(chunk for column in ids for chunk in column.chunks)])


def _write_manifest(
    folder: Path, vectors: ItemVectors, columns: Sequence[str], publication: VectorPublication
) -> None:
    fields = {
        "format": _FORMAT,
        "model": dict(vectors.origin),
        "dim": publication.dim,
        "metric": "dot product",
        "bias": "last number; a query has 1 there" if vectors.has_bias else None,
        "columns": [published(name) for name in columns],
        "counts": {"items": publication.items, "deleted": publication.deleted},
    }
    files = manifests.checksums(folder, manifests.file_names(folder))
    manifests.write_manifest(folder / MANIFEST, fields, files)


# --- the vectors of a model


@dataclasses.dataclass(frozen=True)
class ItemVectors:
    """The vectors of one model.

    Attributes:
        folder: The model folder, or the bundle.
        embeddings: Vector of each item row `[item rows, dim]` float32; a memory map.
        catalogue: Columns of the items: `id`, `title` and the named features.
        origin: `kind`, `digest`, `version` and `name` of the model.
        has_bias: Whether the last number of a vector is a bias; in a query it is 1.
    """

    folder: Path
    embeddings: np.ndarray
    catalogue: pa.Schema
    origin: Mapping[str, Any]
    has_bias: bool
    _lines: Callable[[int], Iterator[pa.RecordBatch]]

    @classmethod
    def open(cls, folder: Path) -> ItemVectors:
        """Opens a model folder, a bundle, a folder of versions, or the root of a run.

        Raises:
            UsageError: The folder is none of them (R590), or a bundle of scores (R545).
            RecsysError: It is damaged (R501, R502, R591), or nothing was pushed (R510).
        """
        path = _resolved(folder)
        with undamaged(functools.partial(_damaged, path)):
            return _open_bundle(path) if (path / MANIFEST).exists() else _open_model(path)

    @property
    def dim(self) -> int:
        """Width of a vector, a bias included."""
        return int(self.embeddings.shape[1])

    def chosen(self, columns: Sequence[str] | None) -> list[str]:
        """Returns the columns to publish; all by default.

        Raises:
            UsageError: There is no such column (R593).
        """
        known = self.catalogue.names[1:]
        unknown = [name for name in columns or () if name not in known]
        if unknown:
            rule = f"A column must be one of {', '.join(known)}."
            raise UsageError("R593", rule, "Write, for example, title,genres.", unknown[0])
        return known if columns is None else [*columns]

    def shards(self, columns: Sequence[str], shard_rows: int) -> Iterator[pa.Table]:
        """Yields `id`, `embedding` and `columns` of the items of `shard_rows` rows at a time.

        Raises:
            RecsysError: A vector isn't finite, or the folder is damaged (R591).
        """
        start = 1
        n = len(self.embeddings)
        with undamaged(functools.partial(_damaged, self.folder)):
            for lines in self._lines(shard_rows):
                vectors = read_rows(self.embeddings, start, start + len(lines))
                start += len(lines)
                yield self._table(lines, vectors, columns)
            if start != n:
                raise ValueError(f"{start - 1:,} items for {n - 1:,} vectors")

    def _table(
        self, lines: pa.RecordBatch, vectors: np.ndarray, columns: Sequence[str]
    ) -> pa.Table:
        is_item = pc.fill_null(pc.not_equal(lines[ID], ""), False)
        lines, vectors = lines.filter(is_item), vectors[is_item.to_numpy(zero_copy_only=False)]
        if not np.isfinite(vectors).all():
            raise _damaged(self.folder, "a vector that isn't finite")
        flat = pa.array(vectors.astype(np.float32, copy=False).ravel())
        embeddings = pa.FixedSizeListArray.from_arrays(flat, self.dim)
        named = {published(name): lines[name] for name in columns}
        return pa.table({ID: lines[ID], EMBEDDING: embeddings, **named})


def published(column: str) -> str:
    """Returns the name that a column has beside the vectors."""
    return f"feature_{column}" if column == EMBEDDING else column


def _resolved(folder: Path) -> Path:
    served = [*folder.glob("serving/[!.]*")]
    for place in [folder, *(served if len(served) == 1 else [])]:
        if (place / MANIFEST).exists() or (place / SUMMARY).exists():
            return place
        if versions(place):
            return latest(place)
    rule = (
        "Vectors are published from a model folder, a bundle, a folder of versions, or the root"
        " of a run with one model under serving/."
    )
    raise UsageError("R590", rule, "Name one of them.", str(folder))


def _open_bundle(bundle: Path) -> ItemVectors:
    manifest = verify(bundle)
    check_answers(bundle, answers_of(manifest), "lists")
    version = int(bundle.name) if is_version(bundle.name) else None
    origin = {"kind": "bundle", "digest": manifest_digest(bundle), "version": version}

    def lines(n_lines: int) -> Iterator[pa.RecordBatch]:
        with pq.ParquetFile(bundle / CATALOGUE) as file:
            yield from file.iter_batches(n_lines)

    return ItemVectors(
        bundle,
        np.load(bundle / _EMBEDDINGS, mmap_mode="r", allow_pickle=False),
        pq.read_schema(bundle / CATALOGUE),
        {**origin, "name": manifest.get("name")},
        manifest["direction_width"] is not None,
        lines,
    )


def _open_model(folder: Path) -> ItemVectors:
    model = read_summary(folder)["stage"]["model"]
    verify_inputs(folder)
    verify_candidates(folder)
    catalogue, matrix = Catalogue.open(folder / "catalogue"), folder / CANDIDATES
    digest = manifests.checksums(folder, [matrix.name])[matrix.name]["sha256"]
    return ItemVectors(
        folder,
        np.load(matrix, mmap_mode="r", allow_pickle=False),
        catalogue_schema(catalogue),
        {"kind": "model", "digest": digest, "version": None, "name": None},
        direction_width(model) is not None,
        lambda n_lines: catalogue_batches(catalogue, n_lines),
    )


def _damaged(folder: Path, received: str) -> RecsysError:
    rule = f"{str(folder)!r} must contain a complete model: vectors, ids and features of its items."
    return RecsysError("R591", rule, "Train or export again: recsys run.", received)
