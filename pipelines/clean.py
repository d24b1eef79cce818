"""Removes files of earlier runs (`recsys clean`), and files of killed runs before a run.

An artifact is marked as deleted in ML Metadata before its folder is removed. TFX's cache and all
resolvers use only live artifacts, so a kill in between leaves an unused folder, which the next
cleaning removes.

A killed run leaves executions in ML Metadata that never end (orphaned executions), partial
output files, and no record of its end. Only the holder of the run lock may clean up after it,
because no other run is alive then.
"""

from __future__ import annotations

import dataclasses
import re
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import ml_metadata as mlmd
from absl import logging
from ml_metadata.proto.metadata_store_pb2 import Artifact, Context, Event, Execution

from components.metadata import CURRENT_MODEL, DESTINATION, blessed_models, good_models
from pipelines.metadata_store import open_store
from recsys.bundles.publishing import all_folders, only_publisher
from recsys.config import Config
from recsys.data.split import DAY_S
from recsys.errors import RecsysError
from recsys.formats import counted, size
from recsys.report.runs import (
    INDEX,
    RESULT,
    STEPS,
    MissingError,
    RunRecord,
    read_steps,
    run_folders,
)
from recsys.runs.index import write_index
from recsys.runs.retention import Thing, oldest_record, plan_files, plan_json, remove
from recsys.system import files
from recsys.system.events import emit
from recsys.system.files import folders_in
from recsys.system.run_lock import run_lock

_SMALL = ("ModelBlessing", "PushedModel", "Verdict", "ExampleStatistics")
"""Types that are always kept: some kB each, and the resolvers read all of them."""
REPORT = "Report"
"""Type of the reports, which no step reads: they are kept as long as their records."""
_NEWEST = 2
"""Models and vocabularies: the next run continues from the last one, and a rerun of the last run
from the one before."""


def clean(config: Config, *, apply: bool) -> dict[str, Any]:
    """Plans the removal, and with `apply` removes, while no run holds the root.

    Returns:
        The plan (`recsys.runs.retention.plan_json`), `applied`, and `failed`: path and reason
        of what could not be removed.

    Raises:
        RecsysError: A run holds the root (R601), or it can't be written.
    """
    root = config.root_folder
    if not root.is_dir():
        return {**plan_json([]), "applied": False, "failed": []}
    with run_lock(root):
        things = _plan(config, open_store(config))
        plan = plan_json(things)
        goes = [thing for thing in things if thing.goes]
        failed = _apply(config, goes) if apply else []
    return {**plan, "applied": apply, "failed": failed}


def clean_after_run(config: Config) -> dict[str, Any] | None:
    """Applies the retention of the config after a run; never fails the run.

    Returns:
        Number of `removed` files and folders, bytes `freed`, and number of `failed` ones; None if
        the config keeps everything, or nothing could be done.
    """
    if not config.keep.is_set:
        return None
    try:
        done = clean(config, apply=True)
    except (RecsysError, OSError, mlmd.errors.StatusError) as error:
        logging.warning("Nothing was cleaned: %s", error)
        return None
    n_failed = len(done["failed"])
    n_removed = len(done["goes"]) - n_failed
    if n_removed:
        things = counted(n_removed, "thing", "things")
        text = f"{things} of earlier runs removed, {size(done['freed'])}"
        emit("note", step="clean", text=text)
        logging.info(text)
    return {"removed": n_removed, "freed": done["freed"], "failed": n_failed}


def _plan(config: Config, store: mlmd.MetadataStore | None) -> list[Thing]:
    root, keep = config.root_folder, config.keep
    pipeline = store and store.get_context_by_type_and_name("pipeline", config.name)
    if store is None or pipeline is None:
        return list(plan_files(root, config.name, [], keep, []))
    children = store.get_children_contexts_by_context(pipeline.id)
    contexts = [context for context in children if context.type == "pipeline_run"]
    contexts.sort(key=lambda context: (context.create_time_since_epoch, context.id))
    runs = [(context.name, context.create_time_since_epoch / 1e3) for context in contexts]
    whole = {context.id for context in _whole_runs(store, config, contexts)}
    artifacts = sorted(store.get_artifacts_by_context(pipeline.id), key=lambda each: each.id)
    reasons = _reasons(config, artifacts, oldest_record(runs, keep))
    for run in whole:
        for artifact in store.get_artifacts_by_context(run):
            if artifact.type != REPORT:
                reasons.setdefault(artifact.id, "a run that stays made it or took it")
    things = [_thing(root, each, reasons) for each in artifacts if Path(each.uri).is_dir()]
    examples = [thing.path for thing in things if thing.kind == "Examples" and not thing.goes]
    return [*things, *plan_files(root, config.name, runs, keep, examples)]


def _whole_runs(
    store: mlmd.MetadataStore, config: Config, runs: Sequence[Context]
) -> Iterator[Context]:
    """Yields the runs that `keep` selects, and the last finished one.

    After a week of failed runs a rerun of that one must still be cached.
    """
    keep = config.keep
    if keep.runs is None and keep.days is None:
        yield from runs
        return
    since = time.time() - keep.days * DAY_S if keep.days is not None else float("inf")
    for place, run in enumerate(reversed(runs)):
        if place < (keep.runs or 0) or run.create_time_since_epoch / 1e3 >= since:
            yield run
    reporter = store.get_context_by_type_and_name("node", f"{config.name}.Reporter")
    reports = [] if reporter is None else store.get_executions_by_context(reporter.id)
    finished = [each.id for each in reports if each.last_known_state == Execution.COMPLETE]
    if finished:
        contexts = store.get_contexts_by_execution(max(finished))
        yield from (context for context in contexts if context.type == "pipeline_run")


def _reasons(config: Config, artifacts: Sequence[Artifact], since: float) -> dict[int, str]:
    """Returns the artifacts that are always kept, with the reasons.

    Args:
        config: The config of the runs.
        artifacts: All artifacts of the pipeline, the oldest first.
        since: Start of the oldest run whose record is kept [seconds since 1970].
    """
    live: dict[str, list[Artifact]] = {}
    for artifact in artifacts:
        if artifact.state == Artifact.LIVE:
            live.setdefault(artifact.type, []).append(artifact)
    blessings, pushes = live.get("ModelBlessing", []), live.get("PushedModel", [])
    models = {model.id for model in live.get("Model", ())}
    reasons = {}
    # Records of rollbacks may be lost, so the newest of all models are kept too.
    for blessed in (good_models(blessings, pushes), blessed_models(blessings)):
        for model in sorted(models & blessed)[-_NEWEST:]:
            reasons[model] = "it is one of the last blessed models"
    serving = config.root_folder / "serving" / config.name
    served = {str(serving / str(number)): number for number in all_folders(serving)}
    for push in pushes:
        version = served.get(push.custom_properties[DESTINATION].string_value)
        if version is not None:
            model = push.custom_properties[CURRENT_MODEL].int_value
            reasons[model] = f"it is the model of version {version}"
    for vocabularies in live.get("Vocabularies", ())[-_NEWEST:]:
        reasons[vocabularies.id] = "it is one of the newest vocabularies"
    for report in live.get(REPORT, ()):
        if report.create_time_since_epoch / 1e3 >= since:
            reasons[report.id] = "its run's record stays"
    for kind in _SMALL:
        for artifact in live.get(kind, ()):
            reasons[artifact.id] = "it is small, and later runs look it up"
    return reasons


def _thing(root: Path, artifact: Artifact, reasons: Mapping[int, str]) -> Thing:
    path = Path(artifact.uri)
    why, goes = reasons.get(artifact.id, ""), False
    if path.resolve().parent.parent.parent != (root / "artifacts").resolve():
        why = "it lies outside of this root"
    elif artifact.state == Artifact.DELETED:
        why, goes = "it was marked as removed, and its removal was cut short", True
    elif artifact.state != Artifact.LIVE:
        why = "its step has not ended well"
    elif not why:
        why, goes = "no run that stays made it or took it, and nothing else needs it", True
    return Thing(artifact.type, path, why, goes, artifact.id)


def _apply(config: Config, goes: Sequence[Thing]) -> list[list[str]]:
    """Removes files, rewrites the page of all runs, and returns what failed with the reasons."""
    root = config.root_folder
    done = 0

    def report(thing: Thing) -> None:
        nonlocal done
        done += 1
        emit("progress", step="clean", done=done, total=len(goes), text=str(thing.path))

    failed = remove_marked(root, open_store(config, writes=True), goes, report)
    # The page must not link removed reports, also after a killed cleaning.
    if (root / "runs").is_dir():
        write_index(root)
    return failed


def remove_marked(
    root: Path,
    store: mlmd.MetadataStore | None,
    things: Sequence[Thing],
    report: Callable[[Thing], None] = lambda thing: None,
) -> list[list[str]]:
    """Removes files and folders; artifacts are first marked as deleted, in one transaction.

    Args:
        root: Folder of the runs.
        store: Metadata store of the artifacts, if there are any.
        things: The files and folders.
        report: Called with each removed one.

    Returns:
        Path and reason of everything that could not be removed.
    """
    if store is not None:
        where = {str(thing.path.resolve()) for thing in things}
        marked = [
            artifact
            for artifact in store.get_artifacts()
            if artifact.state != Artifact.DELETED and str(Path(artifact.uri).resolve()) in where
        ]
        for artifact in marked:
            artifact.state = Artifact.DELETED
        store.put_artifacts(marked)
    failed = remove(root, things, report)
    sweep_empty(root)
    return failed


# --- what killed and stopped runs leave

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
        files.remove(path)
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
