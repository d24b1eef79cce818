"""Trainer: starts `recsys.train` where the launcher says, with Keras on JAX."""

from tfx.dsl.component.experimental.annotations import InputArtifact, OutputArtifact, Parameter
from tfx.dsl.component.experimental.decorators import component
from tfx.types.standard_artifacts import Model

from components.artifacts import InteractionData, Verdict
from recsys.distributed.launchers import run_launched


@component
def Trainer(
    data: InputArtifact[InteractionData],
    verdict: InputArtifact[Verdict],
    model: OutputArtifact[Model],
    config: Parameter[str],
    checkpoints: Parameter[str],
    code: Parameter[str],
    base: InputArtifact[Model] = None,
) -> None:
    """Trains the model, from the last checkpoint on where an earlier attempt left one.

    Args:
        data: The data folder.
        verdict: The DataGate's; without it there is no training.
        model: The model folder, see docs/architecture.md.
        config: `TrainStage` as canonical JSON.
        checkpoints: Folder of the checkpoints, outside of what one execution writes: a
            killed execution never finds its own folder again.
        code: Fingerprint of the code.
        base: The model that it goes on from, if there is one.
    """
    del verdict, code
    folders = ["--data", data.uri, "--out", model.uri, "--checkpoints", checkpoints]
    if base is not None:
        folders += ["--base", base.uri]
    run_launched("recsys.train", config, folders)
