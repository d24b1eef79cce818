"""gRPC and Open Inference: their clients get the answers of TensorFlow Serving's REST API."""

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

from recsys.serving.open_inference import messages
from recsys.serving.requests import Limits

QUERY = {"user_id": ["u1"], "history": [["i3", ""]], "exclude_seen": [False]}
COLUMNS = {**QUERY, "country": [[""]]}
DATATYPES = {"user_id": "BYTES", "history": "BYTES", "exclude_seen": "BOOL", "country": "BYTES"}

KSERVE = (
    "0a016d2a190a07757365725f6964120542595445531a01012a04420275312a180a07686973746f72"
    "79120542595445531a0201012a0242002a1c0a0c6578636c7564655f7365656e1204424f4f4c1a01"
    "012a030a01012a180a07636f756e747279120542595445531a0201012a024200"
)
"""A ModelInferRequest of user `u1`, written by the messages of kserve 0.21."""


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


def inference(channel, method, request=None, **fields):
    request = request or messages(f"{method}Request")(**fields)
    path = f"/inference.GRPCInferenceService/{method}"
    return rpc.ask(channel, path, request, messages(f"{method}Response"))


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


def packed(values):
    if isinstance(values[0], bool):
        return struct.pack(f"<{len(values)}?", *values)
    return b"".join(struct.pack("<I", len(text)) + text for text in map(str.encode, values))


@pytest.mark.parametrize("is_raw", [True, False])
def test_open_inference_over_grpc_gives_the_same_answer(channel, expected, is_raw):
    request = messages("ModelInferRequest")(model_name="m", model_version="1", id="7")
    request.parameters["signature_name"].string_param = "recommend"
    for name, values in COLUMNS.items():
        flat = np.ravel(values).tolist()
        tensor = request.inputs.add(name=name, datatype=DATATYPES[name], shape=np.shape(values))
        if is_raw:
            request.raw_input_contents.append(packed(flat))
        elif name == "exclude_seen":
            tensor.contents.bool_contents.extend(flat)
        else:
            tensor.contents.bytes_contents.extend(text.encode() for text in flat)
    response = inference(channel, "ModelInfer", request)
    assert response.id == "7"
    outputs = {output.name: (i, output) for i, output in enumerate(response.outputs)}
    i, scores = outputs["scores"]
    raw = response.raw_output_contents
    found = np.frombuffer(raw[i], "<f4") if is_raw else np.float32(scores.contents.fp32_contents)
    np.testing.assert_array_equal(found.reshape(scores.shape), np.float32(expected["scores"]))
    i, ids = outputs["candidate_ids"]
    texts = [text for row in expected["candidate_ids"] for text in row]
    if is_raw:
        assert raw[i] == packed(texts)
    else:
        assert [text.decode() for text in ids.contents.bytes_contents] == texts


def test_open_inference_reports_the_server_and_the_model(server, channel):
    assert inference(channel, "ServerLive").live
    assert inference(channel, "ServerReady").ready
    assert inference(channel, "ServerMetadata").name == "recsys"
    assert inference(channel, "ModelReady", name="m", version="2").ready
    assert list(inference(channel, "ModelMetadata", name="m").versions) == ["1", "2"]
    for path in ("", "/health/live", "/health/ready", "/models/m", "/models/m/versions/1/ready"):
        assert requesting.get(f"{server.url}/v2{path}").status_code == 200
    assert requesting.get(f"{server.url}/v2/models/m/versions/9/ready").status_code == 404


def test_a_request_as_the_clients_of_kserve_send_it_is_read(channel):
    request = bytes.fromhex(KSERVE)
    call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
    response = messages("ModelInferResponse").FromString(call(request, timeout=30))
    assert {output.name for output in response.outputs} >= {"candidate_ids", "scores"}


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


@pytest.mark.parametrize("raw", [b"\5\0\0\0abc", b"\1", b"\xff\xff\xff\xff", b""])
def test_truncated_raw_contents_are_refused(channel, raw):
    request = messages("ModelInferRequest")(model_name="m")
    for name, values in COLUMNS.items():
        request.inputs.add(name=name, datatype=DATATYPES[name], shape=np.shape(values))
        request.raw_input_contents.append(raw)
    assert status_of(lambda: inference(channel, "ModelInfer", request)) == "INVALID_ARGUMENT"


def test_bytes_that_are_no_message_are_refused(channel):
    for method in ("tensorflow.serving.PredictionService/Predict",
                   "inference.GRPCInferenceService/ModelInfer"):  # fmt: skip
        call = channel.unary_unary(f"/{method}")
        assert status_of(lambda call=call: call(b"\xff" * 20, timeout=30)) == "INVALID_ARGUMENT"
    reflection = channel.unary_unary("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo")
    assert status_of(lambda: reflection(b"", timeout=30)) == "UNIMPLEMENTED"


def test_metrics_count_calls(server, channel):
    inference(channel, "ServerLive")
    text = requesting.get(f"{server.url}/metrics").text
    route = "/inference.GRPCInferenceService/ServerLive"
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
                with contextlib.suppress(grpc.RpcError):
                    return inference(opened, "ServerLive").live

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
