"""`launcher: {kind: ray}`: Ray places, watches and restarts the processes of a stage.

The stage's driver is a separate process (`ray_group.py`), which keeps Ray's threads and signal
handlers out of the run.
"""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import Field, NonNegativeInt, PositiveFloat, model_validator

from recsys.distributed.launchers import Launcher, write_config
from recsys.errors import UsageError
from recsys.registry import register
from recsys.system.installation import install_extra
from recsys.system.process import run_stage

NOTICED_SOON = {
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "1000",
    "RAY_health_check_failure_threshold": "3",
}
"""Environment of Ray's head that makes it give up a lost node after about 3 s."""
PATIENT = {
    "RAY_agent_register_timeout_ms": "100000",
    "RAY_worker_register_timeout_seconds": "100",
    "RAY_raylet_start_wait_time_s": "100",
}
"""Environment of a Ray node that starts on a busy machine."""
_DRIVER = "recsys.distributed.ray_group"


@register("launcher", "ray")
class RayLauncher(Launcher):
    """Runs the processes of a stage in Ray actors, one per host.

    All nodes must reach `root` at the same path and have the same installation. The run must be
    started on a node of the cluster.
    """

    hosts: Annotated[int, Field(ge=1, le=10_000)] = 1
    """Number of processes of a stage, on different nodes if there are enough."""
    min_hosts: Annotated[int, Field(ge=1)] | None = None
    """Lowest number of hosts to continue with if lost hosts are not replaced; `null`: same as
    `hosts`."""
    address: Annotated[str, Field(pattern=r"^(local|auto|\S+:\d+)$")] = "local"
    """`HOST:PORT` of a cluster; `auto`: the cluster that `RAY_ADDRESS` names or that this machine
    belongs to; `local`: a Ray instance on this machine, started for each stage."""
    resources: dict[str, PositiveFloat] = Field({"CPU": 1.0}, min_length=1)
    """Resources that each host reserves: `CPU`, `GPU` or custom names. Without `GPU` it computes on
    CPUs."""
    wait_s: PositiveFloat = 300.0
    """Timeout for nodes to become available, and for processes to join [s]."""
    silent_s: PositiveFloat = 4.0
    """Time without an answer after which a host counts as lost [s]."""
    restarts: NonNegativeInt = 3
    """Maximum number of restarts of a stage, from its last checkpoint, after a host was lost."""

    @model_validator(mode="after")
    def _fewest_are_not_more(self) -> Self:
        if self.fewest > self.hosts:
            raise ValueError(f"min_hosts must be at most hosts, {self.hosts}; not {self.min_hosts}")
        return self

    @property
    def fewest(self) -> int:
        """Lowest number of hosts of a stage."""
        return self.min_hosts or self.hosts

    def check(self) -> None:
        """Checks that Ray is installed, and that the cluster answers.

        Raises:
            UsageError: Ray isn't installed, or the cluster doesn't answer.
        """
        if find_spec("ray") is None:
            rule = "`launcher: {kind: ray}` requires the extra `ray`."
            raise UsageError("R268", rule, install_extra("ray"), "no package 'ray'")
        if self.address != "local":
            self._drive([])

    def run(
        self, module: str, config: str, arguments: Sequence[str], folder: Path
    ) -> dict[str, Any]:
        """Runs a stage and returns its result; see `Launcher.run`."""
        file, progress = write_config(module, config, folder), folder / f"{module}.events.jsonl"
        return self._drive([str(progress), module, "--config", str(file), *arguments])

    def _drive(self, words: Sequence[str]) -> dict[str, Any]:
        """Runs the driver of a stage; without `words`, only tries to place the hosts."""
        own = {"RAY_USAGE_STATS_ENABLED": "0"}
        # The path of a socket has at most 107 bytes, which a run's own TMPDIR may exceed.
        with tempfile.TemporaryDirectory(
            prefix="recsys-ray-",
            dir="/tmp",
            ignore_cleanup_errors=True,
        ) as folder:
            if self.address == "local":
                own |= _local_ray(folder)
            return run_stage(_DRIVER, [self.model_dump_json(), *words], own)


def _local_ray(folder: str) -> dict[str, str]:
    """Returns the environment of a Ray that only this machine can reach, with a token.

    Args:
        folder: Folder for its sockets and logs.
    """
    return {
        **NOTICED_SOON,
        **PATIENT,
        "RAY_TMPDIR": folder,
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # All ports on loopback, on Linux too.
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),  # By default it writes one to the home folder.
        "RAY_memory_monitor_refresh_ms": "0",  # The kernel says when memory has run out.
        "RAY_gcs_rpc_server_reconnect_timeout_s": "5",  # Then Ray's processes of a killed run end.
    }
