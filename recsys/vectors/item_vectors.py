"""The item vectors of a model folder or a bundle, with the columns of the items, in slices."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from recsys.bundles.bundle import MANIFEST, answers_of, check_answers, manifest_digest, verify
from recsys.bundles.publishing import is_version, latest, versions
from recsys.data.catalogue import Catalogue
from recsys.data.input_files import CANDIDATES, verify_candidates, verify_inputs
from recsys.data.item_table import CATALOGUE, catalogue_batches, catalogue_schema
from recsys.errors import RecsysError, UsageError
from recsys.models.summary import SUMMARY, read_summary
from recsys.savedmodel.row_slices import read_rows
from recsys.system import manifest as manifests
from recsys.system.files import DAMAGE
from recsys.tasks.retrieval.manifest import direction_width

ID, EMBEDDING = "id", "embedding"
_EMBEDDINGS = "item_embeddings.npy"


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
        try:
            return _open_bundle(path) if (path / MANIFEST).exists() else _open_model(path)
        except (*DAMAGE, EOFError, pa.ArrowException) as error:
            raise _damaged(path, f"{type(error).__name__}: {error}") from None

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
        try:
            for lines in self._lines(shard_rows):
                vectors = read_rows(self.embeddings, start, start + len(lines))
                start += len(lines)
                yield self._table(lines, vectors, columns)
        except (*DAMAGE, pa.ArrowException) as error:
            raise _damaged(self.folder, f"{type(error).__name__}: {error}") from None
        if start != len(self.embeddings):
            received = f"{start - 1:,} items for {len(self.embeddings) - 1:,} vectors"
            raise _damaged(self.folder, received)

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
        direction_width(manifest) is not None,
        lines,
    )


def _open_model(folder: Path) -> ItemVectors:
    stage = read_summary(folder)["stage"]
    verify_inputs(folder)
    verify_candidates(folder)
    catalogue, matrix = Catalogue.open(folder / "catalogue"), folder / CANDIDATES
    digest = manifests.checksums(folder, [matrix.name])[matrix.name]["sha256"]
    return ItemVectors(
        folder,
        np.load(matrix, mmap_mode="r", allow_pickle=False),
        catalogue_schema(catalogue),
        {"kind": "model", "digest": digest, "version": None, "name": None},
        direction_width({"config": stage}) is not None,
        lambda n_lines: catalogue_batches(catalogue, n_lines),
    )


def _damaged(folder: Path, received: str) -> RecsysError:
    rule = f"{str(folder)!r} must contain a complete model: vectors, ids and features of its items."
    return RecsysError("R591", rule, "Train or export again: recsys run.", received)
