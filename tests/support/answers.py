"""Saves the graph of a model in several forms, and asks each in raw ids; no export's gates."""

import json
import shutil
import sys
from pathlib import Path
from unittest import mock

import numpy as np
import pyarrow as pa
import tensorflow as tf

from recsys.bundles.bundle import write_manifest
from recsys.data.catalogue import write_catalogue
from recsys.data.store import InteractionStore, serving_histories
from recsys.savedmodel import variables
from recsys.serving.batch_file import as_batch
from recsys.serving.recommendations import load_bundle
from recsys.tasks.model_folder import load_model
from recsys.tasks.retrieval.serving import candidates
from recsys.tasks.retrieval.serving.graph import Retrieval

FORMS = {
    "whole": ("float32", 1000, 1000),
    "looped": ("float32", 1, 7),
    "int8": ("int8", 1, 16),
    "apart": ("float32", 1, 16),
}
"""Kind of the item embeddings, and rows that are scored at once and in a loop."""
SAVED = ("whole", "apart")


def make(folder, form, k):
    """Returns the signatures of a graph; some are saved and loaded."""
    kind, one_block, block = FORMS[form]
    saved = load_model(folder / "model")
    embeddings = np.load(folder / "model" / "candidates.npy", mmap_mode="r")
    if form == "apart":
        embeddings = None
    histories = serving_histories(InteractionStore.open(folder / "data" / "store"))
    sizes = {"ONE_BLOCK_ROWS": one_block, "BLOCK_ROWS": block, "MOST_SCORES": 60 * block}
    with mock.patch.multiple(candidates, **sizes):
        # The form in a loop is of a config that includes repeats.
        options = {"excludes_seen": form != "looped"}
        retrieval = Retrieval(saved, embeddings, histories, None, None, k, kind, **options)
        signatures = retrieval.signatures()
    if form not in SAVED:
        return retrieval, signatures
    tf.saved_model.save(retrieval, str(folder / form), signatures=signatures)
    variables.fill(folder / form, retrieval.variables)
    loaded = tf.saved_model.load(str(folder / form))
    return loaded, loaded.signatures


def batches(folder, form, asked):
    """Makes a bundle of a saved form, and returns what batches are answered, by filter."""
    bundle, model = folder / form, folder / "model"
    shutil.copytree(model / "vocabulary", bundle / "vocabulary")
    shutil.copy(model / "catalogue" / "titles.parquet", bundle)
    shutil.copy(model / "candidates.npy", bundle / "item_embeddings.npy")
    write_catalogue(bundle, load_model(model).catalogue)
    users = asked["questions"]["recommend"]["user_id"]
    write_manifest(bundle, {"k": asked["k"], "repeats": "include"})
    with_repeats = answered(load_bundle(bundle), users, asked["k"], [], {})
    write_manifest(bundle, {"k": asked["k"]})
    loaded = load_bundle(bundle)
    return with_repeats, [
        answered(loaded, users, asked["k"], exclude, only or {})
        for exclude, only in asked["batches"]
    ]


def answered(loaded, users, k, exclude, filters):
    """Returns the answers of a batch in the columns of a file of them."""
    retriever = loaded.retriever
    input_of = {feature: name for name, feature in retriever.filters.feature_of.items()}
    only = {input_of[feature]: tokens for feature, tokens in filters.items()}
    inputs = retriever.query_inputs(users, exclude=exclude, only=only)
    ranked = retriever.rank(inputs, k, is_batch=True)
    return as_batch(pa.array(users), ranked, retriever.catalogue.items.ids_of_rows).to_pydict()


def examples(signatures, users):
    """Returns what tf.Examples are answered that name a user and nothing else."""
    made = []
    for user in users:
        example = tf.train.Example()
        example.features.feature["user_id"].bytes_list.value.append(user.encode())
        made.append(example.SerializeToString())
    ids = signatures["serving_default"](examples=tf.constant(made))["candidate_ids"]
    return plain(ids.numpy().tolist())


def texts(rows):
    width = max([len(row) for row in rows], default=0)
    values = np.asarray([[*row, *[""] * (width + 1 - len(row))] for row in rows], object)
    return tf.constant(values.reshape(len(rows), width + 1), tf.string)


def plain(value):
    if isinstance(value, list):
        return [plain(one) for one in value]
    return value.decode() if isinstance(value, bytes) else value


def ask(function, questions):
    inputs = {}
    for name, values in questions.items():
        if name in ("user_id", "item_id"):
            inputs[name] = tf.constant(values, tf.string, [len(values)])
        elif name == "exclude_seen":
            inputs[name] = tf.constant(values, tf.bool, [len(values)])
        else:
            inputs[name] = texts(values)
    answer = function(**inputs)
    return {name: plain(value.numpy().tolist()) for name, value in answer.items()}


def main(folder):
    asked = json.loads((folder / "questions.json").read_text())
    answers = {}
    for form in FORMS:
        keep, signatures = make(folder, form, asked["k"])
        answers[form] = {
            name: ask(signatures[name.split(":")[0]], questions)
            for name, questions in asked["questions"].items()
            if name.split(":")[0] in signatures
        }
        answers[form]["signatures"] = sorted(signatures)
        if form == "apart":
            continue
        inputs = signatures["recommend_filtered"].structured_input_signature[1]
        answers[form]["inputs"] = sorted(inputs)
        users = asked["questions"]["recommend"]["user_id"]
        answers[form]["examples"] = examples(signatures, users)
        del keep  # It holds the variables.
    for form in SAVED:
        repeats, batch = batches(folder, form, asked)
        shapes = [
            shape
            for _, shape in tf.train.list_variables(str(folder / form / "variables" / "variables"))
        ]
        answers[form] |= {"with_repeats": repeats, "batches": batch, "shapes": shapes}
    (folder / "answers.json").write_text(json.dumps(answers))


main(Path(sys.argv[1]))
