"""Schemas of the OpenAPI page for the routes that read and write plain JSON."""

from __future__ import annotations

from typing import Any

_ERROR = {
    "type": "object",
    "properties": {"error": {"type": "string"}},
    "required": ["error"],
    "additionalProperties": False,
}
_SAID = {
    400: "The request is wrong; the sentence says how.",
    404: "No such model, version, user or item.",
    408: "The body came too slowly.",
    413: "The request is too large.",
    415: "The body is compressed.",
    421: "The Host header names another machine.",
    422: "A parameter is wrong; the sentence says how.",
    429: "Too many requests at once: ask again.",
    503: "No version is loaded yet, or the answer took too long.",
}
_TENSOR_VALUE = {
    "description": 'A value, or lists of values nested to any depth; bytes are {"b64": …}.'
}


def errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Returns what a route says of its refusals."""
    content = {"application/json": {"schema": _ERROR}}
    return {status: {"description": _SAID[status], "content": content} for status in statuses}


def _answer(schema: dict[str, Any]) -> dict[int | str, dict[str, Any]]:
    return {
        200: {"description": "The answer.", "content": {"application/json": {"schema": schema}}}
    }


_REQUEST = {
    "type": "object",
    "properties": {
        "signature_name": {"type": "string", "description": "`serving_default` by default."},
        "instances": {"type": "array", "minItems": 1, "items": _TENSOR_VALUE},
        "inputs": _TENSOR_VALUE,
    },
    "oneOf": [{"required": ["instances"]}, {"required": ["inputs"]}],
}
_PREDICTED = {
    "type": "object",
    "properties": {"predictions": {"type": "array"}, "outputs": {}},
    "oneOf": [{"required": ["predictions"]}, {"required": ["outputs"]}],
}
_STATUS = {
    "type": "object",
    "properties": {
        "model_version_status": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "version": {"type": "string"},
                    "state": {"enum": ["START", "LOADING", "AVAILABLE", "UNLOADING", "END"]},
                    "status": {
                        "type": "object",
                        "properties": {
                            "error_code": {"type": "string"},
                            "error_message": {"type": "string"},
                        },
                        "required": ["error_code", "error_message"],
                    },
                },
                "required": ["version", "state", "status"],
            },
        }
    },
    "required": ["model_version_status"],
}
_METADATA = {
    "type": "object",
    "properties": {"model_spec": {"type": "object"}, "metadata": {"type": "object"}},
    "required": ["model_spec", "metadata"],
}
_EVERY = (413, 408, 415, 421, 503)

PREDICT: dict[str, Any] = {
    "response_model": None,
    "responses": {**_answer(_PREDICTED), **errors(400, 404, 429, *_EVERY)},
    "openapi_extra": {
        "requestBody": {"required": True, "content": {"application/json": {"schema": _REQUEST}}}
    },
}
STATUS: dict[str, Any] = {
    "response_model": None,
    "responses": {**_answer(_STATUS), **errors(400, 404, *_EVERY)},
}
METADATA: dict[str, Any] = {
    "response_model": None,
    "responses": {**_answer(_METADATA), **errors(400, 404, *_EVERY)},
}
