"""Figures of the run: data, training, steps, bundle and origin.

Each `read_…` returns numbers and names; the templates turn them into text.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
import yaml

from recsys.errors import shortened
from recsys.formats import ABSENT, count, figure, is_number, moment, share
from recsys.report.charts import Chart, Series, draw_bars
from recsys.report.evaluated import metric_title
from recsys.report.page import render
from recsys.report.runs import (
    Artifacts,
    MissingError,
    RecordedSteps,
    read_array,
    read_json,
    read_steps,
    read_table,
    spans_in_words,
    spans_of,
)

_SIDES = ("users", "items")

# --- the data

_SHOWN_SPANS = 31


def read_sources(artifacts: Artifacts) -> list[dict[str, Any]]:
    """Returns row counts of each kind of data, and the reasons of rejected rows."""
    if not artifacts.dead_letters:
        raise MissingError("The run has no dead letters.")
    return [_source(name, folder) for name, folder in artifacts.dead_letters.items()]


def _source(name: str, folder: Path) -> dict[str, Any]:
    try:
        summary = read_json(folder / "summary.json", f"The summary of the {name}")
    except MissingError as missing:
        return {"name": name, "missing": str(missing)}
    return {**summary, "name": name, "folder": folder / "dead_letters"}


def read_spans(artifacts: Artifacts) -> dict[str, Any] | None:
    """Returns the newest spans and all exceptional ones, newest first; None without spans."""
    folder = artifacts.dead_letters.get("interactions")
    if folder is None or not (folder / "spans.json").is_file():
        return None
    spans = json.loads((folder / "spans.json").read_text(encoding="utf-8"))
    rows = []
    for i, span in enumerate(reversed(spans)):
        is_odd = span.get("state") not in ("read", "reused") or span.get("late") is True
        if i < _SHOWN_SPANS or is_odd:
            rows.append(span | {"is_odd": is_odd})
    return {"n": len(spans), "words": spans_in_words(spans_of(spans)), "rows": rows}


def read_split(artifacts: Artifacts) -> dict[str, Any]:
    """Returns the interaction store's manifest, and the size of the vocabularies."""
    store = read_json(artifacts.data / "store" / "store.json", "The interaction store")
    sizes = {name: _vocabulary_counts(artifacts.data, name) for name in _SIDES}
    return {**store, "vocabularies": {name: known for name, (known, _) in sizes.items()},
            "cold_items": sizes["items"][1]}  # fmt: skip


def _vocabulary_counts(data: Path, name: str) -> tuple[int | None, int | None]:
    """Returns how many ids a vocabulary has, and how many without training events."""
    path = data / "vocabulary" / f"{name}.parquet"
    try:
        rows = read_table(path, "The vocabulary", ["id", "count"])
    except MissingError:
        return None, None
    counts = rows["count"].filter(pc.is_valid(rows["id"]))
    return len(counts), pc.sum(pc.equal(counts, 0)).as_py() or 0


def read_growths(artifacts: Artifacts) -> dict[str, Any]:
    """Returns how each vocabulary changed, by its name."""
    if artifacts.vocabularies is None:
        raise MissingError("The run has no diff of its vocabularies.")
    return read_json(artifacts.vocabularies / "diff.json", "The diff of the vocabularies")


def read_features(artifacts: Artifacts) -> list[dict[str, Any]]:
    """Returns the features of both sides."""
    folders = {"items": artifacts.data / "catalogue", "users": artifacts.data / "user_features"}
    rows = []
    for side, folder in folders.items():
        if side == "items" or folder.exists():
            listed = read_json(folder / "features.json", f"The list of the {side}' features")
            rows += [_feature(side, folder, feature) for feature in listed["features"]]
    return rows


def _feature(side: str, folder: Path, feature: Mapping[str, Any]) -> dict[str, Any]:
    name = feature["name"]
    bags = read_array(folder / f"{name}.npy", f"The feature {name}")[1:]
    n_known, n_tokens = int(np.count_nonzero(bags.any(axis=1))), int(np.count_nonzero(bags))
    floats = feature.get("floats")
    return {
        "side": side,
        "name": name,
        "tokens": None if floats else feature["rows"] - 1,
        "known": n_known / max(1, len(bags)),
        "mean": floats or n_tokens / max(1, n_known),
    }


# --- the validation of the data, and its pages of statistics

_SHOWN_CHARACTERS = 60
_TOP_VALUES = 5


def read_validations(artifacts: Artifacts) -> dict[str, Any]:
    """Returns TFDV's findings for each kind of data, by name."""
    if artifacts.validation is None:
        raise MissingError("The run has no validation of its data.")
    path = artifacts.validation / "verdict.json"
    listed = read_json(path, "The validation of the data")
    return {name: _validation(validation) for name, validation in listed.items()}


def copy_pages(artifacts: Artifacts, out: Path) -> None:
    """Copies the pages of statistics into the folder of the report."""
    if artifacts.validation is not None:
        for page in artifacts.validation.glob("statistics-*.html"):
            shutil.copy(page, out / page.name)


def _validation(validation: Mapping[str, Any]) -> dict[str, Any]:
    splits = validation["splits"]
    split = "train" if "train" in splits else min(splits)
    columns = [read_column(column) for column in splits[split]["columns"]]
    return {**validation, "split": split, "columns": columns}


def write_statistics(path: Path, what: str, data_sets: Mapping[str, Mapping[str, Any]]) -> None:
    """Writes a page that needs no network and no script.

    Args:
        path: File of the page.
        what: `interactions`, `items` or `users`.
        data_sets: By name the rows and the columns, as in `splits` of `validation.json`.

    Raises:
        OSError: The page can't be written.
    """
    columns: dict[str, list[dict[str, Any]]] = {}
    for split, data_set in data_sets.items():
        for column in data_set["columns"]:
            shown = read_column(column, _TOP_VALUES) | {"split": split}
            columns.setdefault(column["name"], []).append(shown)
    page = render(
        "statistics.html.jinja", what=what, data_sets=data_sets,
        columns=dict(sorted(columns.items())),
    )  # fmt: skip
    path.write_text(page, encoding="utf-8", errors="replace")


def read_column(column: Mapping[str, Any], n_top: int = 3) -> dict[str, Any]:
    """Returns the display form of one column of `validation.json`.

    Args:
        column: An entry of `columns`.
        n_top: Number of most frequent texts to show.
    """
    if column["kind"] == "number":
        write = moment if _is_time(column) else _plain
        values = " … ".join(write(column[name]) for name in ("min", "median", "max"))
        heights, spread = column["bars"], _spread(column)
    else:
        top = column.get("top", [])
        frequent = ", ".join(
            f"{shortened(text, _SHOWN_CHARACTERS)} ({share(part)})" for text, part in top[:n_top]
        )
        values = f"{count(column.get('unique'))} distinct: {frequent}"
        heights, spread = [part for _, part in top], ""
        if _is_even(column):
            values, heights = f"{count(column['unique'])} distinct, none more frequent", []
    return {**column, "shown": values, "spread": spread, "chart": draw_bars(heights)}


def _is_time(column: Mapping[str, Any]) -> bool:
    """Returns whether a column has times; earlier releases didn't write `is_time`."""
    return bool(column.get("is_time", column["name"] == "timestamp"))


def _is_even(column: Mapping[str, Any]) -> bool:
    """Returns whether many texts are equally frequent, as ids are."""
    top, unique = column.get("top") or [], column.get("unique")
    if not top or not is_number(unique) or unique <= len(top):
        return False
    return bool(top[0][1] * unique < 1 + 1e-6)


def _spread(column: Mapping[str, Any]) -> str:
    """Returns mean, standard deviation and share of zeros; empty for times."""
    if _is_time(column) or not is_number(column.get("mean")):
        return ""
    mean, deviation = (figure(column[name]) for name in ("mean", "std_dev"))
    return f"mean {mean}, standard deviation {deviation}, {share(column['zeros'])} zeros"


def _plain(value: Any) -> str:
    """Returns a number as text: whole numbers in full, others with six digits."""
    if not is_number(value):
        return ABSENT
    return str(int(value)) if value == int(value) else f"{value:.6g}"


# --- the training

_MOST_CURVES = 20


def read_training(artifacts: Artifacts) -> dict[str, Any]:
    """Returns the training in figures, and the curves of its losses, metrics and validation."""
    return training_of(artifacts.training, artifacts.config)


def training_of(training: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the figures and curves of a `training.json`, of a config with `train`."""
    recorded, validations = training.get("curve") or [], training.get("validation") or []
    names = dict.fromkeys(["loss", *(name for point in recorded for name in point)])
    charts = [
        _curve("Training loss" if name == "loss" else name, points)
        for name in names
        if name not in ("step", "temperature") and (points := _points(recorded, name))
    ]
    if metric := _watched(config, validations):
        title = f"Validation {metric_title(metric)}"
        charts.insert(1, _curve(title, _points(validations, metric), training.get("best_step")))
    n_lost = len(recorded) - len(_points(recorded, "loss"))
    return {**training, "charts": charts[:_MOST_CURVES], "n_lost": n_lost}


def _curve(title: str, points: Sequence[tuple[float, float]], best: Any = None) -> Chart:
    (_, first), (end, last) = points[0], points[-1]
    caption = f"{title} from {figure(first)} to {figure(last)} over {count(end)} steps."
    series = [Series(0, points, has_marks=False)]
    marked = [point for point in points if point[0] == best]
    if marked:
        series.insert(0, Series(1, marked))
        caption += f" The marker is the best, {figure(marked[0][1])} at step {count(best)}."
    return Chart(title, caption, series, x_name="step", from_zero=False)


def _watched(config: Mapping[str, Any], validations: Sequence[Mapping[str, Any]]) -> str:
    """Returns the validation metric; empty without validation."""
    wanted = ((config.get("train") or {}).get("validation") or {}).get("metric")
    named = [
        name
        for validation in validations
        for name in validation
        if name != "step" and _points(validations, name)
    ]
    return wanted if wanted in named else next(iter(named), "")


def _points(recorded: Sequence[Mapping[str, Any]], name: str) -> list[tuple[float, float]]:
    return [
        (float(point["step"]), float(point[name]))
        for point in recorded
        if is_number(point.get("step")) and is_number(point.get(name))
    ]


# --- the steps of the run, its bundle and its origin


def read_run_steps(artifacts: Artifacts) -> RecordedSteps:
    """Returns the steps of the run."""
    if artifacts.record is None:
        raise MissingError("The run has no record of its steps.")
    return read_steps(artifacts.record)


def read_bundle(artifacts: Artifacts) -> dict[str, Any]:
    """Returns the manifest of the bundle, with its files from the largest on."""
    manifest = artifacts.manifest
    sizes = [(name, int(entry["size"])) for name, entry in (manifest.get("files") or {}).items()]
    return {**manifest, "sizes": sorted(sizes, key=lambda entry: (-entry[1], entry[0]))}


def config_text(artifacts: Artifacts) -> str:
    """Returns the config as YAML."""
    # Through JSON, so that tuples and paths become YAML types.
    plain = json.loads(json.dumps(artifacts.config, default=str))
    return yaml.safe_dump(plain, sort_keys=False, allow_unicode=True, width=88)
