"""Examples and vocabularies → the interaction store, sorted and written shard by shard."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

import apache_beam as beam
import pyarrow.parquet as pq

from recsys.data.ingest.ingestion import SPLITS
from recsys.data.ingest.step_progress import Progress
from recsys.data.ingest.shuffle import Spill, SpillWriter, read_spills
from recsys.data.ingest.unique import ToOne
from recsys.data import encode
from recsys.data.examples import example_files, read_examples
from recsys.data.ingest.segments import has_segments
from recsys.data.ingest.segment_store import write_segmented_store
from recsys.data.shard import ShardInfo, write_shard
from recsys.data.shards import (
    TrainShards,
    eval_buckets,
    n_shards,
    plan_train_shards,
    train_buckets,
)
from recsys.data.split_rule import BY_TIME, SplitRule
from recsys.data.store import write_manifest
from recsys.data.vocabulary import Vocabulary

_STEP = "InteractionEncoder"
_Key = tuple[str, int]
"""Split and shard."""


def write_store(
    examples: Path,
    vocabularies: Path,
    cut: int,
    store: Path,
    work: Path,
    beam_pipeline: beam.Pipeline,
    split: SplitRule = BY_TIME,
) -> None:
    """Writes the store of a run: of segments where the examples are made of them.

    Args:
        examples: Examples of the interactions, the splits `train` and `eval`.
        vocabularies: Folder of the vocabularies.
        cut: The moment that the training data end [seconds since 1970, UTC].
        store: Folder to write.
        work: Folder of what only the work needs; it is gone at the end.
        beam_pipeline: Runs the work.
        split: How the examples were split.
    """
    if has_segments(examples):
        users, items = (
            Vocabulary.load(vocabularies / f"{name}.parquet") for name in ("users", "items")
        )
        write_segmented_store(store, examples, users, items, cut)
        return
    with beam_pipeline as pipeline:
        _ = pipeline | "WriteStore" >> WriteStore(examples, vocabularies, cut, store, work, split)
    shutil.rmtree(work)


class WriteStore(beam.PTransform):
    """Writes the store of a run; gives its folder.

    Args:
        examples: Examples of the interactions, the splits `train` and `eval`.
        vocabularies: Folder of the vocabularies.
        cut: The moment that the training data end [seconds since 1970, UTC].
        store: Folder to write.
        work: Folder of what only the work needs.
        split: How the examples were split.
    """

    def __init__(
        self,
        examples: Path,
        vocabularies: Path,
        cut: int,
        store: Path,
        work: Path,
        split: SplitRule = BY_TIME,
    ) -> None:
        super().__init__()
        files = {split: example_files(examples / f"Split-{split}") for split in SPLITS}
        self._tasks = [(split, file) for split, some in files.items() for file in some]
        train = plan_train_shards(Vocabulary.load(vocabularies / "users.parquet"))
        n_eval = n_shards(sum(pq.read_metadata(file).num_rows for file in files["eval"]))
        n_tasks = len(self._tasks) + train.n_shards + n_eval
        progress = Progress(work / "done", _STEP, n_tasks)
        self._encode = _Encode(vocabularies, train, n_eval, work / "events", progress)
        self._write = _WriteShard(store, progress)
        self._finish = (store, cut, split)

    def expand(self, begin: beam.pvalue.PBegin) -> beam.PCollection:
        """Returns a collection of the folder alone."""
        return (
            begin
            | "Files" >> beam.Create(self._tasks)
            | "Spread" >> beam.Reshuffle()
            | "Encode" >> beam.ParDo(self._encode)
            | "ToShards" >> beam.GroupByKey()
            | "WriteShard" >> beam.ParDo(self._write)
            | "All" >> ToOne()
            | "Manifest" >> beam.Map(_write_manifest, *self._finish)
        )


class _Encode(beam.DoFn):
    """Turns a file of examples into events by shard."""

    def __init__(
        self,
        vocabularies: Path,
        train: TrainShards,
        n_eval: int,
        spills: Path,
        progress: Progress,
    ) -> None:
        self._folder, self._train, self._n_eval = vocabularies, train, n_eval
        self._spills, self._progress = spills, progress

    def setup(self) -> None:
        self._users = Vocabulary.load(self._folder / "users.parquet")
        self._items = Vocabulary.load(self._folder / "items.parquet")

    def process(self, task: tuple[str, str]) -> Iterator[tuple[_Key, Spill]]:
        split, file = task
        writer = SpillWriter(self._spills)
        for table in read_examples(file, encode.columns(file)):
            events = encode.encode_positives(table, self._users, self._items)
            if split == "train":
                shards = train_buckets(events, self._train)
            else:
                shards = eval_buckets(events, self._n_eval)
            for shard, spill in writer.add(shards, events):
                yield (split, shard), spill
        for shard, spill in writer.close():
            yield (split, shard), spill
        self._progress.advance(f"{split}-{Path(file).stem}", "ids are rows")


class _WriteShard(beam.DoFn):
    """Sorts the events of a shard and writes it."""

    def __init__(self, store: Path, progress: Progress) -> None:
        self._store, self._progress = store, progress

    def process(self, element: tuple[_Key, Iterable[Spill]]) -> Iterator[tuple[str, ShardInfo]]:
        (split, shard), spills = element
        info = write_shard(self._store, split, shard, read_spills(spills))
        self._progress.advance(f"{split}-shard-{shard}", "events sorted")
        yield split, info


def _write_manifest(
    infos: list[tuple[str, ShardInfo]], store: Path, cut: int, split: SplitRule
) -> str:
    parts = {split: [info for part, info in infos if part == split] for split in SPLITS}
    write_manifest(store, cut, parts, split)
    return str(store)
