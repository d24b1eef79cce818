"""Makes transform graphs of items and users with TFT, and what TFT itself reads from them."""

import json
import sys
from pathlib import Path

import apache_beam as beam
import numpy as np
import tensorflow as tf
import tensorflow_transform as tft
import tensorflow_transform.beam as tft_beam
from tensorflow_transform.tf_metadata import dataset_metadata, schema_utils

from recsys.config import read_feature
from recsys.data.ingest.tasks import LOCAL_RUNNER
from recsys.data.ingest.transform import preprocessing_fn, read_vocabularies

ALWAYS = {"item_id": tf.string, "title": tf.string, "user_id": tf.string, "age": tf.float32}
"""Columns that a schema may have found in every row; the others may be missing."""
MAYBE = {"genres": tf.string, "plan": tf.string, "joined": tf.int64}
FEATURES = {
    "item_id": [
        {"name": "genres", "column": "genres", "kind": "categories", "max_tokens": 4},
        {"name": "words", "column": "title", "kind": "words", "max_tokens": 4},
    ],
    "user_id": [
        {"name": "plan", "column": "plan", "kind": "category", "hash_buckets": 5},
        {"name": "age", "column": "age", "kind": "number", "buckets": 3},
        {"name": "joined", "column": "joined", "kind": "date", "buckets": 2},
    ],
}


# TensorFlow objects are local to a function: module-level ones are freed while the interpreter
# exits, which crashes the process.
def make(rows, id_column, features, scratch, out, bags_file):
    spec = {
        name: tf.io.FixedLenFeature([], ALWAYS[name])
        if name in ALWAYS
        else tf.io.VarLenFeature(MAYBE[name])
        for name in rows[0]
    }
    parts = [{"column": feature["column"], "feature": feature} for feature in features]
    custom = {"id": id_column, "features": parts}
    metadata = dataset_metadata.DatasetMetadata(schema_utils.schema_from_feature_spec(spec))
    with tft_beam.Context(temp_dir=str(scratch)), beam.Pipeline(LOCAL_RUNNER) as pipeline:
        plain = pipeline | beam.Create(rows)
        (_, _), function = (plain, metadata) | tft_beam.AnalyzeAndTransformDataset(
            lambda inputs: preprocessing_fn(inputs, custom)
        )
        _ = function | tft_beam.WriteTransformFn(str(out))
    columns = {}
    for name, kind in spec.items():
        if name in ALWAYS:
            columns[name] = tf.constant([row[name] for row in rows], kind.dtype)
        else:
            columns[name] = tf.ragged.constant([row[name] for row in rows], kind.dtype).to_sparse()
    bags = tft.TFTransformOutput(str(out)).transform_features_layer()(columns)
    names = [feature["name"] for feature in features]
    np.savez(bags_file, **{name: bags[name].numpy() for name in names})
    parts = [read_feature(feature) for feature in features]
    known = read_vocabularies(out, parts)
    tables = {part.name: part.table_rows(len(known[part.name])) for part in parts}
    bags_file.with_suffix(".json").write_text(json.dumps(tables))


def main(folder):
    for side, id_column in (("item", "item_id"), ("user", "user_id")):
        rows = json.loads((folder / f"{side}s.json").read_text())
        out = folder / f"{side}_transform"
        bags = folder / f"{side}_bags.npz"
        make(rows, id_column, FEATURES[id_column], folder / f"{side}_scratch", out, bags)


main(Path(sys.argv[1]))
