"""gRPC: its clients get the answers of TensorFlow Serving's REST API."""

import contextlib
import socket
import struct

import grpc
import numpy as np
import pytest

pytest.importorskip("fastapi", reason="needs the extra `serve`")
pytest.importorskip("tensorflow", reason="needs the extra `serve`")
import requesting
import rpc
import tensorflow as tf
from serving import FakeModel, FakeRecommender, Running, wait_for
from tensorflow_serving.apis import prediction_service_pb2_grpc

from recsys.serving.requests import Limits

QUERY = {"user_id": ["u1"], "history": [["i3", ""]], "exclude_seen": [False]}
COLUMNS = {**QUERY, "country": [[""]]}


@pytest.fixture(scope="module")
def server():
    with Running(versions=(1, 2), kind=FakeRecommender) as running:
        yield running


@pytest.fixture(scope="module")
def channel(server):
    with grpc.insecure_channel(server.grpc) as opened:
        yield opened


@pytest.fixture(scope="module")
def expected(server):
    body = {"signature_name": "recommend", "inputs": COLUMNS}
    return server.predict(body, "/v1/models/m/versions/1:predict").json()["outputs"]


def predict_request(columns, name="m", signature="recommend", version=1):
    return rpc.predict_request(columns, name, signature, version)


def test_a_client_of_tensorflow_serving_gets_the_answer_of_rest(channel, expected):
    stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
    response = stub.Predict(predict_request(COLUMNS), timeout=30)
    found = {name: tf.make_ndarray(proto) for name, proto in response.outputs.items()}
    assert (
        np.char.decode(found["candidate_ids"].astype(bytes)).tolist() == expected["candidate_ids"]
    )
    np.testing.assert_array_equal(found["scores"], np.float32(expected["scores"]))
    assert found["known"].tolist() == expected["known"]
    assert response.model_spec.version.value == 1
    request = predict_request(COLUMNS)
    request.output_filter.append("known")
    assert set(stub.Predict(request, timeout=30).outputs) == {"known"}


def status_of(call):
    with pytest.raises(grpc.RpcError) as caught:
        call()
    return caught.value.code().name


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (predict_request(COLUMNS, name="other"), "NOT_FOUND"),
        (predict_request(COLUMNS, version=9), "NOT_FOUND"),
        (predict_request(COLUMNS, signature="no"), "INVALID_ARGUMENT"),
        (predict_request(QUERY), "INVALID_ARGUMENT"),
        (predict_request({**COLUMNS, "user_id": [1]}), "INVALID_ARGUMENT"),
        (predict_request({**COLUMNS, "user_id": ["u1", "u2"]}), "INVALID_ARGUMENT"),
        (predict_request({**COLUMNS, "history": ["u1"]}), "INVALID_ARGUMENT"),
        (predict_request({**COLUMNS, "history": [["x" * 2**23]]}), "RESOURCE_EXHAUSTED"),
    ],
    ids=["model", "version", "signature", "names", "type", "rows", "shape", "size"],
)
def test_wrong_requests_end_with_a_status(channel, request_, status):
    stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
    assert status_of(lambda: stub.Predict(request_, timeout=30)) == status


@pytest.mark.parametrize("sizes", [(2**40,), (-1,), (-(2**20), -(2**20)), (2**32, 2**32)])
def test_a_small_message_of_a_huge_tensor_is_refused(channel, sizes):
    request = predict_request(COLUMNS)
    proto = request.inputs["user_id"]
    proto.tensor_shape.ClearField("dim")
    for size in sizes:
        proto.tensor_shape.dim.add(size=size)
    stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
    assert status_of(lambda: stub.Predict(request, timeout=30)) == "INVALID_ARGUMENT"


def test_bytes_that_are_no_message_are_refused(channel):
    call = channel.unary_unary("/tensorflow.serving.PredictionService/Predict")
    assert status_of(lambda: call(b"\xff" * 20, timeout=30)) == "INVALID_ARGUMENT"
    reflection = channel.unary_unary("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo")
    assert status_of(lambda: reflection(b"", timeout=30)) == "UNIMPLEMENTED"


def test_metrics_count_calls(server, channel):
    rpc.predict(channel, predict_request(COLUMNS))
    text = requesting.get(f"{server.url}/metrics").text
    route = "/tensorflow.serving.PredictionService/Predict"
    assert f'recsys_requests_total{{code="OK",method="gRPC",route="{route}"}}' in text


def _frame(kind, flags, stream, payload):
    head = struct.pack(">I", len(payload))[1:] + bytes([kind, flags])
    return head + struct.pack(">I", stream) + payload


def _header(name, value):
    return b"\0" + bytes([len(name)]) + name + bytes([len(value)]) + value


def begin_call(address):
    """Opens a connection with a call whose message never comes."""
    host, _, port = address.rpartition(":")
    connection = socket.create_connection((host, int(port)), timeout=30)
    headers = {b":method": b"POST", b":scheme": b"http", b":authority": b"localhost",
               b":path": b"/tensorflow.serving.PredictionService/Predict",
               b"te": b"trailers", b"content-type": b"application/grpc"}  # fmt: skip
    block = b"".join(_header(*one) for one in headers.items())
    connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + _frame(4, 0, 0, b""))
    connection.sendall(_frame(1, 4, 1, block))
    return connection


def test_calls_that_never_send_their_message_are_ended():
    limits = Limits(threads=1, queue=1, request_s=1.0)
    with Running(limits, kind=FakeModel) as running, contextlib.ExitStack() as silent:
        for _ in range(4):
            silent.enter_context(begin_call(running.grpc))
        with grpc.insecure_channel(running.grpc) as opened:

            def answers():
                try:
                    return rpc.predict(opened, rpc.predict_request({}, "nothing"))
                except grpc.RpcError as error:
                    return error.code() is grpc.StatusCode.NOT_FOUND

            wait_for(answers)


def test_connections_are_limited():
    with (
        Running(Limits(connections=2), kind=FakeModel) as running,
        begin_call(running.grpc) as first,
        begin_call(running.grpc) as second,
    ):
        assert first.recv(1)
        assert second.recv(1)
        host, _, port = running.grpc.rpartition(":")
        received = b""
        with (
            contextlib.suppress(ConnectionResetError),
            socket.create_connection((host, int(port)), timeout=30) as third,
        ):
            received = third.recv(1)
        assert received == b""
