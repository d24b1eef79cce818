"""Raw files by the ingest and Transform to rows, and raw texts by the signatures to the same."""

import csv
import json
import re
import sys
import unicodedata
from pathlib import Path

import apache_beam as beam
import numpy as np
import pyarrow as pa
import tensorflow as tf
import tensorflow_transform as tft
import tensorflow_transform.beam as tft_beam
from tensorflow_transform.tf_metadata import dataset_metadata, schema_utils

from benchmarks.stores import write_store
from recsys.config import ItemsConfig, TrainConfig, TrainStage, TwoTowerConfig, UsersConfig
from recsys.data.entities import (
    example_columns,
    feature_settings,
    id_column,
    parse_entities,
    raw_columns,
)
from recsys.data.example_files import write_examples
from recsys.data.ingest.entity_rows import Transformed, write_entities
from recsys.data.ingest.tasks import LOCAL_RUNNER
from recsys.data.ingest.transform import preprocessing_fn
from recsys.data.sources.pieces import plan_pieces, read_piece
from recsys.data.store import InteractionStore, serving_histories
from recsys.data.vocabulary import Vocabulary
from recsys.models import ModelInputs, ModelSpec, TwoTower
from recsys.savedmodel.inputs import RawFeatures
from recsys.tasks.model_folder import load_model, save_model
from recsys.tasks.retrieval.serving.graph import Retrieval

KINDS = {pa.string(): tf.string, pa.float32(): tf.float32, pa.int64(): tf.int64}


def ingest(config, what):
    """Returns the rows that the ingest makes of a file; none may be rejected."""
    parsed = [
        parse_entities(batch, config)
        for piece in plan_pieces(config, what, raw_columns(config))
        for batch in read_piece(piece)
    ]
    assert not sum(letters.num_rows for _, letters in parsed), parsed
    return pa.Table.from_batches([rows for rows, _ in parsed]).drop_columns(["position"])


def transform(config, rows, folder):
    """Writes examples, Transform's examples and its graph; a column of no null is dense."""
    (folder / "examples" / "Split-all").mkdir(parents=True)
    with (folder / "examples" / "Split-all" / "all-00000.parquet").open("wb") as file:
        write_examples(rows, file)
    always = {field.name for field in rows.schema if not rows[field.name].null_count}
    spec = {}
    for field in rows.schema:
        is_list = pa.types.is_list(field.type)
        kind = KINDS[field.type.value_type if is_list else field.type]
        dense = field.name in always and not is_list
        spec[field.name] = tf.io.FixedLenFeature([], kind) if dense else tf.io.VarLenFeature(kind)

    def as_row(row):
        return {
            name: value
            if isinstance(spec[name], tf.io.FixedLenFeature) or isinstance(value, list)
            else [] if value is None else [value]
            for name, value in row.items()
        }  # fmt: skip

    custom = feature_settings(config)
    metadata = dataset_metadata.DatasetMetadata(schema_utils.schema_from_feature_spec(spec))
    with (
        tft_beam.Context(temp_dir=str(folder / "scratch")),
        beam.Pipeline(LOCAL_RUNNER) as pipeline,
    ):
        data = pipeline | beam.Create([as_row(row) for row in rows.to_pylist()])
        (tokens, made), function = (data, metadata) | tft_beam.AnalyzeAndTransformDataset(
            lambda inputs: preprocessing_fn(inputs, custom)
        )
        coder = tft.coders.ExampleProtoCoder(made.schema)
        prefix = folder / "tokens" / "Split-all" / "all"
        _ = (
            tokens
            | beam.Map(coder.encode)
            | beam.io.WriteToTFRecord(str(prefix), file_name_suffix=".gz")
        )
        _ = function | tft_beam.WriteTransformFn(str(folder / "graph"))
    return Transformed(folder / "tokens", folder / "graph")


def write_data(folder, items, users):
    data, ids = folder / "data", {}
    (data / "vocabulary").mkdir(parents=True)
    made = {}
    for what, config in (("items", items), ("users", users)):
        rows = ingest(config, what)
        made[what] = transform(config, rows, folder / what)
        ids[what] = rows[id_column(config)].to_pylist()
        vocabulary = Vocabulary(pa.array(ids[what]), np.ones(len(ids[what])))
        vocabulary.save(data / "vocabulary" / f"{what}.parquet")
    write_entities(data, items, users, folder / "items" / "examples", made)
    n = len(ids["users"])
    events = {"user_id": ids["users"], "user_row": np.arange(1, n + 1, dtype=np.int32)}
    events |= {"item_row": np.ones(n, np.int32), "timestamp": np.zeros(n, np.int64)}
    table = pa.table(events)
    write_store(data / "store", 1, table, table.slice(0, 0))
    return ids


def write_model(folder, data):
    inputs = ModelInputs.open(data)
    config = TwoTowerConfig(dim=8, feature_dim=6, history=2, widths=(8,))
    spec = ModelSpec.for_data(config, inputs.users.n_rows, inputs.catalogue, inputs.user_features)
    model = TwoTower(spec)
    model.build()
    rng = np.random.default_rng(0)
    for variable in model.weights:
        if "steps" not in variable.path:
            variable.assign(rng.normal(0, 0.5, variable.shape).astype(np.float32))
    save_model(folder, model, TrainStage(model=config, train=TrainConfig()), data)


def as_a_client_sends(config, file):
    """Returns ids and raw columns: texts as in the file, in NFC, lists split."""
    separators = {f.column: f.separator for f in config.features if f.kind == "categories"}
    vectors = {f.column for f in config.features if f.kind == "vector"}
    columns = example_columns(config)
    raw = {columns[f.name]: f.column for f in config.features if f.column is not None}
    if getattr(config.columns, "title", None):
        raw["title"] = config.columns.title
    with file.open(newline="", encoding="utf-8") as opened:
        rows = [
            {name: unicodedata.normalize("NFC", text) for name, text in row.items()}
            for row in csv.DictReader(opened)
        ]
    id_ = config.columns.item if isinstance(config, ItemsConfig) else config.columns.user
    values = {}
    for name, column in raw.items():
        mark = separators.get(column)
        parts = [row[column].split(mark) if mark else [row[column]] for row in rows]
        if column in vectors:
            parts = [re.split(r"[,; ]+", row[column].strip("[]()")) for row in rows]
        width = max(map(len, parts))
        padded = [[*part, *[""] * (width - len(part))] for part in parts]
        values[name] = tf.constant(padded, tf.string)
    return [row[id_].strip() for row in rows], values


def main(folder):
    described = json.loads((folder / "configs.json").read_text())
    items = ItemsConfig.model_validate_json(json.dumps(described["items"]))
    users = UsersConfig.model_validate_json(json.dumps(described["users"]))
    ids = write_data(folder, items, users)
    write_model(folder / "model", folder / "data")
    saved = load_model(folder / "model")
    raw = {
        side: RawFeatures(
            folder / f"{side}s" / "graph",
            f"{side}_id",
            {f.name: f.floats or f.width for f in saved.model.spec.of_side(side)},
        )
        for side in ("item", "user")
    }
    histories = serving_histories(InteractionStore.open(folder / "data" / "store"))
    everything = saved.inputs.candidate(np.arange(saved.items.n_rows))
    candidates = saved.model.embed_candidate(everything).numpy()
    retrieval = Retrieval(saved, candidates, histories, raw["item"], raw["user"], 3)
    rows, found = {}, {}
    for side, config in (("item", items), ("user", users)):
        asked, columns = as_a_client_sends(config, folder / f"{side}s.csv")
        assert asked == ids[f"{side}s"], asked
        assert set(columns) == set(raw[side].columns)
        n = len(asked)
        features = saved.catalogue.features if side == "item" else saved.inputs.user_features
        nothing = {f.name: tf.zeros([n, f.bags.shape[1]], f.bags.dtype) for f in features}
        served = raw[side].or_stored(tf.constant(asked), columns, nothing)
        rows[side] = {
            f.name: {
                "trained": np.asarray(f.bags[1:]).tolist(),
                "served": served[f.name].numpy().tolist(),
                "tokens": list(f.tokens) if f.tokens is not None else None,
            }
            for f in features
        }
        found[side] = asked, columns
    # The features of each are given to a stranger, and what is stored is never read.
    asked, columns = found["item"]
    strangers = tf.constant([f"not {id_}" for id_ in asked])
    answer = tf.function(retrieval.embed_candidate)(item_id=strangers, **columns)
    served = answer["embedding"].numpy()
    inputs = saved.inputs.candidate(np.arange(1, len(asked) + 1))
    inputs["id_row"] = np.zeros(len(asked), np.int32)
    trained = saved.model.embed_candidate(inputs).numpy()
    differences = {"item": float(np.abs(served - trained).max())}
    asked, columns = found["user"]
    n = len(asked)
    given = tf.constant([["?"]] * n)
    answer = tf.function(retrieval.embed_query)(
        user_id=tf.constant(asked), history=given, **columns
    )
    rows_of_users = np.arange(1, n + 1, dtype=np.int32)
    inputs = saved.inputs.query(rows_of_users, np.zeros((n, 2), np.int32), saved.model.config)
    trained = saved.model.embed_query(inputs).numpy()
    differences["user"] = float(np.abs(answer["embedding"].numpy() - trained).max())
    refused = {}
    # One graph of each side refuses, as a bundle's would.
    graphs = {side: tf.function(features.or_stored) for side, features in raw.items()}
    for side, name in (("item", "price"), ("user", "age"), ("user", "score")):
        asked, columns = found[side]
        for text in ("inf", "-Infinity", "nan", "1e39", "0x10", "cheap"):
            given = columns[name].numpy()
            given[3, 0] = text
            wrong = {**columns, name: tf.constant(given, tf.string)}
            refused[f"{name} {text}"] = refusal(graphs[side], asked, wrong)
    asked, columns = found["item"]
    for text in ("1|2", "1|2|3|4"):
        cover = tf.constant([text.split("|")] * len(asked))
        stored = {"cover": tf.zeros([len(asked), 4])}
        refused[f"cover {text}"] = refusal(
            graphs["item"], asked, {**columns, "cover": cover}, stored
        )
    told = {"rows": rows, "differences": differences, "refused": refused}
    (folder / "skew.json").write_text(json.dumps(told))


def refusal(ask, asked, columns, stored=None):
    """Returns what a graph says of wrong columns."""
    try:
        ask(tf.constant(asked), columns, stored or {})
    except tf.errors.InvalidArgumentError as error:
        return error.message
    return None


main(Path(sys.argv[1]))
