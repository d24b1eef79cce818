"""DataGate: stops the run for anomalies and rejected rows."""

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tfx.dsl.component.experimental.annotations import InputArtifact, OutputArtifact, Parameter
from tfx.dsl.component.experimental.decorators import component

from components.artifacts import DeadLetters, Validation, existing, statistics_property
from components.artifacts import Verdict as VerdictArtifact
from recsys.config import GateConfig
from recsys.data.dead_letters import check_rejected
from recsys.errors import RecsysError
from recsys.formats import figure
from recsys.system.events import emit

_EARLIER = {
    "drift": ("R244", "the data accepted before", "max_drift"),
    "skew": ("R245", "the data that the last blessed model was trained on", "max_skew"),
}
_MEASURES = {
    "missing": "of the rows more or less have no value",
    "L-infinity": "L-infinity",
    "Jensen-Shannon": "Jensen-Shannon",
}


@component
def DataGate(
    interaction_validation: InputArtifact[Validation],
    interaction_letters: InputArtifact[DeadLetters],
    verdict: OutputArtifact[VerdictArtifact],
    config: Parameter[str],
    code: Parameter[str],
    item_validation: InputArtifact[Validation] = None,
    item_letters: InputArtifact[DeadLetters] = None,
    user_validation: InputArtifact[Validation] = None,
    user_letters: InputArtifact[DeadLetters] = None,
) -> None:
    """Turns anomalies and rejected data, which TFX only records, into a failed run.

    Args:
        interaction_validation: TFDV's findings on the interactions.
        interaction_letters: Dead letters of the interactions.
        verdict: `verdict.json` and TFDV's pages; an input of the training, which so runs after it.
        config: `GateConfig` as canonical JSON.
        code: Fingerprint of the code.
        item_validation: TFDV's findings on the catalogue, if there is one.
        item_letters: Dead letters of the catalogue.
        user_validation: TFDV's findings on the users' features, if there are any.
        user_letters: Dead letters of the users' features.
    """
    del code
    gate = GateConfig.model_validate_json(config)
    validations = existing(
        interactions=interaction_validation, items=item_validation, users=user_validation
    )
    letters = existing(interactions=interaction_letters, items=item_letters, users=user_letters)
    for what, folder in letters.items():
        for remark in check_rejected(what, Path(folder.uri), gate.max_rejected_share):
            emit("note", step="DataGate", text=remark)
    contents = {}
    for what, artifact in validations.items():
        contents[what] = json.loads((Path(artifact.uri) / "validation.json").read_text())
        check_validation(contents[what], Path(artifact.uri))
    (Path(verdict.uri) / "verdict.json").write_text(json.dumps(contents, indent=1) + "\n")
    for what, artifact in validations.items():
        for page in Path(artifact.uri).glob("*.html"):
            shutil.copy(page, verdict.uri)
        name = statistics_property(what)
        verdict.set_int_custom_property(name, artifact.get_int_custom_property(name))


def check_validation(validation: Mapping[str, Any], folder: Path) -> None:
    """Raises an error if the data violate their schema, or drifted too far.

    Args:
        validation: `validation.json`.
        folder: Its folder.
    """
    what, file = validation["what"], folder / "validation.json"
    if validation["anomalies"]:
        raise _broken_schema(what, validation["anomalies"], file)
    beyond = [distance for distance in validation["comparisons"] if distance["exceeds"]]
    if beyond:
        raise _too_far(what, beyond, file)


def _broken_schema(what: str, anomalies: Sequence[Mapping[str, str]], file: Path) -> RecsysError:
    first = anomalies[0]
    column = f"column {first['column']!r}: " if first["column"] else ""
    return RecsysError(
        "R242",
        f"The {what} (split {first['split']!r}) must fit their schema;"
        f" {column}{first['text']}{_more(anomalies)}",
        f"Repair the data, or change {what}.pbtxt in data.gate.schema_dir; all anomalies are in"
        f" {file}.",
    )


def _too_far(what: str, beyond: Sequence[Mapping[str, Any]], file: Path) -> RecsysError:
    # Drift first, which is the change since the last run.
    first = min(beyond, key=lambda distance: (distance["kind"], -distance["value"]))
    code, earlier, key = _EARLIER[first["kind"]]
    note = f"; {first['note']}" if first["note"] else ""
    return RecsysError(
        code,
        f"Column {first['column']!r} of the {what} (split {first['split']!r}) must lie within"
        f" {figure(first['limit'])} of {earlier}; its distance is {figure(first['value'])}"
        f" ({_MEASURES[first['measure']]}{note}){_more(beyond)}.",
        f"Repair the data, or if the change is intended raise data.gate.{key} (null: no limit), or"
        f" give the column a {first['kind']}_comparator in {what}.pbtxt of"
        f" data.gate.schema_dir; all distances are in {file}.",
    )


def _more(findings: Sequence[object]) -> str:
    return f" ({len(findings) - 1} more)" if len(findings) > 1 else ""
