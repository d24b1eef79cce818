"""The proposed config as YAML, with the reasons as comments."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from recsys.data.config import Files, InteractionsConfig, SourceConfig
from recsys.data.inspect.names import shown
from recsys.data.inspect.proposal import Inspection
from recsys.data.inspect.roles import Role
from recsys.data.inspect.sides import ROLE, Side
from recsys.data.sources.source_files import is_remote


def config_text(report: Inspection, name: str, folder: Path) -> str:
    """Returns the YAML of a config.

    Args:
        report: The report; all roles must be decided.
        name: Name of the pipeline.
        folder: Folder of the config.
    """
    return "\n".join(_lines(report, name, folder)) + "\n"


def _lines(report: Inspection, name: str, folder: Path) -> Iterator[str]:
    if report.config is None:
        raise ValueError("an undecided report makes no config")
    yield "# Made by `recsys check`; look it over, then give it to `recsys run`."
    yield "# All keys and their defaults: docs/config.md."
    yield f"name: {_value(name)}"
    yield f"root: {_value(f'runs/{name}')}  # Everything that a run writes."
    yield ""
    yield "data:"
    if report.split is not None and report.split.split != "time":
        yield f"  # {report.split.reason}."
        yield "  # What the figures of each split mean: docs/evaluation.md."
        yield f"  split: {report.split.split}"
    yield "  interactions:"
    comments = _comments(report, report.config)
    yield from _source(report.config, folder, report.roles.decided, comments)
    if "event" in report.roles.decided:
        yield from _events(report)
    for what, side in report.sides.items():
        if side.config is not None:
            yield f"  {what}:"
            yield from _side(what, side, folder)


def _comments(report: Inspection, config: InteractionsConfig) -> dict[str, str]:
    """Returns the comments above keys of the interactions."""
    comments = {
        "explode": "A row holds a list of events.",
        "weight_scale": "A few are so large that they would drown the others.",
    }
    if config.positive_at_least is not None:
        rating = report.profiles[report.roles.decided["rating"].column]
        scale = f"{rating.lowest:g} to {rating.highest:g}"
        share = rating.numbers.share_from(config.positive_at_least)
        comments["positive_at_least"] = (
            f"Ratings go from {scale}, {share:.1%} are at least so high: say what likes are."
        )
    return comments


def _source(
    config: SourceConfig, folder: Path, roles: Mapping[str, Role], comments: Mapping[str, str]
) -> Iterator[str]:
    """Yields the keys that differ from the defaults, with the reason for each column."""
    keys = config.model_dump(mode="json", exclude_defaults=True, exclude={"features"})
    for key, value in keys.items():
        if key in comments:
            yield f"    # {comments[key]}"
        if key == "columns":
            yield "    columns:"
            for role, column in value.items():
                reason = f"  # {shown(roles[role].reason, 90)}" if role in roles else ""
                yield f"      {role}: {_value(column)}{reason}"
        else:
            is_files = key in ("files", "eval_files", "valid_files")
            yield f"    {key}: {_value(_relative(value, folder) if is_files else value)}"


def _events(report: Inspection) -> Iterator[str]:
    kinds = report.profiles[report.roles.decided["event"].column].values
    if not kinds:  # There are none, or too many to keep.
        return
    named = ", ".join(f"{shown(kind)} ({n:,})" for kind, n in kinds.most_common(20))
    yield f"    # Kinds: {named}."
    yield "    # All are positives; name those that are, if not all:"
    yield f"    # positive_events: [{_value(min(kinds, key=lambda kind: kinds[kind]))}]"


def _side(what: str, side: Side, folder: Path) -> Iterator[str]:
    if side.config is None or side.id is None:
        return
    yield from _source(side.config, folder, {ROLE[what]: side.id}, {})
    if side.features:
        yield "    features:"
    for feature in side.features:
        keys = {"name": feature.name, "column": feature.column, "kind": feature.kind}
        keys |= {"separator": feature.detail} if feature.value == "list" else {}
        keys |= {"format": feature.detail} if feature.value == "date" and feature.detail else {}
        yield f"      - {_value(keys)}"
    for column, why in side.left_out.items():
        yield f"      # {shown(column)}: {why}"


def _relative(files: Files, folder: Path) -> str | list[str]:
    """Returns files relative to the config's folder, as the config's reader expects."""
    names = [files] if isinstance(files, str) else list(files)
    paths = [
        path if is_remote(path) else os.path.relpath(Path.cwd() / path, folder) for path in names
    ]
    return paths[0] if len(paths) == 1 else paths


def _value(value: Any) -> str:
    """Returns a value as JSON, which is valid YAML."""
    return json.dumps(value, ensure_ascii=False)
