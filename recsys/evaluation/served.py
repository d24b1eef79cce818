"""What was served beside the training data: drift of the context, and metrics of the scores.

The distances are those of the data gate: for text the largest change of a value's share, for
numbers and times the Jensen-Shannon divergence of histograms to the base 2. Values are compared as
the model reads them: tokens, or numbers in tenths of the training data. `missing` and `unknown`
rows are in neither distribution.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from recsys.data.config import EventSource, InteractionsConfig
from recsys.data.dataset import Data
from recsys.data.event_features import LearnedFeature
from recsys.data.label_config import dependencies_first
from recsys.data.labels import FEATURE, type_features, type_labels
from recsys.data.served_log import SCORES, VERSION, ServedRows, log_files
from recsys.data.sources.pieces import read_all
from recsys.data.sources.values import to_ids, to_numbers
from recsys.errors import RecsysError, UsageError
from recsys.metrics import Metric, pooled
from recsys.metrics.scores import (
    AbsoluteError,
    CalibrationError,
    LogLoss,
    RocAuc,
    ScoredRows,
    SquaredError,
)

METRICS: dict[bool, tuple[Metric, ...]] = {
    False: (RocAuc(), LogLoss(), CalibrationError()),
    True: (SquaredError(), AbsoluteError()),
}
"""Metrics of yes/no labels, and of amounts."""
_KEY = ["user", "item", "impression"]
_MOST_ROWS = 1_000_000
_BINS = 10


@dataclasses.dataclass(frozen=True)
class Drift:
    """The distance of a context feature of served rows from the training data.

    Attributes:
        column: Raw column.
        feature: Name of the feature.
        measure: `L-infinity` or `Jensen-Shannon`.
        value: The distance [0..1]; None without a value on either side.
        limit: Highest distance, `data.gate.max_skew`; None: no limit.
        missing: Share of served rows without a value [0..1].
        unknown: Share of served rows with a value that training didn't see [0..1].
        training_missing: Share of training rows without a value, or with a rare one [0..1].
    """

    column: str
    feature: str
    measure: str
    value: float | None
    limit: float | None
    missing: float
    unknown: float
    training_missing: float

    @property
    def exceeds(self) -> bool:
        """Whether the distance is beyond the limit."""
        return self.value is not None and self.limit is not None and self.value > self.limit


def compare_served(
    log: Path,
    config: InteractionsConfig,
    data: Data,
    *,
    labels: Sequence[str] = (),
    limit: float | None = None,
) -> dict[str, Any]:
    """Returns figures on what was served.

    Args:
        log: Folder of a log, or one of its files.
        config: Interactions of the config that the server had.
        data: Data that the model was trained on.
        labels: Files of rows with labels, in a format that the ingestion reads; they are joined by
            user, item and impression.
        limit: Highest distance of a feature [0..1]; None: no limit.

    Returns:
        `rows`, `requests`, `users`, `versions` (rows by version), `from`, `to`; `drift`, see
        `Drift`; `labelled` (rows by label) and `metrics` (by label and key).

    Raises:
        UsageError: The log has no rows (R906).
        RecsysError: A file can't be read.
    """
    served, raw = _read_served(log, config, data)
    score_names = [name for name in served.column_names if name.startswith(f"{SCORES}.")]
    times = [one for one in raw["time"].to_pylist() if one is not None]
    drift = [
        _drift(one, raw[f"{FEATURE}{one.name}"], data, limit) for one in _context(config, data)
    ]
    joined = _labels(labels, config, served) if labels else {}
    versions = pc.value_counts(served[VERSION]).to_pylist()
    return {
        "rows": len(served),
        "requests": len(pc.unique(served["impression"])),
        "users": len(pc.unique(served["user"])),
        "versions": {str(one["values"]): one["counts"] for one in versions},
        "from": _iso(min(times, default=None)),
        "to": _iso(max(times, default=None)),
        "drift": [{**dataclasses.asdict(one), "exceeds": one.exceeds} for one in drift],
        "labelled": {name: int((~np.isnan(x)).sum()) for name, x in joined.items()},
        "metrics": {
            name: _metrics(served, score, joined[name], config.labels[name].is_amount)
            for score in score_names
            if (name := score.removeprefix(f"{SCORES}.")) in joined
        },
    }


def _iso(seconds: int | None) -> str | None:
    return None if seconds is None else dt.datetime.fromtimestamp(seconds, dt.UTC).isoformat()


def _context(config: InteractionsConfig, data: Data) -> list[LearnedFeature]:
    """Returns the features of the context that are read from a column."""
    columns = {feature.name for feature in config.features if feature.column is not None}
    return [
        one
        for one in data.event_features
        if one.name in columns and one.feature.is_context and one.feature.side == "event"
        if one.feature.value != "vector"
    ]


# --- reading


def _read_served(
    log: Path, config: InteractionsConfig, data: Data
) -> tuple[pa.Table, dict[str, pa.ChunkedArray]]:
    """Returns user, item, impression, version and scores of the rows; and their raw values.

    Raises:
        UsageError: There are no rows (R906).
    """
    files = log_files(log) if log.is_dir() else [log]
    filled = [str(file) for file in files if file.exists() and file.stat().st_size]
    if not filled:
        rule = "--served must name a log with rows: a folder of serving.log, or one of its files."
        raise UsageError("R906", rule, "Set serving.log in the config of the server.", str(log))
    rows = ServedRows(config)
    scores = [f"{SCORES}.{name}" for name in config.labels if name in _served_labels(filled)]
    names = dict(zip(_KEY, (rows.user, rows.item, rows.impression), strict=True))
    columns = [*names.values(), rows.timestamp, VERSION, *scores, *config.raw_names()]
    batches, values = [], []
    source = EventSource(files=tuple(filled), format="jsonl")
    for _, batch in read_all(source, "served", list(dict.fromkeys(columns))):
        raw = {name: batch.columns.column(name) for name in batch.columns.schema.names}
        typed = {key: to_ids(raw[name]) for key, name in names.items()}
        typed[VERSION] = to_ids(raw[VERSION])
        typed |= {name: to_numbers(raw[name]) for name in scores}
        batches.append(pa.RecordBatch.from_pydict(typed))
        features, _ = type_features(raw, config)
        features["time"] = rows.times(raw[rows.timestamp])
        values.append(pa.RecordBatch.from_pydict(features))
    read = pa.Table.from_batches(values)
    return pa.Table.from_batches(batches), {name: read[name] for name in read.column_names}


def _served_labels(files: Sequence[str]) -> set[str]:
    """Returns the labels of which all files have scores, by their first rows."""
    labels = []
    for file in files:
        with Path(file).open(encoding="utf-8") as rows:
            labels.append({*json.loads(rows.readline())[SCORES]})
    return set.intersection(*labels)


def _labels(
    files: Sequence[str], config: InteractionsConfig, served: pa.Table
) -> dict[str, np.ndarray]:
    """Returns the label of each served row by name `[n]` float64; NaN if it is unknown.

    Of several rows with one key the maximum counts, as in the ingestion. A label that depends on
    another one is that of both: it is 0 if the other is.
    """
    rows = ServedRows(config)
    names = dict(zip(_KEY, (rows.user, rows.item, rows.impression), strict=True))
    own = [label.column for label in config.labels.values()]
    source = EventSource(files=tuple(files), format=config.format, csv=config.csv)
    batches = []
    for _, batch in read_all(source, "labels", list(dict.fromkeys([*names.values(), *own]))):
        raw = {name: batch.columns.column(name) for name in batch.columns.schema.names}
        typed, _ = type_labels(raw, config)
        columns = {key: to_ids(raw[name]) for key, name in names.items()}
        columns |= {f"of {name}": x.cast(pa.float64()) for name, x in typed.items()}
        batches.append(pa.RecordBatch.from_pydict(columns))
    largest = [(f"of {name}", "max") for name in config.labels]
    known = pa.Table.from_batches(batches).group_by(_KEY).aggregate(largest)
    order = pa.array(np.arange(len(served)))
    joined = served.select(_KEY).append_column("at", order).join(known, _KEY).sort_by("at")
    labels: dict[str, np.ndarray] = {}
    for name in dependencies_first(config.labels):
        values = pc.fill_null(joined[f"of {name}_max"], np.nan).to_numpy().astype(np.float64)
        label = config.labels[name]
        if label.given is not None:
            other = labels[label.given]
            without = np.nan if label.is_amount else 0.0
            values = np.select([other == 1.0, other == 0.0], [values, without], np.nan)
        labels[name] = values
    return labels


def _metrics(
    served: pa.Table, column: str, label: np.ndarray, is_amount: bool
) -> dict[str, float | None]:
    """Returns the metrics of the scores of rows with a known label."""
    score = pc.fill_null(served[column], np.nan).to_numpy().astype(np.float64)
    users = served["user"].combine_chunks().dictionary_encode()
    user = pc.fill_null(users.indices, len(users.dictionary)).to_numpy()
    is_known = ~np.isnan(label) & ~np.isnan(score)
    n_users = len(users.dictionary) + 1
    rows = ScoredRows(score[is_known], label[is_known], None, user[is_known], n_users)
    if not is_known.any():
        return {}
    values = {name: one.value for name, one in pooled(METRICS[is_amount], rows).items()}
    return {name: value if np.isfinite(value) else None for name, value in values.items()}


# --- distances


def _drift(one: LearnedFeature, raw: pa.ChunkedArray, data: Data, limit: float | None) -> Drift:
    values = raw.combine_chunks()
    is_missing = values.is_null().to_numpy(zero_copy_only=False)
    now, then = one.encode(values), _training(one, data)
    is_text = one.feature.value == "text"
    (served, is_read), (trained, was_read) = _places(one, now, then)
    n_places = 1 + max(served.max(initial=0), trained.max(initial=0))
    now_counts = np.bincount(served[is_read], minlength=n_places)
    then_counts = np.bincount(trained[was_read], minlength=n_places)
    value = None
    if now_counts.any() and then_counts.any():
        distance = l_infinity if is_text else jensen_shannon
        value = distance(now_counts / now_counts.sum(), then_counts / then_counts.sum())
    return Drift(
        column=str(one.feature.column),
        feature=one.name,
        measure="L-infinity" if is_text else "Jensen-Shannon",
        value=value,
        limit=limit,
        missing=float(is_missing.mean()),
        unknown=float((~is_read & ~is_missing).mean()),
        training_missing=float(1.0 - was_read.mean()) if len(was_read) else 0.0,
    )


def _training(one: LearnedFeature, data: Data) -> np.ndarray:
    """Returns the feature of training rows, of at most `_MOST_ROWS`, evenly spaced."""
    log = data.store.train if data.store.train_rows is None else data.store.train_rows
    if one.name not in log.features:
        rule = f"The data must have the feature {one.name!r} of events, as the config says."
        cure = "Name the config that the data were ingested with: --config FILE."
        raise RecsysError("R907", rule, cure, [*log.features])
    step = max(1, len(log) // _MOST_ROWS)
    return np.asarray(log.features[one.name][::step])


def _places(one: LearnedFeature, *encoded: np.ndarray) -> Iterable[tuple[np.ndarray, np.ndarray]]:
    """Returns the token or bin of each encoded value, and whether it has one; the last trained."""
    if not one.feature.floats:
        return [(values[:, 0], values[:, 0] > 0) for values in encoded]
    # Pieces of a number add up to its place; the last float says whether it is known.
    numbers = [values[:, :-1].sum(axis=1) for values in encoded]
    known = [values[:, -1] > 0 for values in encoded]
    trained = numbers[-1][known[-1]]
    inner = np.linspace(0, 1, _BINS + 1)[1:-1]
    edges = np.quantile(trained, inner) if len(trained) else np.zeros(0)
    return [
        (np.searchsorted(edges, x, side="right"), y) for x, y in zip(numbers, known, strict=True)
    ]


def l_infinity(a: np.ndarray, b: np.ndarray) -> float:
    """Returns the largest difference of two distributions `[n]` [0..1]."""
    return float(np.abs(a - b).max())


def jensen_shannon(a: np.ndarray, b: np.ndarray) -> float:
    """Returns the Jensen-Shannon divergence of two distributions `[n]` to the base 2 [0..1]."""
    middle = (a + b) / 2
    with np.errstate(divide="ignore", invalid="ignore"):
        parts = [np.where(x > 0, x * np.log2(x / middle), 0.0).sum() for x in (a, b)]
    return float(np.clip(sum(parts) / 2, 0.0, 1.0))


def warning(result: Mapping[str, Any]) -> str | None:
    """Returns a sentence on the features beyond the limit; None if there are none."""
    beyond = [f"{one['feature']} ({one['value']:.3f})" for one in result["drift"] if one["exceeds"]]
    if not beyond:
        return None
    limit = next(one["limit"] for one in result["drift"])
    return (
        f"The context that was served differs from the training data by more than {limit:g}:"
        f" {', '.join(beyond)}."
    )
