"""The API of TensorFlow Serving: its routes, and the bodies of its requests and answers.

Requests are read as TensorFlow Serving reads them (`tensorflow_serving/util/json_tensor.cc`):
rows under `instances` or columns under `inputs`, `{"b64": …}` for bytes, all inputs required,
no ragged lists. Errors are reported before TensorFlow sees anything.
"""

from __future__ import annotations

import base64
import dataclasses
import itertools
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal

import numpy as np
import pydantic
from fastapi import APIRouter, Path, Request
from fastapi.responses import Response

from recsys.bundles.signatures import (
    DEFAULT_SIGNATURE,
    ONLY,
    Arrays,
    Signature,
    SignatureInput,
)
from recsys.errors import UsageError
from recsys.serving.retriever import FILTERED, RECOMMEND, Retriever
from recsys.serving.server.http_errors import BAD_REQUEST, JSON, HttpError, documented, too_large
from recsys.serving.server.limits import SMALL_BYTES, Limits, read_object
from recsys.serving.server.micro_batcher import MicroBatcher
from recsys.serving.server.pool import Pool

# Documented, and not enforced: FastAPI would report it in a form of its own.
Version = Annotated[str, Path(json_schema_extra={"pattern": "^[0-9]{1,18}$"})]


class Predict(pydantic.BaseModel):
    """Rows under `instances` or columns under `inputs`; bytes are `{"b64": …}`."""

    signature_name: str = "serving_default"
    instances: list[Any] = []
    inputs: Any = None


class Predictions(pydantic.BaseModel):
    """Rows under `predictions`, or columns under `outputs`."""

    predictions: list[Any] = []
    outputs: Any = None


class Status(pydantic.BaseModel):
    """Why a version is in its state."""

    error_code: str
    error_message: str


class VersionStatus(pydantic.BaseModel):
    """The state of a version."""

    version: str
    state: Literal["LOADING", "AVAILABLE", "END"]
    status: Status


class ModelStatus(pydantic.BaseModel):
    """The states of versions, the newest first."""

    model_version_status: list[VersionStatus]


_BODY = {"required": True, "content": {JSON: {"schema": Predict.model_json_schema()}}}
_DOCUMENTED: dict[str, Any] = {
    "responses": {200: {"model": Predictions}, **documented(429)},
    "response_model": None,
    "openapi_extra": {"requestBody": _BODY},
}


def router(pool: Pool, work: MicroBatcher, limits: Limits) -> APIRouter:
    """Returns the routes below `/v1/models`."""
    responses = documented(400, 404, 408, 413, 415, 421, 503)
    routes = APIRouter(prefix="/v1/models", tags=["TensorFlow Serving"], responses=responses)

    async def answer(request: Request, name: str, version: str | None) -> Response:
        model: Retriever = pool.model(pool.number(name, version))
        body = await request.body()

        def read_body() -> PredictRequest:
            read = read_request(body, model.signatures, limits)
            _check_filters(model, read)
            return read

        if len(body) > SMALL_BYTES:
            content = await work.run(lambda: answer_together(model, [read_body()])[0])
            return Response(content, media_type=JSON)
        read = read_body()
        # Questions of a kind of their own are answered alone.
        kind = (id(model), read.signature) if read.may_join else object()
        content = await work.together(kind, read, lambda some: answer_together(model, some))
        return Response(content, media_type=JSON)

    @routes.post("/{name}:predict", **_DOCUMENTED)
    async def predict_newest(request: Request, name: str) -> Response:
        """Ask the newest version."""
        return await answer(request, name, None)

    @routes.post("/{name}/versions/{version}:predict", **_DOCUMENTED)
    async def predict_version(request: Request, name: str, version: Version) -> Response:
        """Ask one version."""
        return await answer(request, name, version)

    def metadata(name: str, version: str | None) -> dict[str, Any]:
        model = pool.model(pool.number(name, version))
        return {
            "model_spec": {"name": name, "signature_name": "", "version": str(model.version)},
            "metadata": {"signature_def": {"signature_def": model.metadata}},
        }

    @routes.get("/{name}/metadata")
    async def metadata_of_newest(name: str) -> dict[str, Any]:
        """List the signatures of the newest version."""
        return metadata(name, None)

    @routes.get("/{name}/versions/{version}/metadata")
    async def metadata_of_version(name: str, version: Version) -> dict[str, Any]:
        """List the signatures of one version."""
        return metadata(name, version)

    @routes.get("/{name}", response_model=ModelStatus)
    async def status_of_all(name: str) -> Any:
        """Tell the state of every version."""
        return {"model_version_status": pool.statuses(pool.number(name, None))}

    @routes.get("/{name}/versions/{version}", response_model=ModelStatus)
    async def status_of_version(name: str, version: Version) -> Any:
        """Tell the state of one version."""
        return {"model_version_status": pool.statuses(pool.number(name, version))}

    return routes


# --- the bodies

_MOST_JOINED_ROWS = 8
"""Of a request; a larger one is no faster with others."""
_SHOWN_NAMES = 8


@dataclasses.dataclass(frozen=True)
class PredictRequest:
    """A predict request.

    Attributes:
        signature: Name of the function.
        inputs: Its inputs.
        is_by_row: Whether the answer is wanted by row, else by column.
    """

    signature: str
    inputs: Arrays
    is_by_row: bool

    @property
    def n_rows(self) -> int:
        """Rows of its inputs."""
        return len(next(iter(self.inputs.values())))

    @property
    def may_join(self) -> bool:
        """Whether it may be answered together with others, padded to a common length."""
        is_joined = self.signature in (RECOMMEND, FILTERED)
        return is_joined and 0 < self.n_rows <= _MOST_JOINED_ROWS


def read_request(
    body: bytes, signatures: Mapping[str, Signature], limits: Limits
) -> PredictRequest:
    """Reads the body of a predict request.

    Raises:
        HttpError: It isn't JSON, or not what the signature takes (400); or too much (413).
    """
    request = read_object(body)
    name = _signature_name(request, signatures)
    signature, is_by_row = signatures[name], "instances" in request
    if is_by_row == ("inputs" in request):
        rule = "A predict request must have either 'instances' or 'inputs'."
        cure = "Give rows under 'instances', or columns under 'inputs'."
        raise _wrong("R552", rule, cure, _first(request))
    if is_by_row:
        columns = _columns_of_rows(request["instances"], signature, limits)
    else:
        columns = _columns(request["inputs"], signature, "'inputs'")
    specs = signature.items()
    inputs = {key: read_tensor(key, columns[key], spec, limits) for key, spec in specs}
    sizes = {key: len(values) for key, values in inputs.items()}
    if len(set(sizes.values())) > 1:
        rule = "All inputs must have the same number of rows."
        cure = "Give every input one value, or one list, for each row."
        raise _wrong("R556", rule, cure, sizes)
    if max(sizes.values()) > limits.rows:
        raise too_large("rows", limits.rows, max(sizes.values()))
    return PredictRequest(name, inputs, is_by_row)


def _check_filters(model: Retriever, request: PredictRequest) -> None:
    """Raises an error, alone for this request, where no item has a value that it asks for."""
    wanted = {
        name: dict.fromkeys(values.ravel())
        for name, values in request.inputs.items()
        if name.startswith(ONLY)
    }
    if wanted:
        try:
            model.filters.check_values(wanted)
        except UsageError as error:
            raise HttpError.of(BAD_REQUEST, error) from None


def _signature_name(request: dict[str, Any], signatures: Mapping[str, Signature]) -> str:
    # As in TensorFlow Serving the empty name is the default.
    name = request.get("signature_name") or DEFAULT_SIGNATURE
    if not isinstance(name, str) or name not in signatures:
        rule = "The 'signature_name' must be the name of a signature of the model."
        raise _wrong("R553", rule, f"Name one of {', '.join(map(repr, sorted(signatures)))}.", name)
    return name


def _columns(value: Any, signature: Signature, where: str) -> dict[str, Any]:
    """Returns the inputs by name; one alone needs no name."""
    names = signature.keys()
    is_named = isinstance(value, dict) and value.keys() != {"b64"}
    if not is_named and len(names) == 1:
        return dict.fromkeys(names, value)
    if not is_named or not names <= value.keys():
        raise _wrong_names(where, names, value)
    columns: dict[str, Any] = value
    return columns


def _columns_of_rows(rows: Any, signature: Signature, limits: Limits) -> dict[str, list[Any]]:
    """Returns the inputs by name, of `instances`."""
    names = signature.keys()
    if not isinstance(rows, list) or not rows:
        rule = "The 'instances' must be a list with at least one row."
        cure = "Add one row per query."
        raise _wrong("R552", rule, cure, type(rows).__name__)
    if len(rows) > limits.rows:
        raise too_large("rows", limits.rows, len(rows))
    if _columns(rows[0], signature, "Row 0 of 'instances'") is not rows[0]:
        return dict.fromkeys(names, rows)
    for number, row in enumerate(rows):
        if not isinstance(row, dict) or row.keys() != names:
            raise _wrong_names(f"Row {number} of 'instances'", names, row)
    return {name: [row[name] for row in rows] for name in names}


def read_tensor(name: str, value: Any, spec: SignatureInput, limits: Limits) -> np.ndarray:
    """Returns a JSON value as an array of the type and shape that an input takes.

    Raises:
        HttpError: It has another type or shape, or is ragged (400); or too much (413).
    """
    shape = _shape(value)
    expected = spec.shape
    if len(shape) != len(expected):
        sizes = ", ".join("any" if size < 0 else str(size) for size in expected)
        rule = f"The input {name!r} must have the shape [{sizes}], rows first."
        raise _wrong("R556", rule, "Nest its lists so.", list(shape))
    if math.prod(shape) > limits.values:
        raise too_large("values of one input", limits.values, list(shape))
    values = [value]
    for size in shape:
        for part in values:
            if not isinstance(part, list) or len(part) != size:
                received = len(part) if isinstance(part, list) else type(part).__name__
                rule = f"All lists of the input {name!r} must have the same length, {size}."
                cure = "Pad the shorter ones; the empty string is padding in 'history'."
                raise _wrong("R556", rule, cure, received)
        values = list(itertools.chain.from_iterable(values))
    return _typed(name, values, spec.dtype).reshape(shape)


def _shape(value: Any) -> tuple[int, ...]:
    """Returns the sizes of nested lists, as their first elements have them."""
    sizes = []
    while isinstance(value, list):
        sizes.append(len(value))
        value = value[0] if value else None
    return tuple(sizes)


DTYPES: dict[str, Any] = {"DT_STRING": object, "DT_BOOL": np.bool_, "DT_FLOAT": np.float32}
"""NumPy's type of each type of TensorFlow that signatures take; objects hold bytes."""
_EXPECTED = {
    "DT_STRING": 'a text, or bytes as {"b64": "…"}; ids are text: write 42 as "42"',
    "DT_BOOL": "true or false",
    "DT_FLOAT": "a number that fits into float32",
}
_LARGEST = float(np.finfo(np.float32).max)


def _typed(name: str, values: list[Any], dtype: str) -> np.ndarray:
    """Returns values `[n]` of an input as an array."""
    typed = [_scalar(value, dtype) for value in values]
    if None in typed:
        rule = f"Every value of the input {name!r} must be {_EXPECTED[dtype]}."
        raise _wrong("R555", rule, "Correct it.", values[typed.index(None)])
    # Not by np.array(bytes), whose own type would drop NULs at the end.
    out = np.empty(len(typed), DTYPES[dtype])
    out[:] = typed
    return out


def _scalar(value: Any, dtype: str) -> Any:
    """Returns a JSON value in a type that NumPy accepts; None if it has another type."""
    if dtype == "DT_STRING":
        return _bytes(value)
    if dtype == "DT_BOOL" or isinstance(value, bool):
        return value if dtype == "DT_BOOL" and isinstance(value, bool) else None
    is_number = isinstance(value, int | float) and not _LARGEST < abs(value) < math.inf
    return float(value) if is_number else None


def _bytes(value: Any) -> bytes | None:
    try:
        if isinstance(value, str):
            return value.encode("utf-8")
        if isinstance(value, dict) and value.keys() == {"b64"} and isinstance(value["b64"], str):
            text = value["b64"]
            return base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except ValueError:  # Half a surrogate pair, no base64.
        pass
    return None


def answer_together(model: Retriever, requests: Sequence[PredictRequest]) -> list[bytes]:
    """Returns the bodies of the answers to several requests of one signature, asked as one.

    Raises:
        HttpError: One of them asks for what the model can't answer.
    """
    if len(requests) == 1:
        return [write_answer(requests[0], model.ask(requests[0].signature, requests[0].inputs))]
    stacked = {
        name: _stacked([request.inputs[name] for request in requests])
        for name in requests[0].inputs
    }
    outputs = model.ask(requests[0].signature, stacked)
    ends = np.cumsum([request.n_rows for request in requests])
    if any(len(values) != ends[-1] for values in outputs.values()):
        raise ValueError("the outputs are not by row")  # Each is answered alone then.
    parts = {name: np.split(values, ends[:-1]) for name, values in outputs.items()}
    return [
        write_answer(request, {name: parts[name][place] for name in parts})
        for place, request in enumerate(requests)
    ]


def _stacked(parts: Sequence[np.ndarray]) -> np.ndarray:
    """Returns rows one below the other; lists of texts padded to the longest."""
    if parts[0].ndim == 1:
        return np.concatenate(parts)
    stacked = np.full((sum(map(len, parts)), max(part.shape[1] for part in parts)), b"", object)
    start = 0
    for part in parts:
        stacked[start : start + len(part), : part.shape[1]] = part
        start += len(part)
    return stacked


def write_answer(request: PredictRequest, outputs: Arrays) -> bytes:
    """Returns the body of the answer to a predict request.

    Raises:
        HttpError: The outputs have no rows to answer by.
    """
    columns = {name: _as_json(name, values) for name, values in sorted(outputs.items())}
    is_single = len(columns) == 1
    if not request.is_by_row:
        answer = next(iter(columns.values())) if is_single else columns
        return json.dumps({"outputs": answer}).encode()
    sizes = {name: len(values) if values.ndim else None for name, values in outputs.items()}
    if len(set(sizes.values())) > 1 or None in sizes.values():
        rule = (
            f"The outputs of {request.signature!r} must have one number of rows to be"
            " answered row by row."
        )
        raise _wrong("R552", rule, "Ask for columns: 'inputs' in place of 'instances'.", sizes)
    if is_single:
        return json.dumps({"predictions": next(iter(columns.values()))}).encode()
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    return json.dumps({"predictions": rows}).encode()


def _as_json(name: str, values: np.ndarray) -> Any:
    if values.dtype == np.float32:
        # The shortest text that reads back as the same number, and not its double.
        return values.astype("U").astype(np.float64).tolist()
    if values.dtype != object:
        return values.tolist()
    texts = np.empty(values.size, object)
    texts[:] = [_text(value, name.endswith("_bytes")) for value in values.ravel().tolist()]
    return texts.reshape(values.shape).tolist()


def _text(value: bytes, as_bytes: bool) -> Any:
    if not as_bytes:
        try:
            return value.decode("utf-8")
        except UnicodeDecodeError:  # No JSON text says it.
            pass
    return {"b64": base64.b64encode(value).decode("ascii")}


def _first(names: Iterable[str]) -> list[str]:
    return sorted(itertools.islice(names, _SHOWN_NAMES))


def _wrong_names(where: str, names: Iterable[str], value: Any) -> HttpError:
    rule = f"{where} must be an object with the keys {', '.join(map(repr, sorted(names)))}."
    received = _first(value) if isinstance(value, dict) else type(value).__name__
    cure = "GET …/metadata lists the inputs of every signature."
    return _wrong("R554", rule, cure, received)


def _wrong(code: str, rule: str, cure: str, received: Any) -> HttpError:
    return HttpError(BAD_REQUEST, code, rule, cure, received)
