"""DataGate: what TFX only records, anomalies and rejected rows, stops the run here."""

import json
from pathlib import Path

from tensorflow_metadata.proto.v0 import anomalies_pb2
from tfx.dsl.component.experimental.annotations import InputArtifact, OutputArtifact, Parameter
from tfx.dsl.component.experimental.decorators import component
from tfx.types.standard_artifacts import ExampleAnomalies, String

from components.artifacts import DeadLetters
from recsys.config import GateConfig
from recsys.errors import RecsysError

ACCEPTED = "accepted"


@component
def DataGate(
    interaction_anomalies: InputArtifact[ExampleAnomalies],
    item_anomalies: InputArtifact[ExampleAnomalies],
    interaction_letters: InputArtifact[DeadLetters],
    item_letters: InputArtifact[DeadLetters],
    verdict: OutputArtifact[String],
    config: Parameter[str],
    code: Parameter[str],
) -> None:
    """Turns anomalies and rejected data, which TFX only records, into a failed run.

    Args:
        interaction_anomalies: What ExampleValidator found in the interactions.
        item_anomalies: What it found in the catalogue.
        interaction_letters: Dead letters of the interactions.
        item_letters: Dead letters of the catalogue.
        verdict: `accepted`; what trains takes it as an input, so it runs after.
        config: `GateConfig` as canonical JSON.
        code: Fingerprint of the code.
    """
    del code
    gate = GateConfig.model_validate_json(config)
    check_letters("interactions", Path(interaction_letters.uri), gate.max_rejected_share)
    check_letters("items", Path(item_letters.uri), gate.max_rejected_share)
    check_anomalies("interactions", Path(interaction_anomalies.uri))
    check_anomalies("items", Path(item_anomalies.uri))
    verdict.value = ACCEPTED


def check_letters(what: str, folder: Path, max_rejected_share: float) -> None:
    """Raises an error if too large a share of the rows was rejected."""
    summary = json.loads((folder / "summary.json").read_text())
    share = summary["rejected"] / max(summary["read"], 1)
    if share <= max_rejected_share:
        return
    reasons = sorted(summary["by_reason"].items(), key=lambda one: -one[1])
    raise RecsysError(
        "R241",
        f"At most {max_rejected_share:.2%} of the {what} may be rejected,"
        f" {share:.2%} were ({summary['rejected']} of {summary['read']},"
        f" most often: {reasons[0][0]}).",
        f"See {folder / 'dead_letters.parquet'}, mend the data,"
        " or raise data.gate.max_rejected_share.",
    )


def check_anomalies(what: str, folder: Path) -> None:
    """Raises an error if a split of the data breaks its schema."""
    for file in sorted(folder.glob("Split-*/SchemaDiff.pb")):
        anomalies = anomalies_pb2.Anomalies.FromString(file.read_bytes())
        found = [
            f"column {column!r}: {info.description}"
            for column, info in sorted(anomalies.anomaly_info.items())
        ]
        if anomalies.HasField("dataset_anomaly_info"):
            found.append(anomalies.dataset_anomaly_info.description)
        if found:
            split = file.parent.name.removeprefix("Split-")
            more = f" ({len(found) - 1} more)" if len(found) > 1 else ""
            raise RecsysError(
                "R242",
                f"The {what} (split {split!r}) must fit their schema; {found[0]}{more}",
                "Mend the data, or change the schema in data.gate.schema_dir.",
            )
