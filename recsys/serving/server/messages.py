"""The bodies of predict requests and answers, in JSON as TensorFlow Serving has it.

Requests are read as TensorFlow Serving reads them (`tensorflow_serving/util/json_tensor.cc`):
rows under `instances` or columns under `inputs`, `{"b64": …}` for bytes, all inputs required,
no ragged lists. Errors are reported before TensorFlow sees anything.
"""

from __future__ import annotations

import base64
import dataclasses
import itertools
import json
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from recsys.bundles.signatures import DEFAULT_SIGNATURE, Arrays, Signature
from recsys.serving.server.http_errors import BAD_REQUEST, HttpError, too_large
from recsys.serving.server.limits import Limits
from recsys.serving.server.tensors import read_tensor

_BASE64 = "b64"
_MOST_LISTS = 1_000_000
"""Of a body, objects included; Python reads them all while every other thread waits."""
_SHOWN_NAMES = 8


@dataclasses.dataclass(frozen=True)
class PredictRequest:
    """A predict request.

    Attributes:
        signature: Name of the function that is asked.
        inputs: Its inputs.
        is_by_row: Whether the answer is wanted by row, else by column.
    """

    signature: str
    inputs: Arrays
    is_by_row: bool


def read_request(
    body: bytes, signatures: Mapping[str, Signature], limits: Limits
) -> PredictRequest:
    """Reads the body of a predict request.

    Raises:
        HttpError: It isn't JSON, or not what the signature takes (400); or too much (413).
    """
    request = read_object(body)
    name = _signature_name(request, signatures)
    signature = signatures[name]
    is_by_row = "instances" in request
    if is_by_row == ("inputs" in request):
        raise HttpError(
            BAD_REQUEST,
            "R552",
            "A predict request must have either 'instances' or 'inputs'.",
            "Give rows under 'instances', or columns under 'inputs'.",
            _first(request),
        )
    columns = (
        _columns_of_rows(request["instances"], signature, limits)
        if is_by_row
        else _columns(request["inputs"], signature)
    )
    inputs = {
        input_name: read_tensor(input_name, columns[input_name], spec, limits)
        for input_name, spec in signature.inputs.items()
    }
    _check_batch(inputs, signature, limits)
    return PredictRequest(name, inputs, is_by_row)


def read_object(body: bytes) -> dict[str, Any]:
    """Returns the JSON object that `body` is.

    Raises:
        HttpError: It is none (400), or holds too many lists (413).
    """
    if body.count(b"[") + body.count(b"{") > _MOST_LISTS:
        raise too_large("lists and objects", _MOST_LISTS, "more")
    try:
        parsed = json.loads(body.decode("utf-8"))
    # Too deep, or a number of more digits than Python reads.
    except (ValueError, RecursionError) as error:
        raise _no_object(str(error)) from None
    if not isinstance(parsed, dict):
        raise _no_object(type(parsed).__name__)
    return parsed


def _signature_name(request: dict[str, Any], signatures: Mapping[str, Signature]) -> str:
    name = request.get("signature_name", DEFAULT_SIGNATURE)
    # As in TensorFlow Serving the empty name is the default.
    name = name or DEFAULT_SIGNATURE if isinstance(name, str) else name
    if not isinstance(name, str) or name not in signatures or not signatures[name].inputs:
        known = ", ".join(repr(one) for one in sorted(signatures) if signatures[one].inputs)
        raise HttpError(
            BAD_REQUEST,
            "R553",
            "The 'signature_name' must be that of a signature of the model.",
            f"Name one of {known}.",
            name,
        )
    return name


def _columns(value: Any, signature: Signature) -> dict[str, Any]:
    """Returns the inputs by name, of `inputs`."""
    names = set(signature.inputs)
    if not isinstance(value, dict) or _is_base64(value):
        if len(names) > 1:
            raise _wrong_names("'inputs'", names, type(value).__name__)
        return dict.fromkeys(names, value)
    if not names <= set(value):
        raise _wrong_names("'inputs'", names, _first(value))
    return value


def _columns_of_rows(rows: Any, signature: Signature, limits: Limits) -> dict[str, list[Any]]:
    """Returns the inputs by name, of `instances`."""
    names = set(signature.inputs)
    if not isinstance(rows, list) or not rows:
        raise HttpError(
            BAD_REQUEST,
            "R552",
            "The 'instances' must be a list with at least one row.",
            "Give a row for each answer that you want.",
            type(rows).__name__,
        )
    if len(rows) > limits.rows:
        raise too_large("rows", limits.rows, len(rows))
    if not isinstance(rows[0], dict) or _is_base64(rows[0]):
        if len(names) > 1:
            raise _wrong_names("Row 0 of 'instances'", names, type(rows[0]).__name__)
        return dict.fromkeys(names, rows)
    for number, row in enumerate(rows):
        if not isinstance(row, dict) or row.keys() != names:
            received = _first(row) if isinstance(row, dict) else type(row).__name__
            raise _wrong_names(f"Row {number} of 'instances'", names, received)
    return {name: [row[name] for row in rows] for name in names}


def _check_batch(inputs: Arrays, signature: Signature, limits: Limits) -> None:
    """Checks that all inputs of any batch size have the same one."""
    sizes = {
        name: len(values)
        for name, values in inputs.items()
        if (shape := signature.inputs[name].shape) and shape[0] < 0 and values.ndim
    }
    if len(set(sizes.values())) > 1:
        raise HttpError(
            BAD_REQUEST,
            "R556",
            "All inputs must have the same number of rows.",
            "Give every input one value, or one list, for each row.",
            sizes,
        )
    if max(sizes.values(), default=0) > limits.rows:
        raise too_large("rows", limits.rows, max(sizes.values()))


def _first(names: Iterable[str]) -> list[str]:
    return sorted(itertools.islice(names, _SHOWN_NAMES))


def _is_base64(value: dict[str, Any]) -> bool:
    return value.keys() == {_BASE64} and isinstance(value[_BASE64], str)


def _no_object(received: str) -> HttpError:
    return HttpError(
        BAD_REQUEST,
        "R551",
        "The body must be a JSON object in UTF-8.",
        "Send one, as docs/serving.md shows.",
        received,
    )


def _wrong_names(where: str, names: Iterable[str], received: Any) -> HttpError:
    expected = ", ".join(repr(name) for name in sorted(names))
    return HttpError(
        BAD_REQUEST,
        "R554",
        f"{where} must be an object with the keys {expected}.",
        "GET …/metadata lists the inputs of every signature.",
        received,
    )


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
