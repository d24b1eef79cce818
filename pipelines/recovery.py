"""Recovery: what a run clears up first, of runs that were killed or stopped.

A killed run leaves executions in ML Metadata that run for ever (orphaned executions), files
that were half written (partial outputs), and no record of its end. The holder of the run
lock alone may clear up: no other run is alive then.
"""

from __future__ import annotations

import dataclasses
import re
import time
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

import ml_metadata as mlmd
from absl import logging
from ml_metadata.proto.metadata_store_pb2 import Artifact, Context, Event, Execution

from recsys.bundles.publishing import only_publisher
from recsys.errors import RecsysError
from recsys.report.artifacts import MissingError
from recsys.report.index import INDEX
from recsys.report.runs import RESULT, RUNS, STEPS, RecordedSteps, RunRecord, read_steps
from recsys.system.held_folder import HeldFolder, link_on_the_way

ENDED = "recsys_ended"
"""Custom property of an execution, and of a run's context, that did not end by itself."""

STOPPED, KILLED = "stopped", "killed"

_ALIVE = (Execution.NEW, Execution.RUNNING)
_MADE = (Event.PENDING_OUTPUT, Event.OUTPUT, Event.DECLARED_OUTPUT)
_RUN, _PIPELINE = "pipeline_run", "pipeline"


@dataclasses.dataclass(frozen=True)
class Orphans:
    """Executions that nobody runs any more, and what belongs to them alone.

    Attributes:
        executions: They, the oldest first.
        artifacts: What they were to make, where the store knows of it; not live.
        runs: The contexts of their runs.
    """

    executions: list[Execution]
    artifacts: list[Artifact]
    runs: list[Context]


def find_orphans(store: mlmd.MetadataStore, pipeline: str | None = None) -> Orphans:
    """Returns what is said to run while nothing can.

    Only the holder of the run lock may call this.

    Args:
        store: The metadata store.
        pipeline: Name of the pipeline that counts; None: every one, where the store
            belongs to the root.
    """
    dead = [execution for execution in _executions(store, pipeline) if _is_orphan(execution)]
    dead.sort(key=lambda execution: execution.id)
    ids = [execution.id for execution in dead]
    events = store.get_events_by_execution_ids(ids) if ids else []
    made = sorted({event.artifact_id for event in events if event.type in _MADE})
    # What is live was published, by whomever: it isn't theirs alone.
    artifacts = [
        artifact
        for artifact in store.get_artifacts_by_id(made)
        if artifact.state in (Artifact.PENDING, 0)
    ]
    runs = {
        context.id: context
        for id_ in ids
        for context in store.get_contexts_by_execution(id_)
        if context.type == _RUN
    }
    return Orphans(dead, artifacts, list(runs.values()))


def mark_failed(store: mlmd.MetadataStore, orphans: Orphans) -> None:
    """Marks executions as failed, and what they were to make as abandoned."""
    for artifact in orphans.artifacts:
        artifact.state = Artifact.ABANDONED
    for execution in orphans.executions:
        execution.last_known_state = Execution.FAILED
    for one in (*orphans.executions, *orphans.runs):
        if ENDED not in one.custom_properties:
            one.custom_properties[ENDED].string_value = KILLED
    if orphans.artifacts:
        store.put_artifacts(orphans.artifacts)
    if orphans.runs:
        store.put_contexts(orphans.runs)
    if orphans.executions:
        # Last: a sweep that is killed itself finds them again.
        store.put_executions(orphans.executions)


def cancel(store: mlmd.MetadataStore, pipeline: str) -> None:
    """Marks what a run was at when it was asked to stop.

    Its threads may still write: the next run removes what they wrote, and marks it as
    failed.
    """
    orphans = find_orphans(store, pipeline)
    for execution in orphans.executions:
        execution.last_known_state = Execution.CANCELED
    for entry in (*orphans.executions, *orphans.runs):
        entry.custom_properties[ENDED].string_value = STOPPED
    if orphans.executions:
        store.put_contexts(orphans.runs)
        store.put_executions(orphans.executions)


def mark_runs(store: mlmd.MetadataStore, run_ids: Collection[str]) -> None:
    """Marks the contexts of killed runs, also of those that ended between two steps."""
    known = [store.get_context_by_type_and_name(_RUN, run_id) for run_id in run_ids]
    contexts = [context for context in known if context is not None]
    for context in contexts:
        context.custom_properties[ENDED].string_value = KILLED
    if contexts:
        store.put_contexts(contexts)


def _is_orphan(execution: Execution) -> bool:
    if execution.last_known_state == Execution.CANCELED:
        return execution.custom_properties[ENDED].string_value == STOPPED
    return execution.last_known_state in _ALIVE


def _executions(store: mlmd.MetadataStore, pipeline: str | None) -> Sequence[Execution]:
    if pipeline is None:
        return list(store.get_executions())
    context = store.get_context_by_type_and_name(_PIPELINE, pipeline)
    return list(store.get_executions_by_context(context.id)) if context else []


# --- partial outputs: only what is provably ours, and whose writer is dead

_SYSTEM = ".system"
_EXECUTIONS = "executor_execution"
_STATEFUL = "stateful_working_dir"
_TEMPORARY = ".temp"
_UNFINISHED = re.compile(r"\.(?P<id>\d+)[.-].+")
"""What our stages write beside an output's folder, to rename it."""


def sweep_artifacts(artifacts: Path, dead: Collection[int]) -> list[Path]:
    """Removes what executions that will never be published wrote.

    TFX gives each output the folder `<step>/<output>/<id of the execution>`, and its own
    things `<step>/.system`: a temporary folder for each execution, gone when it ends
    well, and a working folder, which stays after a failure and is found by none.

    Args:
        artifacts: Folder of all artifacts of the root.
        dead: Ids of the executions.

    Returns:
        What was removed.
    """
    if not artifacts.is_dir():
        return []
    with HeldFolder(artifacts.parent) as root:
        return [path for path in _debris(artifacts, dead) if _remove(root, path)]


def sweep_records(root: Path) -> list[Path]:
    """Removes half-written records of runs, and pages of all runs; returns what was removed."""
    names = [root / INDEX, *(folder / RESULT for folder in (root / RUNS).glob("*"))]
    unfinished = [
        path
        for final in names
        for path in final.parent.glob(f".{final.name}.*")
        if path.name.rpartition(".")[2].isdecimal()
    ]
    with HeldFolder(root) as held:
        return [path for path in unfinished if _remove(held, path)]


def sweep_empty(artifacts: Path) -> int:
    """Removes the empty folders that TFX leaves, one for each execution; returns how many."""
    executions = (step / _SYSTEM / _EXECUTIONS for step in _folders(artifacts))
    if not artifacts.is_dir():
        return 0
    with HeldFolder(artifacts.parent) as root:
        return sum(_remove_empty(root, path) for folder in executions for path in _folders(folder))


def _debris(artifacts: Path, dead: Collection[int]) -> Iterator[Path]:
    names = {str(id_) for id_ in dead}
    for step in _folders(artifacts):
        executions = step / _SYSTEM / _EXECUTIONS
        yield from (path for path in _folders(executions) if path.name in names)
        yield from executions.glob(f"*/{_TEMPORARY}")
        yield from _folders(step / _SYSTEM / _STATEFUL)
        for output in _folders(step):
            if output.name == _SYSTEM:
                continue
            for path in output.iterdir():
                if path.name in names or _UNFINISHED.fullmatch(path.name):
                    yield path


def _folders(folder: Path) -> list[Path]:
    """Returns the folders in a folder that may not be there; links are no folders of ours."""
    if not folder.is_dir() or folder.is_symlink():
        return []
    return [path for path in folder.iterdir() if path.is_dir() and not path.is_symlink()]


def _remove_empty(root: HeldFolder, folder: Path) -> bool:
    try:
        root.remove_empty(folder)
    except OSError:  # Something is in it.
        return False
    return True


def _remove(root: HeldFolder, path: Path) -> bool:
    """Removes a file or a folder; returns whether it is gone. What stays harms nobody."""
    try:
        root.remove(path)
    except OSError as error:
        logging.warning("%s could not be removed: %s", path, error.strerror)
        return False
    return True


# --- records: the next run writes what a killed run could not


def record_killed(root: Path) -> list[str]:
    """Writes the result of each run that left none.

    Only the holder of the run lock may call this, before it makes a record of its own.

    Args:
        root: Folder of everything that runs write.

    Returns:
        Their ids, the oldest first.
    """
    left = [
        folder
        for folder in sorted((root / RUNS).glob("*"))
        if folder.is_dir() and not (folder / RESULT).exists()
    ]
    return [folder.name for folder in left if _record(folder)]


def _record(folder: Path) -> bool:
    try:
        started = read_steps(folder)
        last = (folder / STEPS).stat().st_mtime
        RunRecord(folder).end(_result(started, last))
    except (OSError, ValueError, MissingError) as error:
        logging.warning("The record of the killed run %s is not whole: %s", folder.name, error)
        return False
    return True


def _result(record: RecordedSteps, last: float) -> dict[str, object]:
    n_done, n_all = len(record.steps), len(record.planned)
    step = record.planned[n_done] if n_done < n_all else None
    where = f" in {step}" if step else ""
    started = record.started if record.started is not None else last
    return {
        "name": record.name,
        "started": started,
        "seconds": round(max(0.0, last - started), 1),
        "state": KILLED,
        "step": step,
        "error": f"The run was killed{where}, after {n_done} of {n_all} steps; the next run"
        f" cleared up after it ({time.strftime('%Y-%m-%d %H:%M:%S', time.gmtime())} UTC).",
    }


# --- all of it


@dataclasses.dataclass(frozen=True)
class Cleared:
    """What was found and cleared up.

    Attributes:
        runs: Ids of the runs that left no result.
        executions: Ids of their executions, now marked as failed.
        swept: Files and folders that were removed.
    """

    runs: list[str]
    executions: list[int]
    swept: list[Path]

    def __bool__(self) -> bool:
        """Returns whether there was anything."""
        return bool(self.runs or self.executions or self.swept)

    def text(self) -> str:
        """Returns what was done, a sentence."""
        return (
            f"Cleared up after an earlier run that did not end: {len(self.executions)} executions"
            f" marked as failed, {len(self.swept)} files and folders removed."
        )


def clear_up(root: Path, serving: Path, store: mlmd.MetadataStore, pipeline: str | None) -> Cleared:
    """Clears up; the holder of the run lock alone may call this.

    Files go before the executions are marked, so that a sweep that is killed itself is
    done again.

    Args:
        root: Folder of everything that runs write.
        serving: Folder of the served versions.
        store: The metadata store.
        pipeline: Name of the pipeline whose executions count; None: of every one.
    """
    orphans = find_orphans(store, pipeline)
    ids = [execution.id for execution in orphans.executions]
    swept = [*sweep_artifacts(root / "artifacts", ids), *sweep_records(root)]
    _sweep_serving(root, serving)
    runs = record_killed(root)
    mark_runs(store, runs)
    mark_failed(store, orphans)
    cleared = Cleared(runs, ids, swept)
    if cleared:
        logging.warning(cleared.text())
        for path in swept:
            logging.info("Removed %s.", path)
    return cleared


def _sweep_serving(root: Path, serving: Path) -> None:
    """Has the publisher sweep what a push that was killed left, but not behind a link."""
    if not serving.is_dir():
        return
    link = link_on_the_way(root, serving)
    if link is not None:
        logging.warning("%s is a link, and what it leads to is left alone.", link)
        return
    try:
        with only_publisher(serving):
            pass
    except RecsysError as error:  # The step that pushes will say so if it matters.
        logging.warning(str(error))
