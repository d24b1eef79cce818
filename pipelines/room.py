"""Looks whether the disk has room for a step, before the step begins."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from recsys.config import InteractionsConfig, ItemsConfig, SourceConfig, UsersConfig
from recsys.data.ingest.span_state import unread_files
from recsys.data.ingest.window import has_spans
from recsys.data.sources.files import match_files
from recsys.errors import RecsysError
from recsys.formats import size
from recsys.house.room import Reads, bytes_of
from recsys.room import free_bytes

_READERS: dict[str, tuple[str, type[SourceConfig]]] = {
    "InteractionGen": ("interactions", InteractionsConfig),
    "ItemGen": ("items", ItemsConfig),
    "UserGen": ("users", UsersConfig),
}
UNCHECKED = "RECSYS_NO_ROOM_CHECK"
"""Environment variable: set to 1, no step is refused for want of room."""


def check_room(
    step: str,
    inputs: Mapping[str, Sequence[Any]],
    root: Path,
    parameters: Mapping[str, Any] | None = None,
) -> None:
    """Raises an error if a step will need more room than the disk has.

    Args:
        step: Name of the step.
        inputs: Its input artifacts, each with its `uri`.
        root: Folder on the disk that it writes to.
        parameters: Its parameters.

    Raises:
        RecsysError: There is too little room (R620).
    """
    if os.environ.get(UNCHECKED) == "1":
        return
    config = _config(parameters or {})
    folders = {key: [Path(one.uri) for one in some] for key, some in inputs.items()}
    wanted = bytes_of(step, Reads(folders, _raw_files(step, config, parameters or {}), config))
    free = free_bytes(root)
    if free is not None and wanted > free:
        raise RecsysError(
            "R620",
            f"The step {step} needs about {size(wanted)} of room in {str(root)!r}; the disk has"
            f" {size(free)} left.",
            "See what can go: recsys clean, then recsys clean --apply; or free some space. What"
            f" was served still is. {UNCHECKED}=1 runs without this check.",
        )


def _config(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the step's part of the config; ours come as JSON."""
    try:
        config = json.loads(parameters.get("config") or "{}")
    except (TypeError, ValueError):
        return {}
    return config if isinstance(config, dict) else {}


def _raw_files(
    step: str, config: Mapping[str, Any], parameters: Mapping[str, Any]
) -> list[tuple[str, int]]:
    """Returns the raw files that a step reads, with their sizes [bytes]; none of a query.

    What an earlier night has read of a window of spans isn't read again.
    """
    what, kind = _READERS.get(step, ("", SourceConfig))
    if not config.get(what):
        return []
    source = kind.model_validate_json(json.dumps(config[what]))
    if isinstance(source, InteractionsConfig) and source.query is not None:
        return []
    files = [(file.path, file.size) for file in match_files(source, what)]
    if isinstance(source, InteractionsConfig) and has_spans(source):
        unread = set(unread_files(source, Path(parameters["segments"]), parameters["code"]))
        files = [(path, n_bytes) for path, n_bytes in files if path in unread]
    return files
