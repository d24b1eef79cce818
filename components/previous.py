"""Previous: what an earlier run of a step made, for the step to go on from.

TFX's own strategy takes the latest of all. On a rerun with nothing changed that is
what the step itself made, so it would run again, for ever. Here a rerun is given what
the first run was given, and is cached.
"""

from __future__ import annotations

from typing import Any

import ml_metadata as mlmd
from ml_metadata.proto.metadata_store_pb2 import Event, Execution
from tfx.dsl.components.common.resolver import Resolver, ResolverStrategy
from tfx.types import Artifact, BaseChannel, Channel

_PREVIOUS = "previous"
_OUTPUTS, _INPUTS = (Event.OUTPUT, Event.DECLARED_OUTPUT), (Event.INPUT, Event.DECLARED_INPUT)


class PreviousStrategy(ResolverStrategy):
    """Takes the newest artifact; if equal inputs made it, what it was made from instead.

    Args:
        parameters: The step's parameters, which count as inputs.
    """

    def __init__(self, parameters: dict[str, str]) -> None:
        self._parameters = parameters

    def resolve_artifacts(
        self, store: mlmd.MetadataStore, input_dict: dict[str, list[Artifact]]
    ) -> dict[str, list[Artifact]]:
        """Returns `previous`, an empty list where there is none, and the inputs as they are."""
        by_id = {artifact.id: artifact for artifact in input_dict[_PREVIOUS]}
        inputs = {key: list(some) for key, some in input_dict.items() if key != _PREVIOUS}
        chosen = max(by_id, default=None)
        if chosen is not None:
            taken = made_from(store, chosen, inputs, self._parameters, _PREVIOUS)
            # What it was made from may be deleted: then it goes on from itself, not from none.
            if taken is not None and all(id_ in by_id for id_ in taken):
                chosen = next(iter(taken), None)
        return {_PREVIOUS: [] if chosen is None else [by_id[chosen]], **inputs}


def made_from(
    store: mlmd.MetadataStore,
    artifact: int,
    inputs: dict[str, list[Artifact]],
    parameters: dict[str, str],
    key: str,
) -> list[int] | None:
    """Returns what an artifact was made from that equal inputs made; None if others did.

    Args:
        store: The metadata store.
        artifact: Id of the artifact.
        inputs: The inputs of its step now, but for the one asked for.
        parameters: The step's parameters now.
        key: The input that is asked for.
    """
    events = store.get_events_by_artifact_ids([artifact])
    maker = min(event.execution_id for event in events if event.type in _OUTPUTS)
    (execution,) = store.get_executions_by_id([maker])
    taken = _inputs(store, maker)
    now = {name: [one.id for one in some] for name, some in inputs.items() if some}
    before = {name: ids for name, ids in taken.items() if name in inputs}
    if now != before or parameters != _parameters(execution, parameters):
        return None
    return taken.get(key, [])


def Previous(
    name: str, kind: type[Artifact], parameters: dict[str, str], **inputs: BaseChannel
) -> Resolver:
    """Returns the node whose output `previous` is what an earlier run of a step made.

    Args:
        name: Name of the node.
        kind: Type of what the step makes.
        parameters: The step's parameters.
        **inputs: The step's other inputs, by their keys.
    """
    return Resolver(
        strategy_class=PreviousStrategy,
        config={"parameters": parameters},
        **{_PREVIOUS: Channel(type=kind)},
        **inputs,
    ).with_id(name)


def _inputs(store: mlmd.MetadataStore, execution: int) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for event in store.get_events_by_execution_ids([execution]):
        if event.type in _INPUTS:
            found.setdefault(event.path.steps[0].key, []).append(event.artifact_id)
    return found


def _parameters(execution: Execution, names: dict[str, str]) -> dict[str, Any]:
    values = {**execution.properties, **execution.custom_properties}
    return {name: values[name].string_value for name in names if name in values}
