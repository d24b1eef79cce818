"""InteractionEncoder: examples, vocabularies and token rows → the data folder."""

import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

import apache_beam as beam
import pyarrow as pa
import pyarrow.parquet as pq
from tfx.dsl.component.experimental.annotations import (
    BeamComponentParameter,
    InputArtifact,
    OutputArtifact,
    Parameter,
)
from tfx.dsl.component.experimental.decorators import component
from tfx.types.standard_artifacts import Examples, TransformGraph
from tfx_bsl.tfxio.tf_example_record import TFExampleRecord

from components.artifacts import InteractionData, Vocabularies
from components.interaction_gen import CUT_PROPERTY
from components.item_gen import SPLIT
from recsys.config import ItemsConfig
from recsys.data import encode
from recsys.data.buckets import split_by_bucket
from recsys.data.catalogue import FeatureBags
from recsys.data.examples import example_files, read_examples, read_split
from recsys.data.store import InteractionStore
from recsys.data.vocabulary import Vocabulary

_BYTES_OF_A_PART = 64 << 20


@component(use_beam=True)
def InteractionEncoder(
    interactions: InputArtifact[Examples],
    items: InputArtifact[Examples],
    transformed_items: InputArtifact[Examples],
    transform_graph: InputArtifact[TransformGraph],
    vocabularies: InputArtifact[Vocabularies],
    data: OutputArtifact[InteractionData],
    config: Parameter[str],
    code: Parameter[str],
    beam_pipeline: BeamComponentParameter[beam.Pipeline] = None,
) -> None:
    """Writes everything that training and evaluation read into one folder.

    Args:
        interactions: Examples, the splits `train` and `eval`.
        items: Examples of the catalogue.
        transformed_items: Token rows of the catalogue.
        transform_graph: Where the vocabularies of the tokens are.
        vocabularies: Rows of users and items.
        data: The data folder, see docs/architecture.md.
        config: `ItemsConfig` as canonical JSON.
        code: Fingerprint of the code.
        beam_pipeline: Runs the work.
    """
    del code
    folder, parts = Path(data.uri), Path(data.uri) / "parts"
    shutil.copytree(vocabularies.uri, folder / "vocabulary", dirs_exist_ok=True)
    n_user_rows = pq.read_metadata(folder / "vocabulary" / "users.parquet").num_rows + 1
    with beam_pipeline as pipeline:
        for split in ("train", "eval"):
            files = example_files(Path(interactions.uri) / f"Split-{split}")
            n_parts = _part_number(files, n_user_rows)
            encode_part = _Encode(vocabularies.uri, split, n_parts)
            write_part = _WritePart(vocabularies.uri, split, n_parts, str(parts))
            _ = (
                pipeline
                | f"Files[{split}]" >> beam.Create(files)
                | f"Spread[{split}]" >> beam.Reshuffle()
                | f"Encode[{split}]" >> beam.ParDo(encode_part)
                | f"ToParts[{split}]" >> beam.GroupByKey()
                | f"Write[{split}]" >> beam.ParDo(write_part)
            )
        _ = (
            pipeline
            | "ReadTokens"
            >> TFExampleRecord(
                f"{transformed_items.uri}/Split-{SPLIT}/*", telemetry_descriptors=["recsys"]
            ).BeamSource()
            | "AsList" >> beam.combiners.ToList()
            | "WriteTokens" >> beam.Map(_write_tokens, str(parts))
        )
    store = _join(parts, interactions.get_int_custom_property(CUT_PROPERTY))
    store.save(folder / "store")
    source = ItemsConfig.model_validate_json(config)
    _save_catalogue(folder, parts, Path(items.uri), Path(transform_graph.uri), source)
    shutil.rmtree(parts)


def _part_number(files: list[str], n_user_rows: int) -> int:
    """Returns in how many parts a log is sorted; each holds some user's rows."""
    size = sum(Path(file).stat().st_size for file in files)
    return min(1 + size // _BYTES_OF_A_PART, max(1, n_user_rows // 2))


class _Encode(beam.DoFn):
    """Turns a file of examples into `(part, events)`."""

    def __init__(self, vocabularies: str, split: str, n_parts: int) -> None:
        self._folder = Path(vocabularies)
        self._split = split
        self._n_parts = n_parts

    def setup(self) -> None:
        self._users = Vocabulary.load(self._folder / "users.parquet")
        self._items = Vocabulary.load(self._folder / "items.parquet")

    def process(self, file: str) -> Iterator[tuple[int, pa.RecordBatch]]:
        for table in read_examples(file, encode.COLUMNS):
            events = encode.encode_positives(table, self._users, self._items)
            if self._split == "train":
                bucket = encode.train_buckets(events, self._users.n_rows, self._n_parts)
            else:
                bucket = encode.eval_buckets(events, self._n_parts)
            yield from split_by_bucket(events, bucket)


class _WritePart(beam.DoFn):
    """Sorts the events of a part and writes them."""

    def __init__(self, vocabularies: str, split: str, n_parts: int, folder: str) -> None:
        self._users = Path(vocabularies) / "users.parquet"
        self._split = split
        self._n_parts = n_parts
        self._folder = Path(folder) / split

    def process(self, element: tuple[int, Iterable[pa.RecordBatch]]) -> None:
        part, batches = element
        events = pa.Table.from_batches(list(batches))
        folder = encode.make_part_folder(self._folder, part)
        if self._split == "train":
            n_rows = pq.read_metadata(self._users).num_rows + 1
            log = encode.train_part(events, part, n_rows, self._n_parts)
        else:
            log, ids, rows = encode.eval_part(events)
            pq.write_table(pa.table({"id": ids, "user_row": rows}), folder / "users.parquet")
        log.save(folder)


def _write_tokens(batches: list[pa.RecordBatch], folder: str) -> None:
    Path(folder).mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_batches(batches), Path(folder) / "tokens.parquet")


def _join(parts: Path, cut: int) -> InteractionStore:
    users = [pq.read_table(file) for file in sorted((parts / "eval").glob("*/users.parquet"))]
    joined = pa.concat_tables(users)
    return InteractionStore(
        train=encode.join_parts(encode.open_parts(parts / "train")),
        eval=encode.join_parts(encode.open_parts(parts / "eval")),
        eval_user_ids=joined["id"].to_pylist(),
        eval_user_rows=joined["user_row"].to_numpy(),
        cut=cut,
    )


def _save_catalogue(
    folder: Path, parts: Path, items: Path, transform_graph: Path, source: ItemsConfig
) -> None:
    tokens = pq.read_table(parts / "tokens.parquet").combine_chunks()
    features = []
    for feature in source.features:
        bags = tokens[feature.name].combine_chunks().flatten().to_numpy()
        assets = transform_graph / "transform_fn" / "assets" / feature.name
        n_tokens = len(assets.read_bytes().splitlines())
        shape = (tokens.num_rows, feature.max_tokens)
        features.append(FeatureBags(feature.name, n_tokens + 1, bags.reshape(shape)))
    ids = tokens["item_id"].combine_chunks().flatten().cast(pa.string())
    titles = pa.concat_tables(read_split(items / f"Split-{SPLIT}", ["item_id", "title"]))
    vocabulary = Vocabulary.load(folder / "vocabulary" / "items.parquet")
    encode.build_catalogue(vocabulary, titles, features, ids).save(folder / "catalogue")
