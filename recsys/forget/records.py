"""`<root>/forget.json`: when users were removed, and how much; not who they were."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path
from typing import Any

from recsys.system.commit import commit_text
from recsys.system.files import DAMAGE, read_json

RECORD = "forget.json"


def start_record(root: Path, users: int) -> None:
    """Adds a record of a removal that has begun."""
    now = dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
    _write(root, [*_read(root), {"started": now, "finished": None, "users": users}])


def finish_record(root: Path, removed: dict[str, Any]) -> None:
    """Completes the newest record with what was removed."""
    *before, last = _read(root)
    now = dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
    _write(root, [*before, {**last, "finished": now, "removed": removed}])


def is_unfinished(root: Path) -> bool:
    """Returns whether the newest removal was cut short."""
    records = _read(root)
    return bool(records) and records[-1]["finished"] is None


def _read(root: Path) -> list[dict[str, Any]]:
    try:
        return list(read_json(root / RECORD)["removals"])
    except DAMAGE:
        return []


def _write(root: Path, removals: list[dict[str, Any]]) -> None:
    commit_text(json.dumps({"format": 1, "removals": removals}, indent=1) + "\n", root / RECORD)
