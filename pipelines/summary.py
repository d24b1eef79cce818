"""The summary of a run: what it made, where that is, and how good it is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ml_metadata.proto.metadata_store_pb2 import Execution

from pipelines.history import History


def summarize(executions: dict[str, Execution], history: History) -> dict[str, Any]:
    """Returns the object that the event `finished` has.

    Args:
        executions: The execution of each step.
        history: Where their outputs are looked up.
    """

    def folder(step: str, key: str) -> Path:
        return Path(history.output(executions[step], key).uri)

    evaluation_file = folder("RetrievalEvaluator", "evaluation") / "evaluation.json"
    evaluation = json.loads(evaluation_file.read_text())
    training = json.loads((folder("Trainer", "model") / "training.json").read_text())
    pushed = json.loads((folder("Pusher", "pushed") / "pushed.json").read_text())
    return {
        "blessed": evaluation["verdict"]["blessed"],
        "bundle": pushed["destination"],
        "report": str(folder("Reporter", "report") / "report.html"),
        "metrics": {**evaluation["metrics"], "baselines": evaluation["baselines"]},
        "evaluation": str(evaluation_file),
        "sharding": training["sharding"],
    }
