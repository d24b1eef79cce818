"""An engine is checked before a run: its services, versions, sources and the root."""

import http.server
import json
import re
import threading

import pytest

pytest.importorskip("apache_beam", reason="needs the extra `pipeline`")
from concurrent.futures import ThreadPoolExecutor

import grpc
from apache_beam.portability.api import beam_fn_api_pb2_grpc

from recsys.data.beam_config import BeamConfig
from recsys.data.ingest import engines, worker_pool
from recsys.errors import RecsysError, UsageError

pytestmark = pytest.mark.pipeline


@pytest.fixture
def pool(monkeypatch):
    """A worker pool on this machine, which is the job server's address as well."""
    monkeypatch.setattr(engines, "_TIMEOUT_S", 5.0)
    server, pool = grpc.server(ThreadPoolExecutor(1)), worker_pool.WorkerPool()
    beam_fn_api_pb2_grpc.add_BeamFnExternalWorkerPoolServicer_to_server(pool, server)
    pool.address = f"localhost:{server.add_insecure_port('localhost:0')}"
    server.start()
    yield pool
    server.stop(0)


@pytest.fixture
def flink_rest():
    """A REST interface that says which version it is."""

    class Overview(http.server.BaseHTTPRequestHandler):
        version = "1.19.0"

        def do_GET(self):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps({"flink-version": self.version}).encode())

        def log_message(self, *_):
            pass

    server = http.server.HTTPServer(("localhost", 0), Overview)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    Overview.address = f"localhost:{server.server_port}"
    yield Overview
    server.shutdown()
    thread.join()
    server.server_close()


def test_services_that_fit_are_accepted_and_others_named(pool, flink_rest, tmp_path):
    beam = BeamConfig(
        runner="flink", master=pool.address, workers=pool.address, cluster=flink_rest.address
    )
    assert engines.check_engine(beam, tmp_path) == f"flink 1.19 at {pool.address}"
    flink_rest.version = "1.20.1"
    with pytest.raises(RecsysError, match=r"R278.*Flink 1\.19.*'1\.20\.1'"):
        engines.check_engine(beam, tmp_path)
    flink_rest.version = "1.19.2"
    pool._loaded = {"recsys": "older"}
    with pytest.raises(RecsysError, match=r"R278.*sources have changed since"):
        engines.check_engine(beam, tmp_path)


def test_a_missing_job_server_is_named(monkeypatch, tmp_path):
    monkeypatch.setattr(engines, "_TIMEOUT_S", 0.2)
    with pytest.raises(RecsysError, match=r"R277.*job server of spark.*'localhost:9'"):
        engines.check_engine(BeamConfig(runner="spark", master="localhost:9"), tmp_path)


@pytest.mark.parametrize(
    ("beam", "found"),
    [
        ({"master": "192.0.2.1:8099"}, "beam.master"),
        ({"master": "localhost:8099", "workers": "192.0.2.1:50000"}, "beam.workers"),
        ({"master": "192.0.2.1:8099", "shared_root": True}, "needs a worker pool"),
    ],
)
def test_workers_elsewhere_need_a_shared_root_and_a_pool(tmp_path, beam, found):
    with pytest.raises(UsageError, match=rf"R276.*{found}"):
        engines.check_engine(BeamConfig(runner="flink", **beam), tmp_path)


@pytest.mark.parametrize(
    ("key", "value", "sentence"),
    [
        ("has Python", "2.7", r"has Python 3\.1\d, the process that starts the job 2\.7"),
        ("has pyarrow", "1.0", r"has pyarrow [\d.]+, the process that starts the job 1\.0"),
        ("has recsys", "0" * 16, r"has recsys [0-9a-f]{16}, "),
        ("has cowsay", "6.1", "has cowsay not installed"),
        ("has plugins", "0" * 16, "has plugins [0-9a-f]{16}, "),
        ("inode", "0", "doesn't see the folder"),
        ("root", "/nowhere", "doesn't see the folder /nowhere"),
    ],
)
def test_a_worker_names_how_it_differs(tmp_path, monkeypatch, key, value, sentence):
    (tmp_path / "of_a_plugin.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    expected = {**engines._expected(tmp_path, ()), "plugins": "of_a_plugin"}
    found = engines.difference({**expected, key: value})
    assert re.search(sentence, found), found


def test_equal_workers_do_not_differ(tmp_path):
    assert engines.difference(engines._expected(tmp_path, ())) is None
