"""The record of a run, and its end: error, summary, retention and notification.

A failure to record or to notify is a warning.
"""

from __future__ import annotations

import datetime as dt
import errno
import json
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import ml_metadata as mlmd
from absl import logging
from ml_metadata.proto.metadata_store_pb2 import Artifact, Execution

from components.metadata import INPUTS, OUTPUTS, artifact_ids, parameters_of
from pipelines.clean import clean_after_run
from recsys.config import Config
from recsys.errors import RecsysError, plugin_error, shortened
from recsys.fingerprint import source_version
from recsys.formats import counted
from recsys.report.runs import RUNS, MissingError, RunRecord, read_result
from recsys.runs.index import write_index
from recsys.runs.summary import run_summary, send_summary
from recsys.system import events
from recsys.system.files import full_disk_error, storage_error
from recsys.system.process import StoppedError

_T = TypeVar("_T")
_READERS = {"InteractionGen": "interactions", "ItemGen": "items", "UserGen": "users"}
_COUNTED = ("read", "rejected", "duplicates")
_MEASURED = (
    *("query", "split", "repeats", "repeated_positives", "sampled_negatives", "confidence"),
    *("metrics", "intervals", "baselines", "blessed_model"),
)
_MOST_ANOMALIES = 20


def new_run_id() -> str:
    """Returns an id for a run that starts now; ids sort by time."""
    return f"{dt.datetime.now(dt.UTC):%Y-%m-%dT%H-%M-%S.%fZ}"


class Recorder:
    """Writes the steps and the results of a run.

    Args:
        root: Output folder of the runs.
        run_id: Id of the run.
        name: Name of the pipeline.
    """

    def __init__(self, root: Path, run_id: str, name: str) -> None:
        self._root, self._name = root, name
        self._record = RunRecord(root / RUNS / run_id)
        self._started, self._clock = time.time(), time.monotonic()

    def start(self, steps: Sequence[str]) -> None:
        """Records the start of the run and its steps."""
        _tried(lambda: self._record.start(self._name, steps, self._started))

    def step(self, step: str, state: str, reason: str, seconds: float) -> None:
        """Records that a step ended after `seconds`."""
        started = time.time() - seconds
        _tried(lambda: self._record.step(step, state, reason, seconds, started))

    def end(
        self,
        describe: Callable[[], Mapping[str, Any]],
        error: RecsysError | None = None,
        step: str | None = None,
        state: str = "failed",
    ) -> Path | None:
        """Writes the result of the run, and the page of all runs.

        Args:
            describe: Returns the facts on data, model and report.
            error: The error of a failed or stopped run.
            step: The failed step, or the last one.
            state: State of a run with an error: `failed` or `stopped`.

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
        result |= _tried(describe) or {}
        _tried(lambda: self._record.end(result))
        return _tried(lambda: write_index(self._root))


def _tried(write: Callable[[], _T]) -> _T | None:
    try:
        return write()
    except Exception as error:  # noqa: BLE001 must not fail the run
        logging.warning("The record of the run is not whole: %s", error)
        return None


class Outputs:
    """The outputs of the steps of a successful run.

    Args:
        history: Executions of the pipeline.
        ended: Id of the execution of each step.
    """

    def __init__(self, history: History, ended: Mapping[str, int]) -> None:
        self._history, self._ended = history, ended

    def folder(self, step: str, key: str) -> Path:
        """Returns the folder of the output `key` of `step`."""
        return self._history.folder(self._ended[step], key)

    def read(self, step: str, key: str, file: str) -> Any:
        """Returns the JSON in a file of an output."""
        return json.loads((self.folder(step, key) / file).read_text())

    @property
    def model(self) -> Path:
        """The model folder that was evaluated: the pair, if there is a ranker."""
        is_pair = "RankTrainer" in self._ended
        return self.folder("RankTrainer", "pair") if is_pair else self.folder("Trainer", "model")

    def summary(self) -> dict[str, Any]:
        """Returns the `summary` of the event `finished`."""
        evaluation = self.read("RetrievalEvaluator", "evaluation", "evaluation.json")
        pushed = self.read("Pusher", "pushed", "pushed.json")
        model = self.model
        file = self.folder("RetrievalEvaluator", "evaluation") / "evaluation.json"
        return {
            "blessed": evaluation["verdict"]["blessed"],
            "bundle": pushed["destination"],
            "not_pushed": pushed.get("reason"),
            "report": str(self.folder("Reporter", "report") / "report.html"),
            "metrics": {**evaluation["metrics"], "baselines": evaluation["baselines"]},
            "evaluation": str(file),
            "data": str(self.folder("InteractionEncoder", "data")),
            "model": str(model),
            "sharding": json.loads((model / "training.json").read_text())["sharding"],
        }

    def record(self, root: Path) -> dict[str, Any]:
        """Returns the part of `run.json` on the steps; paths are relative to `root`."""
        result: dict[str, Any] = {"rejected": self._rejected()}
        result["anomalies"] = list(self._anomalies())[:_MOST_ANOMALIES]
        if "InteractionGen" in self._ended:
            result |= self._spans()
        if "Trainer" in self._ended:
            training = self.read("Trainer", "model", "training.json")
            result |= {"carried": training.get("warm_start"), "choice": training.get("choice")}
        if "RetrievalEvaluator" in self._ended:
            result |= _measured(self.read("RetrievalEvaluator", "evaluation", "evaluation.json"))
        if "Pusher" in self._ended:
            push = self.read("Pusher", "pushed", "pushed.json")
            result |= {"pushed": push["destination"], "not_pushed": push.get("reason")}
        if "Reporter" in self._ended:
            report = self.folder("Reporter", "report") / "report.html"
            result["report"] = Path(os.path.relpath(report, root)).as_posix()
        return result

    def _rejected(self) -> dict[str, Any]:
        counts = {}
        for step, what in _READERS.items():
            if step in self._ended:
                summary = self.read(step, "dead_letters", "summary.json")
                counts[what] = {name: summary.get(name) for name in _COUNTED}
        return counts

    def _spans(self) -> dict[str, Any]:
        """Returns `spans` that are new, late, or in an unusual state; empty without spans."""
        if not (self.folder("InteractionGen", "dead_letters") / "spans.json").is_file():
            return {}
        spans = self.read("InteractionGen", "dead_letters", "spans.json")
        reader = self._history.execution(self._ended["InteractionGen"])
        if reader.last_known_state == Execution.CACHED:
            # `new` refers to the run that read it.
            spans = [{**span, "new": False, "late": False} for span in spans]
        states = ("read", "reused")
        changed = (
            span
            for span in spans
            if span.get("new") or span.get("late") or span.get("state") not in states
        )
        return {"spans": list(changed)}

    def _anomalies(self) -> Iterator[dict[str, str]]:
        """Yields schema violations, and columns beyond a limit of drift."""
        for step in sorted(self._ended):
            if not step.startswith("DriftValidator."):
                continue
            validation = self.read(step, "validation", "validation.json")
            for anomaly in validation.get("anomalies") or []:
                text = f"{anomaly.get('column') or anomaly.get('split')}: {anomaly.get('text')}"
                yield {"of": validation["what"], "kind": "schema", "text": text}
            for distance in validation.get("comparisons") or []:
                if distance.get("exceeds"):
                    value, limit = f"{distance['value']:.3g}", f"{distance['limit']:.3g}"
                    text = f"{distance['column']}: {value} is more than {limit}"
                    yield {"of": validation["what"], "kind": distance["kind"], "text": text}


def _measured(evaluation: Mapping[str, Any]) -> dict[str, Any]:
    verdict = evaluation["verdict"]
    comparisons = evaluation.get("comparisons") or {}
    return {
        **{name: evaluation.get(name) for name in _MEASURED},
        "deciding": verdict.get("metric"),
        "blessed": verdict["blessed"],
        "sentence": verdict.get("sentence") or "; ".join(verdict.get("reasons", [])),
        "warning": verdict.get("warning"),
        "second_stage": (evaluation.get("pair") or {}).get("sentence"),
        "against": {name: each.get(verdict.get("metric")) for name, each in comparisons.items()},
    }


CACHED = "cached: nothing changed"
CACHED_EARLIER = "cached: an earlier run did the same"

_ENDED_WELL = (Execution.COMPLETE, Execution.CACHED)
_SHOWN_CHARACTERS = 40
_MOST_CHANGES = 3


class History:
    """The executions of one pipeline.

    Args:
        store: The metadata store.
        pipeline: Name of the pipeline.
    """

    def __init__(self, store: mlmd.MetadataStore, pipeline: str) -> None:
        self._store = store
        self._pipeline = pipeline

    def last_good(self, step: str, before: int | None = None) -> Execution | None:
        """Returns the newest successful execution of `step` older than the id `before`."""
        context = self._store.get_context_by_type_and_name("node", f"{self._pipeline}.{step}")
        executions = self._store.get_executions_by_context(context.id) if context else []
        good = [
            execution
            for execution in executions
            if execution.last_known_state in _ENDED_WELL
            and (before is None or execution.id < before)
        ]
        return max(good, key=lambda execution: execution.id, default=None)

    def execution(self, id_: int) -> Execution:
        """Returns the execution `id_`."""
        return self._store.get_executions_by_id([id_])[0]

    def inputs(self, execution: int) -> dict[str, list[int]]:
        """Returns the artifact ids of an execution's inputs."""
        return artifact_ids(self._store, execution, INPUTS)

    def output(self, execution: int, key: str) -> Artifact:
        """Returns the output `key` of an execution."""
        ids = artifact_ids(self._store, execution, OUTPUTS)
        return self._store.get_artifacts_by_id(ids[key])[0]

    def folder(self, execution: int, key: str) -> Path:
        """Returns the folder of the output `key` of an execution."""
        return Path(self.output(execution, key).uri)

    def why(self, step: str, execution: Execution, producers: Mapping[str, str]) -> str:
        """Returns the reason why `execution` of `step` ran or was cached.

        Args:
            step: Name of the step.
            execution: Its execution.
            producers: Name of the step that produces each input.
        """
        previous = self.last_good(step, before=execution.id)
        is_cached = execution.last_known_state == Execution.CACHED
        if previous is None:
            return CACHED_EARLIER if is_cached else "first run"
        changes = [
            *changed_parameters(parameters_of(previous), parameters_of(execution)),
            *changed_inputs(self.inputs(previous.id), self.inputs(execution.id), producers),
        ]
        if is_cached:
            return CACHED_EARLIER if changes else CACHED
        return "; ".join(changes) or "its earlier output is gone"


def changed_parameters(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[str]:
    """Yields a phrase for each change of a step's code, files and config."""
    old, new = ({name: _parsed(value) for name, value in side.items()} for side in (before, after))
    changed = list(_differences(old, new, ""))
    code = [path for path, *_ in changed if path.split(".")[-1] == "code"]
    if code:
        yield "its code changed"
    if any(path == "files_digest" for path, *_ in changed):
        yield "the content of its files changed"
    settings = [
        f"{path.removeprefix('config.')} {_shown(was)} → {_shown(now)}"
        for path, was, now in changed
        if path not in (*code, "files_digest")
    ]
    if settings:
        more = len(settings) - _MOST_CHANGES
        tail = f" and {more} more" if more > 0 else ""
        yield f"its config changed: {', '.join(settings[:_MOST_CHANGES])}{tail}"


def changed_inputs(
    before: Mapping[str, list[int]], after: Mapping[str, list[int]], producers: Mapping[str, str]
) -> Iterator[str]:
    """Yields a phrase for inputs with other artifacts than before, with their producers."""
    keys = sorted(before.keys() | after.keys())
    keys = [key for key in keys if before.get(key) != after.get(key)]
    if keys:
        names = ", ".join(f"`{key}`" for key in keys)
        makers = ", ".join(dict.fromkeys(producers[key] for key in keys if key in producers))
        again = f" ({makers} ran again)" if makers else ""
        yield f"its input{'s' if len(keys) > 1 else ''} {names} changed{again}"


def _parsed(value: Any) -> Any:
    """Returns the value of a parameter; ours are JSON."""
    if isinstance(value, str) and value[:1] in "{[":
        try:
            return json.loads(value)
        except ValueError:
            return value
    return value


def _differences(was: Any, now: Any, path: str) -> Iterator[tuple[str, Any, Any]]:
    """Yields the path of each different value, with both values."""
    if isinstance(was, dict) and isinstance(now, dict):
        for key in sorted(was.keys() | now.keys()):
            below = f"{path}.{key}" if path else str(key)
            yield from _differences(was.get(key), now.get(key), below)
    elif was != now:
        yield path, was, now


def _shown(value: Any) -> str:
    return shortened(value if isinstance(value, str) else json.dumps(value), _SHOWN_CHARACTERS)


# --- the end of a run

_STOPPED_S = 10.0
"""Time limit for the notification of a stopped run [s]; `recsys run` waits 30 s."""


def after_run(
    config: Config,
    run_id: str | None,
    error: RecsysError | None = None,
    step: str | None = None,
    state: str = "failed",
) -> dict[str, Any] | None:
    """Applies the retention of the config after a successful run, and sends the summary.

    A failure here neither fails the run nor hides its error.

    Args:
        config: The config of the run.
        run_id: Its id; None if it failed before it had one.
        error: The error of a failed or stopped run.
        step: The step that failed.
        state: State of a run with an error: `failed`, `stopped` or `killed`.

    Returns:
        The summary of the run, with `cleaned` and `webhook`; None if it can't be made.
    """
    try:
        result = _record(config.root_folder, run_id) or {"name": config.name}
        if state == "killed":
            result.setdefault("state", state)
        if error is not None:
            result |= {"state": state, "error": str(error), "step": step}
        notify = config.notify
        if state == "stopped":
            notify = notify.model_copy(update={"total_s": min(notify.total_s, _STOPPED_S)})
        summary = run_summary(run_id, result, config.root_folder)
        is_good = error is None and state != "killed"
        summary["cleaned"] = clean_after_run(config) if is_good else None
        webhook = send_summary(summary, notify)
        if webhook is not None:
            text = _sentence(webhook)
            events.emit("note", step="webhook", text=text)
            logging.info(text)
        return {**summary, "webhook": webhook}
    except Exception:  # noqa: BLE001 must not change the result of the run
        logging.exception("The summary of the run could not be sent.")
        return None


def report_killed(config: Config, run_ids: Sequence[str]) -> None:
    """Sends the summaries of killed runs."""
    for run_id in run_ids:
        after_run(config, run_id, state="killed")


def _record(root: Path, run_id: str | None) -> dict[str, Any] | None:
    try:
        return None if run_id is None else read_result(root / RUNS / run_id)
    except MissingError as missing:
        logging.warning("The record of the run is not whole: %s", missing)
        return None


def _sentence(webhook: dict[str, Any]) -> str:
    tries = counted(webhook["attempts"], "attempt", "attempts")
    if webhook["sent"]:
        return f"{webhook['host']} was notified ({tries})"
    return f"{webhook['host'] or 'the webhook'} could not be notified ({tries}): {webhook['error']}"


_STORAGE = {errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS, errno.EIO}
_FULL = re.compile(r"No space left on device|Disk quota exceeded|database or disk is full")
"""Texts of Beam, TensorFlow, Arrow and SQLite for a full disk, without an error number."""
_NAMED = re.compile(r"[\s'\"](/[^'\";\s]+)")


def as_recsys_error(error: BaseException, step: str, root: Path) -> RecsysError:
    """Returns the `RecsysError` that caused `error`, or a new one that names `step`.

    Args:
        error: The exception.
        step: The failed step.
        root: Folder of the run, for errors that name no file.
    """
    causes = list(_chain(error))
    for cause in causes:
        if isinstance(cause, RecsysError):
            return cause
        if isinstance(cause, OSError) and cause.errno in _STORAGE:
            return storage_error(cause, root)
    for cause in causes:
        if full := _FULL.search(str(cause)):
            near = full.string[max(0, full.start() - 300) : full.end() + 300]
            named = [path for path in _NAMED.findall(near) if Path(path).parent.is_dir()]
            where = [*named, str(root)][0]
            return storage_error(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), where))
    if full_disk := full_disk_error(root):
        return full_disk
    for cause in reversed(causes):
        if of_plugin := plugin_error(cause, "R600"):
            return of_plugin
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    rule = f"The step {step} failed."
    cure = "See the log of the run; if the data are correct, report this as a bug."
    return RecsysError("R600", rule, cure, f"{type(error).__name__}: {lines[-1] if lines else ''}")


def stopped_error(stopped: StoppedError, step: str | None) -> RecsysError:
    """Returns the error of a run that was stopped by a signal."""
    errors = [cause for cause in _chain(stopped) if isinstance(cause, RecsysError)]
    where = f" in {step}" if step else ""
    more = f" {errors[0].rule}" if errors else ""
    rule = f"The run was stopped by {stopped.name}{where}; all its processes have ended.{more}"
    cure = "Run the same command again to resume."
    return RecsysError("R606", rule, cure)


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yields an error and its causes, each once."""
    cause: BaseException | None = error
    seen: set[int] = set()
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        yield cause
        cause = cause.__cause__ or cause.__context__
