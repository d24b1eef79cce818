"""Recovery: a run first cleans up after runs that were killed or stopped.

A killed run leaves executions in ML Metadata that never end (orphaned executions), partial
output files, and no record of its end. Only the holder of the run lock may clean up, because no
other run is alive then.
"""

from __future__ import annotations

import dataclasses
import re
import time
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

import ml_metadata as mlmd
from absl import logging
from ml_metadata.proto.metadata_store_pb2 import Artifact, Event, Execution

from recsys.bundles.publishing import only_publisher
from recsys.errors import RecsysError
from recsys.report.runs import (
    INDEX,
    RESULT,
    STEPS,
    MissingError,
    RunRecord,
    read_steps,
    run_folders,
)
from recsys.system.files import folders_in, remove

_UNFINISHED = (Execution.NEW, Execution.RUNNING, Execution.CANCELED)
_MADE = (Event.PENDING_OUTPUT, Event.OUTPUT, Event.DECLARED_OUTPUT)
_EXECUTIONS = ".system/executor_execution"
_PARTIAL = re.compile(r"\.(?P<id>\d+)[.-].+")
"""Temporary names that our stages write beside an output's folder."""


@dataclasses.dataclass(frozen=True)
class Cleanup:
    """The result of a cleanup.

    Attributes:
        runs: Ids of the runs that left no result.
        executions: Ids of the orphaned executions, now marked as failed.
        swept: Files and folders that were removed.
    """

    runs: list[str]
    executions: list[int]
    swept: list[Path]

    def __bool__(self) -> bool:
        """Returns whether anything was cleaned up."""
        return bool(self.runs or self.executions or self.swept)

    def text(self) -> str:
        """Returns a summary as a sentence."""
        return (
            f"Cleaned up after an earlier run that did not end: {len(self.executions)} executions"
            f" marked as failed, {len(self.swept)} files and folders removed."
        )


def clean_up(root: Path, serving: Path, store: mlmd.MetadataStore, pipeline: str | None) -> Cleanup:
    """Cleans up; only the holder of the run lock may call this.

    Files are removed before the executions are marked, so a cleanup that is killed is repeated
    by the next run.

    Args:
        root: Output folder of the runs.
        serving: Folder of the served versions.
        store: The metadata store.
        pipeline: Name of the pipeline; None: all pipelines of the store, which belongs to the root.
    """
    orphans = find_orphans(store, pipeline)
    ids = [execution.id for execution in orphans]
    partial = [*_partial_outputs(root / "artifacts", ids), *_partial_records(root)]
    swept = [path for path in partial if _remove(path)]
    _sweep_serving(serving)
    runs = record_killed(root)
    mark_failed(store, orphans)
    cleared = Cleanup(runs, ids, swept)
    if cleared:
        logging.warning(cleared.text())
        for path in swept:
            logging.info("Removed %s.", path)
    return cleared


# --- orphaned executions


def find_orphans(store: mlmd.MetadataStore, pipeline: str | None = None) -> list[Execution]:
    """Returns the executions that are marked as running while no run is alive, oldest first."""
    if pipeline is None:
        executions = store.get_executions()
    else:
        context = store.get_context_by_type_and_name("pipeline", pipeline)
        executions = store.get_executions_by_context(context.id) if context else []
    orphans = [each for each in executions if each.last_known_state in _UNFINISHED]
    return sorted(orphans, key=lambda execution: execution.id)


def cancel(store: mlmd.MetadataStore, pipeline: str) -> None:
    """Marks the executions of a run that is being stopped.

    Its threads may still write; the next run removes their output and marks them as failed.
    """
    orphans = find_orphans(store, pipeline)
    for execution in orphans:
        execution.last_known_state = Execution.CANCELED
    if orphans:
        store.put_executions(orphans)


def mark_failed(store: mlmd.MetadataStore, orphans: Sequence[Execution]) -> None:
    """Marks executions as failed, and their outputs as abandoned."""
    if not orphans:
        return
    events = store.get_events_by_execution_ids([execution.id for execution in orphans])
    made = store.get_artifacts_by_id(sorted({e.artifact_id for e in events if e.type in _MADE}))
    # Live artifacts were published.
    artifacts = [each for each in made if each.state in (Artifact.PENDING, Artifact.UNKNOWN)]
    for artifact in artifacts:
        artifact.state = Artifact.ABANDONED
    for execution in orphans:
        execution.last_known_state = Execution.FAILED
    if artifacts:
        store.put_artifacts(artifacts)
    store.put_executions(orphans)  # Last, so that a killed cleanup finds them again.


# --- partial outputs of dead writers


def _partial_outputs(artifacts: Path, dead: Collection[int]) -> Iterator[Path]:
    """Yields the files of executions that will never be published.

    TFX gives each output the folder `<step>/<output>/<id of the execution>`. `<step>/.system` has a
    temporary folder for each execution, removed on success, and a working folder, which remains
    after a failure.
    """
    names = {str(id_) for id_ in dead}
    for step in folders_in(artifacts):
        for path in folders_in(step / _EXECUTIONS):
            yield from [path] if path.name in names else path.glob(".temp")
        yield from folders_in(step / ".system/stateful_working_dir")
        for output in folders_in(step):
            if output.name != ".system":
                for path in output.iterdir():
                    if path.name in names or _PARTIAL.fullmatch(path.name):
                        yield path


def _partial_records(root: Path) -> Iterator[Path]:
    """Yields half-written records of runs, and pages of all runs."""
    for final in (root / INDEX, *(folder / RESULT for folder in run_folders(root))):
        for path in final.parent.glob(f".{final.name}.*"):
            if path.suffix[1:].isdecimal():
                yield path


def sweep_empty(root: Path) -> None:
    """Removes the empty folders that TFX leaves, one for each execution."""
    for step in folders_in(root / "artifacts"):
        for path in folders_in(step / _EXECUTIONS):
            if not any(path.iterdir()):
                _remove(path)


def _remove(path: Path) -> bool:
    """Removes a file or a folder; returns whether it is gone."""
    try:
        remove(path)
    except OSError as error:
        logging.warning("%s could not be removed: %s", path, error.strerror)
        return False
    return True


def _sweep_serving(serving: Path) -> None:
    """Removes the remains of a killed push."""
    if not serving.is_dir():
        return
    try:
        with only_publisher(serving):
            pass
    except RecsysError as error:  # The Pusher reports it if it matters.
        logging.warning(str(error))


# --- records of killed runs


def record_killed(root: Path) -> list[str]:
    """Writes the result of each run without one, before this run creates its record.

    Returns:
        Their ids, the oldest first.
    """
    ids = []
    for folder in reversed(run_folders(root)):
        if not (folder / RESULT).exists():
            try:
                RunRecord(folder).end(_killed(folder))
            except (OSError, ValueError, MissingError) as error:
                logging.warning("The record of the run %s is not whole: %s", folder.name, error)
            else:
                ids.append(folder.name)
    return ids


def _killed(folder: Path) -> dict[str, object]:
    record, last = read_steps(folder), (folder / STEPS).stat().st_mtime
    started = record.started if record.started is not None else last
    return {
        "name": record.name,
        "started": started,
        "seconds": round(max(0.0, last - started), 1),
        "state": "killed",
        "step": record.step,
        "error": f"The run was killed {record.progress()}; the next run cleared up after it"
        f" ({time.strftime('%Y-%m-%d %H:%M:%S', time.gmtime())} UTC).",
    }
