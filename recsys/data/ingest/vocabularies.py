"""Ids of the training positives and of the catalogue → vocabularies, whose rows stay."""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path

import apache_beam as beam
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from recsys.data.ingest.ingestion import SPLITS
from recsys.data.ingest.shuffle import Spill, SpillWriter, read_spills
from recsys.data.ingest.unique import ToOne
from recsys.config import VocabulariesConfig
from recsys.data.buckets import hash_buckets
from recsys.data.event_times import TIME
from recsys.data.examples import example_files, read_examples, read_split
from recsys.data.id_counts import count_ids, merge_counts
from recsys.data.ingest.segments import counts_of, has_segments
from recsys.data.split_rule import BY_TIME, SplitRule
from recsys.data.vocabulary import Vocabulary
from recsys.data.vocabulary_growth import grow
from recsys.errors import RecsysError

_BYTES_OF_A_BUCKET = 64 << 20
_ID_COLUMNS = {"users": "user_id", "items": "item_id"}
_Key = tuple[str, str, int]
"""Vocabulary, split and bucket."""


def make_vocabularies(
    interactions: Path,
    cut: int,
    entities: dict[str, Path],
    previous: Path | None,
    out: Path,
    config: VocabulariesConfig,
    beam_pipeline: beam.Pipeline,
    split: SplitRule = BY_TIME,
) -> None:
    """Counts ids by Beam, and lets both vocabularies grow.

    Segments know how often they hold each id: of them nothing is counted again.

    Args:
        interactions: Examples, the splits `train` and `eval`.
        cut: The moment that the training data end [seconds since 1970, UTC].
        entities: Folder of the examples of `users` or `items`, who all get a row.
        previous: Folder of the vocabularies to go on from.
        out: Folder to write.
        config: Which ids get a row.
        beam_pipeline: Runs the counting.
        split: How the examples were split.

    Raises:
        RecsysError: No item gets a row, or the previous rows would move.
    """
    work = out / "work"
    is_counted = has_segments(interactions)
    if not is_counted:
        _count(interactions, work, beam_pipeline)
    diffs = {}
    for name in _ID_COLUMNS:
        before = None if previous is None else Vocabulary.load(previous / f"{name}.parquet")
        counted = {
            part: counts_of(interactions, part, f"{name}.parquet")
            if is_counted
            else _read_counts(work, name, part)
            for part in SPLITS
        }
        vocabulary, diff = grow(
            before,
            counted["train"],
            getattr(config, name),
            cut,
            keep=_entity_ids(entities.get(name), _ID_COLUMNS[name]),
            held_out=counted["eval"],
        )
        _refuse_empty(name, vocabulary, getattr(config, name).min_count)
        vocabulary.split = split
        vocabulary.save(out / f"{name}.parquet")
        diffs[name] = diff.to_json()
    (out / "diff.json").write_text(json.dumps(diffs, indent=1) + "\n")
    shutil.rmtree(work, ignore_errors=True)


def _refuse_empty(name: str, vocabulary: Vocabulary, min_count: int) -> None:
    """Raises an error if no item has a row: there would be nothing to recommend."""
    if name == "items" and not vocabulary.has_id().any():
        raise RecsysError(
            "R215",
            "At least one item must have a row.",
            "Lower data.vocabulary.items.min_count, or name a catalogue in data.items.",
            {"data.vocabulary.items.min_count": min_count},
        )


def _count(interactions: Path, work: Path, beam_pipeline: beam.Pipeline) -> None:
    tasks = [
        (split, file) for split in SPLITS for file in example_files(interactions / f"Split-{split}")
    ]
    n_bytes = sum(Path(file).stat().st_size for _, file in tasks)
    n_buckets = 1 + n_bytes // _BYTES_OF_A_BUCKET
    with beam_pipeline as pipeline:
        _ = (
            pipeline
            | "Files" >> beam.Create(tasks)
            | "Spread" >> beam.Reshuffle()
            | "Count" >> beam.ParDo(_CountFile(work, n_buckets))
            | "ToBuckets" >> beam.GroupByKey()
            | "Merge" >> beam.Map(_merge, str(work))
            | "All" >> ToOne()
        )


class _CountFile(beam.DoFn):
    """Counts the positives of each id in a file of examples, by bucket of ids."""

    def __init__(self, work: Path, n_buckets: int) -> None:
        self._spills, self._n_buckets = work / "counts", n_buckets

    def process(self, task: tuple[str, str]) -> Iterator[tuple[_Key, Spill]]:
        split, file = task
        writers = {name: SpillWriter(self._spills) for name in _ID_COLUMNS}
        times = [TIME.name] if TIME.name in pq.read_schema(file).names else []
        for table in read_examples(file, [*_ID_COLUMNS.values(), *times, "label"]):
            positives = table.filter(pc.equal(table["label"], 1))
            timestamps = positives[TIME.name] if times else None
            for name, column in _ID_COLUMNS.items():
                counted = count_ids(positives[column], timestamps)
                for bucket, spill in self._spill(writers[name], counted):
                    yield (name, split, bucket), spill
        for name, writer in writers.items():
            for bucket, spill in writer.close():
                yield (name, split, bucket), spill

    def _spill(self, writer: SpillWriter, counted: pa.Table) -> Iterator[tuple[int, Spill]]:
        for batch in counted.combine_chunks().to_batches():
            yield from writer.add(hash_buckets(batch.column("id"), self._n_buckets), batch)


def _merge(element: tuple[_Key, Iterable[Spill]], work: str) -> _Key:
    (name, split, bucket), spills = element
    folder = Path(work) / f"{name}-{split}"
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{bucket:05d}.parquet"
    temporary = file.with_name(f".{file.name}-{uuid.uuid4().hex}")
    pq.write_table(merge_counts([read_spills(spills)]), temporary)
    temporary.replace(file)
    return name, split, bucket


def _read_counts(work: Path, name: str, split: str) -> pa.Table:
    files = sorted((work / f"{name}-{split}").glob("*.parquet"))
    return merge_counts([pq.read_table(file) for file in files])


def _entity_ids(split: Path | None, column: str) -> pa.Array | None:
    if split is None:
        return None
    ids = [table[column] for table in read_split(split, [column])]
    return pa.chunked_array([chunk for some in ids for chunk in some.chunks], pa.string()).unique()
