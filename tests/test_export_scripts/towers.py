"""Loads models with Keras on TensorFlow, computes with them, and exports them."""

import sys
from pathlib import Path

import numpy as np
import tensorflow as tf

from recsys.config import ExportConfig, ExportStage
from recsys.export import Sources, export
from recsys.model import load_model


def main(folder):
    stage = ExportStage(name="tiny", export=ExportConfig(k=100))
    for model in sorted(folder.glob("model-*")):
        saved = load_model(model)
        probe = np.load(model / "probe.npz")
        query = saved.inputs.query(probe["user_row"], probe["history"])
        candidate = saved.inputs.candidate(np.arange(saved.inputs.catalogue.n_rows))
        bundle = folder / f"bundle-{model.name}"
        exported = export(stage, Sources(model, folder / "data"), bundle)
        ask = tf.saved_model.load(str(bundle)).signatures["recommend"]
        answer = ask(
            user_id=tf.constant(["u3", "nobody"]),
            history=tf.constant([["i4", "i5"], ["", ""]]),
            exclude_seen=tf.constant([False, False]),
        )
        np.savez(
            folder / f"found-{model.name}.npz",
            query=saved.model.embed_query(query).numpy(),
            candidate=saved.model.embed_candidate(candidate).numpy(),
            checked=exported["checked_queries"],
            ids=answer["candidate_ids"].numpy().astype(str),
            scores=answer["scores"].numpy(),
        )


main(Path(sys.argv[1]))
