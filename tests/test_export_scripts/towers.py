"""Loads models with Keras on TensorFlow, computes with them, and exports them."""

import sys
from pathlib import Path
from unittest import mock

import numpy as np
import pyarrow as pa
import tensorflow as tf
from checked_here import CheckedHere

from recsys.bundles.export import Sources, export
from recsys.config import ExportConfig, ExportStage
from recsys.models import load_model
from recsys.serving.batch_file import as_batch
from recsys.serving.retriever import Retriever


def main(folder, *kinds):
    with mock.patch("recsys.bundles.export.ParityProcess", CheckedHere):
        for kind in kinds:
            export_and_ask(folder, folder / f"model-{kind}")


def export_and_ask(folder, model):
    stage = ExportStage(name="tiny", export=ExportConfig(k=100))
    saved = load_model(model)
    probe = np.load(model / "probe.npz")
    query = saved.inputs.query(probe["user_row"], probe["history"], saved.model.config)
    candidate = saved.inputs.candidate(np.arange(saved.inputs.catalogue.n_rows))
    bundle = folder / f"bundle-{model.name}"
    exported = export(stage, Sources(model, folder / "data"), bundle)
    ask = tf.saved_model.load(str(bundle)).signatures["recommend"]
    answer = ask(
        user_id=tf.constant(["u3", "nobody"]),
        history=tf.constant([["i4", "i5"], ["", ""]]),
        exclude_seen=tf.constant([False, False]),
    )
    served = asked_of_retriever(bundle) if saved.model.spec.config.item_bias else {}
    np.savez(
        folder / f"found-{model.name}.npz",
        query=saved.model.embed_query(query).numpy(),
        candidate=saved.model.embed_candidate(candidate).numpy(),
        checked=exported["checked_queries"],
        source=answer["source"].numpy().astype(str),
        ids=answer["candidate_ids"].numpy().astype(str),
        scores=answer["scores"].numpy(),
        **served,
    )


def asked_of_retriever(bundle):
    """What the server and a file of users would get for the same two users."""
    retriever = Retriever.open(bundle)
    inputs = retriever.query_inputs(["u3", "nobody"], exclude_seen=False)
    inputs["history"] = np.array([[b"i4", b"i5"], [b"", b""]], object)
    answer = retriever.ask("recommend", inputs)
    k = answer["candidate_ids"].shape[1]
    ranked = retriever.rank(inputs, k, is_batch=True)
    batch = as_batch(pa.array(["u3", "nobody"]), ranked, retriever.catalogue.items.ids_of_rows)
    row = retriever.catalogue.item_rows(["i3"])[0]
    return {
        "served_ids": answer["candidate_ids"].astype(str),
        "served_scores": answer["scores"],
        "file_ids": np.array([row.as_py() for row in batch["item_ids"]]),
        "similar": np.array([item["id"] for item in retriever.catalogue.similar(row, 5)]),
    }


main(Path(sys.argv[1]), *sys.argv[2:])
