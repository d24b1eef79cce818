"""InteractionEncoder: examples, vocabularies and token rows → the data folder."""

import shutil
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
from components.store_gen import WriteStore
from recsys.config import ItemsConfig
from recsys.data import encode
from recsys.data.catalogue import FeatureBags
from recsys.data.examples import read_split
from recsys.data.vocabulary import Vocabulary


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
    store = WriteStore(
        examples=Path(interactions.uri),
        vocabularies=Path(vocabularies.uri),
        cut=interactions.get_int_custom_property(CUT_PROPERTY),
        store=folder / "store",
        work=parts,
    )
    with beam_pipeline as pipeline:
        _ = pipeline | "WriteStore" >> store
        _ = (
            pipeline
            | "ReadTokens"
            >> TFExampleRecord(
                f"{transformed_items.uri}/Split-{SPLIT}/*", telemetry_descriptors=["recsys"]
            ).BeamSource()
            | "AsList" >> beam.combiners.ToList()
            | "WriteTokens" >> beam.Map(_write_tokens, str(parts))
        )
    source = ItemsConfig.model_validate_json(config)
    _save_catalogue(folder, parts, Path(items.uri), Path(transform_graph.uri), source)
    shutil.rmtree(parts)


def _write_tokens(batches: list[pa.RecordBatch], folder: str) -> None:
    Path(folder).mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_batches(batches), Path(folder) / "tokens.parquet")


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
