"""`recsys compare`: two models on the same queries, and which of them is better."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from recsys.cli import stages
from recsys.cli.evaluate import read_evaluation
from recsys.cli.evaluate_view import (
    four_decimals,
    measured_on,
    new_table,
    print_repeats,
    talk,
)
from recsys.commit import commit_text
from recsys.config import BlessConfig, Config
from recsys.formats import change, change_span

_BLESSED = "blessed_model"
_FACTS = (
    "query", "queries", "users", "candidates", "repeats", "repeated_positives",
    "sampled_negatives", "confidence",
)  # fmt: skip


def compare(
    a: Path,
    b: Path,
    config_path: Path | None,
    overrides: Sequence[str],
    data: Path,
    out: Path | None = None,
) -> dict[str, Any]:
    """Measures two models on the same queries and says, by metric, which is better.

    Both are resampled with the same users (the paired bootstrap), so that what makes
    all models good or bad on a user is no part of the interval.

    Args:
        a: Model folder or bundle.
        b: Model folder or bundle; the differences are those of `b` over `a`.
        config_path: Config file; the one of the shipped data by default.
        overrides: `a.b=value` each.
        data: Data folder of an InteractionEncoder.
        out: Folder to write `comparison.json` into; None: nothing is written.

    Returns:
        `a`, `b`, `data`; `query`, `queries`, `users`, `confidence`; the deciding `metric`
        and a `sentence` on it; `metrics`: by name `a`, `b`, `difference`,
        `difference_interval`, `relative`, `interval`, `better` (`a`, `b` or null) and
        `text`.
    """
    config = stages.config_of(config_path, overrides)
    with tempfile.TemporaryDirectory(prefix="recsys-") as scratch:
        stages.evaluate(_of_two(config), data, b, Path(scratch), blessed=a)
        found = read_evaluation(Path(scratch))
    paths = {"a": str(a), "b": str(b), "data": str(data)}
    result = {**paths, **_view(found, config.bless.metric)}
    _show(result, found)
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        text = json.dumps(result, indent=1, allow_nan=False, ensure_ascii=False)
        commit_text(text + "\n", out / "comparison.json")
    return result


def _of_two(config: Config) -> Config:
    """Returns a config that measures two models and nothing else."""
    evaluate = config.evaluate.model_copy(update={"baselines": ()})
    bless = BlessConfig(metric=config.bless.metric, over={}, over_blessed=1.0)
    return config.model_copy(update={"evaluate": evaluate, "bless": bless})


def _view(found: dict[str, Any], deciding: str) -> dict[str, Any]:
    metrics = {
        name: _metric(name, found["blessed_model"][name], found["metrics"][name], difference, found)
        for name, difference in found["comparisons"][_BLESSED].items()
    }
    facts = {name: found.get(name) for name in _FACTS}
    sentence = metrics[deciding]["text"] if deciding in metrics else f"{deciding} has no value."
    return {**facts, "metric": deciding, "sentence": sentence, "metrics": metrics}


def _metric(
    name: str, of_a: float, of_b: float, difference: dict[str, Any], found: dict[str, Any]
) -> dict[str, Any]:
    better = _better(difference)
    text = _text(name, better, difference, found["confidence"])
    return {"a": of_a, "b": of_b, **difference, "better": better, "text": text}


def _better(difference: dict[str, Any]) -> str | None:
    """Returns which is surely better; None where the interval holds 0, or there is none."""
    low, high = difference["difference_interval"] or (0.0, 0.0)
    return "b" if low > 0 else "a" if high < 0 else None


def _text(name: str, better: str | None, difference: dict[str, Any], confidence: float) -> str:
    size = difference["difference"]
    if size == 0 and (difference["difference_interval"] or [0, 0]) == [0, 0]:
        return f"{name}: A and B are the same."
    if difference["difference_interval"] is None:
        return f"{name}: too few users to tell A from B."
    shown = _size(difference, confidence)
    if better is None:
        return f"{name}: neither is surely better; B differs from A by {shown}."
    worse = "A" if better == "b" else "B"
    return f"{name}: {better.upper()} is better than {worse}; B differs from A by {shown}."


def _size(difference: dict[str, Any], confidence: float) -> str:
    """Returns the relative difference where there is one, else the absolute one."""
    if difference["interval"] is not None:
        size, span = change(difference["relative"]), change_span(difference["interval"])
    else:
        size = _signed(difference["difference"])
        span = " … ".join(_signed(end) for end in difference["difference_interval"])
    return _plain(f"{size}, {100 * confidence:.3g} % interval {span}")


def _signed(value: float) -> str:
    return f"{value:+.4f}".replace("-", "−")


def _plain(text: str) -> str:
    """Returns a text with plain spaces, so that what is printed can be searched."""
    return text.replace("\N{NO-BREAK SPACE}", " ")


def _show(result: dict[str, Any], found: dict[str, Any]) -> None:
    console = talk()
    for name in ("a", "b"):
        console.print(Text(f"{name.upper()}  {result[name]}"), soft_wrap=True)
    console.print(_table(result, found))
    print_repeats(console, found)
    style = "bold" if result["metrics"].get(result["metric"], {}).get("better") else ""
    console.print(Text(result["sentence"], style), soft_wrap=True)


def _table(result: dict[str, Any], found: dict[str, Any]) -> Table:
    interval = f"{100 * found['confidence']:.3g} % interval"
    table = new_table(measured_on(found), ["A", "B", "B over A", interval, "better"])
    for name, one in result["metrics"].items():
        table.add_row(
            name,
            four_decimals(one["a"]),
            four_decimals(one["b"]),
            _plain(change(one["relative"])),
            _plain(change_span(one["interval"])),
            {"a": "A", "b": "B", None: "–"}[one["better"]],
        )
    return table
