"""Makes a transform graph of `items.json` with TFT, and what TFT itself reads from it."""

import json
import sys
from pathlib import Path

import apache_beam as beam
import numpy as np
import tensorflow as tf
import tensorflow_transform as tft
import tensorflow_transform.beam as tft_beam
from tensorflow_transform.tf_metadata import dataset_metadata, schema_utils

from components.transform_items import preprocessing_fn

FEATURES = [
    {"name": "genres", "column": "genres", "kind": "categories", "max_tokens": 4},
    {"name": "words", "column": "title", "kind": "words", "max_tokens": 4},
]


def transform(inputs):
    parts = [{"column": feature["column"], "feature": feature} for feature in FEATURES]
    return preprocessing_fn(inputs, {"features": parts})


# TensorFlow objects live in a function: those of a module die while the interpreter
# ends, and take the process with them.
def main(folder):
    items = json.loads((folder / "items.json").read_text())
    # One column of each kind that a schema can give: always there, or maybe.
    always, maybe = tf.io.FixedLenFeature([], tf.string), tf.io.VarLenFeature(tf.string)
    raw = {"item_id": always, "title": always, "genres": maybe}
    metadata = dataset_metadata.DatasetMetadata(schema_utils.schema_from_feature_spec(raw))
    with tft_beam.Context(temp_dir=str(folder / "scratch")), beam.Pipeline() as pipeline:
        rows = pipeline | beam.Create([{**item, "genres": [item["genres"]]} for item in items])
        (_, _), function = (rows, metadata) | tft_beam.AnalyzeAndTransformDataset(transform)
        _ = function | tft_beam.WriteTransformFn(str(folder / "transform"))

    columns = {name: tf.constant([item[name] for item in items]) for name in raw}
    columns["genres"] = tf.sparse.from_dense(columns["genres"][:, None])
    layer = tft.TFTransformOutput(str(folder / "transform")).transform_features_layer()
    bags = layer(columns)
    np.savez(folder / "bags.npz", genres=bags["genres"].numpy(), words=bags["words"].numpy())


main(Path(sys.argv[1]))
