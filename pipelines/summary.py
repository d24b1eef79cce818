"""The summary of a run: what it made, where that is, and how good it is."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ml_metadata.proto.metadata_store_pb2 import Execution

from pipelines.history import History
from pipelines.told_data import output_folder, told_of_data

_EVALUATION = "evaluation.json"
_READERS = {"InteractionGen": "interactions", "ItemGen": "items", "UserGen": "users"}
_COUNTED = ("read", "rejected", "duplicates")
_MEASURED = (
    "query",
    "split",
    "repeats",
    "repeated_positives",
    "sampled_negatives",
    "confidence",
    "metrics",
    "intervals",
    "baselines",
    "blessed_model",
)


def summarize(executions: Mapping[str, Execution], history: History) -> dict[str, Any]:
    """Returns the object that the event `finished` has.

    Args:
        executions: The execution of each step.
        history: Where their outputs are looked up.
    """
    evaluation_file = _folder(executions, history, "RetrievalEvaluator", "evaluation") / _EVALUATION
    evaluation = json.loads(evaluation_file.read_text())
    training = json.loads(
        (_folder(executions, history, "Trainer", "model") / "training.json").read_text()
    )
    pushed = _pushed(executions, history)
    return {
        "blessed": evaluation["verdict"]["blessed"],
        "bundle": pushed["destination"],
        "not_pushed": pushed.get("reason"),
        "report": str(_report(executions, history)),
        "metrics": {**evaluation["metrics"], "baselines": evaluation["baselines"]},
        "evaluation": str(evaluation_file),
        "data": str(_folder(executions, history, "InteractionEncoder", "data")),
        "model": str(_folder(executions, history, "Trainer", "model")),
        "sharding": training["sharding"],
    }


def told(executions: Mapping[str, Execution], history: History, root: Path) -> dict[str, Any]:
    """Returns what `run.json` holds of the steps that ended well, be they all or a few.

    Args:
        executions: The execution of each step that ended well.
        history: Where their outputs are looked up.
        root: Paths are given from here.
    """
    found: dict[str, Any] = {"rejected": _rejected(executions, history)}
    found |= told_of_data(executions, history)
    if "Trainer" in executions:
        training = _folder(executions, history, "Trainer", "model") / "training.json"
        found["carried"] = json.loads(training.read_text()).get("warm_start")
    if "RetrievalEvaluator" in executions:
        folder = _folder(executions, history, "RetrievalEvaluator", "evaluation")
        found |= _measured(json.loads((folder / _EVALUATION).read_text()))
    if "Pusher" in executions:
        pushed = _pushed(executions, history)
        found |= {"pushed": pushed["destination"], "not_pushed": pushed.get("reason")}
    if "Reporter" in executions:
        found["report"] = Path(os.path.relpath(_report(executions, history), root)).as_posix()
    return found


def _measured(evaluation: Mapping[str, Any]) -> dict[str, Any]:
    verdict = evaluation["verdict"]
    return {
        **{name: evaluation.get(name) for name in _MEASURED},
        "deciding": verdict.get("metric"),
        "blessed": verdict["blessed"],
        "sentence": verdict.get("sentence") or "; ".join(verdict.get("reasons", [])),
        "against": {
            name: one.get(verdict.get("metric"))
            for name, one in (evaluation.get("comparisons") or {}).items()
        },
    }


def _rejected(executions: Mapping[str, Execution], history: History) -> dict[str, Any]:
    """Returns the rows read, rejected and left out as duplicates of each kind of data."""
    found = {}
    for step, what in _READERS.items():
        if step in executions:
            file = _folder(executions, history, step, "dead_letters") / "summary.json"
            summary = json.loads(file.read_text())
            found[what] = {name: summary.get(name) for name in _COUNTED}
    return found


def _pushed(executions: Mapping[str, Execution], history: History) -> dict[str, str | None]:
    """Returns `destination`, and the `reason` where there is none."""
    file = _folder(executions, history, "Pusher", "pushed") / "pushed.json"
    told: dict[str, str | None] = json.loads(file.read_text())
    return told


def _report(executions: Mapping[str, Execution], history: History) -> Path:
    return _folder(executions, history, "Reporter", "report") / "report.html"


def _folder(executions: Mapping[str, Execution], history: History, step: str, key: str) -> Path:
    return output_folder(executions, history, step, key)
