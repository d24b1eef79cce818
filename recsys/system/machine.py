"""Checks whether this machine can run recsys, and says how to fix problems.

A check tests the machine itself: it imports the packages of a run in a subprocess,
and writes to the output folder of a run.
"""

from __future__ import annotations

import errno
import os
import platform
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

from recsys.formats import counted
from recsys.system.installation import EXACT_SET, NAME, SYNC, WIDE_SET, install_extra

CORE = ("keras", "keras-rs", "jax", "numpy", "pyarrow", "grain", "pydantic")
PIPELINE = (
    "tfx", "tensorflow", "apache-beam", "ml-metadata", "tensorflow-data-validation", "tfx-bsl",
)  # fmt: skip
WIDE_GLIBC, EXACT_GLIBC = (2, 34), (2, 39)
"""Lowest glibc for the wheels of each of the two sets of TFX packages; in the first set,
pyfarmhash determines it."""
_GIB = 2**30
_LEAST_MEMORY_GIB, _LEAST_DISK_GIB = 4.0, 2.0
_TIMEOUT_S = 180.0
_FAST_SUMS = (0, 11, 1)
_SUMS_FLAG = "--xla_backend_extra_options=-nvptx-allow-ftz-atomics"


class Check(NamedTuple):
    """The result of one check.

    Attributes:
        name: Name of the check.
        state: `ok`; `warn`: there is a problem, but a run can work; `fail`: it can't.
        message: The finding, as a sentence or a list of figures.
        fix: How to fix the problem; empty if there is none.
    """

    name: str
    state: str
    message: str
    fix: str = ""


def machine_checks() -> Iterator[Check]:
    """Yields the result of each check that needs no config."""
    python = sys.version_info[:2]
    with ThreadPoolExecutor(max_workers=2) as pool:
        # The slow checks import the packages of a run, so they start first.
        slow = [pool.submit(check) for check in (check_jax, check_kernels, check_tfx)]
        yield check_python(python, _glibc())
        yield check_machine(len(os.sched_getaffinity(0)), available_memory())
        yield check_packages("core packages", CORE, "fail")
        pins = WIDE_SET if python < (3, 12) else EXACT_SET
        yield check_packages("extra pipeline", PIPELINE, "warn", pins)
        if _has_gpu() and (jaxlib := _version("jaxlib")):
            yield check_gpu_sums(jaxlib, os.environ.get("XLA_FLAGS", ""))
        for result in slow:
            yield result.result()


def check_python(python: tuple[int, int], glibc: tuple[int, ...]) -> Check:
    """Checks the Python version, and whether the TFX wheels for it support this glibc."""
    needed = WIDE_GLIBC if python < (3, 12) else EXACT_GLIBC
    has, needs = (".".join(map(str, version)) for version in (glibc, needed))
    text = f"Python {python[0]}.{python[1]} at {sys.executable}"
    text += f", glibc {has or 'unknown'}; the TFX wheels need glibc {needs}"
    if not (3, 11) <= python < (3, 13):
        return Check("python", "fail", text, "Use Python 3.11 or 3.12: uv sync --python 3.11")
    if not glibc:
        return Check("python", "warn", text, "Use a Linux with glibc.")
    if glibc < WIDE_GLIBC:
        return Check("python", "fail", text, "Use Debian 12, Ubuntu 22.04 or newer.")
    return _check("python", text, glibc < needed, f"Use Python 3.11: {SYNC} --python 3.11", "fail")


def check_machine(cores: int, available: int) -> Check:
    """Checks the available memory [bytes]."""
    text = f"{counted(cores, 'core', 'cores')}, {available / _GIB:.1f} GiB of memory free"
    fix = f"The shipped config needs {_LEAST_MEMORY_GIB:.0f} GiB: close other programs."
    return _check("machine", text, available < _LEAST_MEMORY_GIB * _GIB, fix)


def check_packages(
    name: str, packages: Sequence[str], missing_is: str, pins: Mapping[str, str] | None = None
) -> Check:
    """Checks that the packages of a group are installed, in their pinned versions."""
    versions = {package: _version(package) for package in packages}
    for package, version in versions.items():
        if version is None:
            return Check(name, missing_is, f"{package} is not installed", SYNC)
        if version != (pins or {}).get(package, version):
            return Check(name, "fail", f"{package} is {version}, not {(pins or {})[package]}", SYNC)
    return Check(name, "ok", ", ".join(f"{package} {v}" for package, v in versions.items()))


def check_root(root: Path) -> Check:
    """Checks that the output folder is writable, and its free disk space."""
    folder = root
    try:
        while not folder.exists():
            folder = folder.parent
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"recsys doctor")
        free = shutil.disk_usage(folder).free
    except OSError as error:
        is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        fix = f"{'Free disk space' if is_full else 'Change its permissions'}, or --set root=DIR."
        return Check("root", "fail", f"{folder}: {error.strerror}", fix)
    fix = "Free disk space, or use another folder: --set root=DIR."
    text = f"{root} is writable, {free / _GIB:.1f} GiB free"
    return _check("root", text, free < _LEAST_DISK_GIB * _GIB, fix)


def check_jax() -> Check:
    """Checks the devices of JAX."""
    program = "import jax; d = jax.devices(); print(len(d), jax.default_backend(), d[0])"
    fix = "The NVIDIA GPU is not used. Install JAX with CUDA: uv pip install 'jax[cuda12]'"
    return _probe("jax devices", program, lambda text: _has_gpu() and " cpu " in text, fix)


def check_gpu_sums(jaxlib: str, flags: str) -> Check:
    """Checks that gradients of equal rows are summed fast (jax#38806)."""
    is_slow = tuple(map(int, jaxlib.split(".")[:3])) < _FAST_SUMS and _SUMS_FLAG not in flags
    fix = (
        f"Equal ids are summed slowly. Use jaxlib {'.'.join(map(str, _FAST_SUMS))} or newer, which"
        f" needs Python 3.12: uv sync --python 3.12; or try XLA_FLAGS={_SUMS_FLAG}."
    )
    return _check("GPU sums", f"jaxlib {jaxlib}", is_slow, fix)


def check_kernels() -> Check:
    """Checks that the C kernels can be loaded."""
    program = "from recsys import kernels as k; s = k.status(); print(s.reason or s.path)"
    fix = f"Training on CPUs is slower. apt install gcc, then {SYNC} --reinstall-package {NAME}"
    return _probe("C kernels", program, lambda text: not text.endswith(".so"), fix, "warn")


def check_tfx() -> Check:
    """Checks that the packages of the pipeline can be imported."""
    if _version("tfx") is None:
        text = "TFX is not installed: `recsys run` can't work"
        return Check("tfx imports", "warn", text, install_extra("pipeline"))
    program = "import tfx.v1, tensorflow_data_validation, ml_metadata; print('all import')"
    return _probe("tfx imports", program, KERAS_BACKEND="jax")


def available_memory() -> int:
    """Returns the memory available to this process, within its cgroup limit [bytes]."""
    fields = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    free = int(fields["MemAvailable"].split()[0]) * 1024
    try:
        group = Path("/sys/fs/cgroup")
        limit, used = (int((group / f"memory.{name}").read_text()) for name in ("max", "current"))
    except (OSError, ValueError):  # No cgroup v2, or "max".
        return free
    return min(free, limit - used)


def _check(name: str, text: str, is_wrong: bool, fix: str, wrong: str = "warn") -> Check:
    return Check(name, wrong, text, fix) if is_wrong else Check(name, "ok", text)


def _probe(
    name: str,
    program: str,
    is_wrong: Callable[[str], bool] = lambda text: False,
    fix: str = "",
    broken: str = "fail",
    **environment: str,
) -> Check:
    """Runs a Python program and returns a check of its last line of output, or of its failure.

    Args:
        name: Name of the check.
        program: Python code.
        is_wrong: Whether the last line of output is a warning.
        fix: How to fix what it warns of.
        broken: State of the check if the program fails.
        **environment: Additional environment variables.
    """
    command = [sys.executable, "-P", "-c", program]
    variables = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", **environment}
    try:
        done = subprocess.run(
            command, env=variables, capture_output=True, text=True, errors="replace",
            check=False, timeout=_TIMEOUT_S,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        text = f"unknown: timed out after {_TIMEOUT_S:g} s (load {os.getloadavg()[0]:.1f})"
        return Check(name, broken, text, "Try again when the machine is less busy: recsys doctor")
    if done.returncode == 0:
        text = (done.stdout.strip().splitlines() or [""])[-1]
        return _check(name, text, is_wrong(text), fix)
    if done.returncode == -signal.SIGKILL:
        fix = "The machine is probably out of memory: close other programs, and try again."
        return Check(name, broken, "unknown: the system killed the process", fix)
    last = (done.stderr.strip().splitlines() or ["no message"])[-1]
    is_import = last.startswith(("ImportError", "ModuleNotFoundError"))
    fix = SYNC if is_import else f"See the full output: {shlex.join(command)}"
    return Check(name, broken, f"exit code {done.returncode}: {last}", fix)


def _version(package: str) -> str | None:
    """Returns the installed version of a package; None if it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _has_gpu() -> bool:
    return Path("/dev/nvidiactl").exists()


def _glibc() -> tuple[int, ...]:
    """Returns the version of glibc, or an empty tuple if there is none."""
    name, version = platform.libc_ver()
    return tuple(map(int, version.split(".")[:2])) if name == "glibc" else ()
