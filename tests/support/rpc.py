"""Clients of the server's gRPC methods."""

import contextlib

import grpc
import numpy as np
import tensorflow as tf
from tensorflow_serving.apis import predict_pb2


def ask(where, method, request, answer):
    """Returns the answer to a request, parsed as `answer`, at an address or on a channel."""
    with contextlib.ExitStack() as opened:
        if isinstance(where, str):
            where = opened.enter_context(grpc.insecure_channel(where))
        call = where.unary_unary(method, type(request).SerializeToString, answer.FromString)
        return call(request, timeout=60)


def predict(where, request):
    """Returns the outputs of a PredictRequest as arrays."""
    method = "/tensorflow.serving.PredictionService/Predict"
    response = ask(where, method, request, predict_pb2.PredictResponse)
    return {name: tf.make_ndarray(proto) for name, proto in response.outputs.items()}


def predict_request(columns, name="m", signature="", version=None):
    """Returns a PredictRequest; numbers are float32 or int64."""
    request = predict_pb2.PredictRequest()
    request.model_spec.name, request.model_spec.signature_name = name, signature
    if version is not None:
        request.model_spec.version.value = version
    for key, values in columns.items():
        dtype = {"i": np.int64, "f": np.float32}.get(np.array(values).dtype.kind)
        request.inputs[key].CopyFrom(tf.make_tensor_proto(np.array(values, dtype)))
    return request
