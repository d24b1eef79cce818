"""Arrays to the JSON of TensorFlow Serving's REST API."""

from __future__ import annotations

import base64
import json
from typing import Any

import numpy as np

from recsys.serving.server.signature import Arrays

_BASE64 = "b64"
_BYTES_SUFFIX = "_bytes"


def write_answer(outputs: Arrays, is_by_row: bool) -> bytes:
    """Returns the body of a predict response.

    Args:
        outputs: What the signature gave; by row, all of one batch size.
        is_by_row: Whether under `predictions`, row by row; else under `outputs`.
    """
    columns = {name: _as_json(name, values) for name, values in sorted(outputs.items())}
    named = next(iter(columns.values())) if len(columns) == 1 else None
    if not is_by_row:
        return json.dumps({"outputs": columns if named is None else named}).encode()
    rows = named
    if rows is None:
        names = list(columns)
        rows = [dict(zip(names, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    return json.dumps({"predictions": rows}).encode()


def _as_json(name: str, values: np.ndarray) -> Any:
    if values.dtype == np.float32:
        # The shortest text that reads back as the same number, and not its double.
        return values.astype("U").astype(np.float64).tolist()
    if values.dtype != object:
        return values.tolist()
    as_bytes = name.endswith(_BYTES_SUFFIX)
    texts = np.empty(values.size, object)
    texts[:] = [_text(value, as_bytes) for value in values.ravel().tolist()]
    return texts.reshape(values.shape).tolist()


def _text(value: bytes, as_bytes: bool) -> Any:
    if not as_bytes:
        try:
            return value.decode("utf-8")
        except UnicodeDecodeError:  # No JSON text says it.
            pass
    return {_BASE64: base64.b64encode(value).decode("ascii")}
