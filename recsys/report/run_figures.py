"""The figures of the run: its data, the training, the steps, the bundle and their origin.

Each `read_…` returns numbers and names; the templates turn them into text.
"""

from __future__ import annotations

import functools
import hashlib
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path, PurePath
from typing import Any
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import yaml

from recsys.data.vocabulary import Vocabulary
from recsys.errors import RecsysError
from recsys.fingerprint import version_text
from recsys.formats import count, counted, figure, is_number
from recsys.report.charts import Point, Size, draw_curve, picture
from recsys.report.evaluated import metric_title
from recsys.report.run_artifacts import Artifacts, MissingError, read_array, read_json, read_table
from recsys.report.runs import read_steps
from recsys.report.statistics_page import read_column

_SIDES = ("users", "items")

# --- the data

_EXAMPLES_A_REASON = 2
_SHOWN_FILES = 12


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
    reasons = summary.get("by_reason", {}).items()
    examples, files = summary.get("examples") or {}, list(summary.get("read_by_file") or {})
    return {
        **summary,
        "name": name,
        "files": [(file, summary["read_by_file"][file]) for file in files[-_SHOWN_FILES:]],
        "n_earlier": len(files) - _SHOWN_FILES,
        "reasons": [
            (reason, n, [_letter(row) for row in examples.get(reason, [])[:_EXAMPLES_A_REASON]])
            for reason, n in sorted(reasons, key=lambda entry: (-entry[1], entry[0]))
        ],
        "folder": folder / "dead_letters",
    }


def _letter(row: Mapping[str, Any]) -> dict[str, Any]:
    return {**row, "file": PurePath(str(row.get("file") or "unknown file")).name}


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
    diff = read_json(artifacts.vocabularies / "diff.json", "The diff of the vocabularies")
    return {name: diff[name] for name in (*_SIDES, "kinds") if name in diff}


_FOLDERS = {"items": "catalogue", "users": "user_features"}
_BLOCK_ROWS = 1 << 18


def read_features(artifacts: Artifacts) -> list[dict[str, Any]]:
    """Returns the features of both sides; none where the config has none."""
    return [row for side in _FOLDERS for row in _features_of(artifacts.data, side)]


def _features_of(data: Path, side: str) -> Iterator[dict[str, Any]]:
    folder = data / _FOLDERS[side]
    if side == "users" and not folder.exists():
        return
    listed = read_json(folder / "features.json", f"The list of the {side}' features")
    for feature in listed["features"]:
        name = feature["name"]
        bags = read_array(folder / f"{name}.npy", f"The feature {name}")[1:]
        n_known = n_tokens = 0
        for start in range(0, len(bags), _BLOCK_ROWS):
            is_token = bags[start : start + _BLOCK_ROWS] > 0
            n_known += int(is_token.any(axis=1).sum())
            n_tokens += int(is_token.sum())
        yield {
            "side": side,
            "name": name,
            "tokens": feature["rows"] - 1,
            "known": n_known / max(1, len(bags)),
            "mean": n_tokens / max(1, n_known),
        }


# --- the validation of the data


def read_validations(artifacts: Artifacts) -> dict[str, Any]:
    """Returns what TFDV says of each kind of data, by its name."""
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
    splits, comparisons = validation["splits"], validation["comparisons"]
    split = "train" if "train" in splits else min(splits)
    return {
        **validation,
        "split": split,
        "columns": [read_column(column) for column in splits[split]["columns"]],
        "distances": list(_distances(comparisons)),
        "left_out": sorted({(c["column"], c["note"]) for c in comparisons if c["value"] is None}),
        "pages": [
            (quote(PurePath(page["file"]).name), page["title"]) for page in validation["pages"]
        ],
    }


def _distances(comparisons: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yields a row for each column, split and measure, the largest distance first."""
    rows: dict[tuple[str, str, str], dict[str, Mapping[str, Any]]] = {}
    for comparison in comparisons:
        if comparison["value"] is not None:
            row = (comparison["column"], comparison["split"], comparison["measure"])
            rows.setdefault(row, {})[comparison["kind"]] = comparison
    farthest = sorted(rows.items(), key=lambda row: -max(c["value"] for c in row[1].values()))
    for row, kinds in farthest:
        limits = dict.fromkeys(comparison["limit"] for comparison in kinds.values())
        names = dict(zip(("column", "split", "measure"), row, strict=True))
        yield {**names, "limits": list(limits), "kinds": kinds}


# --- the training

_WIDE, _HALF, _NARROW = (990, 260), (480, 240), (330, 210)
_MOST_CURVES = 20


def read_training(artifacts: Artifacts) -> dict[str, Any]:
    """Returns the training in figures, its loss curve, and that of the validation."""
    training = artifacts.training
    looks = training.get("validation") or []
    metric = _watched(artifacts, looks)
    pictures = [_loss(training, is_alone=not metric)]
    if metric:
        pictures.append(_validation_curve(looks, metric, training.get("best_step")))
    pictures += _own_curves(training.get("curve") or [])
    devices = training.get("devices")
    n_devices = len(devices) if isinstance(devices, list) else devices
    return {**training, "n_devices": n_devices, "pictures": pictures}


def read_sharding(artifacts: Artifacts) -> dict[str, Any]:
    """Returns the placement of the tables, and their total size on a device [bytes]."""
    training = artifacts.training
    tables = training.get("sharding")
    if not tables:
        raise MissingError("The training has no record of its tables.")
    kinds = ("bytes_per_device", "slot_bytes_per_device")
    sizes = [table.get(kind) for table in tables for kind in kinds]
    total = sum(n_bytes for n_bytes in sizes if is_number(n_bytes))
    return {"tables": tables, "total": total, "step": training.get("step")}


def read_carried(artifacts: Artifacts) -> dict[str, Any]:
    """Returns the state taken from an earlier model, or why the training started from scratch."""
    training = artifacts.training
    return training.get("warm_start") or {"cold": training.get("cold")}


def _loss(training: Mapping[str, Any], *, is_alone: bool) -> dict[str, Any]:
    recorded = training.get("curve") or []
    points = _points(recorded, "loss")
    caption = "The training has no loss curve."
    if points:
        caption = (
            f"Training loss from {figure(points[0][1])} to {figure(points[-1][1])}"
            f" over {count(points[-1][0])} steps."
        )
    n_lost = len(recorded) - len(points)
    if n_lost:
        losses = counted(n_lost, "recorded loss is", "recorded losses are")
        caption += f" {losses} not finite and omitted."
    wide = _WIDE if is_alone else _HALF
    return _curve("Training loss", caption, points, wide)


def _own_curves(recorded: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Returns the curves of auxiliary losses and of the model's own metrics."""
    names = dict.fromkeys(name for point in recorded for name in point)
    pictures = []
    for name in [name for name in names if name not in ("step", "loss", "temperature")]:
        points = _points(recorded, name)
        if points:
            says = f"{name} in training from {figure(points[0][1])} to {figure(points[-1][1])}."
            pictures.append(_curve(name, says, points, _HALF))
    return pictures[:_MOST_CURVES]


def _validation_curve(looks: Sequence[Mapping[str, Any]], metric: str, best: Any) -> dict[str, Any]:
    points = _points(looks, metric)
    caption = f"{metric_title(metric)} on the validation positives, last {figure(points[-1][1])}."
    marked = next((value for step, value in points if step == best), None)
    if marked is not None:
        caption += f" The ring marks the best, {figure(marked)} at step {count(best)}."
    return _curve("Validation", caption, points, _HALF, best)


def _curve(
    title: str, caption: str, points: Sequence[Point], wide: Size, best: Any = None
) -> dict[str, Any]:
    draw = functools.partial(draw_curve, points, says=caption, best=best)
    return picture(title, caption, draw, wide, _NARROW)


def _watched(artifacts: Artifacts, looks: Sequence[Mapping[str, Any]]) -> str:
    """Returns the metric that decided on the best step; empty where nothing was validated."""
    wanted = ((artifacts.config.get("train") or {}).get("validation") or {}).get("metric")
    named = [name for look in looks for name in look if name != "step" and _points(looks, name)]
    return wanted if wanted in named else next(iter(named), "")


def _points(recorded: Sequence[Mapping[str, Any]], name: str) -> list[Point]:
    return [
        (float(point["step"]), float(point[name]))
        for point in recorded
        if is_number(point.get("step")) and is_number(point.get(name))
    ]


# --- neighbours of popular items

_POPULAR_ITEMS = 6
_NEIGHBOURS = 5
_LOOKED_AT = 60
_BLOCK_ITEMS = 65_536


def read_neighbours(artifacts: Artifacts) -> list[dict[str, Any]]:
    """Returns popular items, unlike each other, and what lies nearest to them."""
    embeddings = read_array(artifacts.model / "candidates.npy", "The file of item embeddings")
    folder = artifacts.model
    vocabulary = read_table(folder / "vocabulary" / "items.parquet", "The item vocabulary")
    titles = read_table(folder / "catalogue" / "titles.parquet", "The catalogue")
    n_rows = min(len(embeddings), vocabulary.num_rows)
    if embeddings.ndim != 2 or n_rows < 2:
        raise MissingError("The model has too few items to show neighbours.")
    # Rows that are shared or free, and those of items that have left, are no items.
    is_item = pc.is_in(vocabulary["id"].cast(titles["id"].type), value_set=titles["id"])
    is_item = np.asarray(pc.and_(vocabulary["id"].is_valid(), is_item))[:n_rows]
    counts = np.where(is_item, vocabulary["count"].to_numpy()[:n_rows], 0)
    popular = np.argsort(-counts, kind="stable")[:_LOOKED_AT]
    popular = popular[counts[popular] > 0]
    if len(popular) == 0:
        raise MissingError("No item has training events.")
    nearest, cosines = nearest_items(embeddings[:n_rows], popular, is_item)
    shown: list[dict[str, Any]] = []
    used: set[int] = set()
    for i, row in enumerate(popular.tolist()):
        if row in used or len(shown) == _POPULAR_ITEMS:
            continue
        # An item beside its own neighbours would say the same again.
        rows = [row, *nearest[i].tolist()]
        used.update(rows)
        title, *others = _titles_of_rows(rows, vocabulary, titles)
        pairs = list(zip(others, cosines[i].tolist(), strict=True))
        shown.append({"title": title, "events": int(counts[row]), "nearest": pairs})
    return shown


def nearest_items(
    embeddings: np.ndarray, rows: np.ndarray, is_item: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the rows `[n, k]` of the highest cosines with `rows` `[n]`, and the cosines.

    The embeddings are read in blocks; rows that are no items, and the rows themselves,
    are left out.
    """
    queries = _unit(embeddings[rows])
    best_rows: np.ndarray = np.zeros((len(rows), 0), np.int64)
    best: np.ndarray = np.zeros((len(rows), 0), np.float32)
    for start in range(1, len(embeddings), _BLOCK_ITEMS):
        block = np.arange(start, min(start + _BLOCK_ITEMS, len(embeddings)))
        cosines = queries @ _unit(embeddings[block[0] : block[-1] + 1]).T
        cosines[(rows[:, None] == block) | ~is_item[block]] = -np.inf
        best = np.concatenate([best, cosines], axis=1)
        best_rows = np.concatenate([best_rows, np.broadcast_to(block, cosines.shape)], axis=1)
        kept = min(_NEIGHBOURS, best.shape[1])
        order = np.argpartition(-best, kept - 1, axis=1)[:, :kept]
        best, best_rows = (np.take_along_axis(x, order, axis=1) for x in (best, best_rows))
    order = np.argsort(-best, axis=1, kind="stable")
    best, best_rows = (np.take_along_axis(x, order, axis=1) for x in (best, best_rows))
    # With few items the last places hold the item itself.
    n_others = min(_NEIGHBOURS, int(is_item.sum()) - 1)
    return best_rows[:, :n_others], best[:, :n_others]


def _unit(vectors: np.ndarray) -> np.ndarray:
    vectors = np.nan_to_num(np.asarray(vectors, np.float32), posinf=0.0, neginf=0.0)
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)


def _titles_of_rows(rows: list[int], vocabulary: pa.Table, titles: pa.Table) -> list[str]:
    """Returns the titles of item `rows`; the id where the catalogue has none."""
    ids = vocabulary["id"].take(pa.array(rows))
    wanted = ids.cast(titles["id"].type).combine_chunks()
    known = titles.filter(pc.is_in(titles["id"], value_set=wanted))
    by_id = dict(zip(known["id"].to_pylist(), known["title"].to_pylist(), strict=True))
    return [str(by_id.get(id_) or id_) for id_ in ids.to_pylist()]


# --- the steps of the run, its bundle and its origin


def read_run_steps(artifacts: Artifacts) -> dict[str, Any]:
    """Returns the steps of the run that the report is of."""
    if artifacts.record is None:
        raise MissingError("The run has no record of its steps.")
    record = read_steps(artifacts.record)
    n_cached = sum(step.state == "cached" for step in record.steps)
    longest = max((step.seconds for step in record.steps), default=0.0)
    return {"record": record, "n_cached": n_cached, "longest": longest}


def read_bundle(artifacts: Artifacts) -> dict[str, Any]:
    """Returns the bundle in figures."""
    manifest = artifacts.manifest
    sizes = {name: int(entry["size"]) for name, entry in (manifest.get("files") or {}).items()}
    return {
        **manifest,
        "sizes": sizes,
        "total": sum(sizes.values()),
        "largest": sorted(sizes.items(), key=lambda entry: (-entry[1], entry[0]))[:4],
        "folder": artifacts.bundle,
        "pushed": artifacts.pushed,
    }


def read_versions(artifacts: Artifacts) -> list[tuple[str, str]]:
    """Returns what the model was trained and exported with."""
    versions: dict[str, dict[str, None]] = {}
    records = []
    with suppress(MissingError):
        records.append(read_json(artifacts.model / "model.json", "The model"))
    with suppress(MissingError):
        records.append(artifacts.manifest)
    for record in records:
        for name, version in record.get("versions", {}).items():
            versions.setdefault(name, {})[str(version)] = None
    if not versions:
        raise MissingError("Neither the model nor the bundle records package versions.")
    return [(name, ", ".join(different)) for name, different in sorted(versions.items())]


def read_fingerprints(artifacts: Artifacts) -> list[tuple[str, str]]:
    """Returns the commit, and sha256 of config, vocabularies, evaluation, bundle and its code."""
    canonical = json.dumps(artifacts.config, sort_keys=True, default=str)
    source = code = None
    with suppress(MissingError):
        source = artifacts.training.get("source")
    with suppress(MissingError):
        code = artifacts.manifest.get("code")
    prints = {
        "commit of the training": version_text(source),
        "config": hashlib.sha256(canonical.encode()).hexdigest(),
        "vocabulary of users": _vocabulary_print(artifacts.model / "vocabulary/users.parquet"),
        "vocabulary of items": _vocabulary_print(artifacts.model / "vocabulary/items.parquet"),
        "evaluation": _file_print(artifacts.evaluation / "evaluation.json"),
        "bundle": "not exported",
    }
    if artifacts.bundle is not None:
        prints["bundle"] = _file_print(artifacts.bundle / "manifest.json")
    return list((prints | ({"code": str(code)} if code else {})).items())


def config_text(artifacts: Artifacts) -> str:
    """Returns the config as YAML."""
    # Through JSON, so that tuples and paths become what YAML has.
    plain = json.loads(json.dumps(artifacts.config, default=str))
    return yaml.safe_dump(plain, sort_keys=False, allow_unicode=True, width=88)


def _vocabulary_print(path: Path) -> str:
    try:
        return Vocabulary.load(path).fingerprint()
    except RecsysError:
        return "missing"


def _file_print(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return "missing"
