"""JAX's coordination service, and other parts of JAX that are not public.

The service runs in process 0. It has a key-value store and a barrier with a timeout of our
choice; collectives on devices give up after 30 s with gloo, and need equal programs. Its
heartbeats detect lost processes. The tests fail if a new version of JAX renames these parts.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

from jax._src import distributed
from jax.extend.backend import register_backend_factory

from recsys.distributed.place import Place
from recsys.errors import UsageError


def n_processes() -> int:
    """Returns the number of processes that have joined; unlike JAX's, it needs no devices."""
    return int(distributed.global_state.num_processes)


def process_index() -> int:
    """Returns the index of this process; unlike JAX's, it needs no devices."""
    return int(distributed.global_state.process_id)


def client() -> Any:
    """Returns the client of the service; None if this process has not joined others."""
    return distributed.global_state.client


def detected(place: Place) -> Place:
    """Returns a place completed with what Slurm, Open MPI or Kubernetes provide.

    Raises:
        UsageError: No such scheduler is found (R376).
    """
    reason = "no Slurm, Open MPI or Kubernetes"
    try:
        from jax._src.clusters import ClusterEnv

        coordinator, count, index, devices = ClusterEnv.auto_detect_unset_distributed_params(
            None, None, None, None, None, round(place.wait_s)
        )
    except Exception as error:  # noqa: BLE001 whatever the clients of a scheduler raise
        coordinator, reason = None, str(error)
    if coordinator is None or count is None or index is None:
        raise UsageError(
            "R376",
            "--coordinator auto needs a scheduler that knows the processes.",
            "Give --coordinator HOST:PORT, --num-processes and --process-id.",
            reason,
        )
    shown = ",".join(map(str, devices or ()))
    return dataclasses.replace(
        place, coordinator=coordinator, n_processes=count, process=index, devices=shown
    )


def publish(address: str) -> None:
    """Sets the address that gloo, which connects JAX's CPUs, publishes for this process.

    By default it publishes the address of the machine's own name, often 127.0.1.1, which
    other machines cannot reach.
    """
    from jax._src import xla_bridge
    from jaxlib import _jax

    gloo = _jax.make_gloo_tcp_collectives(distributed_client=client(), hostname=address)
    cpu_client = functools.partial(xla_bridge.make_cpu_client, gloo)
    register_backend_factory("cpu", cpu_client, priority=0, fail_quietly=False)
