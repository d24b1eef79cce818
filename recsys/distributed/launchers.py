"""`launcher` of a config: starts the stages of a pipeline that compute on devices.

A stage runs in one or more processes of this machine, or on several hosts, each started by a
command or by Ray. A launcher doesn't change the result of a stage. So it is passed to components by
the environment: as a parameter it would make TFX rerun the step.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shlex
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import Field, NonNegativeInt, PositiveFloat, model_validator

from recsys.distributed.children import Children
from recsys.errors import RecsysError, UsageError
from recsys.registry import Choice
from recsys.strict import Strict
from recsys.system import events
from recsys.system.files import commit_text
from recsys.system.installation import install_extra
from recsys.system.parent import CHILD, STDIN, VARIABLE, program_command
from recsys.system.process import (
    last_json_line,
    raising_if_stopped,
    run_stage,
    run_stage_with_config,
    stage_environment,
    stage_result,
)

LAUNCHER = "RECSYS_LAUNCHER"
_GRACE_S = 45.0
"""Time that the other hosts have to end after one has failed [s]."""
_LOST = "R388"
_PLACES = ("{host}", "{command}", "{line}")
_HOST = r"^[A-Za-z0-9][A-Za-z0-9._:@-]*$"


class Launcher(Strict):
    """Starts the processes of a stage."""

    def check(self) -> None:
        """Checks, before a run's first step, that the launcher can start a stage.

        Raises:
            UsageError: It can't start one.
        """

    def run(
        self, module: str, config: str, arguments: Sequence[str], folder: Path
    ) -> dict[str, Any]:
        """Runs a stage and returns its result.

        Args:
            module: Module of the stage. Its `__main__` calls `stage_main`, and it takes the
                options `--processes` and `--coordinator` of `recsys train`.
            config: The stage's part of the config, as JSON.
            arguments: Further command-line arguments.
            folder: Folder for files that the launcher writes for its processes.

        Raises:
            RecsysError: The stage failed.
            StoppedError: A signal stopped this process, and signals are raised.
        """
        raise NotImplementedError


def write_config(module: str, config: str, folder: Path) -> Path:
    """Writes a stage's part of the config for its processes; returns the file."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{module}.json"
    commit_text(config, file)
    return file


def started_again(restarts: int, run: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Returns the result of `run`; retries up to `restarts` times after a host was lost."""
    while True:
        try:
            return run()
        except RecsysError as error:
            if error.code != _LOST or not restarts:
                raise
            restarts -= 1
            print(f"{error.rule} All start again.", file=sys.stderr)  # noqa: T201 to the log


class LocalLauncher(Launcher):
    """Starts processes on this machine."""

    processes: Annotated[int, Field(ge=1, le=256)] = 1
    """Number of processes of a stage on this machine; each gets an equal share of the GPUs."""

    def run(
        self, module: str, config: str, arguments: Sequence[str], folder: Path
    ) -> dict[str, Any]:
        """Runs a stage and returns its result; see `Launcher.run`."""
        del folder
        words = ["--processes", str(self.processes)] if self.processes > 1 else []
        return run_stage_with_config(module, config, [*arguments, *words], "jax")


class CommandLauncher(Launcher):
    """Starts a stage on several hosts by a command for each, such as ssh, srun or kubectl.

    Each host must reach `root` at the same path. A command must pass its stdin on to the process,
    which stops when its stdin is closed, for example because this process died.
    """

    argv: Annotated[tuple[Annotated[str, Field(min_length=1)], ...], Field(min_length=1)]
    """Words of the command. `{host}` is replaced by the host, `{command}` by the words of the
    stage's command, `{line}` by the same as one word, quoted for a remote shell."""
    hosts: Annotated[tuple[Annotated[str, Field(pattern=_HOST)], ...], Field(min_length=1)]
    """The hosts; the first one runs process 0."""
    address: Annotated[str, Field(pattern=_HOST)] | None = None
    """Name or address at which other hosts reach the first one; `null`: as in `hosts`."""
    port: Annotated[int, Field(ge=1, le=65535)] = 8476
    """Port of the coordination service on the first host."""
    folder: Annotated[str, Field(pattern="^/")] | None = None
    """Working folder of the stage on each host, from which it imports plugins; `null`: the working
    folder of the run, with plugins installed on each host."""
    python: Annotated[str, Field(min_length=1)] | None = None
    """Python of the installation on each host; `null`: the path of this Python."""
    wait_s: PositiveFloat = 300.0
    """Timeout for the processes to join [s]."""
    restarts: NonNegativeInt = 0
    """Maximum number of restarts of a stage, from its last checkpoint, after a host was lost."""

    @model_validator(mode="after")
    def _command_is_whole(self) -> Self:
        unknown = [w for w in self.argv if re.fullmatch(r"\{\w*\}", w) and w not in _PLACES]
        if unknown:
            raise ValueError(f"a placeholder is {', '.join(_PLACES)}, a whole word; not {unknown}")
        if sum(self.argv.count(word) for word in _PLACES[1:]) != 1:
            raise ValueError("argv must have either {command} or {line}, once, as a whole word")
        if self.argv[0] in _PLACES[:2] or len({*self.hosts}) < len(self.hosts):
            raise ValueError("argv must begin with a program, and hosts name each host once")
        return self

    def check(self) -> None:
        """Checks that the program of the command is installed on this machine."""
        if self.argv[0] != "{line}" and shutil.which(self.argv[0]) is None:
            raise UsageError(
                "R394",
                "`launcher.argv` must begin with a program of this machine.",
                "Install it, or give its path.",
                self.argv[0],
            )

    def run(
        self, module: str, config: str, arguments: Sequence[str], folder: Path
    ) -> dict[str, Any]:
        """Runs a stage and returns its result; see `Launcher.run`."""
        file, progress = write_config(module, config, folder), folder / f"{module}.events.jsonl"
        words = [module, "--config", str(file), *arguments]
        commands = [self.command(words, index, progress) for index in range(len(self.hosts))]

        return started_again(self.restarts, lambda: self._run_once(module, commands, progress))

    def _run_once(
        self, module: str, commands: Sequence[list[str]], progress: Path
    ) -> dict[str, Any]:
        """Runs all commands, and returns the result of the first host."""
        progress.unlink(missing_ok=True)
        relay = events.relay(progress)
        programs = [program_command(words) for words in commands]
        with (
            tempfile.TemporaryDirectory(prefix="recsys-commands-") as scratch,
            Children(programs, [{}] * len(programs), Path(scratch), by_stdin=True) as children,
        ):
            failed = children.wait(_GRACE_S, relay)
            printed = [children.printed(index) for index in range(len(programs))]
            codes = [code or 0 for code in children.codes]
        with raising_if_stopped(children.stop.received):
            spoke = [index for index in failed if "error" in (last_json_line(printed[index]) or {})]
            if failed and not spoke and not children.stop.is_set:
                host = self.hosts[failed[0]]
                raise RecsysError(
                    "R394",
                    f"The command that `launcher` starts for the host {host!r} must run {module} to"
                    " its end.",
                    "Run the command by hand; see its output in the log.",
                    f"exit code {codes[failed[0]]}, no reason given",
                )
            index = next(iter(spoke), 0)
            return stage_result(module, codes[index], printed[index], children.stop.received)

    def command(self, stage: Sequence[str], index: int, progress: Path) -> list[str]:
        """Returns the command of one host.

        Args:
            stage: Module and command line of the stage.
            index: Index of the host.
            progress: File for the events of the stage, which the first host writes.
        """
        shown = {events.ENVIRONMENT_VARIABLE: str(progress) if index == 0 else ""}
        own = {**stage_environment("jax"), VARIABLE: STDIN, **shown}
        if self.folder is not None:
            own["PYTHONPATH"] = self.folder
        address = self.address or self.hosts[0].rpartition("@")[2]
        words = ["env", f"--chdir={self.folder or Path.cwd()}"]
        words += [f"{name}={value}" for name, value in own.items()]
        words += [self.python or sys.executable, *CHILD, *stage]
        words += ["--coordinator", f"{address}:{self.port}", "--wait", str(self.wait_s)]
        words += ["--num-processes", str(len(self.hosts)), "--process-id", str(index)]
        places = {"{host}": [self.hosts[index]], "{command}": words, "{line}": [shlex.join(words)]}
        return [part for word in self.argv for part in places.get(word, [word])]


# --- Ray

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
    "RAY_worker_niceness": "0",  # Added to that of the raylet; by default 15.
}
"""Environment of a Ray node on a busy machine: it waits longer for its processes to start, and
its workers have its priority."""
_DRIVER = "recsys.distributed.ray_group"
"""The driver of a stage, a separate process: Ray's threads and signal handlers stay out of the
run."""


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
            prefix="recsys-ray-", dir="/tmp", ignore_cleanup_errors=True
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


# --- the launcher of a run

_CHOICE = Choice("launcher", "local", key="kind")


@contextmanager
def launching_by(launcher: Launcher, root: Path) -> Iterator[None]:
    """Makes components inside the context start their stages by a launcher.

    Args:
        launcher: The launcher.
        root: Folder of the run.

    """
    chosen = {"launcher": _CHOICE.write(launcher), "folder": str(root.absolute() / "launch")}
    os.environ[LAUNCHER] = json.dumps(chosen)
    try:
        yield
    finally:
        del os.environ[LAUNCHER]


def run_launched(module: str, config: str, arguments: Sequence[str]) -> dict[str, Any]:
    """Runs a stage by the run's launcher, by default in one process of this machine.

    Arguments, result and errors are the same as of `Launcher.run`.
    """
    chosen = json.loads(os.environ.get(LAUNCHER, "{}"))
    launcher = _CHOICE.read(chosen.get("launcher", "local"))
    result: dict[str, Any] = launcher.run(module, config, arguments, Path(chosen.get("folder", "")))
    return result
