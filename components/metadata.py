"""Queries of ML Metadata, without TFX, whose import is slow."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

import ml_metadata as mlmd
from ml_metadata.proto.metadata_store_pb2 import Artifact, Event, Execution

from recsys.bundles.publishing import VersionRegistry

CURRENT_MODEL = "current_model_id"
"""Custom property of a blessing and of its push: the model (TFX's name)."""
SECOND_STAGE = "second_stage"
"""Custom property of the blessing of a pair: whether its ranker is `kept` or `left_out`."""
DESTINATION = "pushed_destination"
"""Custom property of a pushed model: the folder of its version."""
WITHDRAWN = "withdrawn"
"""Custom property of a pushed model: 1 if its content had been rolled back."""

INPUTS = (Event.INPUT, Event.DECLARED_INPUT, Event.INTERNAL_INPUT)
OUTPUTS = (Event.OUTPUT, Event.DECLARED_OUTPUT, Event.INTERNAL_OUTPUT)


def blessed_models(blessings: Iterable[Artifact]) -> set[int]:
    """Returns the ids of the models that evaluations blessed."""
    return {
        _number(blessing, CURRENT_MODEL)
        for blessing in blessings
        if _number(blessing, "blessed") == 1
    }


def good_models(blessings: Iterable[Artifact], pushed: Iterable[Artifact]) -> set[int]:
    """Returns the ids of the models that were blessed, without those rolled back.

    Args:
        blessings: The evaluations' verdicts.
        pushed: The pushed models.
    """
    withdrawn: dict[Path, Collection[int]] = {}
    rolled_back = set()
    for push in pushed:
        version = Path(push.custom_properties[DESTINATION].string_value)
        root = version.parent
        if not version.name.isdecimal() or not root.is_dir():
            continue  # Nothing was pushed, or the served version is gone.
        if root not in withdrawn:
            withdrawn[root] = VersionRegistry.open(root).withdrawn
        if int(version.name) in withdrawn[root]:
            rolled_back.add(_number(push, CURRENT_MODEL))
    return blessed_models(blessings) - rolled_back


def _number(artifact: Artifact, name: str) -> int:
    return int(artifact.custom_properties[name].int_value)


def maker(store: mlmd.MetadataStore, artifact: int) -> Execution | None:
    """Returns the execution that made an artifact, not later cached ones."""
    events = store.get_events_by_artifact_ids([artifact])
    ids = [event.execution_id for event in events if event.type in OUTPUTS]
    return store.get_executions_by_id([min(ids)])[0] if ids else None


def artifact_ids(
    store: mlmd.MetadataStore, execution: int, kinds: Collection[int]
) -> dict[str, list[int]]:
    """Returns the ids of an execution's artifacts by the key of the input or output.

    Args:
        store: ML Metadata.
        execution: Id of the execution.
        kinds: `INPUTS` or `OUTPUTS`.
    """
    ids: dict[str, list[int]] = {}
    for event in store.get_events_by_execution_ids([execution]):
        if event.type in kinds:
            ids.setdefault(event.path.steps[0].key, []).append(event.artifact_id)
    return ids


def parameters_of(execution: Execution) -> dict[str, Any]:
    """Returns the parameters of an execution."""
    return {
        name: getattr(value, value.WhichOneof("value"))
        for properties in (execution.properties, execution.custom_properties)
        for name, value in properties.items()
        if not name.startswith("__")
    }
