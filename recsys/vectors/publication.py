"""Publishing item vectors: numbered folders of Parquet files, each with the deletions since.

    3/manifest.json             model, dim, metric, columns, counts, and a sha256 of each file
    3/items/part-00000.parquet  `id`, `embedding` and the columns
    3/deleted.parquet           `id` of the items that only the previous publication has

A publication is written under a hidden name and renamed when it is complete and on the disk.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from recsys.bundles.publishing import versions
from recsys.errors import RecsysError, UsageError
from recsys.system import manifest as manifests
from recsys.system.commit import commit_folder, only_writer
from recsys.system.disk import free_there
from recsys.system.files import DAMAGE, remove, retire
from recsys.vectors.item_vectors import ID, ItemVectors, published

MANIFEST, ITEMS, DELETED = "manifest.json", "items", "deleted.parquet"
_FORMAT = 2
_HIDDEN = ".partial-"
_NO_IDS = pa.array([], pa.large_string())


@dataclasses.dataclass(frozen=True)
class VectorPublication:
    """A publication.

    Attributes:
        folder: Its folder.
        items: Number of items.
        deleted: Number of items of the previous publication that are gone.
        dim: Width of a vector.
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
    try:
        manifest = manifests.read_manifest(folder / MANIFEST)
        if manifest["format"] != _FORMAT:
            raise ValueError(f"format {manifest['format']!r}")
        manifests.verify_folder(folder / MANIFEST, manifest)
        parts = sorted((folder / ITEMS).glob("*.parquet"))
        ids = [pq.read_table(part, columns=[ID])[ID].cast(pa.large_string()) for part in parts]
        return pa.concat_arrays([_NO_IDS, *(chunk for column in ids for chunk in column.chunks)])
    except (*DAMAGE, manifests.ManifestError, pa.ArrowException) as error:
        rule = f"The publication {str(folder)!r} must be complete, to know what was deleted since."
        cure = "Restore it, or publish into another folder and build the engine's index anew."
        raise RecsysError("R595", rule, cure, str(error)) from None


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
