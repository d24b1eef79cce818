"""The Transform step of features: raw columns of items or users → token rows.

Transform refers to `preprocessing_fn` by its dotted path, so nothing is copied or packaged.
`transform` does the same as the pipeline's Transform without TFX, with the same graph.
"""

import tempfile
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

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

from recsys import registry
from recsys.data.config import read_feature
from recsys.data.entities import EntityConfig, feature_settings, id_column
from recsys.data.example_files import example_files
from recsys.data.features import CrossFeature, Feature
from recsys.data.ingest.tasks import with_local_runner

PREPROCESSING_FN = "recsys.data.ingest.transform.preprocessing_fn"

_BATCH_ROWS = 1 << 16
# Locally, 3 million rows of 20 MB take 20 s and 600 MiB of the step's process.
_LOCAL_BYTES = 8 << 20


def preprocessing_fn(
    inputs: Mapping[str, Any], custom_config: Mapping[str, Any]
) -> dict[str, tf.Tensor]:
    """Returns the id and, for each feature, its token rows `[batch, width]` int64 or numbers.

    Args:
        inputs: Raw columns: text, float32 for numbers, int64 for dates [seconds since
            1970, UTC]. Empty text, NaN and the lowest int64 are missing values.
        custom_config: `id`: name of the id column; `features`: the result of
            `recsys.data.entities.feature_settings`.
    """
    name = custom_config["id"]
    outputs = {name: _ragged(inputs[name])[:, :1].to_tensor("", shape=[None, 1])[:, 0]}
    features = list[tuple[Feature, str | None]]()
    for part in custom_config["features"]:
        registry.load_plugins(part.get("modules", ()))
        features.append((read_feature(part["feature"]), part["column"]))
    crosses = [feature for feature, _ in features if isinstance(feature, CrossFeature)]
    crossed = {name for cross in crosses for name in cross.of}
    codes: dict[str, tf.RaggedTensor] = {}
    for feature, column in features:
        if column is None:
            continue
        values = _ragged(inputs[column])
        if feature.floats:
            outputs[feature.name] = feature.numbers(values)
            continue
        bags = tf.cast(feature.tokens(values), tf.int64)
        outputs[feature.name] = bags.to_tensor(0, shape=[None, feature.width])
        if feature.name in crossed:
            codes[feature.name] = feature.codes(values, bags)
    for cross in crosses:
        pairs = cross.tokens(tf.concat([codes[name][:, :1] for name in cross.of], axis=1))
        outputs[cross.name] = pairs.to_tensor(0, shape=[None, 1])
    return outputs


def _ragged(column: tf.Tensor | tf.SparseTensor | tf.RaggedTensor) -> tf.RaggedTensor:
    """Returns the values of each row of a column, for any representation in the schema."""
    if isinstance(column, tf.RaggedTensor):
        return column
    if isinstance(column, tf.SparseTensor):
        return tf.RaggedTensor.from_sparse(column)
    # A committed schema may fix the number of values per row; without a shape it is 1.
    width = column.shape[1:].num_elements()
    return tf.RaggedTensor.from_tensor(tf.reshape(column, [-1, width]))


# --- without TFX


class Side(NamedTuple):
    """The features of items or users, and the folders of their examples and of the output.

    Attributes:
        config: The features.
        examples: Folder of a split that `ingest_entities` wrote.
        tokens: Folder to write, with a folder of the split: Parquet with the id and the token
            rows of each feature.
        graph: Folder to write the graph to, for `tft.TFTransformOutput`.
    """

    config: EntityConfig
    examples: Path
    tokens: Path
    graph: Path


def transform(sides: Sequence[Side], beam_args: Sequence[str]) -> None:
    """Writes the token rows of items and users, and the graphs that make them.

    An engine takes a quarter of a minute for TFT's many tasks, so small sides are made locally, in
    one job. Large ones have a job each: TFT can't trace two graphs in threads of one process.

    Args:
        sides: What to transform.
        beam_args: Options of the Beam pipelines.
    """
    n_bytes = sum(Path(file).stat().st_size for s in sides for file in example_files(s.examples))
    if n_bytes <= _LOCAL_BYTES:
        _run_job(sides, with_local_runner(()))
    else:
        for side in sides:
            _run_job([side], beam_args)


def _run_job(sides: Sequence[Side], beam_args: Sequence[str]) -> None:
    with (
        # Beside the output, which all workers can access.
        tempfile.TemporaryDirectory(prefix=".transform-", dir=sides[0].tokens.parent) as scratch,
        beam.Pipeline(options=PipelineOptions(list(beam_args))) as pipeline,
        tft_beam.Context(temp_dir=scratch),
    ):
        for side in sides:
            _ = pipeline | id_column(side.config) >> _Transform(side)


class _Transform(beam.PTransform):
    """The part of the job for one side."""

    def __init__(self, side: Side) -> None:
        super().__init__()
        self._side = side

    def expand(self, pbegin: beam.pvalue.PBegin) -> beam.PCollection:
        config, examples, tokens, graph = self._side
        settings, files = feature_settings(config), example_files(examples)
        schema = pq.read_schema(files[0])
        columns = dict.fromkeys(part["column"] for part in settings["features"])
        names = [settings["id"], *(name for name in columns if name is not None)]
        spec = {name: tf.io.VarLenFeature(_type(schema.field(name).type)) for name in names}
        representations = tensor_representation_util.InferTensorRepresentationsFromSchema(
            schema_utils.schema_from_feature_spec(spec)
        )
        adapter = tensor_adapter.TensorAdapterConfig(
            pa.schema([schema.field(name).remove_metadata() for name in names]), representations
        )
        out = tokens / examples.name
        out.mkdir(parents=True)
        rows = pbegin | beam.Create(files) | beam.Reshuffle() | beam.FlatMap(_batches, names)
        (made, _), function = (rows, adapter) | tft_beam.AnalyzeAndTransformDataset(
            lambda inputs: preprocessing_fn(inputs, settings), output_record_batches=True
        )
        _ = function | tft_beam.WriteTransformFn(str(graph))
        return made | "WriteTokens" >> beam.Map(_write, out)


def _type(column: pa.DataType) -> tf.DType:
    if pa.types.is_floating(column.value_type):
        return tf.float32
    return tf.int64 if pa.types.is_integer(column.value_type) else tf.string


def _batches(file: str, names: list[str]) -> Iterator[pa.RecordBatch]:
    for batch in pq.ParquetFile(file).iter_batches(_BATCH_ROWS >> 2, columns=names):
        yield batch.select(names).replace_schema_metadata(None)


def _write(made: tuple[pa.RecordBatch, Any], folder: Path) -> str:
    file = folder / f"tokens-{uuid.uuid4().hex}.parquet"
    pq.write_table(pa.Table.from_batches([made[0]]), file)
    return file.name


def read_token_rows(
    folder: Path, id_column: str, features: Sequence[Feature]
) -> Iterator[tuple[pa.Array, dict[str, np.ndarray]]]:
    """Yields ids `[n]`, and token rows `[n, width]` int64 or numbers of each feature.

    Args:
        folder: A split of Transform's examples, or the tokens that `transform` wrote.
        id_column: Name of the id column.
        features: The features to read.
    """
    for file in sorted(folder.glob("*.parquet")):
        for batch in pq.ParquetFile(file).iter_batches(_BATCH_ROWS):
            yield _decoded(batch, id_column, features)
    files = sorted(str(file) for file in folder.glob("*.gz"))
    if not files:
        return
    records = tf.data.TFRecordDataset(files, compression_type="GZIP", buffer_size=8 << 20)
    decoder = example_coder.ExamplesToRecordBatchDecoder()
    for serialized in records.batch(_BATCH_ROWS).as_numpy_iterator():
        yield _decoded(decoder.DecodeBatch(serialized.tolist()), id_column, features)


def _decoded(
    batch: pa.RecordBatch, id_column: str, features: Sequence[Feature]
) -> tuple[pa.Array, dict[str, np.ndarray]]:
    ids = batch.column(id_column).flatten().cast(pa.string())
    return ids, {f.name: _dense(batch.column(f.name), batch.num_rows) for f in features}


def _dense(column: pa.Array, n_rows: int) -> np.ndarray:
    return column.flatten().to_numpy(zero_copy_only=False).reshape(n_rows, -1)


def read_vocabularies(graph: Path, features: Iterable[Feature]) -> dict[str, list[str]]:
    """Returns the known tokens of each feature in order; empty without a vocabulary.

    Args:
        graph: Folder of Transform's graph.
        features: The features in the graph.
    """
    output = tft.TFTransformOutput(str(graph))
    tokens = {
        f.name: output.vocabulary_by_name(f.name) if f.has_vocabulary else () for f in features
    }
    return {name: [t.decode("utf-8", "replace") for t in known] for name, known in tokens.items()}
