"""Exports a model whose ids share rows, queries it, and exports with planted faults."""

import json
import sys
from pathlib import Path
from unittest import mock

import tensorflow as tf
from checked_here import CheckedHere

from recsys.bundles import export as exporter
from recsys.bundles.export import Sources, export
from recsys.config import ExportConfig, ExportStage
from recsys.errors import RecsysError
from recsys.savedmodel import inputs as graph_inputs


def other_rows(ids, n_hash_rows):
    right = graph_hash_rows(ids, n_hash_rows)
    return tf.where(right > 0, 1 + right % n_hash_rows, 0)


graph_hash_rows = graph_inputs.hash_rows


def main(folder):
    stage = ExportStage(name="tiny", export=ExportConfig(k=100))
    sources = Sources(folder / "model", folder / "data")
    with mock.patch.object(exporter, "ParityProcess", CheckedHere):
        result = {"exported": export(stage, sources, folder / "bundle")}
    bundle = tf.saved_model.load(str(folder / "bundle"))
    ids = json.loads((folder / "ids.json").read_text())
    users, items = tf.constant(ids["users"]), tf.constant(ids["items"])
    ask = bundle.signatures
    given = tf.constant([["no such item"]] * len(ids["users"]))
    # `history` is unknown and given: the query is the user's row and one shared row.
    query = ask["embed_query"](user_id=users, history=given)["embedding"]
    result["query"] = query.numpy().tolist()
    result["candidate"] = ask["embed_candidate"](item_id=items)["embedding"].numpy().tolist()
    answer = ask["recommend"](
        user_id=users, history=given, exclude_seen=tf.fill([len(ids["users"])], False)
    )
    result["answers"] = [[id_.decode() for id_ in row] for row in answer["candidate_ids"].numpy()]
    try:
        with mock.patch.object(graph_inputs, "hash_rows", other_rows):
            export(stage, sources, folder / "faulty")
    except RecsysError as error:
        result["refused"] = error.code
    (folder / "result.json").write_text(json.dumps(result))


main(Path(sys.argv[1]))
