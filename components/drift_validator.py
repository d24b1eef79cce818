"""DriftValidator: today's statistics against earlier ones, and all that TFDV found, as JSON."""

import dataclasses
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import tensorflow_data_validation as tfdv
from tensorflow_metadata.proto.v0 import anomalies_pb2, schema_pb2
from tfx.components.statistics_gen import stats_artifact_utils
from tfx.dsl.component.experimental.annotations import InputArtifact, OutputArtifact, Parameter
from tfx.dsl.component.experimental.decorators import component
from tfx.types import artifact_utils
from tfx.types.standard_artifacts import ExampleAnomalies, ExampleStatistics, Schema

from components.artifacts import Validation
from components.comparators import Comparison, Kind, Limits, compare
from components.earlier_statistics import statistics_property
from components.statistics_pages import Statistics, write_pages
from components.statistics_summary import summarize_split
from recsys.config import Share, Strict


class DriftLimits(Strict):
    """What of one kind of data is compared, and how far it may move."""

    what: str
    """`interactions`, `items` or `users`."""
    max_drift: Share | None
    """Highest distance from the data accepted before [0..1]; `null`: no limit."""
    max_skew: Share | None
    """Highest distance from the data of the last blessed model [0..1]; `null`: no limit."""
    ids: tuple[str, ...] = ()
    """Columns that are measured without a limit."""
    moving: tuple[str, ...] = ()
    """Columns that are not compared."""


@component
def DriftValidator(
    statistics: InputArtifact[ExampleStatistics],
    schema: InputArtifact[Schema],
    anomalies: InputArtifact[ExampleAnomalies],
    validation: OutputArtifact[Validation],
    config: Parameter[str],
    code: Parameter[str],
    accepted_statistics: InputArtifact[ExampleStatistics] = None,
    trained_statistics: InputArtifact[ExampleStatistics] = None,
) -> None:
    """Measures drift and skew, and writes all findings of one kind of data as JSON.

    It never fails for what it finds: that is the gate's, which reads what is written here.

    Args:
        statistics: Today's.
        schema: The schema of the data.
        anomalies: What ExampleValidator found.
        validation: `validation.json` and the pages of statistics, see docs/validation.md.
        config: `DriftLimits` as canonical JSON.
        code: Fingerprint of the code.
        accepted_statistics: Those of the data that was accepted last, if any was.
        trained_statistics: Those of the data of the last blessed model, if there is one.
    """
    del code
    limits = DriftLimits.model_validate_json(config)
    now = _load(statistics)
    schema_file = next(Path(schema.uri).glob("*.pbtxt"))
    earlier: dict[Kind, Statistics] = {
        "drift": _load(accepted_statistics),
        "skew": _load(trained_statistics),
    }
    compared = list(_compare(limits, now, earlier, tfdv.load_schema_text(str(schema_file))))
    found = {
        "what": limits.what,
        "schema": str(schema_file),
        "anomalies": list(read_anomalies(Path(anomalies.uri))),
        "comparisons": [_as_json(one) for one in compared],
        "earlier": {kind: bool(one) for kind, one in earlier.items()},
        "splits": {split: summarize_split(one) for split, one in now.items()},
        "pages": write_pages(Path(validation.uri), limits.what, now, earlier["drift"]),
    }
    (Path(validation.uri) / "validation.json").write_text(json.dumps(found, indent=1) + "\n")
    validation.set_int_custom_property(statistics_property(limits.what), statistics.id)


def read_anomalies(folder: Path) -> Iterator[dict[str, str]]:
    """Yields what breaks the schema: `split`, `column` (empty for the whole), `text`."""
    for file in sorted(folder.glob("Split-*/SchemaDiff.pb")):
        split = file.parent.name.removeprefix("Split-")
        anomalies = anomalies_pb2.Anomalies.FromString(file.read_bytes())
        for column, info in sorted(anomalies.anomaly_info.items()):
            yield {"split": split, "column": column, "text": info.description}
        if anomalies.HasField("dataset_anomaly_info"):
            text = anomalies.dataset_anomaly_info.description
            yield {"split": split, "column": "", "text": text}


def _load(artifact: ExampleStatistics | None) -> Statistics:
    if artifact is None:
        return {}
    splits = artifact_utils.decode_split_names(artifact.split_names)
    return {
        split: stats_artifact_utils.load_statistics(artifact, split).proto() for split in splits
    }


def _compare(
    limits: DriftLimits,
    now: Statistics,
    earlier: Mapping[Kind, Statistics],
    schema: schema_pb2.Schema,
) -> Iterator[Comparison]:
    highest: dict[Kind, float | None] = {"drift": limits.max_drift, "skew": limits.max_skew}
    for kind, before in earlier.items():
        for split in sorted(now.keys() & before.keys()):
            allowed = Limits(highest[kind], limits.ids, limits.moving)
            yield from compare(kind, split, now[split], before[split], schema, allowed)


def _as_json(comparison: Comparison) -> dict[str, Any]:
    return {**dataclasses.asdict(comparison), "exceeds": comparison.exceeds}
