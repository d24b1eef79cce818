"""Exporter: starts `recsys.bundles.export` in a process of its own, with Keras on TensorFlow."""

import json
import tempfile
from pathlib import Path

from tfx.dsl.component.experimental.annotations import InputArtifact, OutputArtifact, Parameter
from tfx.dsl.component.experimental.decorators import component
from tfx.types.standard_artifacts import Model, ModelEvaluation, TransformGraph

from components.artifacts import DeadLetters, InteractionData, ServingBundle
from recsys.runs.lineage import describe_source
from recsys.system.process import run_stage_with_config


@component
def Exporter(
    model: InputArtifact[Model],
    data: InputArtifact[InteractionData],
    evaluation: InputArtifact[ModelEvaluation],
    bundle: OutputArtifact[ServingBundle],
    config: Parameter[str],
    code: Parameter[str],
    item_graph: InputArtifact[TransformGraph] = None,
    user_graph: InputArtifact[TransformGraph] = None,
    interactions_letters: InputArtifact[DeadLetters] = None,
    items_letters: InputArtifact[DeadLetters] = None,
    users_letters: InputArtifact[DeadLetters] = None,
    interactions_digest: Parameter[str] = "",
    items_digest: Parameter[str] = "",
    users_digest: Parameter[str] = "",
) -> None:
    """Writes the bundle that serves a model.

    Args:
        model: The model.
        data: The data folder; users' histories are taken from it.
        evaluation: Its metrics go into the model card.
        bundle: The bundle, see docs/architecture.md.
        config: `ExportStage` as canonical JSON.
        code: Fingerprint of the code.
        item_graph: How the features of an item become token rows, if it has any.
        user_graph: The same for users.
        interactions_letters: Dead letters of the interactions, whose counts and files the
            manifest names.
        items_letters: The same of the items.
        users_letters: The same of the users.
        interactions_digest: Digest of the files of the interactions.
        items_digest: The same of the items.
        users_digest: The same of the users.
    """
    del code
    arguments = ["--model", model.uri, "--data", data.uri]
    arguments += ["--evaluation", evaluation.uri, "--out", bundle.uri]
    for option, graph in (("--transform", item_graph), ("--user-transform", user_graph)):
        if graph is not None:
            arguments += [option, graph.uri]
    sources = {
        "interactions": (interactions_letters, interactions_digest),
        "items": (items_letters, items_digest),
        "users": (users_letters, users_digest),
    }
    data = {
        what: describe_source(Path(letters.uri), digest)
        for what, (letters, digest) in sources.items()
        if letters is not None
    }
    with tempfile.TemporaryDirectory(prefix="recsys-export-") as folder:
        file = Path(folder) / "data.json"
        file.write_text(json.dumps(data), encoding="utf-8")
        arguments += ["--data-origin", str(file)] if data else []
        run_stage_with_config("recsys.bundles.export", config, arguments, backend="tensorflow")
