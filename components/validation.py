"""Validation of the raw data: DriftValidator measures and describes them, DataGate decides.

TFDV compares the columns for which the schema has comparators. A committed schema may have some;
the config's limits are used for the others.
"""

import dataclasses
import json
import math
import shutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import tensorflow_data_validation as tfdv
from tensorflow_metadata.proto.v0 import anomalies_pb2, schema_pb2, statistics_pb2
from tfx.components.statistics_gen import stats_artifact_utils
from tfx.dsl.component.experimental.annotations import InputArtifact, OutputArtifact, Parameter
from tfx.dsl.component.experimental.decorators import component
from tfx.types import artifact_utils
from tfx.types.standard_artifacts import ExampleAnomalies, ExampleStatistics, Schema

from components.artifacts import DeadLetters, Validation, Verdict, existing, statistics_property
from recsys.config import GateConfig, Share, Strict
from recsys.data.dead_letters import check_rejected
from recsys.errors import RecsysError
from recsys.formats import figure
from recsys.report.run_figures import write_statistics
from recsys.system.events import emit

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
_NUMBERS = (statistics_pb2.FeatureNameStatistics.INT, statistics_pb2.FeatureNameStatistics.FLOAT)


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


# --- TFDV's statistics, as JSON and as pages

_TOP_VALUES = 5
_TOP_CHARACTERS = 80
_FIGURES = ("min", "median", "max", "mean", "std_dev")


def summarize_split(
    statistics: statistics_pb2.DatasetFeatureStatisticsList, times: Collection[str] = ()
) -> dict[str, Any]:
    """Returns `{"rows": n, "columns": [...]}`.

    A column has `name`, `kind` (`number` or `text`), `missing` [0..1], `values`, the number
    of its values, and `is_time`; a number `min`, `median`, `max`, `mean`, `std_dev`, `zeros`
    [0..1] and `bars` (counts of equally wide buckets), a text `unique` and `top` (pairs of
    value and share of the values).

    Args:
        statistics: TFDV's statistics of the split.
        times: Columns of seconds since 1970.
    """
    dataset = statistics.datasets[0]
    columns = [
        {**column, "is_time": column["name"] in times} for column in map(_column, dataset.features)
    ]
    return {
        "rows": int(dataset.num_examples),
        "columns": sorted(columns, key=lambda column: column["name"]),
    }


def _column(feature: statistics_pb2.FeatureNameStatistics) -> dict[str, Any]:
    stats = getattr(feature, feature.WhichOneof("stats"))
    common = stats.common_stats
    n_rows = common.num_missing + common.num_non_missing
    column = {
        "name": feature.path.step[0],
        "missing": common.num_missing / n_rows if n_rows else 0.0,
        "values": int(common.tot_num_values),
    }
    if feature.HasField("num_stats"):
        return {**column, "kind": "number", **_number(stats, common.tot_num_values)}
    if feature.HasField("string_stats"):
        return {**column, "kind": "text", **_text(stats, common.tot_num_values)}
    return {**column, "kind": "other"}


def _number(stats: statistics_pb2.NumericStatistics, n_values: float) -> dict[str, Any]:
    bars = [
        bucket.sample_count
        for histogram in stats.histograms
        if histogram.type == statistics_pb2.Histogram.STANDARD
        for bucket in histogram.buckets
    ]
    figures = {name: getattr(stats, name) for name in _FIGURES}
    return {
        **{name: value if math.isfinite(value) else None for name, value in figures.items()},
        "zeros": stats.num_zeros / max(n_values, 1),
        "bars": [round(n_samples, 1) for n_samples in bars],
    }


def _text(stats: statistics_pb2.StringStatistics, n_values: float) -> dict[str, Any]:
    most_frequent = stats.rank_histogram.buckets[:_TOP_VALUES]
    return {
        "unique": int(stats.unique),
        "top": [
            [bucket.label[:_TOP_CHARACTERS], bucket.sample_count / max(n_values, 1)]
            for bucket in most_frequent
        ],
    }


Summaries = Mapping[str, Mapping[str, Any]]
"""Result of `summarize_split` for each split."""


def write_pages(folder: Path, what: str, now: Summaries, before: Summaries) -> list[dict[str, str]]:
    """Writes a page of all current splits, and one of each split beside the earlier one.

    Args:
        folder: Folder to write.
        what: `interactions`, `items` or `users`.
        now: Current statistics.
        before: Statistics of the last accepted data; may be empty.

    Returns:
        `file` and `title` of each page.
    """
    groups = [dict(sorted(now.items(), reverse=True))]
    for split in sorted(now.keys() & before.keys(), reverse=True):
        groups.append({f"{split} now": now[split], f"{split} before": before[split]})
    pages = []
    for group in groups:
        title = " and ".join(group)
        file = f"statistics-{what}-{title.replace(' ', '-')}.html"
        write_statistics(folder / file, what, group)
        pages.append({"file": file, "title": title})
    return pages


# --- the components


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


_REFERENCES = {
    "drift": ("R244", "the data accepted before", "max_drift"),
    "skew": ("R245", "the data that the last blessed model was trained on", "max_skew"),
}
_UNITS = {
    "missing": "of the rows more or less have no value",
    "L-infinity": "L-infinity",
    "Jensen-Shannon": "Jensen-Shannon",
}


@component
def DataGate(
    interaction_validation: InputArtifact[Validation],
    interaction_letters: InputArtifact[DeadLetters],
    verdict: OutputArtifact[Verdict],
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
    if anomalies := validation["anomalies"]:
        first = anomalies[0]
        column = f"column {first['column']!r}: " if first["column"] else ""
        raise RecsysError(
            "R242",
            f"The {what} (split {first['split']!r}) must fit their schema;"
            f" {column}{first['text']}{_more(anomalies)}",
            f"Repair the data, or change {what}.pbtxt in data.gate.schema_dir; all anomalies are in"
            f" {file}.",
        )
    beyond = [distance for distance in validation["comparisons"] if distance["exceeds"]]
    if not beyond:
        return
    # Drift first, which is the change since the last run.
    first = min(beyond, key=lambda distance: (distance["kind"], -distance["value"]))
    code, earlier, key = _REFERENCES[first["kind"]]
    note = f"; {first['note']}" if first["note"] else ""
    raise RecsysError(
        code,
        f"Column {first['column']!r} of the {what} (split {first['split']!r}) must lie within"
        f" {figure(first['limit'])} of {earlier}; its distance is {figure(first['value'])}"
        f" ({_UNITS[first['measure']]}{note}){_more(beyond)}.",
        f"Repair the data, or if the change is intended raise data.gate.{key} (null: no limit), or"
        f" give the column a {first['kind']}_comparator in {what}.pbtxt of"
        f" data.gate.schema_dir; all distances are in {file}.",
    )


def _more(findings: Sequence[object]) -> str:
    return f" ({len(findings) - 1} more)" if len(findings) > 1 else ""
