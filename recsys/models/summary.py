"""`model.json` of a model folder, with the sha256 of its other fields.

It names the plugins that a reader imports, so damage is found before that.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from recsys.errors import RecsysError
from recsys.system.files import read_json

SUMMARY = "model.json"
_DIGEST = "sha256"


def summary_text(summary: dict[str, Any]) -> str:
    """Returns the text of a `model.json` with these fields."""
    fields = {key: value for key, value in summary.items() if key != _DIGEST}
    return json.dumps({**fields, _DIGEST: _digest(fields)}, indent=1) + "\n"


def read_summary(folder: Path, name: str = SUMMARY) -> dict[str, Any]:
    """Returns the fields of the `model.json` of a model folder, or of another file like it.

    A file without a digest, written by an earlier version, is not checked.

    Raises:
        RecsysError: It is missing or damaged (R310).
    """
    try:
        summary = read_json(folder / name)
        found = summary.pop(_DIGEST, None)
        if found not in (None, _digest(summary)):
            raise ValueError(f"its content is not that of its {_DIGEST}")
    except (OSError, ValueError) as error:
        raise damaged(folder / name, f"{type(error).__name__}: {error}") from None
    return summary


def direction_width(model: Mapping[str, Any]) -> int | None:
    """Returns the number of a vector's entries that are its direction; None: all.

    The columns of terms, such as a bias, are not part of it.

    Args:
        model: Config of a retrieval model, as JSON.
    """
    has_more = any(model.get(key) for key in ("item_bias", "item_age", "terms"))
    return int(model["dim"]) if has_more else None


def damaged(path: Path, received: str) -> RecsysError:
    """Returns the error for a damaged model folder, or a part of one."""
    return RecsysError(
        "R310",
        f"{str(path)!r} must be a whole model folder, or part of one.",
        "Train again: recsys run.",
        received,
    )


def _digest(fields: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()
