"""Tuning: settings of model and training that validation finds best.

The record of a study, `<root>/tuning/<name>/trials.json`, is read here without Optuna.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from recsys.errors import RecsysError
from recsys.system.files import DAMAGE, commit_text, read_json

FOLDER = "tuning"
"""Folder of the studies, in the folder of all runs."""
_RECORD, _FORMAT = "trials.json", 1


def write_record(folder: Path, record: Mapping[str, Any]) -> None:
    """Writes the record of a study, atomically."""
    text = json.dumps({"format": _FORMAT, **record}, indent=1, allow_nan=False)
    commit_text(text + "\n", folder / _RECORD)


def read_records(root: Path) -> list[dict[str, Any]]:
    """Returns the records of the studies under a root, by name; damaged ones are left out."""
    records = []
    for file in sorted((root / FOLDER).glob(f"*/{_RECORD}")):
        try:
            record = read_json(file)
        except (RecsysError, *DAMAGE):
            continue
        if record.get("format") == _FORMAT:
            records.append(dict(record))
    return records


def shown_state(trial: Mapping[str, Any]) -> str:
    """Returns the state of a trial; a running one may be resumed by the next call."""
    return "unfinished" if trial["state"] == "running" else str(trial["state"])
