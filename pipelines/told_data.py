"""What the record of a run tells of its data: spans, and what was found in it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ml_metadata.proto.metadata_store_pb2 import Execution

from pipelines.history import History

_SPANS = "spans.json"
_AS_EVER = ("read", "reused")
_VALIDATOR = "DriftValidator."
_MOST = 20


def told_of_data(executions: Mapping[str, Execution], history: History) -> dict[str, Any]:
    """Returns `spans`, where the source has any, and `anomalies`.

    Args:
        executions: The execution of each step that ended well.
        history: Where their outputs are looked up.
    """
    found: dict[str, Any] = {"anomalies": list(_anomalies(executions, history))[:_MOST]}
    spans = _spans(executions, history)
    return found if spans is None else {**found, "spans": spans}


def output_folder(
    executions: Mapping[str, Execution], history: History, step: str, key: str
) -> Path:
    """Returns the folder of the output `key` of `step`."""
    return Path(history.output(executions[step], key).uri)


def _spans(executions: Mapping[str, Execution], history: History) -> list[dict[str, Any]] | None:
    """Returns the spans that are new, late, or not simply read; None without spans."""
    reader = executions.get("InteractionGen")
    if reader is None:
        return None
    file = output_folder(executions, history, "InteractionGen", "dead_letters") / _SPANS
    if not file.is_file():
        return None
    # What was new to an earlier run, and is read from the cache now, is new no more.
    is_cached = reader.last_known_state == Execution.CACHED
    spans = [
        {**one, **({"new": False, "late": False} if is_cached else {})}
        for one in json.loads(file.read_text())
    ]
    return [
        one
        for one in spans
        if one.get("new") or one.get("late") or one.get("state") not in _AS_EVER
    ]


def _anomalies(executions: Mapping[str, Execution], history: History) -> Iterator[dict[str, str]]:
    """Yields what breaks a schema, and what moved too far."""
    for step in sorted(executions):
        if not step.startswith(_VALIDATOR):
            continue
        file = output_folder(executions, history, step, "validation") / "validation.json"
        found = json.loads(file.read_text())
        for one in found.get("anomalies") or []:
            text = f"{one.get('column') or one.get('split')}: {one.get('text')}"
            yield {"of": found["what"], "kind": "schema", "text": text}
        for one in found.get("comparisons") or []:
            if one.get("exceeds"):
                text = f"{one['column']}: {one['value']:.3g} is more than {one['limit']:.3g}"
                yield {"of": found["what"], "kind": one["kind"], "text": text}
