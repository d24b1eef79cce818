"""What retention has to know, read from ML Metadata."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import ml_metadata as mlmd
from ml_metadata.proto import metadata_store_pb2 as proto

from recsys.runs.retention_facts import Artifact, Execution, Known, PastRun, State

_T = TypeVar("_T")
_INPUTS = (proto.Event.INPUT, proto.Event.DECLARED_INPUT, proto.Event.INTERNAL_INPUT)
_OUTPUTS = (proto.Event.OUTPUT, proto.Event.DECLARED_OUTPUT, proto.Event.INTERNAL_OUTPUT)
_ENDED_WELL = (proto.Execution.COMPLETE, proto.Execution.CACHED)
_STATES: dict[int, State] = {proto.Artifact.LIVE: "live", proto.Artifact.DELETED: "deleted"}
_PARAMETERS = ("code", "files_digest")
_AT_ONCE = 500


def read_known(store: mlmd.MetadataStore, name: str) -> Known:
    """Returns what ML Metadata knows of the pipeline `name`; of others nothing.

    Args:
        store: The store.
        name: Name of the pipeline.
    """
    pipeline = store.get_context_by_type_and_name("pipeline", name)
    if pipeline is None:
        return Known((), (), {})
    run_of, runs = _runs(store, pipeline.id)
    executions = _executions(store, name, run_of)
    ids = sorted({id_ for one in executions for id_ in one.artifacts})
    kinds = {kind.id: kind.name for kind in store.get_artifact_types()}
    artifacts = {
        one.id: _artifact(one, kinds)
        for some in _in_parts(ids)
        for one in store.get_artifacts_by_id(some)
    }
    return Known(runs, executions, artifacts)


def _runs(store: mlmd.MetadataStore, pipeline: int) -> tuple[dict[int, str], list[PastRun]]:
    """Returns the run of each execution, and the runs, the oldest first."""
    children = store.get_children_contexts_by_context(pipeline)
    try:
        kind = store.get_context_type("pipeline_run").id
    except mlmd.errors.NotFoundError:
        return {}, []
    contexts = [one for one in children if one.type_id == kind]
    contexts.sort(key=lambda one: (one.create_time_since_epoch, one.id))
    run_of = {
        execution.id: context.name
        for context in contexts
        for execution in store.get_executions_by_context(context.id)
    }
    return run_of, [PastRun(one.name, one.create_time_since_epoch / 1000.0) for one in contexts]


def _executions(store: mlmd.MetadataStore, name: str, run_of: dict[int, str]) -> list[Execution]:
    found = [one for some in _in_parts(sorted(run_of)) for one in store.get_executions_by_id(some)]
    events: dict[int, list[proto.Event]] = {}
    for some in _in_parts([one.id for one in found]):
        for event in store.get_events_by_execution_ids(some):
            events.setdefault(event.execution_id, []).append(event)
    steps = _steps(store, name)
    return [
        Execution(
            id=one.id,
            step=steps.get(one.id, ""),
            run=run_of[one.id],
            ended_well=one.last_known_state in _ENDED_WELL,
            inputs=_by_key(events.get(one.id, ()), _INPUTS),
            outputs=_by_key(events.get(one.id, ()), _OUTPUTS),
            parameters=_parameters(one),
        )
        for one in sorted(found, key=lambda one: one.id)
    ]


def _steps(store: mlmd.MetadataStore, name: str) -> dict[int, str]:
    """Returns the name of the step of each execution."""
    prefix = f"{name}."
    return {
        execution.id: context.name.removeprefix(prefix)
        for context in store.get_contexts_by_type("node")
        if context.name.startswith(prefix)
        for execution in store.get_executions_by_context(context.id)
    }


def _by_key(events: Iterable[proto.Event], kinds: Sequence[int]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for event in events:
        if event.type in kinds:
            found.setdefault(event.path.steps[0].key, []).append(event.artifact_id)
    return found


def _parameters(one: proto.Execution) -> dict[str, str]:
    values = {**one.properties, **one.custom_properties}
    return {name: values[name].string_value for name in _PARAMETERS if name in values}


def _artifact(one: proto.Artifact, kinds: dict[int, str]) -> Artifact:
    values = {**one.properties, **one.custom_properties}
    return Artifact(
        id=one.id,
        kind=kinds.get(one.type_id, ""),
        path=Path(one.uri),
        state=_STATES.get(one.state, "other"),
        numbers={key: v.int_value for key, v in values.items() if v.HasField("int_value")},
        texts={key: v.string_value for key, v in values.items() if v.HasField("string_value")},
    )


def _in_parts(ids: Sequence[_T]) -> Iterator[Sequence[_T]]:
    """Yields a few ids at a time: SQLite takes so many in one query."""
    for start in range(0, len(ids), _AT_ONCE):
        yield ids[start : start + _AT_ONCE]
