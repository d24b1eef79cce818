"""Loads models with Keras on TensorFlow, computes with them, and exports some of them."""

import sys
from pathlib import Path
from unittest import mock

import numpy as np
import pyarrow as pa
import tensorflow as tf
from checked_here import CheckedHere

from recsys.bundles.export import Sources, export
from recsys.config import ExportConfig, ExportStage
from recsys.errors import UsageError
from recsys.serving.batch_file import as_batch
from recsys.serving.recommendations import load_bundle
from recsys.serving.served_model import Retriever
from recsys.tasks.model_folder import load_model


def main(folder, kinds, exported):
    with mock.patch("recsys.bundles.export.ParityProcess", CheckedHere):
        for kind in kinds.split():
            saved = load_model(folder / f"model-{kind}")
            found = computed(saved, np.load(folder / f"model-{kind}" / "probe.npz"))
            if kind in exported.split():
                found |= export_and_ask(folder, folder / f"model-{kind}", saved)
            np.savez(folder / f"found-model-{kind}.npz", **found)


def computed(saved, probe):
    query = saved.inputs.query(probe["user_row"], probe["history"], saved.model.config, probe)
    candidate = saved.inputs.candidate(np.arange(saved.inputs.catalogue.n_rows))
    return {
        "query": saved.model.embed_query(query).numpy(),
        "candidate": saved.model.embed_candidate(candidate).numpy(),
    }


def export_and_ask(folder, model, saved):
    stage = ExportStage(name="tiny", export=ExportConfig(k=100))
    bundle = folder / f"bundle-{model.name}"
    exported = export(stage, Sources(model, folder / "data"), bundle)
    signatures = tf.saved_model.load(str(bundle)).signatures
    answer = signatures["recommend"](
        user_id=tf.constant(["u3", "nobody"]),
        history=tf.constant([["i4", "i5"], ["", ""]]),
        exclude_seen=tf.constant([False, False]),
    )
    served = asked_of_retriever(bundle) if saved.model.spec.config.item_bias else {}
    served |= refused(bundle)
    return {
        "checked": exported["checked_queries"],
        "source": answer["source"].numpy().astype(str),
        "ids": answer["candidate_ids"].numpy().astype(str),
        "scores": answer["scores"].numpy(),
        **served,
    }


def asked_of_retriever(bundle):
    """The answers of the server and of a file of users for the same two users."""
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


def refused(bundle):
    """Number of times that a bundle without times refuses."""
    try:
        load_bundle(bundle).recommend("u3", context={"timestamp": 5})
    except UsageError as error:
        return {"refused": int("R549" in str(error))}
    return {"refused": 0}


main(Path(sys.argv[1]), *sys.argv[2:])
