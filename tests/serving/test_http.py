"""The server over real sockets, with a scripted model."""

import concurrent.futures
import contextlib
import dataclasses
import subprocess
import sys
import time

import pytest

pytest.importorskip("fastapi", reason="needs the extra `serve`")
import httpx
import requesting
from serving import Running, raw, wait_for

from recsys.serving.requests import Limits

LIMITS = Limits(body_bytes=100_000, threads=2, queue=2, head_s=1.0, request_s=21.0, answer_s=20.0)


_POST = b"POST /v1/models/m:predict HTTP/1.1\r\nHost: localhost\r\n"
_GET = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n"
_CHUNKED = _POST + b"Transfer-Encoding: chunked\r\n\r\n"


@pytest.fixture(scope="module")
def server():
    with Running(LIMITS, versions=(2, 3)) as running:
        yield running


@pytest.fixture
def fresh():
    with Running(LIMITS) as running:
        yield running


def test_both_formats_are_answered_as_tensorflow_serving_does(server):
    answer = server.predict({"instances": [1.0, 2.5]})
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/json"
    assert answer.json() == {"predictions": [5.0, 8.0]}
    assert server.predict({"inputs": [1.0, 2.5]}).json() == {"outputs": [5.0, 8.0]}
    body = {"signature_name": "total", "inputs": {"x": [1.0, 2.0]}}
    assert server.predict(body).json() == {"outputs": 12.0}


@pytest.mark.parametrize(
    "path", ["/", "/healthz", "/metrics", "/openapi.json", "/v1/models/m", "/v1/models/m/metadata",
             "/v1/models/m/versions/2", "/api/state", "/v1/models/m/versions/9", "/nowhere"],
)  # fmt: skip
def test_a_head_is_answered_as_a_get_without_a_body(server, path):
    by_get, by_head = (httpx.request(method, server.url + path) for method in ("GET", "HEAD"))
    assert (by_head.status_code, by_head.content) == (by_get.status_code, b"")
    assert by_head.headers["content-type"] == by_get.headers["content-type"]
    if path != "/metrics":
        assert by_head.headers["content-length"] == str(len(by_get.content))


def test_a_version_is_asked_by_its_number(server):
    path = "/v1/models/m/versions/2:predict"
    assert server.predict(path=path).json() == {"predictions": [4.0]}
    assert server.predict(path="/v1/models/m/versions/3:predict").json() == {"predictions": [5.0]}


def test_an_output_without_rows_is_refused_by_row(server):
    answer = server.predict({"signature_name": "total", "instances": [1.0]})
    assert answer.status_code == 400
    assert "'inputs' in place of 'instances'" in answer.json()["error"]


@pytest.mark.parametrize(
    ("path", "status", "said"),
    [
        ("/v1/models/other", 404, "Servable not found for request: Latest(other)"),
        ("/v1/models/m/versions/9", 404, "Could not find version 9 of model m"),
        ("/v1/models/m/versions/x", 400, "64-bit integer"),
        ("/v1/models/m/versions/99999999999999999999", 400, "64-bit integer"),
        ("/v1/models/m/versions/9223372036854775808", 400, "64-bit integer"),
        ("/v1/models/m/versions/٣", 400, "64-bit integer"),
        ("/v1/models/m/versions/9/metadata", 404, "Specific(m, 9)"),
        ("/v1/models/../../etc/passwd", 404, "Not Found"),
        ("/v1/models/%2e%2e%2f%2e%2e%2fetc", 404, ""),
        ("/v1/models/a%00b", 404, "Latest(a"),
        ("/v1/models/" + "x" * 5000, 404, "Latest(xxx"),
        ("/nothing", 404, "Not Found"),
    ],
)
def test_paths_that_name_nothing(server, path, status, said):
    answer = requesting.get(server.url + path)
    assert (answer.status_code, set(answer.json())) == (status, {"error"})
    assert said in answer.json()["error"]


def test_the_state_of_versions_is_reported_as_tensorflow_serving_reports_it(server):
    ok = {"error_code": "OK", "error_message": ""}
    both = [{"version": v, "state": "AVAILABLE", "status": ok} for v in ("3", "2")]
    answer = requesting.get(f"{server.url}/v1/models/m")
    assert answer.json() == {"model_version_status": both}
    answer = requesting.get(f"{server.url}/v1/models/m/versions/2")
    assert answer.json() == {"model_version_status": both[1:]}


def test_before_a_version_is_loaded_all_say_so():
    with Running(LIMITS, versions=()) as running:
        running.pool.loading = 7
        for answer in (
            running.predict(),
            requesting.get(f"{running.url}/v1/models/m/metadata"),
            requesting.get(f"{running.url}/healthz"),
        ):
            assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
            assert "'loading': 7" in answer.json()["error"]
        states = requesting.get(f"{running.url}/v1/models/m").json()["model_version_status"]
        assert [(one["version"], one["state"]) for one in states] == [("7", "LOADING")]


def test_a_body_that_says_it_is_too_large_is_refused_before_it_is_sent(server):
    with server.connect() as connection:
        connection.sendall(
            b"POST /v1/models/m:predict HTTP/1.1\r\nHost: localhost\r\n"
            b"Content-Length: 100001\r\nExpect: 100-continue\r\n\r\n"
        )
        assert connection.recv(1000).startswith(b"HTTP/1.1 413")


@pytest.mark.parametrize("is_chunked", [True, False])
def test_a_large_body_is_refused_with_a_sentence(server, is_chunked):
    content = iter([b" " * 50_000] * 100) if is_chunked else b" " * 5_000_000
    answer = requesting.post(f"{server.url}/v1/models/m:predict", content=content)
    assert answer.status_code == 413
    assert "at most 100,000 bytes" in answer.json()["error"]
    assert answer.headers["connection"] == "close"


def test_a_body_of_just_the_limit_is_read(server):
    body = b'{"instances": [1.0]}'.ljust(100_000)
    assert requesting.post(f"{server.url}/v1/models/m:predict", content=body).status_code == 200


def test_all_bodies_together_are_limited():
    limits = dataclasses.replace(LIMITS, all_bodies_bytes=50_000)
    with Running(limits) as running, running.connect() as connection:
        head = b"POST /v1/models/m:predict HTTP/1.1\r\nHost: localhost\r\n"
        connection.sendall(head + b"Content-Length: 40001\r\n\r\n" + b" " * 40_000)
        wait_for(lambda: running.app.held_bytes == 40_000)
        answer = requesting.post(f"{running.url}/v1/models/m:predict", content=b" " * 20_000)
        assert answer.status_code == 429
        assert running.predict().status_code == 200
        connection.sendall(b" ")
        assert connection.recv(100).startswith(b"HTTP/1.1 400")
        wait_for(lambda: running.app.held_bytes == 0)


def test_too_many_rows_are_refused(server):
    assert server.predict({"instances": [1.0] * 1024}).status_code == 200
    answer = server.predict({"instances": [1.0] * 1025})
    assert (answer.status_code, "1,024 rows" in answer.json()["error"]) == (413, True)


@pytest.mark.parametrize("begin", [b"", b"GET /hea", b"GET /healthz HTTP/1.1\r\nHost: local"])
def test_a_client_that_is_slow_with_its_headers_is_cut_off(server, begin):
    with server.connect() as connection:
        started = time.monotonic()
        connection.sendall(begin)
        assert raw(connection) == b""
        assert 0.8 < time.monotonic() - started < 10


def test_drops_of_headers_do_not_extend_the_deadline(server):
    with server.connect() as connection:
        for letter in b"GET /healthz HTTP/1.1" * 10:
            try:
                connection.sendall(bytes([letter]))
            except OSError:
                return
            time.sleep(0.05)
    pytest.fail("It was never cut off.")


def test_a_connection_may_rest_between_requests(server):
    with server.connect() as connection:
        for _ in range(2):
            connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert b'{"version":3}' in connection.recv(1000)
            time.sleep(1.3)  # Longer than headers may take.


def test_a_slow_body_times_out():
    with Running(dataclasses.replace(LIMITS, request_s=0.5)) as running:
        with running.connect() as connection:
            connection.sendall(_POST + b'Content-Length: 50\r\n\r\n{"instances"')
            answer = raw(connection)
        assert answer.startswith(b"HTTP/1.1 408")
        assert b"within 0.5 s" in answer
        assert running.app.held_bytes == 0


def test_a_client_that_goes_away_leaves_nothing_behind(fresh):
    with fresh.connect() as connection:
        connection.sendall(
            b"POST /v1/models/m:predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: 50\r\n\r\n{"
        )
        wait_for(lambda: fresh.app.held_bytes == 1)
    wait_for(lambda: fresh.app.held_bytes == 0)
    assert fresh.model.n_asked == 0


@pytest.mark.parametrize(
    "request_",
    [
        _CHUNKED + b"1\r\n \r\n" * 300_000 + b"0\r\n\r\n",
        _GET + b"a:\r\n" * 101 + b"\r\n",
        _GET + b"a: " + b"b" * 10_000_000 + b"\r\n\r\n",
        b"GET /" + b"a" * 10_000_000 + b" HTTP/1.1\r\n\r\n",
        _CHUNKED + b"2\r\n{}\r\n0\r\n" + b"a:\r\n" * 101 + b"\r\n",
        _CHUNKED + b"2;" + b"a" * 10_000_000 + b"\r\n{}\r\n0\r\n\r\n",
        _POST + b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
        _POST + b"Transfer-Encoding: gzip\r\n\r\n",
        _POST + b"Content-Length: -5\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
    ],
    ids=["chunks", "headers", "header", "url", "trailers", "extension", "both", "gzip", "length",
         "TLS"],
)  # fmt: skip
def test_wrong_or_long_requests_close_the_connection(server, request_):
    with server.connect() as connection:
        with contextlib.suppress(OSError):  # It may be closed while we send.
            connection.sendall(request_ + _GET + b"\r\n")
        answer = raw(connection)
    assert answer.startswith(b"HTTP/1.1 400")
    assert answer.count(b"HTTP/1.1") == 1
    assert server.predict().status_code == 200


def test_a_body_of_many_chunks_is_read(server):
    chunks = (b"%x\r\n" % 60 + b" " * 60 + b"\r\n") * 1500 + b"2\r\n{}\r\n0\r\n\r\n"
    with server.connect() as connection:
        connection.sendall(_CHUNKED + chunks)
        assert b"[R552]" in connection.recv(2000)


def test_too_many_connections_hear_503():
    with Running(dataclasses.replace(LIMITS, connections=3)) as running:
        with running.connect(), running.connect():
            answer = requesting.get(f"{running.url}/healthz")
            assert answer.status_code == 503
        wait_for(lambda: running.predict().status_code == 200)


@pytest.mark.parametrize(
    ("soft", "hard", "connections", "files"),
    [(256, 4096, 1000, 4096), (256, 1024, 256, 1024), (3000, 3000, 1000, 3000)],
)
def test_connections_leave_files_for_the_server(soft, hard, connections, files):
    code = f"""
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))
from recsys.serving.service import with_enough_files
from recsys.serving.requests import Limits
print(with_enough_files(Limits()).connections, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
"""
    command = [sys.executable, "-c", code]
    finished = subprocess.run(command, capture_output=True, text=True, check=True)
    assert finished.stdout.split() == [str(connections), str(files)]


def test_more_requests_than_places_hear_429_and_then_it_recovers(fresh):
    fresh.model.may_answer.clear()
    with concurrent.futures.ThreadPoolExecutor(12) as clients:
        waiting = [clients.submit(fresh.predict) for _ in range(4)]
        wait_for(lambda: fresh.predictor.work.held == 4)
        refused = [clients.submit(fresh.predict) for _ in range(8)]
        for answer in refused:
            assert answer.result().status_code == 429
            assert answer.result().headers["retry-after"] == "1"
        assert fresh.model.n_asked == 2  # As many as there are threads.
        # Routes that need no model still answer.
        assert requesting.get(f"{fresh.url}/healthz").status_code == 200
        fresh.model.may_answer.set()
        assert [answer.result().status_code for answer in waiting] == [200] * 4
    wait_for(lambda: fresh.predictor.work.held == 0)
    assert fresh.predict().status_code == 200


def test_an_answer_that_takes_too_long_is_given_up_and_its_place_kept_until_it_ends():
    with Running(dataclasses.replace(LIMITS, answer_s=0.3)) as running:
        running.model.may_answer.clear()
        with concurrent.futures.ThreadPoolExecutor(3) as clients:
            answers = [clients.submit(running.predict) for _ in range(3)]
            assert {answer.result().status_code for answer in answers} == {503}
        assert "within 0.3 s" in answers[0].result().json()["error"]
        wait_for(lambda: running.predictor.work.held == 2)  # The third never began.
        assert running.model.n_asked == 2
        running.model.may_answer.set()
        wait_for(lambda: running.predictor.work.held == 0)
        assert running.predict().status_code == 200


@pytest.fixture(scope="module")
def named_server():
    with Running(LIMITS, hosts=("127.0.0.1", "localhost", "::1", "reco.example")) as running:
        yield running


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost:8501", 200),
        ("127.0.0.1", 200),
        ("[::1]:8501", 200),
        ("[::1]", 200),
        ("LOCALHOST", 200),
        ("reco.example", 200),
        ("evil.example", 421),
        ("127.0.0.1.evil.example", 421),
        ("10.0.0.1", 421),
        ("", 421),
    ],
)
def test_on_loopback_only_own_names_are_answered(named_server, host, status):
    answer = requesting.get(f"{named_server.url}/healthz", headers={"Host": host})
    assert answer.status_code == status


def test_a_request_in_flight_ends_on_its_version_while_another_is_swapped_in(fresh):
    old = fresh.model
    old.may_answer.clear()
    with concurrent.futures.ThreadPoolExecutor(1) as clients:
        in_flight = clients.submit(fresh.predict)
        assert old.asked.acquire(timeout=10)
        fresh.pool.models = (type(old)(9),)
        assert fresh.predict().json() == {"predictions": [11.0]}
        old.may_answer.set()
        assert in_flight.result().json() == {"predictions": [5.0]}


def test_metrics_count_by_route_and_code_and_not_by_path(fresh):
    fresh.metrics.load_seconds.observe(1.5)
    fresh.metrics.serving(3, 2, is_swap=True)
    fresh.metrics.load_failures.inc()
    fresh.predict()
    fresh.predict({})
    for n in range(50):
        requesting.get(f"{fresh.url}/{n}")
    text = requesting.get(f"{fresh.url}/metrics").text
    for line in (
        'recsys_requests_total{code="200",method="POST",route="/v1/models/{name}:predict"} 1.0',
        'recsys_requests_total{code="400",method="POST",route="/v1/models/{name}:predict"} 1.0',
        'recsys_requests_total{code="404",method="GET",route="none"} 50.0',
        'recsys_request_seconds_count{route="/v1/models/{name}:predict"} 2.0',
        "recsys_requests_in_flight 1.0",
        "recsys_model_version 3.0",
        "recsys_model_versions_loaded 2.0",
        "recsys_model_swaps_total 1.0",
        "recsys_model_load_failures_total 1.0",
        "recsys_model_load_seconds_sum 1.5",
    ):
        assert line in text.splitlines()
