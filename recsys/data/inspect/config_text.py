"""The proposed config as YAML, with the reasons as comments."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from recsys.config import CsvFormat, Files, InteractionsConfig, SourceConfig
from recsys.data.features import Feature
from recsys.data.inspect.names import shown
from recsys.data.inspect.proposal import Report
from recsys.data.inspect.sides import Side
from recsys.data.sources.files import is_remote


def config_text(report: Report, name: str, folder: Path) -> str:
    """Returns the YAML of a config.

    Args:
        report: The report, without undecided roles.
        name: Name of the pipeline.
        folder: Folder that the config will lie in.
    """
    return "\n".join(_lines(report, name, folder)) + "\n"


def _lines(report: Report, name: str, folder: Path) -> Iterator[str]:
    config = report.config
    if config is None:
        raise ValueError("an undecided report makes no config")
    yield "# Made by `recsys check`; look it over, then give it to `recsys run`."
    yield "# All keys and their defaults: docs/config.md."
    yield f"name: {_value(name)}"
    yield f"root: {_value(f'runs/{name}')}  # Everything that a run writes."
    yield ""
    yield "data:"
    yield from _split(report)
    yield "  interactions:"
    yield from _source(config, folder)
    if config.explode is not None:
        events = config.explode.model_dump(exclude_none=True)
        yield f"    explode: {_value(events)}  # A row holds a list of events."
    yield "    columns:"
    for role, decided in report.roles.decided.items():
        yield f"      {role}: {_value(decided.column)}  # {shown(decided.reason, 90)}"
    yield from _order(report, config, folder)
    if config.weight_scale != "linear":
        yield "    # Counts: a few are so large that they would drown the others."
        yield f"    weight_scale: {config.weight_scale}"
    if config.positive_at_least is not None:
        rating = report.profiles[report.roles.decided["rating"].column]
        yield f"    # Ratings go from {rating.lowest:g} to {rating.highest:g}: say what likes are."
        yield f"    positive_at_least: {config.positive_at_least:g}"
    if "event" in report.roles.decided:
        yield from _events(report)
    for what, side in report.sides.items():
        yield from _side(what, side, folder)


def _split(report: Report) -> Iterator[str]:
    if report.split is not None and report.split.split != "time":
        yield f"  # {report.split.reason}."
        yield "  # What the figures of each split mean: docs/evaluation.md."
        yield f"  split: {report.split.split}"


def _order(report: Report, config: InteractionsConfig, folder: Path) -> Iterator[str]:
    if report.split is not None and report.split.part is not None:
        yield f"      part: {_value(report.split.part)}"
        yield f"    train_parts: {_value(config.train_parts)}"
        yield f"    eval_parts: {_value(config.eval_parts)}"
    if config.eval_files:
        yield f"    eval_files: {_value(_relative(config.eval_files, folder))}"
    if config.columns.timestamp is not None:
        if config.timestamp_format is None:
            yield f"    timestamp_unit: {config.timestamp_unit}"
        else:
            yield f"    timestamp_format: {_value(config.timestamp_format)}"
    elif config.order is not None:
        yield f"    order: {config.order}"


def _events(report: Report) -> Iterator[str]:
    kinds = report.profiles[report.roles.decided["event"].column].values
    if not kinds:  # None, or more than are kept.
        return
    named = ", ".join(f"{shown(kind)} ({n:,})" for kind, n in kinds.most_common(20))
    yield f"    # Kinds: {named}."
    yield "    # All are positives; name those that are, if not all:"
    yield f"    # positive_events: [{_value(min(kinds, key=lambda kind: kinds[kind]))}]"


def _side(what: str, side: Side, folder: Path) -> Iterator[str]:
    if side.id is None or (what == "users" and not side.features):
        return
    yield f"  {what}:"
    yield from _source(side.understood.source, folder)
    yield "    columns:"
    kind = "item" if what == "items" else "user"
    yield f"      {kind}: {_value(side.id.column)}  # {shown(side.id.reason, 90)}"
    if side.title is not None:
        yield f"      title: {_value(side.title.column)}"
    if side.features:
        yield "    features:"
    for feature in side.features:
        yield f"      - {_feature(feature)}"
    for column, why in side.left_out.items():
        yield f"      # {shown(column)}: {why}"


def _source(source: SourceConfig, folder: Path) -> Iterator[str]:
    yield f"    files: {_value(_relative(source.files, folder))}"
    if source.format != "auto":
        yield f"    format: {source.format}"
    csv = {
        key: value
        for key, value in source.csv.model_dump(mode="json").items()
        if value != CsvFormat().model_dump(mode="json")[key]
    }
    if csv:
        yield f"    csv: {_value(csv)}"


def _feature(feature: Feature) -> str:
    keys: dict[str, Any] = {"name": feature.name, "column": feature.column, "kind": feature.kind}
    keys |= {"separator": feature.detail} if feature.value == "list" else {}
    keys |= {"format": feature.detail} if feature.value == "date" and feature.detail else {}
    return _value(keys)


def _relative(files: Files, folder: Path) -> str | list[str]:
    names = [files] if isinstance(files, str) else list(files)
    # As the config's reader puts them together again.
    paths = [
        path if is_remote(path) else os.path.relpath(Path.cwd() / path, folder) for path in names
    ]
    return paths[0] if len(paths) == 1 else paths


def _value(value: Any) -> str:
    """Returns a value as JSON, which is YAML too."""
    return json.dumps(value, ensure_ascii=False)
