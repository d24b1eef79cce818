"""Beam's Python worker pool: starts a worker for each job of an engine.

    python -m recsys.data.ingest.worker_pool --port 50000

Workers are forked from a process that has imported Beam, Arrow and TensorFlow, so that a worker
starts in milliseconds. A worker whose packages, sources or root differ from those of the process
that starts the job is refused.
"""

from __future__ import annotations

import argparse
import multiprocessing
import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import grpc
from apache_beam.portability.api import beam_fn_api_pb2, beam_fn_api_pb2_grpc
from apache_beam.runners.worker.sdk_worker import SdkHarness

from recsys.data.ingest.engines import difference
from recsys.fingerprint import worker_facts

_PRELOADED = [
    "recsys.data.ingest.worker_pool",
    "recsys.data.ingest.ingestion",
    "recsys.data.ingest.entity_rows",
    "recsys.data.ingest.transform",
    "tfx.components.statistics_gen.executor",
    "tfx.components.transform.executor",
]


class WorkerPool(beam_fn_api_pb2_grpc.BeamFnExternalWorkerPoolServicer):
    """Starts and stops workers."""

    def __init__(self) -> None:
        self._loaded = worker_facts(())
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(_PRELOADED)

    def load(self) -> None:
        """Imports what workers need, so that they start in milliseconds from now on."""
        worker = self._context.Process(target=_PRELOADED.copy)
        worker.start()
        worker.join()

    def StartWorker(
        self, request: beam_fn_api_pb2.StartWorkerRequest, context: grpc.ServicerContext
    ) -> beam_fn_api_pb2.StartWorkerResponse:
        """Starts a worker that fits `request.params`; without an endpoint, only compares them."""
        del context
        problem = difference(request.params)
        if worker_facts(()) != self._loaded:
            problem = "The sources have changed since the worker pool was started."
        if problem is None and request.control_endpoint.url:
            arguments = request.control_endpoint.url, request.worker_id
            self._context.Process(target=_work, args=arguments, daemon=True).start()
        return beam_fn_api_pb2.StartWorkerResponse(error=problem)

    def StopWorker(
        self, request: beam_fn_api_pb2.StopWorkerRequest, context: grpc.ServicerContext
    ) -> beam_fn_api_pb2.StopWorkerResponse:
        """Does nothing: a worker ends when its engine closes the connection.

        Ids aren't unique: each TaskManager of a machine counts its own workers.
        """
        del request, context
        return beam_fn_api_pb2.StopWorkerResponse()


def _work(endpoint: str, worker_id: str) -> None:
    SdkHarness(
        endpoint, worker_id=worker_id, state_cache_size=0, data_buffer_time_limit_ms=-1
    ).run()


def main() -> None:
    """Serves until it is stopped by a signal."""
    parser = argparse.ArgumentParser(description="Beam's Python worker pool.")
    parser.add_argument("--port", type=int, default=50000)
    parser.add_argument("--host", default="localhost", help="0.0.0.0 for other machines")
    arguments = parser.parse_args()
    stopped = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.set())
    pool, server = WorkerPool(), grpc.server(ThreadPoolExecutor(8))
    pool.load()
    beam_fn_api_pb2_grpc.add_BeamFnExternalWorkerPoolServicer_to_server(pool, server)
    if not server.add_insecure_port(f"{arguments.host}:{arguments.port}"):
        raise SystemExit(f"Port {arguments.port} is in use.")
    server.start()
    sys.stdout.write(f"worker pool at {arguments.host}:{arguments.port}\n")
    sys.stdout.flush()
    stopped.wait()
    server.stop(0)


if __name__ == "__main__":
    main()
