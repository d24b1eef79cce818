"""What ML Metadata knows of a step's executions, and why a step ran again."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import ml_metadata as mlmd
from ml_metadata.proto.metadata_store_pb2 import Artifact, Execution

from components.metadata import INPUTS, OUTPUTS, artifact_ids, parameters_of
from recsys.errors import shortened

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
        """Returns the ids of the artifacts that an execution took, by input."""
        return artifact_ids(self._store, execution, INPUTS)

    def output(self, execution: int, key: str) -> Artifact:
        """Returns the output `key` of an execution."""
        ids = artifact_ids(self._store, execution, OUTPUTS)
        return self._store.get_artifacts_by_id(ids[key])[0]

    def folder(self, execution: int, key: str) -> Path:
        """Returns the folder of the output `key` of an execution."""
        return Path(self.output(execution, key).uri)

    def why(self, step: str, execution: Execution, producers: Mapping[str, str]) -> str:
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
        changes = [
            *changed_parameters(parameters_of(previous), parameters_of(execution)),
            *changed_inputs(self.inputs(previous.id), self.inputs(execution.id), producers),
        ]
        if is_cached:
            return CACHED_EARLIER if changes else CACHED
        return "; ".join(changes) or "its earlier output is gone"


def changed_parameters(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[str]:
    """Yields what of a step's code, files and config is not as before, a phrase each."""
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
    """Yields a phrase that names the inputs with other artifacts than before, and their makers."""
    keys = sorted(before.keys() | after.keys())
    keys = [key for key in keys if before.get(key) != after.get(key)]
    if keys:
        names = ", ".join(f"`{key}`" for key in keys)
        makers = ", ".join(dict.fromkeys(producers[key] for key in keys if key in producers))
        again = f" ({makers} ran again)" if makers else ""
        yield f"its input{'s' if len(keys) > 1 else ''} {names} changed{again}"


def _parsed(value: Any) -> Any:
    """Returns the content of a parameter; ours are JSON."""
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
    return shortened(value if isinstance(value, str) else json.dumps(value), _SHOWN_CHARACTERS)
