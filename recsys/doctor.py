"""What this machine has, what is wrong with it, and how to mend it.

A check looks at the machine itself: it imports what a run imports, in a process
of its own, and writes where a run writes.
"""

from __future__ import annotations

import dataclasses
import errno
import importlib.metadata
import json
import os
import platform
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal

from recsys import distribution
from recsys.config import Config
from recsys.config_file import default_config_path, load_config
from recsys.data.sources.files import match_files
from recsys.distribution import NAME, SYNC, install_extra
from recsys.errors import RecsysError
from recsys.formats import counted

State = Literal["ok", "warn", "fail"]

CORE = ("keras", "keras-rs", "jax", "numpy", "pyarrow", "grain", "pydantic")
PIPELINE = (
    "tfx", "tensorflow", "apache-beam", "ml-metadata", "tensorflow-data-validation", "tfx-bsl",
)  # fmt: skip

_GIB = 2**30
_MEMORY_WARN_GIB = 4.0
_DISK_WARN_GIB = 2.0
_PROBE_TIMEOUT_S = 180.0


@dataclasses.dataclass(frozen=True)
class Check:
    """What one look at the machine found.

    Attributes:
        name: What was looked at.
        state: `fail`: a run can't work; `warn`: it can, and something is amiss.
        message: What was found, as a sentence or a list of figures.
        fix: What to do about it; empty where nothing is to do.
    """

    name: str
    state: State
    message: str
    fix: str = ""


@dataclasses.dataclass(frozen=True)
class WheelSet:
    """Which releases of three TFX packages a Python gets, and what they ask for.

    Attributes:
        versions: Version by distribution.
        glibc: Lowest glibc that their wheels run on.
    """

    versions: Mapping[str, str]
    glibc: tuple[int, int]


# The same two sets stand in pyproject.toml as override-dependencies; a test
# compares them.
WIDE_SET = WheelSet(
    distribution.WIDE_SET,
    glibc=(2, 34),  # of pyfarmhash, which TFDV needs; the three themselves need 2.27
)
EXACT_SET = WheelSet(distribution.EXACT_SET, glibc=(2, 39))


def wheel_set(python: tuple[int, int]) -> WheelSet:
    """Returns the set of TFX packages that `python` gets from `uv.lock`."""
    return WIDE_SET if python < (3, 12) else EXACT_SET


def examine(config_path: Path | None = None) -> Iterator[Check]:
    """Yields what each check finds.

    Args:
        config_path: Config of the run to come; the shipped one by default.
    """
    with ThreadPoolExecutor(max_workers=2) as pool:
        # The slow ones import what a run imports; they start first.
        jax = pool.submit(check_jax)
        tfx = pool.submit(check_tfx)
        kernels = pool.submit(check_kernels)
        yield check_python(sys.version_info[:2])
        yield check_glibc(_glibc(), sys.version_info[:2])
        yield check_cores()
        yield check_memory(available_memory())
        yield check_packages("core packages", CORE, "fail", installed_versions(CORE))
        yield check_packages("extra pipeline", PIPELINE, "warn", installed_versions(PIPELINE))
        yield check_wheel_set(sys.version_info[:2], installed_versions(WIDE_SET.versions))
        yield check_keras_backend(os.environ.get("KERAS_BACKEND"))
        yield from check_config(config_path)
        yield jax.result()
        yield kernels.result()
        yield tfx.result()


def check_python(python: tuple[int, int]) -> Check:
    """Looks at the version of Python."""
    text = f"Python {python[0]}.{python[1]} at {sys.executable}"
    if (3, 11) <= python < (3, 13):
        return Check("python", "ok", text)
    return Check("python", "fail", text, "Use Python 3.11 or 3.12: uv sync --python 3.11")


def check_glibc(glibc: tuple[int, int] | None, python: tuple[int, int]) -> Check:
    """Looks at whether the wheels of this Python's set run on this glibc."""
    needed = wheel_set(python).glibc
    asked = f"the wheels for Python {python[0]}.{python[1]} need {needed[0]}.{needed[1]}"
    if glibc is None:
        return Check("glibc", "warn", f"none found; {asked}", "Use a Linux with glibc.")
    text = f"glibc {glibc[0]}.{glibc[1]}; {asked}"
    if glibc >= needed:
        return Check("glibc", "ok", text)
    if glibc >= WIDE_SET.glibc:
        return Check("glibc", "fail", text, f"Use Python 3.11: {SYNC} --python 3.11")
    return Check("glibc", "fail", text, "Use Debian 12, Ubuntu 22.04 or newer.")


def check_cores() -> Check:
    """Counts the cores that this process may use."""
    return Check("cores", "ok", str(len(os.sched_getaffinity(0))))


def check_memory(available: int) -> Check:
    """Looks at the free memory [bytes]."""
    text = f"{available / _GIB:.1f} GiB free"
    if available >= _MEMORY_WARN_GIB * _GIB:
        return Check("memory", "ok", text)
    return Check(
        "memory", "warn", text, f"The shipped run needs {_MEMORY_WARN_GIB:.0f} GiB: end something."
    )


def check_packages(
    name: str, wanted: tuple[str, ...], missing_is: State, versions: Mapping[str, str]
) -> Check:
    """Looks at whether the distributions of a group are installed."""
    missing = [package for package in wanted if package not in versions]
    if missing:
        return Check(name, missing_is, f"not installed: {', '.join(missing)}", SYNC)
    return Check(name, "ok", ", ".join(f"{package} {versions[package]}" for package in wanted))


def check_wheel_set(python: tuple[int, int], versions: Mapping[str, str]) -> Check:
    """Says which of the two sets of TFX packages this Python gets, and if it has it."""
    expected = wheel_set(python)
    why = (
        "the last releases whose wheels run on a glibc older than 2.39"
        if expected is WIDE_SET
        else "the releases that TFX 1.21 pins, which need glibc 2.39"
    )
    wrong = [
        f"{package} is {versions.get(package, 'missing')}, not {version}"
        for package, version in expected.versions.items()
        if versions.get(package) != version
    ]
    text = f"Python {python[0]}.{python[1]} gets {why}"
    if not versions:
        return Check("tfx set", "ok", f"{text}; none is installed")
    if wrong:
        return Check("tfx set", "fail", f"{text}, but {'; '.join(wrong)}", SYNC)
    return Check("tfx set", "ok", text)


def check_keras_backend(value: str | None) -> Check:
    """Looks at `KERAS_BACKEND`, which each process of a run gets from its parent."""
    if value in (None, "", "jax"):
        return Check("KERAS_BACKEND", "ok", value or "not set; each stage gets its own")
    return Check(
        "KERAS_BACKEND",
        "warn" if value in ("tensorflow", "torch", "numpy", "openvino") else "fail",
        f"{value!r}: a run sets its own, your own programs train on it",
        "unset KERAS_BACKEND",
    )


def check_config(path: Path | None) -> Iterator[Check]:
    """Looks at the config, at its data, and at the folder that a run writes."""
    try:
        config = load_config(path or default_config_path())
    except RecsysError as error:
        yield Check("config", "fail", str(error), "Correct the config.")
        return
    yield Check("config", "ok", config.name)
    yield check_data(config)
    yield check_root(Path(config.root))
    yield check_disk(Path(config.root))


def check_data(config: Config) -> Check:
    """Looks for the raw files that the config names."""
    data = config.data
    sources = {"interactions": data.interactions, "items": data.items, "users": data.users}
    found = []
    for what, source in sources.items():
        if source is None or not source.files:
            continue
        try:
            files = match_files(source, what)
        except RecsysError as error:
            return Check("data", "fail", str(error), "Mend the paths.")
        found.append(f"{what}: {counted(len(files), 'file', 'files')}")
    return Check("data", "ok", ", ".join(found))


def check_root(root: Path) -> Check:
    """Writes a file where a run would write."""
    folder = root
    try:
        folder = _nearest_existing(root)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"recsys doctor")
    except OSError as error:
        is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        fix = f"{'Free some space' if is_full else 'Mend its rights'}, or --set root=DIR."
        return Check("root", "fail", f"{folder}: {error.strerror}", fix)
    return Check("root", "ok", f"{root} is writable")


def check_disk(root: Path) -> Check:
    """Looks at the free disk under the folder that a run writes."""
    try:
        free = shutil.disk_usage(_nearest_existing(root)).free
    except OSError as error:
        return Check("disk", "warn", f"not known: {error.strerror}", "Choose another root.")
    text = f"{free / _GIB:.1f} GiB free for {root}"
    if free >= _DISK_WARN_GIB * _GIB:
        return Check("disk", "ok", text)
    return Check("disk", "warn", text, "Free some, or choose another folder: --set root=DIR.")


def check_jax() -> Check:
    """Asks JAX for its devices, as a training would."""
    program = (
        "import jax, json; d = jax.devices();"
        "print(json.dumps([jax.default_backend(), len(d), d[0].device_kind]))"
    )
    found = _probe("jax devices", "importing JAX", program, {})
    if isinstance(found, Check):
        return found
    platform_, count, kind = json.loads(found.splitlines()[-1])
    text = f"{count} {platform_} ({kind})"
    if platform_ == "cpu" and Path("/dev/nvidiactl").exists():
        fix = "Install JAX for the GPU that is here: uv pip install 'jax[cuda12]'"
        return Check("jax devices", "warn", f"{text}; there is an NVIDIA GPU", fix)
    return Check("jax devices", "ok", text)


def check_kernels() -> Check:
    """Loads the C kernels and has them checked."""
    program = (
        "import json; from recsys import kernels; s = kernels.status();"
        "print(json.dumps([s.available, s.reason, str(s.path)]))"
    )
    env = {"JAX_PLATFORMS": "cpu"}
    output = _probe("C kernels", "loading the C kernels", program, env, broken="warn")
    if isinstance(output, Check):
        return output
    available, reason, path = json.loads(output.splitlines()[-1])
    if available:
        return Check("C kernels", "ok", f"loaded {Path(path).name.split('.')[0].strip('_')}")
    fix = f"apt install gcc, then {SYNC} --reinstall-package {NAME}"
    return Check("C kernels", "warn", f"{reason}; training on CPUs is slower", fix)


def check_tfx() -> Check:
    """Imports what the pipeline imports."""
    if "tfx" not in installed_versions(("tfx",)):
        text = "TFX is not installed: `recsys run` can't work"
        return Check("tfx imports", "warn", text, install_extra("pipeline"))
    program = "import tfx.v1, tensorflow_data_validation, ml_metadata"
    found = _probe("tfx imports", "importing TFX", program, {"KERAS_BACKEND": "jax"})
    if isinstance(found, Check):
        return found
    return Check("tfx imports", "ok", "tfx, tensorflow-data-validation and ml-metadata import")


def installed_versions(packages: tuple[str, ...] | Mapping[str, str]) -> dict[str, str]:
    """Returns the version of each of `packages` that is installed."""
    versions = {}
    for package in packages:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


def available_memory() -> int:
    """Returns the memory that is free for this process [bytes], a container's limit included."""
    fields = dict(
        line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines() if line
    )
    free = int(fields["MemAvailable"].split()[0]) * 1024
    limit, used = (_read_count(Path("/sys/fs/cgroup") / f"memory.{n}") for n in ("max", "current"))
    return free if limit is None else min(free, limit - (used or 0))


def _read_count(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):  # no cgroup v2, or "max"
        return None


def _probe(
    name: str, what: str, program: str, environment: Mapping[str, str], broken: State = "fail"
) -> str | Check:
    """Runs a Python program; returns what it printed, or the check that says why it didn't.

    Args:
        name: Of the check.
        what: What the program does, for people.
        program: Its code.
        environment: More variables for it.
        broken: State of the check where the program fails.
    """
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-c", program],
            env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", **environment},
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=_PROBE_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        return Check(name, broken, *_too_slow(what))
    if done.returncode == 0:
        return done.stdout.strip()
    return Check(name, broken, *_failed(program, what, done))


def _too_slow(what: str) -> tuple[str, str]:
    """Returns what is known after a time-out, which is not that anything is broken; and a fix."""
    load, n_cores = os.getloadavg()[0], len(os.sched_getaffinity(0))
    text = (
        f"not known: {what} took more than {_PROBE_TIMEOUT_S:g} s"
        f" (load {load:.1f} on {counted(n_cores, 'core', 'cores')})"
    )
    return text, "Ask again when the machine is less busy: recsys doctor"


def _failed(program: str, what: str, done: subprocess.CompletedProcess[str]) -> tuple[str, str]:
    """Returns why a program failed, and a fix: another installation, where it can't import."""
    if done.returncode == -signal.SIGKILL:
        text = f"not known: the system killed the process that was {what}"
        return text, "It nearly always lacks memory: end other programs, and ask again."
    last = (done.stderr.strip().splitlines() or ["no message"])[-1]
    alone = f"Read all that it says: {sys.executable} -P -c {shlex.quote(program)}"
    is_import = last.startswith(("ImportError", "ModuleNotFoundError"))
    return f"exit code {done.returncode}: {last}", SYNC if is_import else alone


def _glibc() -> tuple[int, int] | None:
    name, version = platform.libc_ver()
    parts = version.split(".")
    return (int(parts[0]), int(parts[1])) if name == "glibc" and len(parts) >= 2 else None


def _nearest_existing(path: Path) -> Path:
    while not path.exists():
        path = path.parent
    return path
