"""Exports a model that reads features of events, and asks its bundle in every form."""

import json
import sys
from pathlib import Path
from unittest import mock

import numpy as np
import pyarrow as pa
from checked_here import CheckedHere

from recsys.bundles.export import Sources, export
from recsys.config import ExportConfig, ExportStage
from recsys.serving.batch_file import batch_answer
from recsys.serving.page_api import RecommendRequest, answer
from recsys.serving.recommendations import load_bundle
from recsys.serving.requests import Limits
from recsys.serving.tf_serving import read_request

K = 10


def main(folder):
    asked = json.loads((folder / "asked.json").read_text())
    bundle = folder / "bundle"
    stage = ExportStage(name="events", export=ExportConfig(k=K))
    with mock.patch("recsys.bundles.export.ParityProcess", CheckedHere):
        export(stage, Sources(folder / "model", folder / "data"), bundle)
    loaded = load_bundle(bundle)
    graph = loaded.retriever._graph
    embedded = [embedding(graph, query, loaded) for query in asked]
    np.save(folder / "embedded.npy", np.concatenate(embedded))
    answers = {"answers": [in_every_form(loaded, query) for query in asked]}
    users = sorted({query["user"] for query in asked})
    stored = graph.ask("stored_history", {"user_id": np.array(users, object)})["item_ids"]
    answers["stored"] = {
        user: [id_.decode() for id_ in ids if id_] for user, ids in zip(users, stored, strict=True)
    }
    answers["new"] = {
        user: [item.id for item in loaded.recommend(user, k=K, exclude_seen=True).items]
        for user in users
    }
    (folder / "answers.json").write_text(json.dumps(answers))


def texts_of(query, loaded):
    """Returns the inputs of a query as a client of TensorFlow Serving sends them."""
    events = loaded.retriever.events
    ids, attributes = [item["item"] for item in query["history"]], {}
    for name in {name for item in query["history"] for name in item if name != "item"}:
        attributes[name] = [as_text(item.get(name)) for item in query["history"]]
    context = {name: [as_text(value)] for name, value in query["context"].items()}
    return {
        "history": ids,
        **events.of_context(context),
        **events.of_history(attributes, len(ids)),
    }


def as_text(value):
    if isinstance(value, list):
        return " ".join(map(str, value))
    return "" if value is None else str(value)


def embedding(graph, query, loaded):
    texts = {name: x or [""] for name, x in texts_of(query, loaded).items()}
    inputs = {
        name: np.array([texts.get(name, [""])], object) for name in graph.signatures["embed_query"]
    }
    inputs["user_id"] = np.array([query["user"]], object)
    return graph.ask("embed_query", inputs)["embedding"]


def in_every_form(loaded, query):
    """Returns the scores of a query by Python, the page, a file, and TensorFlow Serving's form."""
    user, history, context = query["user"], query["history"], query["context"]
    retriever = loaded.retriever
    found = loaded.recommend(user, k=K, history=history, context=context, exclude_seen=False)
    plain = {name: as_text(value) for name, value in context.items()}
    events = [{name: as_text(value) for name, value in item.items()} for item in history]
    wish = RecommendRequest(user=user, items=events, context=plain, k=K, exclude_seen=False)
    texts = {name: x or [""] for name, x in texts_of(query, loaded).items()}
    row = {name: texts.get(name, [""]) for name in retriever.signatures["recommend"]}
    row |= {"user_id": user, "exclude_seen": False}
    body = json.dumps({"signature_name": "recommend", "instances": [row]}).encode()
    question = read_request(body, retriever.signatures, Limits())
    scores = {
        "python": [item.score for item in found],
        "page": [item["score"] for item in answer(retriever, wish)["items"]],
        "rest": retriever.ask("recommend", question.inputs)["scores"][0].tolist(),
    }
    if not history:
        columns = {"user_id": [user], **{f"context_{name}": [x] for name, x in plain.items()}}
        retriever.excludes_seen = False
        batch = batch_answer(retriever, pa.RecordBatch.from_pydict(columns), K)
        scores["file"] = batch["scores"][0].as_py()
    return scores


main(Path(sys.argv[1]))
