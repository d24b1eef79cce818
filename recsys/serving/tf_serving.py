"""TensorFlow Serving's REST API.

Requests are read as TensorFlow Serving reads them (`tensorflow_serving/util/json_tensor.cc`):
rows under `instances` or columns under `inputs`, `{"b64": …}` for bytes, all inputs required,
no ragged lists. Errors are reported before TensorFlow is called.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pydantic
from fastapi import APIRouter, Request
from fastapi.responses import Response

from recsys.savedmodel.signatures import Arrays, Signature
from recsys.serving.predictor import Predictor, Question, check_names, find_signature
from recsys.serving.requests import Limits, as_json, nested_array, read_object, wrong
from recsys.serving.served_model import ServedModel

JSON = "application/json"


class Predict(pydantic.BaseModel):
    """Rows under `instances` or columns under `inputs`; bytes are `{"b64": …}`."""

    signature_name: str = "serving_default"
    instances: list[Any] = []
    inputs: Any = None


_BODY = {"required": True, "content": {JSON: {"schema": Predict.model_json_schema()}}}


def router(predictor: Predictor) -> APIRouter:
    """Returns the routes below `/v1/models`; each takes a version in its path or as a parameter."""
    routes, pool = APIRouter(prefix="/v1/models", tags=["TensorFlow Serving"]), predictor.pool

    @routes.post("/{name}:predict", openapi_extra={"requestBody": _BODY})
    @routes.post("/{name}/versions/{version}:predict", openapi_extra={"requestBody": _BODY})
    async def predict(request: Request, name: str, version: str = "") -> Response:
        """Return the outputs of a signature."""
        body = await request.body()

        def read() -> tuple[ServedModel, Question]:
            model: ServedModel = pool.find(name, version)
            return model, read_request(body, model.signatures, predictor.limits)

        return Response(await predictor.predict(len(body), read), media_type=JSON)

    @routes.get("/{name}/metadata")
    @routes.get("/{name}/versions/{version}/metadata")
    async def metadata(name: str, version: str = "") -> dict[str, Any]:
        """List the signatures."""
        model = pool.find(name, version)
        return {
            "model_spec": {"name": name, "signature_name": "", "version": str(model.version)},
            "metadata": {"signature_def": {"signature_def": model.metadata}},
        }

    @routes.get("/{name}")
    @routes.get("/{name}/versions/{version}")
    async def status(name: str, version: str = "") -> dict[str, Any]:
        """Return the state of versions, the newest first."""
        return {"model_version_status": pool.statuses(pool.number(name, version))}

    return routes


def read_request(body: bytes, signatures: Mapping[str, Signature], limits: Limits) -> Question:
    """Returns the question in the body of a predict request.

    Raises:
        HttpError: It isn't JSON or doesn't match the signature (400), or is too large (413).
    """
    request = read_object(body)
    name, signature = find_signature(signatures, request.get("signature_name"))
    is_by_row = "instances" in request
    if is_by_row == ("inputs" in request):
        rule = "A predict request must have either 'instances' or 'inputs'."
        cure = "Give rows under 'instances', or columns under 'inputs'."
        raise wrong("R552", rule, cure, sorted(request))
    if is_by_row:
        columns = _columns_of_rows(request["instances"], signature)
    else:
        columns = _columns("'inputs'", request["inputs"], signature)
    inputs = {key: nested_array(key, columns[key], spec, limits) for key, spec in signature.items()}
    return Question(name, inputs, lambda outputs: write_answer(name, outputs, by_row=is_by_row))


def _columns(where: str, value: Any, signature: Signature) -> Mapping[str, Any]:
    """Returns the inputs by name; a single one needs no name."""
    is_named = isinstance(value, dict) and value.keys() != {"b64"}
    if not is_named and len(signature) == 1:
        return dict.fromkeys(signature, value)
    check_names(where, signature, value)
    named: Mapping[str, Any] = value
    return named


def _columns_of_rows(rows: Any, signature: Signature) -> Mapping[str, Any]:
    if not isinstance(rows, list) or not rows:
        rule = "The 'instances' must be a list with at least one row."
        raise wrong("R552", rule, "Add one row per query.", type(rows).__name__)
    columns = [_columns(f"Row {i} of 'instances'", row, signature) for i, row in enumerate(rows)]
    return {name: [row[name] for row in columns] for name in signature}


def write_answer(signature: str, outputs: Arrays, *, by_row: bool) -> bytes:
    """Returns the body of the answer to a predict request.

    Raises:
        HttpError: The outputs have no rows.
    """
    columns = {name: as_json(name, values) for name, values in sorted(outputs.items())}
    is_single = len(columns) == 1
    if not by_row:
        answer = next(iter(columns.values())) if is_single else columns
        return json.dumps({"outputs": answer}).encode()
    sizes = {name: len(values) if values.ndim else None for name, values in outputs.items()}
    if len(set(sizes.values())) > 1 or None in sizes.values():
        rule = f"The outputs of {signature!r} must have one number of rows to be answered by row."
        raise wrong("R552", rule, "Ask for columns: 'inputs' in place of 'instances'.", sizes)
    if is_single:
        return json.dumps({"predictions": next(iter(columns.values()))}).encode()
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    return json.dumps({"predictions": rows}).encode()
