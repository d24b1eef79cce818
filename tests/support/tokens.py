"""Makes tokens with TFT of the rows in `world.json`, and of new rows with the saved graph."""

import json
import sys
from pathlib import Path

import apache_beam as beam
import tensorflow as tf
import tensorflow_transform as tft
import tensorflow_transform.beam as tft_beam
from tensorflow_transform.tf_metadata import dataset_metadata, schema_utils

from recsys.config import read_feature
from recsys.data.ingest.tasks import LOCAL_RUNNER
from recsys.data.ingest.transform import (
    preprocessing_fn,
    read_token_rows,
    read_vocabularies,
)

TYPES = {"text": tf.string, "float": tf.float32, "int": tf.int64}


# TensorFlow objects are local to a function: module-level ones are freed while the interpreter
# exits, which crashes the process.
def main(folder):
    world = json.loads((folder / "world.json").read_text())
    spec = {
        name: tf.io.FixedLenFeature(world["shapes"][name], TYPES[type_])
        if name in world["shapes"]
        else tf.io.VarLenFeature(TYPES[type_])
        for name, type_ in world["columns"].items()
    }
    metadata = dataset_metadata.DatasetMetadata(schema_utils.schema_from_feature_spec(spec))
    parts = [{"column": f.get("column"), "feature": f} for f in world["features"]]
    custom = {"id": "user_id", "features": parts}
    features = [read_feature(one) for one in world["features"]]
    out = folder / "tokens"
    with (
        tft_beam.Context(temp_dir=str(folder / "scratch")),
        beam.Pipeline(LOCAL_RUNNER) as pipeline,
    ):
        rows = pipeline | beam.Create([as_row(row, world["shapes"]) for row in world["rows"]])
        (tokens, made), function = (rows, metadata) | tft_beam.AnalyzeAndTransformDataset(
            lambda inputs: preprocessing_fn(inputs, custom)
        )
        coder = tft.coders.ExampleProtoCoder(made.schema)
        _ = (
            tokens
            | beam.Map(coder.encode)
            | beam.io.WriteToTFRecord(str(out / "all"), file_name_suffix=".gz")
        )
        _ = function | tft_beam.WriteTransformFn(str(folder / "graph"))
    found = [
        [ids.to_pylist(), {name: bag.tolist() for name, bag in bags.items()}]
        for ids, bags in read_token_rows(out, "user_id", features)
    ]
    assets = folder / "graph" / "transform_fn" / "assets"
    known = read_vocabularies(folder / "graph", features)
    names = {f.name: f.token_names(known[f.name]) for f in features}
    result = {
        "tokens": found,
        "rows": {f.name: f.table_rows(len(known[f.name])) for f in features},
        "names": {name: tokens for name, tokens in names.items() if tokens is not None},
        "vocabularies": {p.name: p.read_text().splitlines() for p in assets.iterdir()},
        "new": new_tokens(folder / "graph", spec, world["new"]),
    }
    (folder / "result.json").write_text(json.dumps(result))


def as_row(row, shapes):
    return {name: value[0] if shapes.get(name) == [] else value for name, value in row.items()}


def new_tokens(graph, spec, rows):
    """Returns the tokens of rows that no analysis saw."""
    columns = {}
    for name, kind in spec.items():
        values = tf.ragged.constant([row[name] for row in rows], kind.dtype)
        is_fixed = isinstance(kind, tf.io.FixedLenFeature)
        columns[name] = tf.reshape(values, [-1, *kind.shape]) if is_fixed else values.to_sparse()
    layer = tft.TFTransformOutput(str(graph)).transform_features_layer()
    return {name: bag.numpy().tolist() for name, bag in layer(columns).items() if name != "user_id"}


main(Path(sys.argv[1]))
