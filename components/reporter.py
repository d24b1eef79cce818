"""Reporter: what a run did and how well, on one page."""

import json
from pathlib import Path

from tfx.dsl.component.experimental.annotations import InputArtifact, OutputArtifact, Parameter
from tfx.dsl.component.experimental.decorators import component
from tfx.types.standard_artifacts import Model, ModelEvaluation, PushedModel

from components.artifacts import DeadLetters, InteractionData, ServingBundle
from components.artifacts import Report as ReportArtifact
from recsys.report import write_report


@component
def Reporter(
    interaction_letters: InputArtifact[DeadLetters],
    item_letters: InputArtifact[DeadLetters],
    data: InputArtifact[InteractionData],
    model: InputArtifact[Model],
    evaluation: InputArtifact[ModelEvaluation],
    bundle: InputArtifact[ServingBundle],
    pushed: InputArtifact[PushedModel],
    report: OutputArtifact[ReportArtifact],
    config: Parameter[str],
    code: Parameter[str],
) -> None:
    """Writes `report.html`.

    Args:
        interaction_letters: Dead letters of the interactions.
        item_letters: Dead letters of the catalogue.
        data: The data folder.
        model: The model.
        evaluation: How good it is.
        bundle: The bundle.
        pushed: Where the bundle is served, if it is.
        report: The page.
        config: The whole config as canonical JSON.
        code: Fingerprint of the code.
    """
    del code
    destination = json.loads((Path(pushed.uri) / "pushed.json").read_text())["destination"]
    write_report(
        Path(report.uri),
        config=json.loads(config),
        dead_letters={
            "interactions": Path(interaction_letters.uri),
            "items": Path(item_letters.uri),
        },
        data=Path(data.uri),
        model=Path(model.uri),
        evaluation=Path(evaluation.uri),
        bundle=Path(bundle.uri),
        pushed=destination,
    )
