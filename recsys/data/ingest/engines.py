"""The engines of `beam.runner`: their options of Beam, and the checks before a run.

docs/cluster.md has the table of versions that go together.
"""

from __future__ import annotations

import dataclasses
import json
import socket
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from recsys.data.beam_config import BeamConfig
from recsys.data.ingest.tasks import LOCAL_RUNNER, runner_of, with_local_runner
from recsys.errors import RecsysError, UsageError
from recsys.fingerprint import worker_facts
from recsys.registry.choice import modules_of

_TIMEOUT_S = 10.0
_WORKER_IDLE_MS = 2_000
_START_POOL = "python -m recsys.data.ingest.worker_pool --port PORT"


@dataclasses.dataclass(frozen=True)
class Engine:
    """An engine.

    Attributes:
        runner: Beam's runner.
        version: Its version, for which the worker pool, job server and docs are made.
        is_portable: Whether it is reached by a job server, and its workers by a worker pool.
        runs_tfx: Whether it runs the graphs of StatisticsGen and Transform.
    """

    runner: str
    version: str
    is_portable: bool = True
    runs_tfx: bool = True


ENGINES: Mapping[str, Engine] = {
    "local": Engine(LOCAL_RUNNER, "", is_portable=False),
    "flink": Engine("PortableRunner", "1.19"),
    "spark": Engine("PortableRunner", "3.5"),
    "prism": Engine("PortableRunner", "2.77.0"),
    "dask": Engine(
        "apache_beam.runners.dask.dask_runner.DaskRunner", "", is_portable=False, runs_tfx=False
    ),
    "dataflow": Engine("DataflowRunner", "", is_portable=False),
}


def engine_args(beam: BeamConfig, root: Path, *parts: Any) -> list[str]:
    """Returns the options of Beam that select an engine.

    Args:
        beam: The engine.
        root: Folder that its workers write to; created if missing.
        *parts: Parts of the config that workers read; they may name plugins.
    """
    engine, args = ENGINES[beam.runner], list(beam.args)
    if beam.runner == "local":
        return with_local_runner(args) if args else []
    own = [f"--runner={engine.runner}"]
    if beam.runner == "dask":
        own += [f"--dask_client_address={beam.master}", "--dask_partition_size=1"]
    if engine.is_portable:
        # A named image keeps TFX from building a wheel of itself, which no worker installs.
        # Workers live on between the stages of a job, but not until Flink's restart of one, for
        # which they may be dead.
        own += [f"--job_endpoint={beam.master}", "--sdk_container_image=recsys"]
        own += [f"--environment_cache_millis={_WORKER_IDLE_MS}"]
        own += _environment(beam, root, parts)
    return own + args


def transform_args(args: Sequence[str]) -> list[str]:
    """Returns Beam's options for features: the local runner's if the engine can't run TFT."""
    runner = runner_of(args)
    can_run = all(engine.runs_tfx for engine in ENGINES.values() if engine.runner == runner)
    return with_local_runner(args if can_run else ())


def _environment(beam: BeamConfig, root: Path, parts: Sequence[Any]) -> list[str]:
    if not beam.workers:
        return ["--environment_type=LOOPBACK"]
    environment = {"url": beam.workers, "params": _expected(root, parts)}
    return ["--environment_type=EXTERNAL", f"--environment_config={json.dumps(environment)}"]


def _expected(root: Path, parts: Sequence[Any]) -> dict[str, str]:
    """Returns what a worker must have in common with this process."""
    root.mkdir(parents=True, exist_ok=True)
    plugins = sorted({module.split(".")[0] for module in modules_of(*parts)} - {"recsys"})
    facts = {f"has {name}": value for name, value in worker_facts(plugins).items()}
    folder = root.resolve()
    of_root = {"root": str(folder), "inode": f"{folder.stat().st_ino}"}
    return {**facts, "plugins": ",".join(plugins), **of_root}


def difference(expected: Mapping[str, str]) -> str | None:
    """Returns how this process differs from the one that started the job, as a sentence.

    Args:
        expected: The parameters of the environment, from `engine_args`.
    """
    own = worker_facts(filter(None, expected.get("plugins", "").split(",")))
    host = socket.gethostname()
    for key, value in expected.items():
        name = key.removeprefix("has ")
        if key.startswith("has ") and own.get(name) != value:
            return (
                f"The worker on {host} has {name} {own.get(name, 'not installed')}, the process"
                f" that starts the job {value}."
            )
    root = expected.get("root", "")
    if root and not (Path(root).is_dir() and f"{Path(root).stat().st_ino}" == expected["inode"]):
        return f"The worker on {host} doesn't see the folder {root} of the run."
    return None


def check_engine(beam: BeamConfig, root: Path, *parts: Any) -> str:
    """Checks that an engine is reachable and fits this process; returns what was found.

    Raises:
        UsageError: Workers on other machines don't have the root.
        RecsysError: A service doesn't answer, or versions or sources differ.
    """
    engine, name = ENGINES[beam.runner], beam.runner
    if name == "local":
        return "threads on this machine"
    here = {what: _is_here(address) for what, address in
            (("master", beam.master), ("workers", beam.workers)) if address}  # fmt: skip
    if not beam.shared_root and not all(here.values()):
        raise UsageError(
            "R276",
            "Workers on other machines need the root of the run.",
            "Mount it there at the same path and set beam.shared_root: true.",
            f"beam.{next(what for what, is_here in here.items() if not is_here)}, {root}",
        )
    if engine.is_portable and not beam.workers and not here["master"]:
        raise UsageError(
            "R276", "An engine on other machines needs a worker pool.",
            f"Start {_START_POOL} beside each worker, and set beam.workers: HOST:PORT.", beam.master
        )  # fmt: skip
    if name == "dataflow":
        return "dataflow, not checked before it runs"
    if name == "dask":
        return _check_dask(beam, root, parts)
    _connect(
        beam.master,
        f"The job server of {name}",
        "beam.master",
        "Start it, as docs/cluster.md describes.",
    )
    if beam.cluster:
        _check_version(beam.cluster, engine.version)
    if beam.workers and here["workers"]:
        _check_pool(beam.workers, _expected(root, parts))
    return f"{name} {engine.version} at {beam.master}"


def _is_here(address: str) -> bool:
    """Returns whether an address belongs to this machine."""
    host = address.rpartition("://")[2].rpartition(":")[0].strip("[]")
    try:
        found = socket.getaddrinfo(host, 0, type=socket.SOCK_DGRAM)
    except OSError:
        return False
    for family, kind, _, _, where in found:
        with socket.socket(family, kind) as probe:
            try:
                probe.bind(where)
            except OSError:
                return False
    return True


def _connect(address: str, what: str, key: str, cure: str) -> Any:
    """Returns a channel to a gRPC service that answers."""
    import grpc

    channel = grpc.insecure_channel(address)
    try:
        grpc.channel_ready_future(channel).result(_TIMEOUT_S)
    except grpc.FutureTimeoutError:
        channel.close()
        raise RecsysError("R277", f"{what} must answer at {key}.", cure, address) from None
    return channel


def _check_pool(address: str, expected: Mapping[str, str]) -> None:
    import grpc
    from apache_beam.portability.api import beam_fn_api_pb2, beam_fn_api_pb2_grpc

    cure = f"Start it: {_START_POOL}."
    with _connect(address, "The worker pool", "beam.workers", cure) as channel:
        pool = beam_fn_api_pb2_grpc.BeamFnExternalWorkerPoolStub(channel)
        request = beam_fn_api_pb2.StartWorkerRequest(worker_id="check", params={**expected})
        try:
            answer = pool.StartWorker(request, timeout=_TIMEOUT_S)
        except grpc.RpcError as error:
            raise RecsysError(
                "R277", "The worker pool must answer at beam.workers.", cure, address
            ) from error
    if answer.error:
        raise _differs(answer.error)


def _differs(sentence: str) -> RecsysError:
    return RecsysError(
        "R278",
        "All workers must have the Python, the packages, the sources and the root of the run."
        f" {sentence}",
        "Give them the same image or environment, and restart the worker pool.",
    )


def _check_version(address: str, wanted: str) -> None:
    try:
        with urllib.request.urlopen(f"http://{address}/overview", timeout=_TIMEOUT_S) as answer:
            version = str(json.load(answer)["flink-version"])
    except (OSError, ValueError, KeyError) as error:
        raise RecsysError(
            "R277", "Flink must answer at beam.cluster.",
            "Correct the address of its REST interface, port 8081.", address
        ) from error  # fmt: skip
    if not version.startswith(f"{wanted}."):
        raise RecsysError(
            "R278",
            f"The cluster and Beam's job server must be Flink {wanted}.",
            "Use the versions of docs/cluster.md.",
            version,
        )


def _check_dask(beam: BeamConfig, root: Path, parts: Sequence[Any]) -> str:
    from distributed import Client

    try:
        client = Client(beam.master, timeout=_TIMEOUT_S)  # type: ignore[no-untyped-call]
    except OSError as error:
        cure = "Start it: dask scheduler."
        rule = "Dask's scheduler must answer at beam.master."
        raise RecsysError("R277", rule, cure, beam.master) from error
    with client:
        answers = client.run(difference, _expected(root, parts))
    if not answers:
        raise RecsysError("R277", "Dask must have a worker.", "Start: dask worker.", beam.master)
    for sentence in filter(None, answers.values()):
        raise _differs(sentence)
    return f"dask with {len(answers)} workers at {beam.master}"
