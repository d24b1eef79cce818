"""Ends a child process when its parent ends, for any reason.

Otherwise the children of a killed command would continue for hours and interfere with the next run.
A child is started by `python -P -m recsys.system.parent MODULE`: the parent puts its pid into the
environment, and the child asks the kernel to be killed with it, before its imports, which take
seconds.

A child imports from the folders of its parent. `-P` excludes the current folder, whose files may
shadow a plugin.

A child on another machine reads its stdin instead, which ssh closes when it ends.

Processes with another parent (`tfx run create`, cron, a container's init) are not affected.
"""

from __future__ import annotations

import ctypes
import os
import runpy
import signal
import site
import subprocess
import sys
import sysconfig
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from recsys.system import lean_imports

VARIABLE, STDIN = "RECSYS_PARENT", "stdin"
CHILD = ("-P", "-m", "recsys.system.parent")
"""Arguments of Python in the command of a child, before the module and its command line."""
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_GRACE_S = 30.0  # A training saves its state.
_PROGRAM = "--"
_SET_PDEATHSIG = 1
"""`PR_SET_PDEATHSIG` of prctl(2); kept across exec, not inherited by children."""


def as_parent() -> dict[str, str]:
    """Returns the environment variables for a child that must end with this process.

    The kernel takes the end of the thread that starts the child for the end of the parent.
    """
    return {VARIABLE: str(os.getpid()), "PYTHONPATH": os.pathsep.join(own_folders())}


def own_folders() -> list[str]:
    """Returns the additional import folders of this process, such as plugins' folders."""
    installed = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "scripts")}
    installed |= {*site.getsitepackages(), site.getusersitepackages()}
    named = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    folders = dict.fromkeys(Path(folder).absolute() for folder in (*sys.path, *named))
    return [
        str(folder)
        for folder in folders
        if folder.exists() and not any(map(folder.is_relative_to, installed))
    ]


def child_command(module: str, arguments: Sequence[str] = ()) -> list[str]:
    """Returns the command of a child that ends with this process; see `as_parent`.

    Args:
        module: The module that it runs.
        arguments: Its command line.
    """
    return [sys.executable, *CHILD, module, *arguments]


def program_command(words: Sequence[str]) -> list[str]:
    """Returns the command of any program that is to end with this process; see `as_parent`."""
    return [sys.executable, *CHILD, _PROGRAM, *words]


@contextmanager
def child_group(
    module: str, arguments: Sequence[str], output: IO[bytes], environment: Mapping[str, str]
) -> Iterator[subprocess.Popen[bytes]]:
    """Starts a child in a session of its own; ends all its processes at the end.

    If this process is killed, the child ends with it.

    Args:
        module: The module that it runs.
        arguments: Its command line.
        output: File for its stdout and stderr.
        environment: Variables set on top of this process's own.
    """
    child = subprocess.Popen(
        child_command(module, arguments),
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        env={**os.environ, **as_parent(), **environment},
        start_new_session=True,
    )
    try:
        yield child
    finally:
        for stop_signal in STOP_SIGNALS:
            signal.signal(stop_signal, signal.SIG_IGN)
        for signum in (signal.SIGTERM, signal.SIGKILL):
            deadline = time.monotonic() + _GRACE_S
            is_there = _signal_group(child, signum)
            while is_there and time.monotonic() < deadline:
                time.sleep(0.02)
                is_there = _signal_group(child, 0)
        child.wait()


def _signal_group(child: subprocess.Popen[bytes], signum: int) -> bool:
    """Sends a signal to the child's process group; returns whether the group still exists."""
    child.poll()  # Reaps a dead child, which would still exist otherwise.
    try:
        os.killpg(child.pid, signum)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def end_with_parent() -> None:
    """Makes this process end when the parent named in the environment ends.

    The variable is removed from the environment, since this process's children have another parent.
    If the parent is already dead, this process ends at once. If the variable is `stdin`, this
    process stops when its stdin ends after a first byte.
    """
    named = os.environ.pop(VARIABLE, "")
    if named == STDIN:
        threading.Thread(target=_stop_with_stdin, daemon=True).start()
    if not named.isdecimal():
        return
    ctypes.CDLL(None).prctl(_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    # The kernel sends no signal if the parent died before the call.
    if os.getppid() != int(named):
        os.kill(os.getpid(), signal.SIGKILL)


def _stop_with_stdin() -> None:
    with suppress(OSError):
        if os.read(0, 1):
            while os.read(0, 1 << 12):
                pass
            os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    end_with_parent()
    del sys.argv[0]
    if sys.argv[0] == _PROGRAM:
        os.execvp(sys.argv[1], sys.argv[1:])  # noqa: S606
    lean_imports.install()
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
