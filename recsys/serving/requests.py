"""Requests: their limits, their errors, and their values.

Values are read into arrays, and arrays are written as JSON. Errors have an HTTP status and
TensorFlow Serving's form.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import math
import os
from collections.abc import Sequence
from typing import Any

import numpy as np
from fastapi.responses import JSONResponse

from recsys.errors import RecsysError, UsageError
from recsys.savedmodel.signatures import DTYPES, SignatureInput
from recsys.serving.served_model import shortest
from recsys.system.files import unique_fields

MIB = 2**20
SMALL_BYTES = 16 << 10
"""Largest request that is read in the event loop: waking up a thread takes longer."""
HEAD_BYTES, HEAD_LINES = 64 << 10, 100


@dataclasses.dataclass(frozen=True)
class Limits:
    """Limits of one request, and of all requests together.

    Attributes:
        body_bytes: Maximum body size of a request, or message size of gRPC.
        all_bodies_bytes: Maximum size of all bodies that are held at once.
        rows: Maximum rows of a batch.
        values: Maximum values of one input.
        items: Maximum items to rank in a request.
        threads: Threads that call TensorFlow.
        queue: Maximum requests that wait for a thread.
        connections: Maximum open connections, and maximum requests at once.
        head_s: Timeout of the headers of a request [s].
        request_s: Timeout of a request, its body and its answer [s].
        answer_s: Timeout of an answer, the queue included [s].
    """

    body_bytes: int = 8 * MIB
    all_bodies_bytes: int = 256 * MIB
    rows: int = 1024
    values: int = 1_000_000
    items: int = 5000
    threads: int = dataclasses.field(default_factory=lambda: os.cpu_count() or 1)
    queue: int = 64
    connections: int = 1000
    head_s: float = 10.0
    request_s: float = 30.0
    answer_s: float = 10.0


# --- errors


BAD_REQUEST, NOT_FOUND, TIMEOUT, TOO_LARGE = 400, 404, 408, 413
MISDIRECTED, INVALID, TOO_MANY, UNAVAILABLE = 421, 422, 429, 503
_CLOSE, _RETRY = {"Connection": "close"}, {"Retry-After": "1"}
_HEADERS = {TIMEOUT: _CLOSE, TOO_LARGE: _CLOSE, TOO_MANY: _RETRY, UNAVAILABLE: _RETRY}


class HttpError(RecsysError):
    """An error with an HTTP status.

    Args:
        status: HTTP status.
        code: Anchor in `docs/errors.md`.
        rule: The condition that must hold, as a sentence.
        cure: How to resolve the error, as a sentence.
        received: The received value.
    """

    def __init__(self, status: int, code: str, rule: str, cure: str, received: Any = ...) -> None:
        super().__init__(code, rule, cure, received)
        self.status = status


def status_of(error: RecsysError) -> int:
    """Returns the HTTP status of an error of the server or of the library."""
    if isinstance(error, HttpError):
        return error.status
    return BAD_REQUEST if isinstance(error, UsageError) else UNAVAILABLE


def response(error: RecsysError) -> JSONResponse:
    """Returns the response to a request that failed."""
    status = status_of(error)
    return JSONResponse({"error": str(error)}, status, _HEADERS.get(status))


def busy(received: str) -> HttpError:
    """Returns the error of a request above the limit of concurrent ones."""
    rule = "The server has reached its limit of concurrent requests."
    return HttpError(TOO_MANY, "R560", rule, "Ask again in a second.", received)


def too_large(what: str, most: int, received: Any) -> HttpError:
    """Returns the error of a request with more than `most` `what`, a plural noun."""
    rule = f"A request may contain at most {most:,} {what}."
    return HttpError(TOO_LARGE, "R557", rule, "Ask in several requests.", received)


def wrong(code: str, rule: str, cure: str, received: Any) -> HttpError:
    """Returns the error of a request that breaks a rule."""
    return HttpError(BAD_REQUEST, code, rule, cure, received)


# --- values


_EXPECTED = {
    "DT_STRING": 'a text, or bytes as {"b64": "…"}; ids are text: write 42 as "42"',
    "DT_BOOL": "true or false",
    "DT_FLOAT": "a number that fits into float32",
    "DT_INT32": "a whole number that fits into int32",
    "DT_INT64": "a whole number that fits into int64",
}
_LARGEST = float(np.finfo(np.float32).max)
_MOST_LISTS = 1_000_000
"""Maximum lists and objects in a body: reading them blocks all other threads."""


def read_object(body: bytes) -> dict[str, Any]:
    """Returns the JSON object in `body`."""
    if body.count(b"[") + body.count(b"{") > _MOST_LISTS:  # Before they are parsed.
        raise too_large("lists and objects", _MOST_LISTS, "more")
    try:
        parsed = json.loads(body.decode("utf-8"), object_pairs_hook=unique_fields)
        received = type(parsed).__name__
    # Nested too deeply, or a number with more digits than Python reads.
    except (ValueError, RecursionError) as error:
        parsed, received = None, str(error)
    if not isinstance(parsed, dict):
        rule = "The body must be a JSON object in UTF-8, with each key once."
        raise wrong("R551", rule, "See docs/serving.md.", received)
    return parsed


def nested_array(name: str, value: Any, spec: SignatureInput, limits: Limits) -> np.ndarray:
    """Returns nested lists as an array in the dtype and shape of an input."""
    nested = np.array(value, object)  # Ragged lists stay lists.
    return flat_array(name, nested.ravel().tolist(), nested.shape, spec, limits)


def flat_array(
    name: str, values: Sequence[Any], shape: Sequence[int], spec: SignatureInput, limits: Limits
) -> np.ndarray:
    """Returns values in row-major order as an array in the dtype and shape of an input.

    Raises:
        HttpError: They have another dtype or number (400), or are too many (413).
    """
    n, is_known = len(values), len(shape) == len(spec.shape) and min(shape, default=0) >= 0
    if n > limits.values:
        raise too_large("values of one input", limits.values, n)
    if not is_known or math.prod(shape) != n or any(isinstance(value, list) for value in values):
        sizes = ", ".join("any" if size < 0 else str(size) for size in spec.shape)
        rule = f"The input {name!r} must have the shape [{sizes}], rows first, and no ragged lists."
        raise wrong("R556", rule, "Pad shorter lists, such as 'history' with ''.", list(shape))
    typed = [_scalar(value, spec.dtype) for value in values]
    if None in typed:
        rule = f"Every value of the input {name!r} must be {_EXPECTED[spec.dtype]}."
        raise wrong("R555", rule, "Correct it.", values[typed.index(None)])
    # np.array(bytes) would drop NULs at the end.
    out = np.empty(n, DTYPES[spec.dtype])
    out[:] = typed
    return out.reshape(shape)


def _scalar(value: Any, dtype: str) -> Any:
    """Returns a value as NumPy accepts it; None if it has another type."""
    if dtype == "DT_STRING":
        return _bytes(value)
    if dtype == "DT_BOOL" or isinstance(value, bool):
        return value if dtype == "DT_BOOL" and isinstance(value, bool) else None
    if dtype != "DT_FLOAT":
        limits = np.iinfo(DTYPES[dtype])
        return value if isinstance(value, int) and limits.min <= value <= limits.max else None
    is_number = isinstance(value, int | float) and not _LARGEST < abs(value) < math.inf
    return float(value) if is_number else None


def _bytes(value: Any) -> bytes | None:
    try:
        if isinstance(value, bytes):
            return value
        if isinstance(value, str):
            return value.encode("utf-8")
        if isinstance(value, dict) and value.keys() == {"b64"} and isinstance(value["b64"], str):
            text = value["b64"]
            return base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except ValueError:  # A lone surrogate, or no base64.
        pass
    return None


def as_json(name: str, values: np.ndarray) -> Any:
    """Returns an output as nested lists; bytes that are not text, or named so, as base64."""
    if values.dtype == np.float32:
        return shortest(values)
    if values.dtype != object:
        return values.tolist()
    texts = np.empty(values.size, object)
    texts[:] = [_text(value, name.endswith("_bytes")) for value in values.ravel().tolist()]
    return texts.reshape(values.shape).tolist()


def _text(value: bytes, as_bytes: bool) -> Any:
    if not as_bytes:
        try:
            return value.decode("utf-8")
        except UnicodeDecodeError:
            pass
    return {"b64": base64.b64encode(value).decode("ascii")}
