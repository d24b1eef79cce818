"""Raw items or users → examples of one split, and dead letters."""

from __future__ import annotations

import functools
import json
import shutil
import uuid
from pathlib import Path
from typing import Any

import apache_beam as beam
import pyarrow as pa

from recsys.data.entities import (
    EntityConfig,
    drop_duplicate_entities,
    id_column,
    parse_entities,
    raw_columns,
)
from recsys.data.examples import write_examples
from recsys.data.ingest.read_rows import Parsed, ReadPlan, ReadRows, run_transform
from recsys.data.ingest.tally import Tally, refuse_empty, write_summary
from recsys.data.sources.files import match_files
from recsys.data.sources.pieces import plan_pieces
from recsys.data.sources.source import RawBatch
from recsys.errors import RecsysError

SPLIT = "all"
STEPS = {"items": "ItemGen", "users": "UserGen"}
"""Name of the step that reads each side."""


def ingest_entities(
    what: str,
    config: EntityConfig,
    examples: str | Path,
    letters: str | Path,
    beam_pipeline: beam.Pipeline,
) -> Tally:
    """Writes the examples and the dead letters of items or users.

    Args:
        what: `items` or `users`.
        config: What to read.
        examples: Folder of the split.
        letters: Folder of the dead letters.
        beam_pipeline: Runs the work, with its runner and options.

    Returns:
        What was counted: the summary of the dead letters.

    Raises:
        RecsysError: A file can't be read, no row is good, or a column holds what its
            feature can't be made of.
    """
    letters = Path(letters)
    pieces = plan_pieces(config, what, raw_columns(config))
    folder = Path(examples) / f"Split-{SPLIT}"
    folder.mkdir(parents=True, exist_ok=True)
    plan = ReadPlan.of(folder, letters / "dead_letters", pieces)
    work = letters / "work"
    work.mkdir(parents=True, exist_ok=True)
    write = functools.partial(_write_bucket, config, plan.n_buckets)
    parse = functools.partial(_parse, config)
    read = ReadRows([plan], parse, id_column(config), write, work, work / "facts.json", STEPS[what])
    try:
        run_transform(beam_pipeline, read)
        (facts,) = json.loads((work / "facts.json").read_text())
    finally:
        shutil.rmtree(work, ignore_errors=True)
    if "failure" in facts:
        raise RecsysError.from_json(facts["failure"]["error"])
    counts = [
        {key: n for key, n in bucket.items() if key != "bucket"} for bucket in facts["buckets"]
    ]
    files = [file.path for file in match_files(config, what)]
    summary = write_summary([facts["tally"], *counts], letters, files)
    refuse_empty(summary, what)
    return summary


def _parse(config: EntityConfig, batch: RawBatch, file_index: int) -> Parsed:
    return Parsed(*parse_entities(batch, config, file_index))


def _write_bucket(
    config: EntityConfig, n_buckets: int, folder: Path, bucket: int, rows: pa.Table
) -> dict[str, Any]:
    """Writes the rows of a bucket as a file of the examples; the first of equal ids stays."""
    kept, n_dropped = drop_duplicate_entities(rows, config)
    file = folder / f"data-{bucket:05d}-of-{n_buckets:05d}.parquet"
    temporary = file.with_name(f".{file.name}-{uuid.uuid4().hex}")
    with temporary.open("wb") as sink:
        write_examples(kept, sink)
    temporary.replace(file)
    return {"good": kept.num_rows, "duplicates": n_dropped}
