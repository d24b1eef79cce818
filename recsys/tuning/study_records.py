"""What studies leave for people: `<root>/tuning/<name>/trials.json`, which needs no Optuna."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from recsys.errors import RecsysError
from recsys.system.commit import commit_text
from recsys.system.files import DAMAGE, read_json

FOLDER = "tuning"
"""Folder of the studies, in the folder of all runs."""
RECORD, PAGE = "trials.json", "index.html"
_FORMAT = 1


def write_record(folder: Path, record: dict[str, Any]) -> None:
    """Writes the record of a study, whole or not at all."""
    text = json.dumps({"format": _FORMAT, **record}, indent=1, allow_nan=False)
    commit_text(text + "\n", folder / RECORD)


def read_record(folder: Path) -> dict[str, Any] | None:
    """Returns the record of a study; None where none is there, or none that can be read."""
    try:
        record = read_json(folder / RECORD)
    except (RecsysError, *DAMAGE):
        return None
    return dict(record) if record.get("format") == _FORMAT else None


def shown_state(trial: Mapping[str, Any]) -> str:
    """Returns the state of a trial; of one that runs, or that the next call resumes, the same."""
    return "unfinished" if trial["state"] == "running" else str(trial["state"])


def read_records(root: Path) -> list[dict[str, Any]]:
    """Returns the records of the studies under a root, by name."""
    records = (read_record(file.parent) for file in sorted((root / FOLDER).glob(f"*/{RECORD}")))
    return [record for record in records if record is not None]
