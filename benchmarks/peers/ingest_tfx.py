"""TFX's own way, in our environment.

CsvExampleGen and Transform, which gives each id its place in a vocabulary. Nothing is
deduplicated, split by time or sorted: less than what the others do.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "jax")

import tensorflow as tf
import tensorflow_transform as tft
from google.protobuf import text_format
from tensorflow_metadata.proto.v0 import schema_pb2
from tfx.components import CsvExampleGen, Transform
from tfx.components.schema_gen.import_schema_gen.component import ImportSchemaGen
from tfx.orchestration import metadata
from tfx.orchestration.local.local_dag_runner import LocalDagRunner
from tfx.orchestration.pipeline import Pipeline

_SCHEMA = """
feature { name: "user" type: BYTES }
feature { name: "item" type: BYTES }
feature { name: "timestamp" type: INT }
"""


def preprocessing_fn(inputs: Mapping[str, Any]) -> dict[str, tf.Tensor]:
    """Returns the rows of both ids, and the timestamp."""
    rows = {
        name: tft.compute_and_apply_vocabulary(inputs[name], vocab_filename=name)
        for name in ("user", "item")
    }
    return {**rows, "timestamp": inputs["timestamp"]}


def main(file: str, out: str, beam: list[str]) -> dict[str, Any]:
    """Runs the two components; returns the seconds of all."""
    folder = Path(out, "raw")
    folder.mkdir(parents=True)
    (folder / "events.csv").symlink_to(file)
    schema = Path(out, "schema.pbtxt")
    schema.write_text(text_format.MessageToString(text_format.Parse(_SCHEMA, schema_pb2.Schema())))
    examples = CsvExampleGen(input_base=str(folder))
    imported = ImportSchemaGen(schema_file=str(schema))
    transform = Transform(
        examples=examples.outputs["examples"],
        schema=imported.outputs["schema"],
        preprocessing_fn=f"{__name__}.preprocessing_fn",
        disable_statistics=True,
    )
    database = metadata.sqlite_metadata_connection_config(f"{out}/metadata.sqlite")
    pipeline = Pipeline(
        "ingest",
        f"{out}/root",
        components=[examples, imported, transform],
        metadata_connection_config=database,
        beam_pipeline_args=beam,
    )
    start = time.perf_counter()
    LocalDagRunner().run(pipeline)
    return {"seconds": time.perf_counter() - start, "digest": None}
