"""The proposed config as YAML, with the reasons as comments."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from recsys.data.config import InteractionsConfig
from recsys.data.entities import EntityConfig
from recsys.data.inspect.labels import plain_name
from recsys.data.inspect.proposal import Inspection
from recsys.data.inspect.roles import RULES
from recsys.data.inspect.sides import ROLE
from recsys.data.sources.source_files import patterns
from recsys.errors import shown
from recsys.storage.bucket import is_url

_CATEGORIES = ("category", "categories")
"""Kinds of features of items whose tokens say what a user likes."""


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
    if _is_for_ranking(report):
        yield "task: ranking  # Probabilities of the labels; without this key, items to recommend."
    yield ""
    yield "data:"
    if split != "time":
        yield f"  # {reason}."
        yield "  # What the figures of each split mean: docs/evaluation.md."
        yield f"  split: {split}"
    yield "  interactions:"
    yield from _source(report.config, folder, report.roles.reasons(), _comments(report))
    yield from _more(report)
    for what, side in report.sides.items():
        config = side.config(what)
        if config is None or side.id is None:
            continue
        yield f"  {what}:"
        yield from _source(config, folder, {side.id.column: f"{ROLE[what]}: {side.id.reason}"}, {})
        for left_out, why in side.left_out.items():
            yield f"      # {shown(left_out)}: {why}"


def _comments(report: Inspection) -> dict[str, str]:
    """Returns the comment above each key of the interactions."""
    comments = {
        "explode": "A row holds a list of events.",
        "labels": f"All rows are kept: {report.labels.reason}.",
        "positive": "What histories hold and retrieval learns; another label may be named.",
        "features": "Context of a query, and attributes of a history's events: docs/features.md.",
    }
    for role, column in report.roles.decided.items():
        keys = RULES[role].keys(report.profiles[column.column])
        comments |= {key: comment for key, (_, comment) in keys.items() if comment}
    return comments


def _more(report: Inspection) -> Iterator[str]:
    """Yields statistics of earlier events, and commented keys that the user may want."""
    statistics = [_value(one) for one in _statistics(report)]
    if statistics and _is_for_ranking(report):
        yield from () if report.features else ("    features:",)
        yield "      # Statistics of earlier events: docs/features.md#statistics."
        yield from (f"      - {one}" for one in statistics)
        statistics = []
    event, rating = (report.roles.decided.get(role) for role in ("event", "rating"))
    kinds = report.profiles[event.column].values if event else {}
    if kinds and not report.labels.labels:
        counts = ", ".join(f"{shown(kind)} ({n:,})" for kind, n in list(kinds.items())[:20])
        yield f"    # Kinds: {counts}. All are positives; name those that are, if not all:"
        yield f"    # positive_events: [{_value([*kinds][-1])}]"
    features: list[dict[str, Any]] = []
    if time := report.roles.decided.get("timestamp"):
        features += [{"name": n, "column": time.column, "kind": n} for n in ("hour", "weekday")]
    if rating and report.labels.labels == {}:
        options = {"name": "given_rating", "column": rating.column, "kind": "number"}
        features.append({**options, "outcome": True})
    if features and not (report.features or _is_for_ranking(report)):
        yield "    # Models can also read these (docs/features.md). Hours are UTC unless zone says:"
        yield "    # features:"
    yield from (f"    #   - {_value(one)}" for one in features)
    if statistics:
        yield "    # With task: ranking, models read statistics of earlier events, too:"
    yield from (f"    #   - {one}" for one in statistics)


def _is_for_ranking(report: Inspection) -> bool:
    """Returns whether the data have labels and impressions."""
    config = report.config
    return config is not None and bool(config.labels) and config.has_impressions


def _statistics(report: Inspection) -> list[dict[str, Any]]:
    """Returns the options of statistics of the label of positives, for data with times."""
    label = report.labels.positive
    if label is None or "timestamp" not in report.roles.decided:
        return []
    of_items = report.sides["items"].features if "items" in report.sides else ()
    with_tokens = [feature.name for feature in of_items if feature.kind in _CATEGORIES]
    by: dict[str, Any] = {"user": "user", "item": "item"}
    by |= {f"user_{name}": ["user", name] for name in with_tokens[:1]}
    taken = {one.name for one in report.features} | {one.name for one in of_items}
    made = [
        {"name": plain_name(f"{of}_{what}", taken), "kind": kind, "label": label, "by": keys}
        for of, keys in by.items()
        for what, kind in ((f"{label}_rate", "mean"), (f"{label}_rows", "count"))
    ]
    last = {"name": plain_name(f"last_{label}", taken), "kind": "last", "label": label}
    return [*made, last]


def _source(
    config: InteractionsConfig | EntityConfig,
    folder: Path,
    reasons: Mapping[str, str],
    comments: Mapping[str, str],
) -> Iterator[str]:
    """Yields the keys that differ from the defaults, with the reason for each column."""
    keys = config.model_dump(mode="json", exclude_defaults=True)
    for key in sorted(keys, key=lambda key: key == "features"):
        value = keys[key]
        if key in comments:
            yield f"    # {comments[key]}"
        if key in ("columns", "labels"):
            yield f"    {key}:"
            for name, entry in value.items():
                known = reasons.get(entry, "") if key == "columns" else ""
                reason = known.partition(": ")[2]
                yield f"      {name}: {_value(entry)}" + f"  # {shown(reason, 90)}" * bool(reason)
        elif key == "features":
            yield "    features:"
            yield from (f"      - {_value(_without_defaults(one))}" for one in config.features)
        elif key in ("files", "eval_files", "valid_files"):
            # The reader of a config takes them as relative to its folder.
            paths = [
                path if is_url(path) else os.path.relpath(Path.cwd() / path, folder)
                for path in patterns(value if isinstance(value, str) else tuple(value))
            ]
            yield f"    {key}: {_value(paths[0] if len(paths) == 1 else paths)}"
        else:
            yield f"    {key}: {_value(value)}"


def _without_defaults(feature: Any) -> dict[str, Any]:
    """Returns the options of a feature that differ from the defaults."""
    options = {"name": feature.name, "column": feature.column, "kind": feature.kind}
    return options | feature.model_dump(mode="json", exclude_defaults=True)


def _value(value: Any) -> str:
    """Returns a value as JSON, which is valid YAML."""
    return json.dumps(value, ensure_ascii=False)
