"""What a run that ended in the midst left in ML Metadata: executions that run for ever."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence

import ml_metadata as mlmd
from ml_metadata.proto.metadata_store_pb2 import Artifact, Context, Event, Execution

ENDED = "recsys_ended"
"""Custom property of an execution, and of a run's context, that did not end by itself."""

STOPPED, KILLED = "stopped", "killed"

_ALIVE = (Execution.NEW, Execution.RUNNING)
_MADE = (Event.PENDING_OUTPUT, Event.OUTPUT, Event.DECLARED_OUTPUT)
_RUN, _PIPELINE = "pipeline_run", "pipeline"


@dataclasses.dataclass(frozen=True)
class Ghosts:
    """Executions that nobody runs any more, and what belongs to them alone.

    Attributes:
        executions: They, the oldest first.
        artifacts: What they were to make, where the store knows of it; not live.
        runs: The contexts of their runs.
    """

    executions: list[Execution]
    artifacts: list[Artifact]
    runs: list[Context]


def find_ghosts(store: mlmd.MetadataStore, pipeline: str | None = None) -> Ghosts:
    """Returns what is said to run while nothing can.

    Only the holder of the run lock may call this.

    Args:
        store: The metadata store.
        pipeline: Name of the pipeline that counts; None: every one, where the store
            belongs to the root.
    """
    dead = [one for one in _executions(store, pipeline) if _is_ghost(one)]
    dead.sort(key=lambda execution: execution.id)
    ids = [execution.id for execution in dead]
    events = store.get_events_by_execution_ids(ids) if ids else []
    made = sorted({event.artifact_id for event in events if event.type in _MADE})
    # What is live was published, by whomever: it isn't theirs alone.
    artifacts = [
        one for one in store.get_artifacts_by_id(made) if one.state in (Artifact.PENDING, 0)
    ]
    runs = {
        context.id: context
        for id_ in ids
        for context in store.get_contexts_by_execution(id_)
        if context.type == _RUN
    }
    return Ghosts(dead, artifacts, list(runs.values()))


def lay(store: mlmd.MetadataStore, ghosts: Ghosts) -> None:
    """Marks executions as failed, and what they were to make as abandoned."""
    for artifact in ghosts.artifacts:
        artifact.state = Artifact.ABANDONED
    for execution in ghosts.executions:
        execution.last_known_state = Execution.FAILED
    for one in (*ghosts.executions, *ghosts.runs):
        if ENDED not in one.custom_properties:
            one.custom_properties[ENDED].string_value = KILLED
    if ghosts.artifacts:
        store.put_artifacts(ghosts.artifacts)
    if ghosts.runs:
        store.put_contexts(ghosts.runs)
    if ghosts.executions:
        # Last: a sweep that is killed itself finds them again.
        store.put_executions(ghosts.executions)


def cancel(store: mlmd.MetadataStore, pipeline: str) -> None:
    """Marks what a run was at when it was asked to stop.

    Its threads may still write: the next run removes what they wrote, and marks it as
    failed.
    """
    ghosts = find_ghosts(store, pipeline)
    for execution in ghosts.executions:
        execution.last_known_state = Execution.CANCELED
    for one in (*ghosts.executions, *ghosts.runs):
        one.custom_properties[ENDED].string_value = STOPPED
    if ghosts.executions:
        store.put_contexts(ghosts.runs)
        store.put_executions(ghosts.executions)


def mark_runs(store: mlmd.MetadataStore, run_ids: Collection[str]) -> None:
    """Marks the contexts of killed runs, also of those that ended between two steps."""
    found = [store.get_context_by_type_and_name(_RUN, run_id) for run_id in run_ids]
    contexts = [context for context in found if context is not None]
    for context in contexts:
        context.custom_properties[ENDED].string_value = KILLED
    if contexts:
        store.put_contexts(contexts)


def _is_ghost(execution: Execution) -> bool:
    if execution.last_known_state == Execution.CANCELED:
        return execution.custom_properties[ENDED].string_value == STOPPED
    return execution.last_known_state in _ALIVE


def _executions(store: mlmd.MetadataStore, pipeline: str | None) -> Sequence[Execution]:
    if pipeline is None:
        return list(store.get_executions())
    context = store.get_context_by_type_and_name(_PIPELINE, pipeline)
    return list(store.get_executions_by_context(context.id)) if context else []
