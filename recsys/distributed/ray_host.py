"""The Ray actor of a host. It runs the stage in a child process, so no JAX in a Ray worker."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import ray

from recsys.distributed.local import free_port
from recsys.system.parent import as_parent, child_command

_WAIT_S = 0.5
_END_S = 5.0
_LOG_BYTES = 1 << 20


class Host:
    """Runs a stage's process.

    The process ends with this actor, which Ray ends with the raylet and with the driver.
    """

    def __init__(self) -> None:
        # Files without a name, so that nothing is left if the host is killed.
        self._output = tempfile.TemporaryFile()  # noqa: SIM115
        self._log = tempfile.TemporaryFile()  # noqa: SIM115
        self._process: subprocess.Popen[bytes]

    def address(self) -> tuple[str, int]:
        """Returns the address of this node, and a free port."""
        return ray.util.get_node_ip_address(), free_port()

    def start(
        self, module: str, words: Sequence[str], environment: Mapping[str, str], folder: str
    ) -> None:
        """Starts the process.

        Args:
            module: The stage.
            words: Command line of the stage.
            environment: Variables in addition to this node's.
            folder: Working folder, used if this node has it.
        """
        # Ray sets the number of threads for its workers.
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
        threading.Thread(target=self._end_with_raylet, daemon=True).start()

    def _end_with_raylet(self) -> None:
        """Kills the process once the raylet, the parent of this worker, is gone.

        Ray ends the worker too, but on one machine only after 6.4 s.
        """
        raylet = os.getppid()
        while os.getppid() == raylet:
            time.sleep(_WAIT_S)
        self._process.kill()

    def poll(self, offset: int) -> tuple[int | None, str, int, str]:
        """Waits briefly for the end of the process, and returns its state.

        Args:
            offset: Position up to which its log was read [bytes].

        Returns:
            Its exit code, None while it runs; the lines of its log from `offset` on, and the
            position after them; and its stdout, once it has ended.
        """
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_WAIT_S)
        code = self._process.poll()
        log = os.pread(self._log.fileno(), _LOG_BYTES, offset)
        if code is None:
            log = log[: log.rfind(b"\n") + 1]
        output, end = self._output.fileno(), offset + len(log)
        printed = b"" if code is None else os.pread(output, os.fstat(output).st_size, 0)
        return code, log.decode(errors="replace"), end, printed.decode(errors="replace")

    def stop(self, signum: int = signal.SIGTERM) -> None:
        """Sends a signal to the process; waits for its end after SIGKILL."""
        self._process.send_signal(signum)
        if signum == signal.SIGKILL:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_END_S)
