"""What Transform made: token rows by id, and the tables that they belong to."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import tensorflow as tf
import tensorflow_transform as tft
from tfx_bsl.coders import example_coder

from recsys.data.features import Feature

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
