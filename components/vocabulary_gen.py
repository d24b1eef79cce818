"""VocabularyGen: ids of the training positives and the catalogue → rows that stay."""

import json
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

import apache_beam as beam
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from tfx.dsl.component.experimental.annotations import (
    BeamComponentParameter,
    InputArtifact,
    OutputArtifact,
    Parameter,
)
from tfx.dsl.component.experimental.decorators import component
from tfx.types.standard_artifacts import Examples

from components.artifacts import Verdict, Vocabularies
from components.entity_gen import SPLIT
from components.ingestion import ToOne
from components.interaction_gen import CUT_PROPERTY, SPLITS
from components.shuffle import Spill, SpillWriter, read_spills
from recsys.config import VocabulariesConfig
from recsys.data.buckets import hash_buckets
from recsys.data.examples import example_files, read_examples, read_split
from recsys.data.vocabulary import Vocabulary, count_ids, grow, merge_counts

_BYTES_OF_A_BUCKET = 64 << 20
_ID_COLUMNS = {"users": "user_id", "items": "item_id"}
_Key = tuple[str, str, int]
"""Vocabulary, split and bucket."""


@component(use_beam=True)
def VocabularyGen(
    interactions: InputArtifact[Examples],
    verdict: InputArtifact[Verdict],
    vocabularies: OutputArtifact[Vocabularies],
    config: Parameter[str],
    code: Parameter[str],
    items: InputArtifact[Examples] = None,
    users: InputArtifact[Examples] = None,
    previous: InputArtifact[Vocabularies] = None,
    beam_pipeline: BeamComponentParameter[beam.Pipeline] = None,
) -> None:
    """Gives users and items their rows; those that have one keep it.

    Args:
        interactions: Examples; rows come from the split `train` alone.
        verdict: The DataGate's; without it there is no training.
        vocabularies: `users.parquet`, `items.parquet`, and `diff.json`, what changed.
        config: `VocabulariesConfig` as canonical JSON.
        code: Fingerprint of the code.
        items: Examples of the catalogue, whose items all get a row.
        users: Examples of the users' data, who all get a row.
        previous: The vocabularies to go on from.
        beam_pipeline: Runs the work.
    """
    del verdict, code
    known = {"users": users, "items": items}
    make_vocabularies(
        interactions=Path(interactions.uri),
        cut=interactions.get_int_custom_property(CUT_PROPERTY),
        entities={name: Path(one.uri) for name, one in known.items() if one is not None},
        previous=None if previous is None else Path(previous.uri),
        out=Path(vocabularies.uri),
        config=VocabulariesConfig.model_validate_json(config),
        beam_pipeline=beam_pipeline,
    )


def make_vocabularies(
    interactions: Path,
    cut: int,
    entities: dict[str, Path],
    previous: Path | None,
    out: Path,
    config: VocabulariesConfig,
    beam_pipeline: beam.Pipeline,
) -> None:
    """Counts ids by Beam, and lets both vocabularies grow.

    Args:
        interactions: Examples, the splits `train` and `eval`.
        cut: The moment of the split [seconds since 1970, UTC].
        entities: Examples of `users` or `items`, who all get a row.
        previous: Folder of the vocabularies to go on from.
        out: Folder to write.
        config: Which ids get a row.
        beam_pipeline: Runs the counting.
    """
    work = out / "work"
    _count(interactions, work, beam_pipeline)
    diffs = {}
    for name in _ID_COLUMNS:
        before = None if previous is None else Vocabulary.load(previous / f"{name}.parquet")
        counted = {split: _read_counts(work, name, split) for split in SPLITS}
        vocabulary, diff = grow(
            before,
            counted["train"],
            getattr(config, name),
            cut,
            keep=_entity_ids(entities.get(name), _ID_COLUMNS[name]),
            held_out=counted["eval"],
        )
        vocabulary.save(out / f"{name}.parquet")
        diffs[name] = diff.to_json()
    (out / "diff.json").write_text(json.dumps(diffs, indent=1) + "\n")
    shutil.rmtree(work)


def _count(interactions: Path, work: Path, beam_pipeline: beam.Pipeline) -> None:
    tasks = [
        (name, split, file)
        for split in SPLITS
        for file in example_files(interactions / f"Split-{split}")
        for name in _ID_COLUMNS
    ]
    n_bytes = sum(Path(file).stat().st_size for _, _, file in tasks)
    n_buckets = 1 + n_bytes // _BYTES_OF_A_BUCKET
    with beam_pipeline as pipeline:
        _ = (
            pipeline
            | "Files" >> beam.Create(tasks)
            | "Spread" >> beam.Reshuffle()
            | "Count" >> beam.ParDo(_CountFile(work, n_buckets))
            | "ToBuckets" >> beam.GroupByKey()
            | "Merge" >> beam.MapTuple(_merge, str(work))
            | "All" >> ToOne()
        )


class _CountFile(beam.DoFn):
    """Counts the positives of each id in a file of examples, by bucket of ids."""

    def __init__(self, work: Path, n_buckets: int) -> None:
        self._spills, self._n_buckets = work / "counts", n_buckets

    def process(self, task: tuple[str, str, str]) -> Iterator[tuple[_Key, Spill]]:
        name, split, file = task
        writer = SpillWriter(self._spills)
        for counted in _counts(file, _ID_COLUMNS[name]):
            ids = counted.column("id")
            for bucket, spill in writer.add(hash_buckets(ids, self._n_buckets), counted):
                yield (name, split, bucket), spill
        for bucket, spill in writer.close():
            yield (name, split, bucket), spill


def _counts(file: str, column: str) -> Iterator[pa.RecordBatch]:
    """Yields the counts of the positives of each row group."""
    for table in read_examples(file, [column, "timestamp", "label"]):
        positives = table.filter(pc.equal(table["label"], 1))
        counted = count_ids(positives[column], positives["timestamp"])
        yield from counted.combine_chunks().to_batches()


def _merge(key: _Key, spills: Iterable[Spill], work: str) -> _Key:
    name, split, bucket = key
    folder = Path(work) / f"{name}-{split}"
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{bucket:05d}.parquet"
    temporary = file.with_suffix(".writing")
    pq.write_table(merge_counts([read_spills(spills)]), temporary)
    temporary.replace(file)
    return key


def _read_counts(work: Path, name: str, split: str) -> pa.Table:
    files = sorted((work / f"{name}-{split}").glob("*.parquet"))
    return merge_counts([pq.read_table(file) for file in files])


def _entity_ids(examples: Path | None, column: str) -> pa.Array | None:
    if examples is None:
        return None
    tables = list(read_split(examples / f"Split-{SPLIT}", [column]))
    return pc.unique(pa.concat_tables(tables)[column])
