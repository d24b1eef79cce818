"""TensorFlow Transform: the token rows of items or users, made without TFX, and read.

The graph is the one that the pipeline's Transform makes, by the same
`preprocessing_fn`; only the tables come by Beam alone.
"""

from __future__ import annotations

import tempfile
import uuid
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import apache_beam as beam
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import tensorflow as tf
import tensorflow_transform as tft
import tensorflow_transform.beam as tft_beam
from apache_beam.options.pipeline_options import PipelineOptions
from tensorflow_transform.tf_metadata import schema_utils
from tfx_bsl.coders import example_coder
from tfx_bsl.tfxio import tensor_adapter, tensor_representation_util

from recsys.data.entities import EntityConfig, feature_settings
from recsys.data.examples import example_files
from recsys.data.features import Feature
from recsys.data.ingest.entity_rows import SPLIT
from recsys.data.ingest.feature_graph import preprocessing_fn

_TYPES = ((pa.types.is_floating, tf.float32), (pa.types.is_integer, tf.int64))
_BATCH_ROWS = 1 << 14


def transform(
    config: EntityConfig, examples: Path, tokens: Path, graph: Path, options: PipelineOptions
) -> None:
    """Writes the token rows of items or users, and the graph that makes them.

    Args:
        config: The features.
        examples: What `entity_rows.ingest` wrote.
        tokens: Folder to write: Parquet with the id and the token rows of each feature.
        graph: Folder to write: what `tft.TFTransformOutput` reads.
        options: Options of the Beam pipeline.
    """
    settings = feature_settings(config)
    files = example_files(examples / f"Split-{SPLIT}")
    schema = pq.read_schema(files[0])
    names = [settings["id"], *dict.fromkeys(part["column"] for part in settings["features"])]
    spec = {name: tf.io.VarLenFeature(_type(schema.field(name).type)) for name in names}
    representations = tensor_representation_util.InferTensorRepresentationsFromSchema(
        schema_utils.schema_from_feature_spec(spec)
    )
    adapter = tensor_adapter.TensorAdapterConfig(
        pa.schema([schema.field(name).remove_metadata() for name in names]), representations
    )
    out = tokens / f"Split-{SPLIT}"
    out.mkdir(parents=True)
    with (
        tempfile.TemporaryDirectory(prefix="recsys-transform-") as scratch,
        beam.Pipeline(options=options) as pipeline,
        tft_beam.Context(temp_dir=scratch),
    ):
        rows = pipeline | beam.Create(files) | beam.Reshuffle() | beam.FlatMap(_batches, names)
        (made, _), function = (rows, adapter) | tft_beam.AnalyzeAndTransformDataset(
            lambda inputs: preprocessing_fn(inputs, settings), output_record_batches=True
        )
        _ = made | "WriteTokens" >> beam.Map(_write, out)
        _ = function | tft_beam.WriteTransformFn(str(graph))


def _type(column: pa.DataType) -> tf.DType:
    return next((dtype for is_type, dtype in _TYPES if is_type(column.value_type)), tf.string)


def _batches(file: str, names: list[str]) -> Iterator[pa.RecordBatch]:
    for batch in pq.ParquetFile(file).iter_batches(_BATCH_ROWS, columns=names):
        yield batch.select(names).replace_schema_metadata(None)


def _write(made: tuple[pa.RecordBatch, Any], folder: Path) -> str:
    file = folder / f"tokens-{uuid.uuid4().hex}.parquet"
    pq.write_table(pa.Table.from_batches([made[0]]), file)
    return file.name


_ROWS_OF_A_BATCH = 1 << 16


def read_token_rows(
    folder: Path, id_column: str, features: Sequence[Feature]
) -> Iterator[tuple[pa.Array, dict[str, np.ndarray]]]:
    """Yields ids `[n]` and the token rows `[n, width]` int64 of each feature.

    Args:
        folder: A split of Transform's examples, or the tokens of `feature_transform`.
        id_column: Name of the id.
        features: The features to read.
    """
    for file in sorted(folder.glob("*.parquet")):
        for batch in pq.ParquetFile(file).iter_batches(_ROWS_OF_A_BATCH):
            yield _decoded(batch, id_column, features)
    files = sorted(str(file) for file in folder.glob("*.gz"))
    if not files:
        return
    records = tf.data.TFRecordDataset(files, compression_type="GZIP", buffer_size=8 << 20)
    decoder = example_coder.ExamplesToRecordBatchDecoder()
    for serialized in records.batch(_ROWS_OF_A_BATCH).as_numpy_iterator():
        yield _decoded(decoder.DecodeBatch(serialized.tolist()), id_column, features)


def _decoded(
    batch: pa.RecordBatch, id_column: str, features: Sequence[Feature]
) -> tuple[pa.Array, dict[str, np.ndarray]]:
    ids = batch.column(id_column).flatten().cast(pa.string())
    return ids, {f.name: _dense(batch.column(f.name), batch.num_rows) for f in features}


def _dense(column: pa.Array, n_rows: int) -> np.ndarray:
    return column.flatten().to_numpy(zero_copy_only=False).reshape(n_rows, -1)


def rows_of_tables(graph: Path, features: Iterable[Feature]) -> dict[str, int]:
    """Returns the rows of the table of each feature.

    Args:
        graph: Transform's graph.
        features: The features that it makes.
    """
    output = tft.TFTransformOutput(str(graph))
    return {
        feature.name: feature.table_rows(
            output.vocabulary_size_by_name(feature.name) if feature.has_vocabulary else 0
        )
        for feature in features
    }


def names_of_tables(graph: Path, features: Iterable[Feature]) -> dict[str, list[str]]:
    """Returns the name of each row of the table of each feature whose tokens have names.

    Args:
        graph: Transform's graph.
        features: The features that it makes.
    """
    output = tft.TFTransformOutput(str(graph))
    names_of = {}
    for feature in features:
        known = output.vocabulary_by_name(feature.name) if feature.has_vocabulary else []
        names = feature.token_names([token.decode("utf-8", "replace") for token in known])
        if names is not None:
            names_of[feature.name] = names
    return names_of
