"""RetrievalEvaluator: starts `recsys.evaluation.stage` where the launcher says, and blesses."""

import json
from pathlib import Path

from tfx.dsl.component.experimental.annotations import InputArtifact, OutputArtifact, Parameter
from tfx.dsl.component.experimental.decorators import component
from tfx.types.standard_artifacts import Model, ModelBlessing, ModelEvaluation

from components.artifacts import InteractionData
from components.metadata import CURRENT_MODEL
from recsys.distributed.launchers import run_launched


@component
def RetrievalEvaluator(
    model: InputArtifact[Model],
    data: InputArtifact[InteractionData],
    evaluation: OutputArtifact[ModelEvaluation],
    blessing: OutputArtifact[ModelBlessing],
    config: Parameter[str],
    code: Parameter[str],
    blessed_model: InputArtifact[Model] = None,
) -> None:
    """Evaluates the model over the whole catalogue, and compares it with the thresholds.

    Args:
        model: The model just trained.
        data: The data folder.
        evaluation: `evaluation.json`, see docs/architecture.md.
        blessing: The verdict, as TFX's own Evaluator writes it.
        config: `EvaluateStage` as canonical JSON.
        code: Fingerprint of the code.
        blessed_model: The last blessed model, if there is one.
    """
    del code
    arguments = ["--model", model.uri, "--data", data.uri, "--out", evaluation.uri]
    if blessed_model is not None:
        arguments += ["--blessed", blessed_model.uri]
    run_launched("recsys.evaluation.stage", config, arguments)
    result = json.loads((Path(evaluation.uri) / "evaluation.json").read_text())
    _bless(blessing, result["verdict"]["blessed"], model, blessed_model)


def _bless(
    blessing: ModelBlessing, is_blessed: bool, model: Model, blessed_model: Model | None
) -> None:
    """Writes the file and the properties that TFX's components read."""
    (Path(blessing.uri) / ("BLESSED" if is_blessed else "NOT_BLESSED")).touch()
    blessing.set_int_custom_property("blessed", int(is_blessed))
    blessing.set_string_custom_property("current_model", model.uri)
    blessing.set_int_custom_property(CURRENT_MODEL, model.id)
    if blessed_model is not None:
        blessing.set_string_custom_property("baseline_model", blessed_model.uri)
        blessing.set_int_custom_property("baseline_model_id", blessed_model.id)
