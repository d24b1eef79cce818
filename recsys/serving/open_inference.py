"""The Open Inference protocol (version 2 of KServe's protocol).

Requests are messages of its gRPC service, into which JSON is translated. The parameter
`signature_name` names a signature; by default, it is `recommend` if the model has it.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable
from importlib import resources
from typing import Any

import numpy as np
from fastapi import APIRouter, Request
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format
from google.protobuf.json_format import ParseDict

from recsys.savedmodel.signatures import Arrays
from recsys.serving.pool import Pool
from recsys.serving.predictor import (
    Predictor,
    Question,
    check_names,
    find_signature,
    select_outputs,
)
from recsys.serving.requests import as_json, flat_array, read_object, wrong
from recsys.serving.served_model import RECOMMEND, ServedModel
from recsys.system.installation import VERSION

_FIELDS = {
    "BYTES": "bytes_contents",
    "BOOL": "bool_contents",
    "FP32": "fp32_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
}
_NAMES = {
    "DT_STRING": "BYTES",
    "DT_BOOL": "BOOL",
    "DT_FLOAT": "FP32",
    "DT_INT32": "INT32",
    "DT_INT64": "INT64",
}
_NUMPY = {"BOOL": "?", "FP32": "<f4", "INT32": "<i4", "INT64": "<i8"}
_LENGTH = struct.Struct("<I")

Write = Callable[[ServedModel, Any, Arrays], Any]
"""Returns the answer of a version to a message, with outputs."""


def messages(name: str) -> Any:
    """Returns a message class of the protocol."""
    return message_class("open_inference.pbtxt", f"inference.{name}")


@functools.cache
def message_class(file: str, name: str) -> Any:
    """Returns a message class by its full name, from a FileDescriptorProto of this package."""
    text = resources.files(__package__).joinpath(file).read_text("utf-8")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(text_format.Parse(text, descriptor_pb2.FileDescriptorProto()))
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))


def router(predictor: Predictor) -> APIRouter:
    """Returns the routes below `/v2`."""
    routes, pool = APIRouter(prefix="/v2", tags=["Open Inference"]), predictor.pool

    @routes.get("/health/live")
    async def live() -> dict[str, bool]:
        """Tell that the server runs."""
        return {"live": True}

    @routes.get("/health/ready")
    async def ready() -> dict[str, bool]:
        """Tell whether a version is loaded."""
        return {"ready": bool(pool.model())}

    @routes.get("")
    async def server() -> dict[str, Any]:
        """Describe the server."""
        return describe_server()

    @routes.get("/models/{name}/ready")
    @routes.get("/models/{name}/versions/{version}/ready")
    async def model_ready(name: str, version: str = "") -> dict[str, Any]:
        """Tell whether a version is loaded."""
        return {"name": name, "ready": bool(pool.find(name, version))}

    @routes.get("/models/{name}")
    @routes.get("/models/{name}/versions/{version}")
    async def model(name: str, version: str = "") -> dict[str, Any]:
        """List the inputs and outputs of the default signature."""
        return describe_model(pool, name, version)

    body = {"required": True, "content": {"application/json": {"schema": {"type": "object"}}}}

    @routes.post("/models/{name}/infer", openapi_extra={"requestBody": body})
    @routes.post("/models/{name}/versions/{version}/infer", openapi_extra={"requestBody": body})
    async def infer(request: Request, name: str, version: str = "") -> Any:
        """Return the outputs of a signature."""
        body = await request.body()
        return await predictor.predict(
            len(body),
            lambda: read_question(predictor, _from_json(name, version, body), _to_json),
        )

    return routes


def describe_server() -> dict[str, Any]:
    """Returns the fields of the server's metadata."""
    return {"name": "recsys", "version": VERSION, "extensions": []}


def describe_model(pool: Pool, name: str, version: str) -> dict[str, Any]:
    """Returns the metadata of a model, for its default signature."""
    model: ServedModel = pool.find(name, version)
    definition = model.metadata.get(_default(model), {})

    def described(side: str) -> list[dict[str, Any]]:
        return [
            {
                "name": key,
                "datatype": _NAMES.get(tensor["dtype"], tensor["dtype"].removeprefix("DT_")),
                "shape": [int(size["size"]) for size in tensor["tensor_shape"]["dim"]],
            }
            for key, tensor in sorted(definition.get(side, {}).items())
        ]

    versions = [str(loaded.version) for loaded in pool.models]
    fields = {"name": name, "versions": versions, "platform": "tensorflow_savedmodel"}
    return {**fields, "inputs": described("inputs"), "outputs": described("outputs")}


def _default(model: ServedModel) -> str:
    return RECOMMEND if RECOMMEND in model.signatures else "serving_default"


def read_question(predictor: Predictor, message: Any, write: Write) -> tuple[ServedModel, Question]:
    """Returns the version for a ModelInferRequest, and the question.

    Raises:
        HttpError: The inputs don't match the signature (400), or are too large (413).
    """
    model: ServedModel = predictor.pool.find(message.model_name, message.model_version)
    parameter = message.parameters.get("signature_name")
    wanted = parameter.string_param if parameter else _default(model)
    name, signature = find_signature(model.signatures, wanted)
    raw = list(message.raw_input_contents) or [None] * len(message.inputs)
    tensors = {tensor.name: (tensor, part) for tensor, part in zip(message.inputs, raw)}  # noqa: B905 a missing part is a missing input
    check_names("The inputs", signature, tensors)
    inputs = {}
    for key, spec in signature.items():
        tensor, part = tensors[key]
        if tensor.datatype != _NAMES[spec.dtype]:
            rule = f"The datatype of {key!r} must be {_NAMES[spec.dtype]}."
            raise wrong("R555", rule, "Correct it.", tensor.datatype)
        values = _typed(tensor) if part is None else _unpacked(key, part, tensor.datatype)
        inputs[key] = flat_array(key, values, list(tensor.shape), spec, predictor.limits)
    names = [output.name for output in message.outputs]
    return model, Question(
        name, inputs, lambda outputs: write(model, message, select_outputs(outputs, names))
    )


def _typed(tensor: Any) -> list[Any]:
    return list(getattr(tensor.contents, _FIELDS[tensor.datatype]))


def _unpacked(name: str, raw: bytes, datatype: str) -> list[Any]:
    """Returns raw values: little-endian numbers, or texts with their lengths before them."""
    try:
        if datatype != "BYTES":
            return list(np.frombuffer(raw, _NUMPY[datatype]).tolist())
        values, at = [], 0
        while at < len(raw):
            start = at + _LENGTH.size
            at = start + _LENGTH.unpack_from(raw, at)[0]
            values.append(raw[start:at])
        if at == len(raw):
            return values
        received = "truncated"
    except (ValueError, struct.error) as error:
        received = str(error)
    rule = f"The raw contents of {name!r} must be whole values."
    raise wrong("R556", rule, "Send them again.", received)


def write_message(model: ServedModel, message: Any, outputs: Arrays) -> bytes:
    """Returns a ModelInferResponse, with raw contents if the request has them."""
    answer = messages("ModelInferResponse")(**_answer(model, message))
    for key, values in outputs.items():
        datatype = _datatype_of(values)
        tensor = answer.outputs.add(name=key, datatype=datatype, shape=values.shape)
        flat = values.ravel().tolist()
        if not message.raw_input_contents:
            getattr(tensor.contents, _FIELDS[datatype]).extend(flat)
        elif datatype == "BYTES":
            raw = b"".join(_LENGTH.pack(len(value)) + value for value in flat)
            answer.raw_output_contents.append(raw)
        else:
            answer.raw_output_contents.append(values.tobytes())
    return bytes(answer.SerializeToString())


def _answer(model: ServedModel, message: Any) -> dict[str, str]:
    version = str(model.version)
    return {"model_name": message.model_name, "model_version": version, "id": message.id}


def _datatype_of(values: np.ndarray) -> str:
    kind = {"O": "BYTES", "b": "BOOL", "f": "FP"}.get(values.dtype.kind, "INT")
    return kind if kind in _FIELDS else f"{kind}{8 * values.itemsize}"


def _from_json(name: str, version: str, body: bytes) -> Any:
    """Returns the ModelInferRequest of a JSON object."""
    fields = read_object(body)
    try:
        message = messages("ModelInferRequest")(
            model_name=name, model_version=version, id=fields.get("id", "")
        )
        for key, value in fields.get("parameters", {}).items():
            message.parameters[key].string_param = str(value)
        for field in fields["inputs"]:
            datatype = field["datatype"]
            tensor = message.inputs.add(name=field["name"], datatype=datatype, shape=field["shape"])
            values = np.array(field["data"], object).ravel().tolist()
            if datatype == "BYTES":
                values = [value.encode() for value in values]
            getattr(tensor.contents, _FIELDS[datatype]).extend(values)
        for field in fields.get("outputs", []):
            message.outputs.add(name=field["name"])
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        rule = "The body must be an inference request of the Open Inference protocol."
        received = f"{type(error).__name__}: {error}"
        raise wrong("R552", rule, "See docs/serving.md.", received) from None
    return message


def _to_json(model: ServedModel, message: Any, outputs: Arrays) -> dict[str, Any]:
    described = [
        {
            "name": key,
            "datatype": _datatype_of(values),
            "shape": list(values.shape),
            "data": as_json(key, values.ravel()),
        }
        for key, values in outputs.items()
    ]
    return {**_answer(model, message), "outputs": described}


def _describes(name: str, describe: Callable[[Predictor, Any], dict[str, Any]]) -> Any:
    """Returns a method that answers with fields."""

    async def method(predictor: Predictor, request: bytes) -> bytes:
        fields = describe(predictor, messages(f"{name}Request").FromString(request))
        return bytes(ParseDict(fields, messages(f"{name}Response")()).SerializeToString())

    return method


async def _infer(predictor: Predictor, request: bytes) -> Any:
    def read() -> tuple[ServedModel, Question]:
        message = messages("ModelInferRequest").FromString(request)
        return read_question(predictor, message, write_message)

    return await predictor.predict(len(request), read)


_DESCRIBED: dict[str, Callable[[Predictor, Any], dict[str, Any]]] = {
    "ServerLive": lambda _predictor, _message: {"live": True},
    "ServerReady": lambda predictor, _message: {"ready": bool(predictor.pool.models)},
    "ServerMetadata": lambda _predictor, _message: describe_server(),
    "ModelReady": lambda predictor, message: {
        "ready": bool(predictor.pool.find(message.name, message.version))
    },
    "ModelMetadata": lambda predictor, message: describe_model(
        predictor.pool, message.name, message.version
    ),
}
METHODS = {"ModelInfer": _infer} | {
    name: _describes(name, describe) for name, describe in _DESCRIBED.items()
}
"""Methods of the gRPC service by name."""
