"""`recsys doctor`: checks whether this machine can run recsys, and how to fix problems.

A check tests the machine itself: it imports the packages of a run in a subprocess,
and writes to the output folder of a run.
"""

from __future__ import annotations

import errno
import json
import os
import platform
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

from rich.text import Text
from typer import Exit

from recsys.cli.options import ConfigArgument, Json
from recsys.cli.terminal import Console
from recsys.distribution import EXACT_SET, NAME, SYNC, WIDE_SET, install_extra
from recsys.errors import RecsysError
from recsys.formats import counted

CORE = ("keras", "keras-rs", "jax", "numpy", "pyarrow", "grain", "pydantic")
PIPELINE = (
    "tfx", "tensorflow", "apache-beam", "ml-metadata", "tensorflow-data-validation", "tfx-bsl",
)  # fmt: skip
WIDE_GLIBC, EXACT_GLIBC = (2, 34), (2, 39)
"""Lowest glibc for the wheels of each of the two sets of TFX packages; in the first set,
pyfarmhash determines it."""
_MARKS = {"ok": ("✓", "green"), "warn": ("!", "yellow"), "fail": ("✗", "red")}
_GIB = 2**30
_LEAST_MEMORY_GIB, _LEAST_DISK_GIB = 4.0, 2.0
_TIMEOUT_S = 180.0
_SLOW_SINCE, _FAST_AGAIN = (0, 10, 2), (0, 11, 1)
"""Versions of jaxlib between which the sums of jax#38806 are slow on a GPU."""
_LARGEST_SLOWDOWN = 10.0
_FAST_SUMS = (
    "Use jaxlib 0.11.1 or newer, which needs Python 3.12: uv sync --python 3.12; or try"
    " XLA_FLAGS=--xla_backend_extra_options=-nvptx-allow-ftz-atomics, and run recsys doctor again."
)


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


def doctor(config: ConfigArgument = None, as_json: Json = False) -> None:
    """Check whether this machine can run recsys, and print how to fix problems."""
    console = Console(stderr=as_json)
    checks = []
    for check in examine(config):
        checks.append(check)
        head = Text.assemble(_MARKS[check.state], f" {check.name:<15} ")
        console.write_line(head + Text(check.message), hang=len(head))
        if check.fix:
            console.write_line(f"{'':<{len(head)}}fix: {check.fix}", "bold")
    is_healthy = all(check.state != "fail" for check in checks)
    if as_json:
        print(json.dumps({"ok": is_healthy, "checks": [check._asdict() for check in checks]}))
    raise Exit(0 if is_healthy else 1)


def examine(config: Path | None = None) -> Iterator[Check]:
    """Yields the result of each check.

    Args:
        config: Config file; None: the default config.
    """
    python = sys.version_info[:2]
    with ThreadPoolExecutor(max_workers=2) as pool:
        # The slow checks import the packages of a run, so they start first.
        checks = [check_jax, *([check_gpu_sums] if _has_gpu() else []), check_kernels, check_tfx]
        slow = [pool.submit(check) for check in checks]
        yield check_python(python, _glibc())
        yield Check("cores", "ok", str(len(os.sched_getaffinity(0))))
        yield check_memory(available_memory())
        yield check_packages("core packages", CORE, "fail")
        pins = WIDE_SET if python < (3, 12) else EXACT_SET
        yield check_packages("extra pipeline", PIPELINE, "warn", pins)
        yield check_keras_backend(os.environ.get("KERAS_BACKEND"))
        yield from check_config(config)
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
    if glibc >= needed:
        return Check("python", "ok", text)
    if glibc >= WIDE_GLIBC:
        return Check("python", "fail", text, f"Use Python 3.11: {SYNC} --python 3.11")
    return Check("python", "fail", text, "Use Debian 12, Ubuntu 22.04 or newer.")


def check_memory(available: int) -> Check:
    """Checks the available memory [bytes]."""
    text = f"{available / _GIB:.1f} GiB free"
    if available >= _LEAST_MEMORY_GIB * _GIB:
        return Check("memory", "ok", text)
    fix = f"The shipped config needs {_LEAST_MEMORY_GIB:.0f} GiB: close other programs."
    return Check("memory", "warn", text, fix)


def check_packages(
    name: str, packages: tuple[str, ...], missing_is: str, pins: Mapping[str, str] | None = None
) -> Check:
    """Checks that the packages of a group are installed, in their pinned versions."""
    versions = installed_versions(packages)
    missing = [package for package in packages if package not in versions]
    wrong = [
        f"{package} is {versions[package]}, not {version}"
        for package, version in (pins or {}).items()
        if versions.get(package, version) != version
    ]
    if wrong:
        return Check(name, "fail", "; ".join(wrong), SYNC)
    if missing:
        return Check(name, missing_is, f"not installed: {', '.join(missing)}", SYNC)
    return Check(name, "ok", ", ".join(f"{package} {versions[package]}" for package in packages))


def check_keras_backend(value: str | None) -> Check:
    """Checks `KERAS_BACKEND`, which the processes of a run inherit."""
    if value in (None, "", "jax"):
        return Check("KERAS_BACKEND", "ok", value or "not set; each stage sets its own")
    text = f"{value!r}: runs ignore it, but your own programs use it"
    return Check("KERAS_BACKEND", "warn", text, "unset KERAS_BACKEND")


def check_config(path: Path | None) -> Iterator[Check]:
    """Checks the config, its data files, and the output folder of a run."""
    from recsys.config.load import default_config_path, load_config
    from recsys.data.sources.source_files import match_files

    try:
        path = path or default_config_path()
    except RecsysError:  # A machine can be checked before it has one.
        yield Check("config", "warn", "none here, none named", "recsys init, or name a config.")
        return
    try:
        config = load_config(path)
    except RecsysError as error:
        yield Check("config", "fail", str(error), "Correct the config.")
        return
    yield Check("config", "ok", config.name)
    counts = []
    sources = {"interactions": config.data.interactions, **config.data.sides}
    try:
        for what, source in sources.items():
            if source.files:
                n_files = len(match_files(source, what))
                counts.append(f"{what}: {counted(n_files, 'file', 'files')}")
        yield Check("data", "ok", ", ".join(counts))
    except RecsysError as error:
        yield Check("data", "fail", str(error), "Correct the paths.")
    try:
        yield check_root(config.root_folder)
    except RecsysError as error:
        yield Check("root", "fail", error.rule, error.cure)


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
    text = f"{root} is writable, {free / _GIB:.1f} GiB free"
    if free >= _LEAST_DISK_GIB * _GIB:
        return Check("root", "ok", text)
    return Check("root", "warn", text, "Free disk space, or use another folder: --set root=DIR.")


def check_jax() -> Check:
    """Checks the devices of JAX."""
    program = "import jax; d = jax.devices(); print(len(d), jax.default_backend(), d[0])"

    def judge(printed: str) -> Check:
        if " cpu " in printed and _has_gpu():
            fix = "Install JAX with CUDA: uv pip install 'jax[cuda12]'"
            return Check("jax devices", "warn", f"{printed}; an NVIDIA GPU is not used", fix)
        return Check("jax devices", "ok", printed)

    return _probe("jax devices", program, judge)


def check_gpu_sums() -> Check:
    """Checks that gradients of one row are summed as fast as those of many: jax#38806."""
    program = """
import jax, jaxlib
from recsys.embedding.duplicates_probe import slowdown
print(jaxlib.__version__, 0 if jax.default_backend() == "cpu" else slowdown())
"""

    def judge(printed: str) -> Check:
        version, slowdown = printed.split()[0], float(printed.split()[1])
        text = f"jaxlib {version}: equal ids take {slowdown:.1f} times as long as different ones"
        numbers = tuple(int(number) for number in re.findall(r"\d+", version)[:3])
        is_known = _SLOW_SINCE <= numbers < _FAST_AGAIN
        if not slowdown:
            text = f"jaxlib {version}: not measured, as JAX uses no GPU"
            text += "; 0.10.2 and 0.11.0 are hundreds of times slower for equal ids" * is_known
        if slowdown > _LARGEST_SLOWDOWN or (is_known and not slowdown):
            return Check("GPU sums", "warn", f"{text} (jax#38806)", _FAST_SUMS)
        return Check("GPU sums", "ok", text)

    return _probe("GPU sums", program, judge, broken="warn", KERAS_BACKEND="jax")


def check_kernels() -> Check:
    """Checks that the C kernels can be loaded."""
    program = "from recsys import kernels as k; s = k.status(); print(s.reason or s.path)"

    def judge(printed: str) -> Check:
        if printed.endswith(".so"):
            return Check("C kernels", "ok", f"loaded {Path(printed).name.split('.')[0].strip('_')}")
        fix = f"apt install gcc, then {SYNC} --reinstall-package {NAME}"
        return Check("C kernels", "warn", f"{printed}; training on CPUs is slower", fix)

    return _probe("C kernels", program, judge, broken="warn", JAX_PLATFORMS="cpu")


def check_tfx() -> Check:
    """Checks that the packages of the pipeline can be imported."""
    if not installed_versions(("tfx",)):
        text = "TFX is not installed: `recsys run` can't work"
        return Check("tfx imports", "warn", text, install_extra("pipeline"))
    program = "import tfx.v1, tensorflow_data_validation, ml_metadata"
    good = Check("tfx imports", "ok", "tfx, tensorflow-data-validation and ml-metadata import")
    return _probe("tfx imports", program, lambda _: good, KERAS_BACKEND="jax")


def installed_versions(packages: tuple[str, ...]) -> dict[str, str]:
    """Returns the versions of those `packages` that are installed."""
    versions = {}
    for package in packages:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return versions


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


def _probe(
    name: str,
    program: str,
    judge: Callable[[str], Check],
    broken: str = "fail",
    **environment: str,
) -> Check:
    """Runs a Python program and returns a check of its last line of output, or of its failure.

    Args:
        name: Name of the check.
        program: Python code.
        judge: Turns the last line of output into a check.
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
        return judge((done.stdout.strip().splitlines() or [""])[-1])
    if done.returncode == -signal.SIGKILL:
        fix = "The machine is probably out of memory: close other programs, and try again."
        return Check(name, broken, "unknown: the system killed the process", fix)
    last = (done.stderr.strip().splitlines() or ["no message"])[-1]
    is_import = last.startswith(("ImportError", "ModuleNotFoundError"))
    fix = SYNC if is_import else f"See the full output: {shlex.join(command)}"
    return Check(name, broken, f"exit code {done.returncode}: {last}", fix)


def _has_gpu() -> bool:
    return Path("/dev/nvidiactl").exists()


def _glibc() -> tuple[int, ...]:
    """Returns the version of glibc, or an empty tuple if there is none."""
    name, version = platform.libc_ver()
    return tuple(map(int, version.split(".")[:2])) if name == "glibc" else ()
