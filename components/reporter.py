"""Reporter: the report of a run on one page."""

import json
from pathlib import Path

from tfx.dsl.component.experimental.annotations import InputArtifact, OutputArtifact, Parameter
from tfx.dsl.component.experimental.decorators import component
from tfx.types.standard_artifacts import Model, ModelEvaluation, PushedModel

from components.artifacts import (
    DeadLetters,
    InteractionData,
    ServingBundle,
    Verdict,
    Vocabularies,
)
from components.artifacts import Report as ReportArtifact
from recsys.report.run_report import write_report


@component
def Reporter(
    interaction_letters: InputArtifact[DeadLetters],
    verdict: InputArtifact[Verdict],
    vocabularies: InputArtifact[Vocabularies],
    data: InputArtifact[InteractionData],
    model: InputArtifact[Model],
    evaluation: InputArtifact[ModelEvaluation],
    bundle: InputArtifact[ServingBundle],
    pushed: InputArtifact[PushedModel],
    report: OutputArtifact[ReportArtifact],
    config: Parameter[str],
    records: Parameter[str],
    run_id: Parameter[str],
    code: Parameter[str],
    item_letters: InputArtifact[DeadLetters] = None,
    user_letters: InputArtifact[DeadLetters] = None,
) -> None:
    """Writes `report.html`, and TFDV's pages beside it.

    It runs in every run, because it describes that run: what ran, what was cached, and why.

    Args:
        interaction_letters: Dead letters of the interactions.
        verdict: What the data was validated by.
        vocabularies: What changed in the vocabularies.
        data: The data folder.
        model: The model.
        evaluation: How good it is.
        bundle: The bundle.
        pushed: Where the bundle is served, if it is.
        report: The page.
        config: The whole config as canonical JSON.
        records: Folder of the runs' records, which our runner writes (`recsys.report.runs`).
        run_id: Id of this run, the name of its record; never the same twice.
        code: Fingerprint of the code.
        item_letters: Dead letters of the catalogue, if there is one.
        user_letters: Dead letters of the users' features, if there are any.
    """
    del code
    letters = {"interactions": interaction_letters, "items": item_letters, "users": user_letters}
    push = json.loads((Path(pushed.uri) / "pushed.json").read_text())
    write_report(
        Path(report.uri),
        config=json.loads(config),
        dead_letters={
            what: Path(artifact.uri) for what, artifact in letters.items() if artifact is not None
        },
        data=Path(data.uri),
        model=Path(model.uri),
        evaluation=Path(evaluation.uri),
        bundle=Path(bundle.uri),
        pushed=push["destination"],
        not_pushed=push.get("reason"),
        validation=Path(verdict.uri),
        vocabularies=Path(vocabularies.uri),
        record=Path(records) / run_id,
    )
