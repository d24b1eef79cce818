"""The examples of segments, in the place that TFX expects: `Split-train/data-….parquet`.

Only TFX's statistics read them.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from recsys.data.ingest.cache import link
from recsys.data.ingest.tasks import LOCAL_BYTES, run_tasks
from recsys.data.split import TIME

if TYPE_CHECKING:
    import apache_beam as beam

SPLITS = ("train", "eval")


ExampleFile = tuple[Path, str, str | None]
"""The examples of a bucket of a segment: their file, their name among all of the segments, and
their split; None: they are split at the cut."""


def link_examples(
    like: beam.Pipeline | None,
    files: Sequence[ExampleFile],
    folder: Path,
    cut: int,
    work: Path,
) -> None:
    """Links examples into the folders of their splits, or splits them.

    Args:
        like: A pipeline whose runner and options are used for large files; None: threads of this
            process.
        files: The examples.
        folder: Folder of the splits.
        cut: End of the training data [seconds since 1970, UTC].
        work: Folder for temporary files.
    """
    for file, name, split in files:
        if split is not None:
            link(file, _target(folder, split, name))
    if unsplit := [file for file in files if file[2] is None]:
        n_bytes = sum(file.stat().st_size for file, _, _ in unsplit)
        by = like if n_bytes > LOCAL_BYTES else None
        run_tasks(by, unsplit, functools.partial(_split, folder, cut), work)


def _split(folder: Path, cut: int, examples: ExampleFile) -> Iterator[str]:
    """Writes the rows before the cut, and the others."""
    file, name, _ = examples
    parquet = pq.ParquetFile(file)
    for split in SPLITS:
        target = _target(folder, split, name)
        target.parent.mkdir(parents=True, exist_ok=True)
        with pq.ParquetWriter(target, parquet.schema_arrow) as writer:
            for group in range(parquet.num_row_groups):
                rows = parquet.read_row_group(group)
                is_train = rows[TIME.name].combine_chunks().flatten().to_numpy() < cut
                writer.write_table(rows.filter(pa.array(is_train == (split == "train"))))
    yield name


def _target(folder: Path, split: str, name: str) -> Path:
    return folder / f"Split-{split}" / f"data-{name}.parquet"
