"""What ML Metadata knows of a step's executions, and why a step ran again."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from typing import Any

import ml_metadata as mlmd
from ml_metadata.proto.metadata_store_pb2 import Artifact, Event, Execution

CACHED = "cached: nothing it depends on has changed"
CACHED_EARLIER = "cached: an earlier run did the same"

_ENDED_WELL = (Execution.COMPLETE, Execution.CACHED)
_SHOWN_CHARACTERS = 40
_MOST_CHANGES = 3


@dataclasses.dataclass(frozen=True)
class Inputs:
    """What an execution started from.

    Attributes:
        parameters: Value of each parameter.
        artifacts: Ids of the artifacts of each input.
    """

    parameters: dict[str, Any]
    artifacts: dict[str, tuple[int, ...]]


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
        good = [
            execution
            for execution in self._executions(step)
            if execution.last_known_state in _ENDED_WELL
            and (before is None or execution.id < before)
        ]
        return max(good, key=lambda execution: execution.id, default=None)

    def execution(self, id_: int) -> Execution:
        """Returns the execution `id_`."""
        return self._store.get_executions_by_id([id_])[0]

    def inputs(self, execution: Execution) -> Inputs:
        """Returns what `execution` started from."""
        artifacts = self._artifact_ids(execution.id, (Event.INPUT, Event.DECLARED_INPUT))
        parameters = {
            name: getattr(value, value.WhichOneof("value"))
            for properties in (execution.properties, execution.custom_properties)
            for name, value in properties.items()
            if not name.startswith("__")
        }
        return Inputs(parameters, {key: tuple(ids) for key, ids in artifacts.items()})

    def output(self, execution: Execution, key: str) -> Artifact:
        """Returns the output `key` of `execution`."""
        (id_,) = self._artifact_ids(execution.id, (Event.OUTPUT, Event.DECLARED_OUTPUT))[key]
        return self._store.get_artifacts_by_id([id_])[0]

    def why(self, step: str, execution: Execution, producers: dict[str, str]) -> str:
        """Returns why `execution` of `step` ran or was cached.

        Args:
            step: Name of the step.
            execution: Its execution.
            producers: Name of the step that makes each input.
        """
        previous = self.last_good(step, before=execution.id)
        is_cached = execution.last_known_state == Execution.CACHED
        if previous is None:
            return CACHED_EARLIER if is_cached else "first run"
        changes = list(_changes(self.inputs(previous), self.inputs(execution), producers))
        if is_cached:
            return CACHED_EARLIER if changes else CACHED
        return "; ".join(changes) or "its earlier output is gone"

    def _executions(self, step: str) -> list[Execution]:
        context = self._store.get_context_by_type_and_name("node", f"{self._pipeline}.{step}")
        return list(self._store.get_executions_by_context(context.id)) if context else []

    def _artifact_ids(self, execution_id: int, kinds: tuple[int, ...]) -> dict[str, list[int]]:
        ids: dict[str, list[int]] = {}
        for event in self._store.get_events_by_execution_ids([execution_id]):
            if event.type in kinds:
                ids.setdefault(event.path.steps[0].key, []).append(event.artifact_id)
        return ids


def _changes(before: Inputs, after: Inputs, producers: dict[str, str]) -> Iterator[str]:
    """Yields what of the inputs is not as before, a phrase each."""
    names = before.parameters.keys() | after.parameters.keys()
    old = {name: _parsed(before.parameters.get(name)) for name in sorted(names)}
    new = {name: _parsed(after.parameters.get(name)) for name in sorted(names)}
    changed = list(_differences(old, new, ""))
    if any(path.split(".")[-1] == "code" for path, *_ in changed):
        yield "its code changed"
    if any(path == "files_digest" for path, *_ in changed):
        yield "the content of its files changed"
    settings = [
        f"{path.removeprefix('config.')} {_shown(was)} → {_shown(now)}"
        for path, was, now in changed
        if path.split(".")[-1] != "code" and path != "files_digest"
    ]
    if settings:
        more = len(settings) - _MOST_CHANGES
        tail = f" and {more} more" if more > 0 else ""
        yield f"its config changed: {', '.join(settings[:_MOST_CHANGES])}{tail}"
    keys = sorted(before.artifacts.keys() | after.artifacts.keys())
    inputs = [key for key in keys if before.artifacts.get(key) != after.artifacts.get(key)]
    if inputs:
        yield _changed_inputs(inputs, producers)


def _changed_inputs(inputs: list[str], producers: dict[str, str]) -> str:
    names = ", ".join(f"`{key}`" for key in inputs)
    makers = ", ".join(dict.fromkeys(producers[key] for key in inputs if key in producers))
    again = f" ({makers} ran again)" if makers else ""
    return f"its input{'s' if len(inputs) > 1 else ''} {names} changed{again}"


def _parsed(value: Any) -> Any:
    """Returns what a parameter says; ours are JSON."""
    if isinstance(value, str) and value[:1] in "{[":
        try:
            return json.loads(value)
        except ValueError:
            return value
    return value


def _differences(was: Any, now: Any, path: str) -> Iterator[tuple[str, Any, Any]]:
    """Yields the path of each value that differs, with both."""
    if isinstance(was, dict) and isinstance(now, dict):
        for key in sorted(was.keys() | now.keys()):
            below = f"{path}.{key}" if path else str(key)
            yield from _differences(was.get(key), now.get(key), below)
    elif was != now:
        yield path, was, now


def _shown(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 1] + "…"
