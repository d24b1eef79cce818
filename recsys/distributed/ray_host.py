"""The actor of one host on Ray, which runs the stage's process: no JAX lives in a Ray worker."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import ray

from recsys.distributed.local import free_port
from recsys.system.parent import as_parent, child_command

_LOOK_S = 0.5
_END_S = 5.0
_LOG_BYTES = 1 << 20


class Host:
    """Runs a stage's process.

    The process ends with this one, which Ray ends with the raylet and with the driver.
    """

    def __init__(self) -> None:
        # They have no name, so that nothing is left of a host that is killed.
        self._output = tempfile.TemporaryFile()  # noqa: SIM115
        self._log = tempfile.TemporaryFile()  # noqa: SIM115
        self._process: subprocess.Popen[bytes]

    def address(self) -> tuple[str, int]:
        """Returns the address of this node, and a port that is free there."""
        return ray.util.get_node_ip_address(), free_port()

    def start(
        self, module: str, words: Sequence[str], environment: Mapping[str, str], folder: str
    ) -> None:
        """Starts the process.

        Args:
            module: The stage.
            words: Its command line.
            environment: Variables on top of those of this node.
            folder: Its working folder, if this node has it.
        """
        # Ray's number of threads is for what computes in its workers.
        node = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
        self._process = subprocess.Popen(
            child_command(module, words),
            env={**node, **environment, **as_parent()},
            cwd=folder if Path(folder).is_dir() else None,
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=self._log,
            process_group=0,
        )

    def look(self, offset: int) -> tuple[int | None, str, int, str]:
        """Waits a little for the process to end.

        Args:
            offset: How far its log was read [bytes].

        Returns:
            Its exit code, None while it runs; the lines of its log from `offset` on, and how far
            these reach; and what it printed, once it has ended.
        """
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_LOOK_S)
        code = self._process.poll()
        log = os.pread(self._log.fileno(), _LOG_BYTES, offset)
        if code is None:
            log = log[: log.rfind(b"\n") + 1]
        output, end = self._output.fileno(), offset + len(log)
        printed = b"" if code is None else os.pread(output, os.fstat(output).st_size, 0)
        return code, log.decode(errors="replace"), end, printed.decode(errors="replace")

    def stop(self, signum: int = signal.SIGTERM) -> None:
        """Sends a signal to the process; waits for the end of one that is killed."""
        self._process.send_signal(signum)
        if signum == signal.SIGKILL:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_END_S)
