"""DriftValidator: compares statistics with earlier ones, and writes all findings as JSON.

TFDV compares the columns for which the schema has comparators. A committed schema may have some;
the config's limits are used for the others.
"""

import dataclasses
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import tensorflow_data_validation as tfdv
from tensorflow_metadata.proto.v0 import anomalies_pb2, schema_pb2, statistics_pb2
from tfx.components.statistics_gen import stats_artifact_utils
from tfx.dsl.component.experimental.annotations import InputArtifact, OutputArtifact, Parameter
from tfx.dsl.component.experimental.decorators import component
from tfx.types import artifact_utils
from tfx.types.standard_artifacts import ExampleAnomalies, ExampleStatistics, Schema

from components.artifacts import Validation, statistics_property
from components.statistics_pages import summarize_split, write_pages
from recsys.config import Share, Strict

Kind = Literal["drift", "skew"]

L_INFINITY = "L-infinity"
JENSEN_SHANNON = "Jensen-Shannon"
MISSING = "missing"

NO_LIMIT = 1.0
"""Maximum of both measures."""

LEAST_USERS = 100
"""Number of users, or of rows without users, from which the config's limits apply to a split."""

_USER = "user_id"
_SHOWN_CHARACTERS = 60
_NORMS = {L_INFINITY: "infinity_norm", JENSEN_SHANNON: "jensen_shannon_divergence"}
_EARLIER = {"drift": "previous_statistics", "skew": "serving_statistics"}
_MEASURES = {
    anomalies_pb2.DriftSkewInfo.Measurement.L_INFTY: L_INFINITY,
    anomalies_pb2.DriftSkewInfo.Measurement.JENSEN_SHANNON_DIVERGENCE: JENSEN_SHANNON,
}
_NUMBERS = (
    statistics_pb2.FeatureNameStatistics.INT,
    statistics_pb2.FeatureNameStatistics.FLOAT,
)


_Statistics = Mapping[str, statistics_pb2.DatasetFeatureStatisticsList]
"""Statistics of each split."""


@dataclasses.dataclass(frozen=True)
class Distance:
    """The distance of a column of a split from the earlier data.

    Attributes:
        kind: `drift` from the last accepted data, or `skew` from the training data of the last
            blessed model.
        split: Name of the split.
        column: Name of the column.
        measure: `L-infinity`, the largest change of a value's share, for text;
            `Jensen-Shannon`, the divergence of the histograms to the base 2, for numbers;
            `missing`, the change of the share of rows without a value.
        value: The distance [0..1]; None if it could not be measured.
        limit: Highest allowed distance; None: no limit.
        note: The value that changed most, or the reason why there is no distance.
    """

    kind: Kind
    split: str
    column: str
    measure: str
    value: float | None
    limit: float | None
    note: str = ""

    @property
    def exceeds(self) -> bool:
        """Whether the distance is beyond the limit."""
        return self.value is not None and self.limit is not None and self.value > self.limit


class DriftLimits(Strict):
    """Columns of one kind of data to compare, and their limits.

    The limits don't apply to splits of fewer than `LEAST_USERS`, which are not representative.
    """

    what: str
    """`interactions`, `items` or `users`."""
    max_drift: Share | None
    """Highest distance from the last accepted data [0..1]; `null`: no limit."""
    max_skew: Share | None
    """Highest distance from the training data of the last blessed model [0..1]; `null`: no
    limit."""
    ids: tuple[str, ...] = ()
    """Columns that are measured without a limit, since one active user can change them."""
    moving: tuple[str, ...] = ()
    """Columns that are not compared, since their values change over time."""
    times: tuple[str, ...] = ()
    """Columns of seconds since 1970, which are shown as dates."""


def compare(
    kind: Kind,
    split: str,
    now: statistics_pb2.DatasetFeatureStatisticsList,
    earlier: statistics_pb2.DatasetFeatureStatisticsList,
    schema: schema_pb2.Schema,
    limits: DriftLimits,
) -> list[Distance]:
    """Returns the distance of each column of `now` from `earlier`.

    Args:
        kind: Kind of the schema's comparators to use.
        split: Name of the split.
        now: Statistics of today's split.
        earlier: Statistics of the same split before.
        schema: The schema; its comparators take precedence over the limits.
        limits: Columns and limits.
    """
    limit = limits.max_drift if kind == "drift" else limits.max_skew
    if min(_n_users(now), _n_users(earlier)) < LEAST_USERS:
        limit = None
    compared = schema_pb2.Schema()
    compared.CopyFrom(schema)
    columns, before = _columns(now), _columns(earlier)
    distances = []
    for feature in compared.feature:
        name, comparator = feature.name, f"{kind}_comparator"
        note = _why_not(name, columns, before, limits)
        if note:
            feature.ClearField(comparator)
            measure = _measure(columns.get(name))
            distances.append(Distance(kind, split, name, measure, None, None, note))
        elif not feature.HasField(comparator):
            norm = getattr(getattr(feature, comparator), _NORMS[_measure(columns[name])])
            norm.threshold = NO_LIMIT if limit is None or name in limits.ids else limit
    anomalies = tfdv.validate_statistics(now, compared, **{_EARLIER[kind]: earlier})
    distances += _measured(kind, split, anomalies)
    # TFDV measures values, not the share of missing ones.
    shares, shares_before = _shares_missing(now), _shares_missing(earlier)
    for name in shares.keys() & shares_before.keys():
        if shares[name] != shares_before[name]:
            note = f"{shares_before[name]:.1%} before, {shares[name]:.1%} now"
            moved = abs(shares[name] - shares_before[name])
            distances.append(Distance(kind, split, name, MISSING, moved, limit, note))
    return sorted(distances, key=lambda distance: (distance.column, distance.measure))


def _why_not(name: str, now: dict[str, Any], earlier: dict[str, Any], limits: DriftLimits) -> str:
    if name in limits.moving:
        return "not compared: it moves with time"
    if name not in now:
        return "not compared: it has no value"
    if name not in earlier:
        return "not compared: it had no value before"
    if _measure(now[name]) != _measure(earlier[name]):
        return "not compared: it was of another type"
    return ""


def _columns(statistics: statistics_pb2.DatasetFeatureStatisticsList) -> dict[str, Any]:
    """Returns the statistics of each column that has a value."""
    return {
        feature.path.step[0]: feature
        for feature in statistics.datasets[0].features
        if _common(feature).num_non_missing
    }


def _n_users(statistics: statistics_pb2.DatasetFeatureStatisticsList) -> int:
    """Returns the number of users, or of rows if the data have no users."""
    user = _columns(statistics).get(_USER)
    return int(user.string_stats.unique if user else statistics.datasets[0].num_examples)


def _shares_missing(statistics: statistics_pb2.DatasetFeatureStatisticsList) -> dict[str, float]:
    counts = {feature.path.step[0]: _common(feature) for feature in statistics.datasets[0].features}
    return {
        name: count.num_missing / max(count.num_missing + count.num_non_missing, 1)
        for name, count in counts.items()
    }


def _common(feature: statistics_pb2.FeatureNameStatistics) -> Any:
    return getattr(feature, feature.WhichOneof("stats")).common_stats


def _measure(feature: statistics_pb2.FeatureNameStatistics | None) -> str:
    return JENSEN_SHANNON if feature is not None and feature.type in _NUMBERS else L_INFINITY


def _measured(kind: Kind, split: str, anomalies: anomalies_pb2.Anomalies) -> Iterator[Distance]:
    """Yields TFDV's distances, with its text for those beyond the limit."""
    for info in anomalies.drift_skew_info:
        column = info.path.step[0]
        for measured in getattr(info, f"{kind}_measurements"):
            limit = None if measured.threshold >= NO_LIMIT else measured.threshold
            measure = _MEASURES.get(measured.type, "distance")
            distance = Distance(kind, split, column, measure, measured.value, limit)
            note = _most_moved(anomalies, column) if distance.exceeds else ""
            yield dataclasses.replace(distance, note=note)


def _most_moved(anomalies: anomalies_pb2.Anomalies, column: str) -> str:
    """Returns the value whose share changed most, which TFDV gives only in a sentence."""
    for reason in anomalies.anomaly_info[column].reason:
        _, mark, value = reason.description.partition("maximum difference is: ")
        if mark:
            return f"most of all the value {value[:_SHOWN_CHARACTERS]!r}"
    return ""


# --- the component


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
    """Measures drift and skew, and writes all findings on one kind of data as JSON.

    Findings never fail this step; the DataGate reads them and decides.

    Args:
        statistics: Current statistics.
        schema: The schema of the data.
        anomalies: ExampleValidator's findings.
        validation: `validation.json` and the pages of statistics, see docs/validation.md.
        config: `DriftLimits` as canonical JSON.
        code: Fingerprint of the code.
        accepted_statistics: Statistics of the last accepted data, if there are any.
        trained_statistics: Statistics of the training data of the last blessed model, if there is
            one.
    """
    del code
    limits = DriftLimits.model_validate_json(config)
    now = _load(statistics)
    schema_file = next(Path(schema.uri).glob("*.pbtxt"))
    earlier: dict[Kind, _Statistics] = {
        "drift": _load(accepted_statistics),
        "skew": _load(trained_statistics),
    }
    loaded = tfdv.load_schema_text(str(schema_file))
    distances = [
        distance
        for kind, before in earlier.items()
        for split in sorted(now.keys() & before.keys())
        for distance in compare(kind, split, now[split], before[split], loaded, limits)
    ]
    summaries, summaries_before = (
        {split: summarize_split(statistics, limits.times) for split, statistics in side.items()}
        for side in (now, earlier["drift"])
    )
    content = {
        "what": limits.what,
        "schema": str(schema_file),
        "anomalies": list(read_anomalies(Path(anomalies.uri))),
        "comparisons": [
            {**dataclasses.asdict(distance), "exceeds": distance.exceeds} for distance in distances
        ],
        "earlier": {kind: bool(statistics) for kind, statistics in earlier.items()},
        "splits": summaries,
        "pages": write_pages(Path(validation.uri), limits.what, summaries, summaries_before),
    }
    (Path(validation.uri) / "validation.json").write_text(json.dumps(content, indent=1) + "\n")
    validation.set_int_custom_property(statistics_property(limits.what), statistics.id)


def read_anomalies(folder: Path) -> Iterator[dict[str, str]]:
    """Yields schema violations: `split`, `column` (empty for the whole), `text`."""
    for file in sorted(folder.glob("Split-*/SchemaDiff.pb")):
        split = file.parent.name.removeprefix("Split-")
        anomalies = anomalies_pb2.Anomalies.FromString(file.read_bytes())
        for column, info in sorted(anomalies.anomaly_info.items()):
            yield {"split": split, "column": column, "text": info.description}
        if anomalies.HasField("dataset_anomaly_info"):
            text = anomalies.dataset_anomaly_info.description
            yield {"split": split, "column": "", "text": text}


def _load(artifact: ExampleStatistics | None) -> _Statistics:
    if artifact is None:
        return {}
    splits = artifact_utils.decode_split_names(artifact.split_names)
    return {
        split: stats_artifact_utils.load_statistics(artifact, split).proto() for split in splits
    }
