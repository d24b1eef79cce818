"""Exporter: starts `recsys.export` in a process of its own, with Keras on TensorFlow."""

from tfx.dsl.component.experimental.annotations import InputArtifact, OutputArtifact, Parameter
from tfx.dsl.component.experimental.decorators import component
from tfx.types.standard_artifacts import Model, ModelEvaluation, TransformGraph

from components.artifacts import InteractionData, ServingBundle
from components.stage import run_with_config


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
    """
    del code
    arguments = ["--model", model.uri, "--data", data.uri]
    arguments += ["--evaluation", evaluation.uri, "--out", bundle.uri]
    for option, graph in (("--transform", item_graph), ("--user-transform", user_graph)):
        if graph is not None:
            arguments += [option, graph.uri]
    run_with_config("recsys.export", config, arguments, backend="tensorflow")
