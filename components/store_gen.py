"""Examples and vocabularies → the interaction store, sorted and written shard by shard."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import apache_beam as beam
import pyarrow.parquet as pq

from components.ingestion import ToOne
from components.interaction_gen import SPLITS
from components.progress import Progress
from components.shuffle import Spill, SpillWriter, read_spills
from recsys.data import encode
from recsys.data.examples import example_files, read_examples
from recsys.data.store import ShardInfo, n_shards, write_manifest, write_shard
from recsys.data.vocabulary import Vocabulary

_STEP = "InteractionEncoder"
_Key = tuple[str, int]
"""Split and shard."""


class WriteStore(beam.PTransform):
    """Writes the store of a run; gives its folder.

    Args:
        examples: Examples of the interactions, the splits `train` and `eval`.
        vocabularies: Folder of the vocabularies.
        cut: The moment of the split [seconds since 1970, UTC].
        store: Folder to write.
        work: Folder of what only the work needs.
    """

    def __init__(
        self, examples: Path, vocabularies: Path, cut: int, store: Path, work: Path
    ) -> None:
        super().__init__()
        files = {split: example_files(examples / f"Split-{split}") for split in SPLITS}
        shards = {split: n_shards(_n_rows(some)) for split, some in files.items()}
        self._tasks = [(split, file) for split, some in files.items() for file in some]
        progress = Progress(work / "done", _STEP, len(self._tasks) + sum(shards.values()))
        self._encode = _Encode(vocabularies, shards, work / "events", progress)
        self._write = _WriteShard(store, progress)
        self._finish = (store, cut)

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


def _n_rows(files: list[str]) -> int:
    return sum(pq.read_metadata(file).num_rows for file in files)


class _Encode(beam.DoFn):
    """Turns a file of examples into events by shard."""

    def __init__(
        self, vocabularies: Path, shards: dict[str, int], spills: Path, progress: Progress
    ) -> None:
        self._folder, self._shards = vocabularies, shards
        self._spills, self._progress = spills, progress

    def setup(self) -> None:
        self._users = Vocabulary.load(self._folder / "users.parquet")
        self._items = Vocabulary.load(self._folder / "items.parquet")

    def process(self, task: tuple[str, str]) -> Iterator[tuple[_Key, Spill]]:
        split, file = task
        n_shards, writer = self._shards[split], SpillWriter(self._spills)
        for table in read_examples(file, encode.columns(file)):
            events = encode.encode_positives(table, self._users, self._items)
            if split == "train":
                shards = encode.train_buckets(events, self._users.n_rows, n_shards)
            else:
                shards = encode.eval_buckets(events, n_shards)
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


def _write_manifest(infos: list[tuple[str, ShardInfo]], store: Path, cut: int) -> str:
    parts = {split: [info for part, info in infos if part == split] for split in SPLITS}
    write_manifest(store, cut, parts)
    return str(store)
