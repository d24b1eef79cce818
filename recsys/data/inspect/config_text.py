"""The proposed config as YAML, with the reasons as comments."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from recsys.data.config import SourceConfig
from recsys.data.inspect.proposal import Inspection
from recsys.data.inspect.roles import RULES
from recsys.data.inspect.sides import ROLE
from recsys.data.sources.source_files import is_remote, patterns
from recsys.errors import shown


def config_text(report: Inspection, name: str, folder: Path) -> str:
    """Returns the YAML of a config.

    Args:
        report: The report; all roles must be decided.
        name: Name of the pipeline.
        folder: Folder of the config.
    """
    return "\n".join(_lines(report, name, folder)) + "\n"


def _lines(report: Inspection, name: str, folder: Path) -> Iterator[str]:
    if report.config is None or report.split is None:
        raise ValueError("an undecided report makes no config")
    split, reason = report.split
    yield "# Made by `recsys check`; look it over, then give it to `recsys run`."
    yield "# All keys and their defaults: docs/config.md."
    yield f"name: {_value(name)}"
    yield f"root: {_value(f'runs/{name}')}  # Everything that a run writes."
    yield ""
    yield "data:"
    if split != "time":
        yield f"  # {reason}."
        yield "  # What the figures of each split mean: docs/evaluation.md."
        yield f"  split: {split}"
    yield "  interactions:"
    decided = report.roles.decided
    comments = {"explode": "A row holds a list of events."}
    for role, column in decided.items():
        keys = RULES[role].keys(report.profiles[column.column])
        comments |= {key: comment for key, (_, comment) in keys.items() if comment}
    reasons = {role: column.reason for role, column in decided.items()}
    yield from _source(report.config, folder, reasons, comments)
    kinds = comments.get("positive_events")
    if kinds and not report.config.positive_events:
        rarest = list(report.profiles[decided["event"].column].values)[-1]
        yield f"    # {kinds} All are positives; name those that are, if not all:"
        yield f"    # positive_events: [{_value(rarest)}]"
    for what, side in report.sides.items():
        config = side.config(what)
        if config is None or side.id is None:
            continue
        yield f"  {what}:"
        yield from _source(config, folder, {ROLE[what]: side.id.reason}, {})
        yield from ["    features:"] * bool(side.features)
        for feature in side.features:
            options = {"name": feature.name, "column": feature.column, "kind": feature.kind}
            if feature.detail:
                options["separator" if feature.value == "list" else "format"] = feature.detail
            yield f"      - {_value(options)}"
        for left_out, why in side.left_out.items():
            yield f"      # {shown(left_out)}: {why}"


def _source(
    config: SourceConfig, folder: Path, reasons: Mapping[str, str], comments: Mapping[str, str]
) -> Iterator[str]:
    """Yields the keys that differ from the defaults, with the reason for each column."""
    keys = config.model_dump(mode="json", exclude_defaults=True, exclude={"features"})
    for key, value in keys.items():
        if key in comments:
            yield f"    # {comments[key]}"
        if key == "columns":
            yield "    columns:"
            for role, column in value.items():
                reason = f"  # {shown(reasons[role], 90)}" if role in reasons else ""
                yield f"      {role}: {_value(column)}{reason}"
        elif key in ("files", "eval_files", "valid_files"):
            # The reader of a config takes them as relative to its folder.
            paths = [
                path if is_remote(path) else os.path.relpath(Path.cwd() / path, folder)
                for path in patterns(value if isinstance(value, str) else tuple(value))
            ]
            yield f"    {key}: {_value(paths[0] if len(paths) == 1 else paths)}"
        else:
            yield f"    {key}: {_value(value)}"


def _value(value: Any) -> str:
    """Returns a value as JSON, which is valid YAML."""
    return json.dumps(value, ensure_ascii=False)
