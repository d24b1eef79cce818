"""The item vectors of a model folder or a bundle, with the columns of the items, in slices.

A slice is a table with the columns `id`, `embedding` and those that were chosen; rows that
are no items are left out. Neither the matrix nor the catalogue is ever in memory whole.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from recsys.bundles.bundle import MANIFEST, direction_width, manifest_digest, verify
from recsys.bundles.item_table import CATALOGUE, column_of, token_lists
from recsys.bundles.publishing import is_version, latest, versions
from recsys.bundles.row_slices import SLICE_BYTES, read_rows
from recsys.data.catalogue import TITLES, FeatureBags, open_features
from recsys.data.input_files import CANDIDATES, verify_candidates, verify_inputs
from recsys.data.vocabulary import Vocabulary
from recsys.errors import RecsysError, UsageError
from recsys.models.summary import read_summary
from recsys.system import manifest as manifests
from recsys.system.files import DAMAGE

ID, EMBEDDING, TITLE = "id", "embedding", "title"
_ITEMS = "vocabulary/items.parquet"

ColumnType = Literal["text", "list", "whole", "number"]
"""What a column holds: one text, a list of texts, a whole number, or a number."""
TYPES: dict[ColumnType, pa.DataType] = {
    "text": pa.string(),
    "list": pa.list_(pa.string()),
    "whole": pa.int64(),
    "number": pa.float64(),
}
Columns = Mapping[str, ColumnType]

_Batches = Callable[[Sequence[str], int], Iterator[pa.RecordBatch]]
"""Yields `id` and other columns of the item rows from 1 on, so many lines at a time."""


@dataclasses.dataclass(frozen=True)
class ItemVectors:
    """The vectors of one model.

    Attributes:
        folder: The model folder, or the bundle.
        embeddings: Of each item row `[item rows, dim]` float32; a memory map.
        columns: What is known of the items: names of columns, the title among them.
        origin: What a manifest says of the model: `kind`, `digest`, `version`, `name`.
        has_bias: Whether the last number of a vector is a bias, beside which a query has 1.
    """

    folder: Path
    embeddings: np.ndarray
    columns: tuple[str, ...]
    origin: Mapping[str, Any]
    has_bias: bool
    _batches: _Batches

    @classmethod
    def open(cls, folder: Path) -> ItemVectors:
        """Opens a model folder, a bundle, a folder of versions, or the root of a run.

        Raises:
            UsageError: The folder is none of them (R590).
            RecsysError: It is damaged (R501, R502, R591), or nothing was pushed (R510).
        """
        path = _resolved(folder)
        try:
            return _open_bundle(path) if (path / MANIFEST).exists() else _open_model(path)
        except (*DAMAGE, EOFError, pa.ArrowException) as error:
            raise _damaged(path, f"{type(error).__name__}: {error}") from None

    @property
    def dim(self) -> int:
        """Numbers of a vector, a bias included."""
        return int(self.embeddings.shape[1])

    def vocabulary(self) -> Vocabulary:
        """Returns the vocabulary of the items."""
        return Vocabulary.load(self.folder / _ITEMS)

    def typed(self, chosen: Sequence[str] | None) -> dict[str, ColumnType]:
        """Returns the columns to publish with their types.

        Args:
            chosen: `name` or `name:type` each; None: the title, and all others as lists.

        Raises:
            UsageError: There is no such column or type, or the title is no text (R593).
        """
        if chosen is None:
            return {name: "text" if name == TITLE else "list" for name in self.columns}
        columns: dict[str, ColumnType] = {}
        for text in chosen:
            name, _, type_ = text.partition(":")
            type_ = type_ or ("text" if name == TITLE else "list")
            if name not in self.columns or type_ not in TYPES or (name, type_) in _NO_TITLE:
                rule = (
                    f"A column must be one of {', '.join(self.columns)}; its type, behind a"
                    f" colon, {', '.join(get_args(ColumnType))}. The title is a text."
                )
                raise UsageError("R593", rule, "Write, for example, title,genres:list.", text)
            columns[name] = type_
        return columns

    def slices(self, columns: Columns) -> Iterator[tuple[int, pa.Table]]:
        """Yields the items slice by slice, with the number of item rows that were read.

        Args:
            columns: The columns, with their types.

        Raises:
            RecsysError: A vector isn't finite, or the folder is damaged (R591); a value
                isn't of its column's type (R593).
        """
        start, n_lines = 1, max(1, SLICE_BYTES // (4 * self.dim))
        try:
            for lines in self._batches(list(columns), n_lines):
                vectors = read_rows(self.embeddings, start, start + len(lines))
                start += len(lines)
                yield start, self._table(lines, vectors, columns)
        except (*DAMAGE, pa.ArrowException) as error:
            raise _damaged(self.folder, f"{type(error).__name__}: {error}") from None
        if start != len(self.embeddings):
            received = f"{start - 1:,} items for {len(self.embeddings):,} vectors"
            raise _damaged(self.folder, received)

    def _table(self, lines: pa.RecordBatch, vectors: np.ndarray, columns: Columns) -> pa.Table:
        if len(vectors) != len(lines):
            raise _damaged(self.folder, f"more items than {len(self.embeddings):,} vectors")
        is_item = pc.fill_null(pc.not_equal(lines[ID], ""), False)
        lines, vectors = lines.filter(is_item), vectors[is_item.to_numpy(zero_copy_only=False)]
        if not np.isfinite(vectors).all():
            first = int(np.flatnonzero(~np.isfinite(vectors).all(axis=1))[0])
            raise _damaged(self.folder, f"a vector that isn't finite, of {lines[ID][first]}")
        arrays = {
            ID: lines[ID].cast(pa.string()),
            EMBEDDING: pa.FixedSizeListArray.from_arrays(
                pa.array(vectors.astype(np.float32, copy=False).ravel()), self.dim
            ),
        }
        typed = {name: _as_type(lines, name, type_) for name, type_ in columns.items()}
        return pa.table({**arrays, **{published(name): x for name, x in typed.items()}})


_NO_TITLE = {(TITLE, type_) for type_ in TYPES if type_ != "text"}


def published(column: str) -> str:
    """Returns the name that a column has beside the vectors."""
    return f"feature_{column}" if column == EMBEDDING else column


def _resolved(folder: Path) -> Path:
    if (folder / MANIFEST).exists() or (folder / "model.json").exists():
        return folder
    if versions(folder):
        return latest(folder)
    served = [path for path in sorted(folder.glob("serving/*")) if not path.name.startswith(".")]
    if len(served) == 1:
        return latest(served[0])
    rule = (
        "Vectors are published of a model folder, a bundle, a folder of versions, or the root of"
        " a run with one model under serving/."
    )
    raise UsageError("R590", rule, "Name one of them.", str(folder))


def _open_bundle(bundle: Path) -> ItemVectors:
    files = ("item_embeddings.npy", CATALOGUE, _ITEMS)
    manifest = verify(bundle, files)
    path = bundle / CATALOGUE
    schema = pq.read_schema(path)

    def batches(columns: Sequence[str], n_lines: int) -> Iterator[pa.RecordBatch]:
        with pq.ParquetFile(path) as file:
            yield from file.iter_batches(n_lines, columns=[ID, *columns])

    version = int(bundle.name) if is_version(bundle.name) else None
    origin = {"kind": "bundle", "digest": manifest_digest(bundle), "version": version}
    return ItemVectors(
        bundle,
        np.load(bundle / files[0], mmap_mode="r", allow_pickle=False),
        tuple(schema.names[1:]),
        {**origin, "name": manifest.get("name")},
        direction_width(manifest) is not None,
        batches,
    )


def _open_model(folder: Path) -> ItemVectors:
    stage = read_summary(folder)["stage"]
    verify_inputs(folder)
    verify_candidates(folder)
    catalogue, matrix = folder / "catalogue", folder / CANDIDATES
    embeddings = np.load(matrix, mmap_mode="r", allow_pickle=False)
    features = {
        column_of(feature.name): feature
        for feature in open_features(catalogue, len(embeddings))
        if feature.tokens is not None
    }

    def batches(columns: Sequence[str], n_lines: int) -> Iterator[pa.RecordBatch]:
        yield from _model_batches(catalogue / TITLES, features, columns, n_lines)

    digest = manifests.checksums(folder, [matrix.name])[matrix.name]["sha256"]
    origin = {"kind": "model", "digest": digest, "version": None, "name": None}
    has_bias = direction_width({"config": stage}) is not None
    columns = (TITLE, *features)
    return ItemVectors(folder, embeddings, columns, origin, has_bias, batches)


def _model_batches(
    titles: Path, features: Mapping[str, FeatureBags], columns: Sequence[str], n_lines: int
) -> Iterator[pa.RecordBatch]:
    tokens = {
        name: pa.array(list(features[name].tokens or ()), pa.string())
        for name in columns
        if name in features
    }
    start = 1
    with pq.ParquetFile(titles) as file:
        for lines in file.iter_batches(n_lines, columns=[ID, TITLE]):
            rows = slice(start, start + len(lines))
            start = rows.stop
            arrays = {name: lines[name] for name in (ID, TITLE)}
            arrays |= {name: token_lists(features[name], x, rows) for name, x in tokens.items()}
            yield pa.RecordBatch.from_pydict({name: arrays[name] for name in (ID, *columns)})


def _as_type(lines: pa.RecordBatch, name: str, type_: ColumnType) -> pa.Array:
    column = lines[name]
    if type_ == "list":
        return column.cast(TYPES["list"])
    texts = _first(column) if pa.types.is_list(column.type) else column
    try:
        return texts.cast(TYPES[type_])
    except pa.ArrowInvalid as error:
        rule = f"Every value of the column {name!r} must be a {type_}."
        cure = f"Publish it as text or as list: --columns {name}:text."
        raise UsageError("R593", rule, cure, str(error)) from None


def _first(lists: pa.ListArray) -> pa.Array:
    """Returns the first element of each list; null of an empty one."""
    counts = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False)
    starts = np.cumsum(counts) - counts
    return lists.flatten().take(pa.array(starts, pa.int64(), mask=counts == 0))


def _damaged(folder: Path, received: str) -> RecsysError:
    rule = f"{str(folder)!r} must contain a complete model: vectors, ids and features of its items."
    return RecsysError("R591", rule, "Train or export again: recsys run.", received)
