"""The folder `index` of a bundle: plain arrays, and `index.json` that says what they are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from recsys.errors import RecsysError
from recsys.plain_files import read_plain
from recsys.serving.index.ann import AnnIndex, Lists

FOLDER = "index"
_JSON, _FORMAT, _LONGEST_JSON = "index.json", 1, 1 << 20
_ARRAYS = ("middles", "ranges", "list_of")


def write_index(bundle: Path, lists: Lists, fields: dict[str, Any]) -> None:
    """Writes the folder `index`.

    Args:
        bundle: The bundle.
        lists: What was learnt of the items.
        fields: More of `index.json`, the `effort` among them.
    """
    folder = bundle / FOLDER
    folder.mkdir()
    for name in _ARRAYS:
        np.save(folder / f"{name}.npy", getattr(lists, name))
    text = json.dumps({"format": _FORMAT, **fields}, indent=1, sort_keys=True, allow_nan=False)
    (folder / _JSON).write_text(text + "\n", encoding="utf-8")


def read_index(
    bundle: Path, embeddings: np.ndarray, is_item: np.ndarray
) -> tuple[AnnIndex, int] | None:
    """Returns the index of a bundle and its effort; None where it has none.

    Args:
        bundle: The bundle, whose files were checked against its manifest.
        embeddings: Its item embeddings `[item rows, dim]` float32.
        is_item: Which rows are items `[item rows]` bool.

    Raises:
        RecsysError: FAISS is missing (R580), or the index is damaged (R582).
    """
    folder = bundle / FOLDER
    if not folder.exists():
        return None
    try:
        said = json.loads(read_plain(folder / _JSON, _LONGEST_JSON))
        arrays = {name: np.load(folder / f"{name}.npy", allow_pickle=False) for name in _ARRAYS}
    except (OSError, ValueError, EOFError, RecursionError) as error:
        _refuse(bundle, str(error))
    effort = said.get("effort") if isinstance(said, dict) else None
    if type(effort) is not int or said.get("format") != _FORMAT:
        _refuse(bundle, said)
    rows, lists = np.flatnonzero(is_item), Lists(**arrays)
    _check(bundle, lists, len(rows), embeddings.shape[1])
    if not 1 <= effort <= len(lists.middles):
        _refuse(bundle, {"effort": effort})
    return AnnIndex(lists, embeddings, rows), effort


def _check(bundle: Path, lists: Lists, n_items: int, dim: int) -> None:
    """Checks all that FAISS would trust."""
    n_lists = len(lists.middles) if lists.middles.ndim else 0
    expected = {
        "middles": (np.float32, (n_lists, dim)),
        "ranges": (np.float32, (2 * dim,)),
        "list_of": (np.int32, (n_items,)),
    }
    for name, (dtype, shape) in expected.items():
        found = getattr(lists, name)
        if found.dtype != dtype or found.shape != shape or not found.size:
            _refuse(bundle, {name: (str(found.dtype), found.shape), "expected": shape})
        if not np.isfinite(found).all():
            _refuse(bundle, {name: "not finite"})
    if lists.list_of.min() < 0 or lists.list_of.max() >= n_lists:
        _refuse(bundle, {"list_of": (int(lists.list_of.min()), int(lists.list_of.max()))})


def _refuse(bundle: Path, received: Any) -> NoReturn:
    raise RecsysError(
        "R582",
        f"The folder index of the bundle {str(bundle)!r} must be as the export wrote it.",
        "Export the model again: recsys export.",
        received,
    )
