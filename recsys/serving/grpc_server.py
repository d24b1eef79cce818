"""gRPC: Predict of TensorFlow Serving, rankings and lists.

Messages are parsed where requests are read, so the server starts without TensorFlow.
"""

from __future__ import annotations

import asyncio
import functools
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
import numpy as np
from google.protobuf.message import DecodeError

from recsys.errors import RecsysError
from recsys.savedmodel.signatures import Arrays, SignatureInput
from recsys.serving import rank_api
from recsys.serving.pool import ServerMetrics
from recsys.serving.predictor import (
    Predictor,
    Question,
    check_names,
    find_signature,
    select_outputs,
)
from recsys.serving.requests import Limits, flat_array, status_of, too_large, wrong
from recsys.serving.served_model import ServedModel

_STATUS = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    404: grpc.StatusCode.NOT_FOUND,
    413: grpc.StatusCode.INVALID_ARGUMENT,
    422: grpc.StatusCode.INVALID_ARGUMENT,
    429: grpc.StatusCode.RESOURCE_EXHAUSTED,
    503: grpc.StatusCode.UNAVAILABLE,
}
_IDLE_MS = 300_000

Method = Callable[[Predictor, bytes], Awaitable[bytes]]


async def start(address: str, predictor: Predictor, metrics: ServerMetrics) -> grpc.aio.Server:
    """Returns a server that listens at `address`, `host:port`."""
    limits = predictor.limits
    places = limits.threads + limits.queue
    server = grpc.aio.server(
        options=[
            ("grpc.max_receive_message_length", limits.body_bytes),
            ("grpc.max_concurrent_streams", places),
            ("grpc.max_allowed_incoming_connections", limits.connections),
            ("grpc.max_connection_idle_ms", _IDLE_MS),
            ("grpc.so_reuseport", 0),
        ],
        maximum_concurrent_rpcs=2 * places,
    )
    for service, methods in _SERVICES.items():
        handlers = {
            # Reads the message itself, as nothing else limits how long a client takes to send it.
            name: grpc.stream_unary_rpc_method_handler(
                _method(f"/{service}/{name}", functools.partial(method, predictor), limits, metrics)
            )
            for name, method in methods.items()
        }
        server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(service, handlers)])
    server.add_insecure_port(address)
    await server.start()
    return server


def _method(
    route: str,
    answer: Callable[[bytes], Awaitable[bytes]],
    limits: Limits,
    metrics: ServerMetrics,
) -> Callable[[AsyncIterator[bytes], Any], Awaitable[bytes]]:
    """Returns a method that is counted, has a deadline, and ends with a status if it fails."""

    async def method(requests: AsyncIterator[bytes], context: Any) -> bytes:
        code, text = grpc.StatusCode.UNKNOWN, ""
        with metrics.request(lambda: (route, "gRPC", code.name)):
            try:
                async with asyncio.timeout(limits.request_s):
                    response = await answer(await anext(requests))
                code = grpc.StatusCode.OK
                return response
            except RecsysError as error:
                code, text = _STATUS[status_of(error)], str(error)
            except (DecodeError, StopAsyncIteration) as error:
                code, text = grpc.StatusCode.INVALID_ARGUMENT, f"no message: {error}"
            except TimeoutError:
                code = grpc.StatusCode.DEADLINE_EXCEEDED
            await context.abort(code, text)
        raise AssertionError("abort raises")

    return method


async def _predict(predictor: Predictor, request: bytes) -> bytes:
    """TensorFlow Serving's Predict."""
    predictor.pool.model()  # TensorFlow is loaded as soon as there is one.

    def read() -> tuple[ServedModel, Question]:
        import tensorflow as tf
        from tensorflow_serving.apis import predict_pb2

        message = predict_pb2.PredictRequest.FromString(request)
        spec = message.model_spec
        number = str(spec.version.value) if spec.HasField("version") else ""
        model: ServedModel = predictor.pool.find(spec.name, spec.version_label or number)
        name, signature = find_signature(model.signatures, spec.signature_name)
        check_names("The inputs", signature, dict(message.inputs))
        inputs = {
            key: _from_proto(key, message.inputs[key], expected, predictor.limits)
            for key, expected in signature.items()
        }

        def write(outputs: Arrays) -> bytes:
            response = predict_pb2.PredictResponse()
            response.model_spec.name, response.model_spec.signature_name = spec.name, name
            response.model_spec.version.value = model.version
            for key, values in select_outputs(outputs, message.output_filter).items():
                response.outputs[key].CopyFrom(tf.make_tensor_proto(values))
            return bytes(response.SerializeToString())

        return model, Question(name, inputs, write)

    answer: bytes = await predictor.predict(len(request), read)
    return answer


def _from_proto(name: str, proto: Any, spec: SignatureInput, limits: Limits) -> np.ndarray:
    import tensorflow as tf
    from tensorflow.core.framework import types_pb2

    shape = [size.size for size in proto.tensor_shape.dim]
    if math.prod(shape) > limits.values:  # A proto may repeat its last value.
        raise too_large("values of one input", limits.values, shape)
    try:
        if proto.dtype != types_pb2.DataType.Value(spec.dtype):
            raise TypeError(f"dtype {proto.dtype}")
        values = tf.make_ndarray(proto).ravel().tolist()
    except (TypeError, ValueError) as error:
        rule = f"The input {name!r} must be a whole tensor of {spec.dtype}."
        raise wrong("R555", rule, "Make it with tf.make_tensor_proto.", str(error)) from None
    return flat_array(name, values, shape, spec, limits)


_SERVICES: dict[str, dict[str, Method]] = {
    "tensorflow.serving.PredictionService": {"Predict": _predict},
    "recsys.RankingService": rank_api.METHODS,
}
