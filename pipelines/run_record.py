"""Keeps the record of a run and the page of all runs, and never fails a run over them."""

from __future__ import annotations

import datetime as dt
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from absl import logging
from ml_metadata.proto.metadata_store_pb2 import Execution

from pipelines.history import History
from recsys.errors import RecsysError
from recsys.report.index import write_index
from recsys.report.runs import RUNS, RunRecord
from recsys.system.source_version import source_version

_T = TypeVar("_T")


def new_run_id() -> str:
    """Returns an id for a run that starts now; ids sort as the runs do."""
    return f"{dt.datetime.now(dt.UTC):%Y-%m-%dT%H-%M-%S.%fZ}"


class Recorder:
    """Writes what a run does and what came of it; a record that fails is a warning.

    Args:
        root: Folder of everything that the run writes.
        run_id: Id of the run.
        name: Name of the pipeline.
    """

    def __init__(self, root: Path, run_id: str, name: str) -> None:
        self._root, self._name = root, name
        self._record = RunRecord(root / RUNS / run_id)
        self._started, self._clock = time.time(), time.monotonic()

    def start(self, steps: Sequence[str]) -> None:
        """Writes that the run has started, and with which steps."""
        _tried(lambda: self._record.start(self._name, steps, self._started))

    def step(self, step: str, state: str, reason: str, seconds: float) -> None:
        """Writes that a step has just ended after `seconds`."""
        started = time.time() - seconds
        _tried(lambda: self._record.step(step, state, reason, seconds, started))

    def end(
        self,
        tell: Callable[[], Mapping[str, Any]],
        error: RecsysError | None = None,
        step: str | None = None,
        state: str = "failed",
    ) -> Path | None:
        """Writes what came of the run, and the page of all runs.

        Args:
            tell: Returns what is known of data, model and report.
            error: Why it failed or was stopped, if it did or was.
            step: The step that failed, or the last one.
            state: What a run with an error is: `failed` or `stopped`.

        Returns:
            The path of the page; None if it couldn't be written.
        """
        result: dict[str, Any] = {
            "name": self._name,
            "started": self._started,
            "seconds": round(time.monotonic() - self._clock, 1),
            "state": "finished" if error is None else state,
            "source": source_version(),
        }
        if error is not None:
            result |= {"error": str(error), "step": step}
        result |= _tried(tell) or {}
        _tried(lambda: self._record.end(result))
        return _tried(lambda: write_index(self._root))


def _tried(write: Callable[[], _T]) -> _T | None:
    try:
        return write()
    except Exception as error:  # noqa: BLE001 ML Metadata has errors of its own; none counts
        logging.warning("The record of the run is not whole: %s", error)
        return None


# --- the result: what a run made, where that is, and how good it is

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


def steps_record(
    executions: Mapping[str, Execution], history: History, root: Path
) -> dict[str, Any]:
    """Returns what `run.json` holds of the steps that ended well, be they all or a few.

    Args:
        executions: The execution of each step that ended well.
        history: Where their outputs are looked up.
        root: Paths are given from here.
    """
    result: dict[str, Any] = {"rejected": _rejected(executions, history)}
    result |= data_record(executions, history)
    if "Trainer" in executions:
        training = _folder(executions, history, "Trainer", "model") / "training.json"
        result["carried"] = json.loads(training.read_text()).get("warm_start")
    if "RetrievalEvaluator" in executions:
        folder = _folder(executions, history, "RetrievalEvaluator", "evaluation")
        result |= _measured(json.loads((folder / _EVALUATION).read_text()))
    if "Pusher" in executions:
        pushed = _pushed(executions, history)
        result |= {"pushed": pushed["destination"], "not_pushed": pushed.get("reason")}
    if "Reporter" in executions:
        result["report"] = Path(os.path.relpath(_report(executions, history), root)).as_posix()
    return result


def _measured(evaluation: Mapping[str, Any]) -> dict[str, Any]:
    verdict = evaluation["verdict"]
    return {
        **{name: evaluation.get(name) for name in _MEASURED},
        "deciding": verdict.get("metric"),
        "blessed": verdict["blessed"],
        "sentence": verdict.get("sentence") or "; ".join(verdict.get("reasons", [])),
        "against": {
            name: comparison.get(verdict.get("metric"))
            for name, comparison in (evaluation.get("comparisons") or {}).items()
        },
    }


def _rejected(executions: Mapping[str, Execution], history: History) -> dict[str, Any]:
    """Returns the rows read, rejected and left out as duplicates of each kind of data."""
    counts = {}
    for step, what in _READERS.items():
        if step in executions:
            file = _folder(executions, history, step, "dead_letters") / "summary.json"
            summary = json.loads(file.read_text())
            counts[what] = {name: summary.get(name) for name in _COUNTED}
    return counts


def _pushed(executions: Mapping[str, Execution], history: History) -> dict[str, str | None]:
    """Returns `destination`, and the `reason` where there is none."""
    file = _folder(executions, history, "Pusher", "pushed") / "pushed.json"
    push: dict[str, str | None] = json.loads(file.read_text())
    return push


def _report(executions: Mapping[str, Execution], history: History) -> Path:
    return _folder(executions, history, "Reporter", "report") / "report.html"


def _folder(executions: Mapping[str, Execution], history: History, step: str, key: str) -> Path:
    return output_folder(executions, history, step, key)


# --- its data: spans and anomalies

_SPANS = "spans.json"
_AS_EVER = ("read", "reused")
_VALIDATOR = "DriftValidator."
_MOST = 20


def data_record(executions: Mapping[str, Execution], history: History) -> dict[str, Any]:
    """Returns `spans`, where the source has any, and `anomalies`.

    Args:
        executions: The execution of each step that ended well.
        history: Where their outputs are looked up.
    """
    record: dict[str, Any] = {"anomalies": list(_anomalies(executions, history))[:_MOST]}
    spans = _spans(executions, history)
    return record if spans is None else {**record, "spans": spans}


def output_folder(
    executions: Mapping[str, Execution], history: History, step: str, key: str
) -> Path:
    """Returns the folder of the output `key` of `step`."""
    return Path(history.output(executions[step], key).uri)


def _spans(executions: Mapping[str, Execution], history: History) -> list[dict[str, Any]] | None:
    """Returns the spans that are new, late, or not simply read; None without spans."""
    reader = executions.get("InteractionGen")
    if reader is None:
        return None
    file = output_folder(executions, history, "InteractionGen", "dead_letters") / _SPANS
    if not file.is_file():
        return None
    # What was new to an earlier run, and is read from the cache now, is new no more.
    is_cached = reader.last_known_state == Execution.CACHED
    spans = [
        {**span, **({"new": False, "late": False} if is_cached else {})}
        for span in json.loads(file.read_text())
    ]
    return [
        span
        for span in spans
        if span.get("new") or span.get("late") or span.get("state") not in _AS_EVER
    ]


def _anomalies(executions: Mapping[str, Execution], history: History) -> Iterator[dict[str, str]]:
    """Yields what breaks a schema, and what moved too far."""
    for step in sorted(executions):
        if not step.startswith(_VALIDATOR):
            continue
        file = output_folder(executions, history, step, "validation") / "validation.json"
        validation = json.loads(file.read_text())
        for anomaly in validation.get("anomalies") or []:
            text = f"{anomaly.get('column') or anomaly.get('split')}: {anomaly.get('text')}"
            yield {"of": validation["what"], "kind": "schema", "text": text}
        for distance in validation.get("comparisons") or []:
            if distance.get("exceeds"):
                value, limit = f"{distance['value']:.3g}", f"{distance['limit']:.3g}"
                text = f"{distance['column']}: {value} is more than {limit}"
                yield {"of": validation["what"], "kind": distance["kind"], "text": text}
