"""C kernels of row operations, losses and ranking.

The build of the package compiles them, once for each kind of processor, if it has a C compiler;
see `setup.py`. `status` tells whether they are available; `rank_jobs`,
`recsys.embedding.rows` and `recsys.losses.softmax_jax` call them. They are optional: without
them the callers compute the same on JAX, slower. The environment variable `RECSYS_NATIVE=0`
switches them off; `RECSYS_NATIVE=1` makes their absence an error.

Importing this module loads no library and doesn't import JAX.
"""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import os
import platform
import threading
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

from recsys.errors import RecsysError, UsageError

__all__ = ["KernelStatus", "available", "library", "status", "warning"]

_SWITCH = "RECSYS_NATIVE"
HANDLERS = ("pool", "weight_grad", "update", "sum_squares", "candidate_loss")
"""Kernels that XLA calls: `RECSYS_HANDLER` in the sources."""
SELF_CHECKS = ("rows", "update", "softmax", "rank", "rank_top")
"""Sources that check themselves: `RECSYS_SELF_CHECK`."""
# abm includes lzcnt, which older processors execute as bsr without a fault.
_AVX2 = {"abm", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe"}
_AVX512 = {*_AVX2, "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}
VARIANTS = {
    "avx512vnni": {*_AVX512, "avx512_vnni"},
    "avx512": _AVX512,
    "avxvnni": {*_AVX2, "avx_vnni"},
    "avx2": _AVX2,
    "generic": set[str](),  # Also for other machines.
}
"""Libraries of the build, fastest first, and the processor features that each needs, by their
names in `/proc/cpuinfo`."""
_lock = threading.Lock()


@dataclasses.dataclass(frozen=True)
class KernelStatus:
    """Whether the C kernels can be used in this process.

    Attributes:
        available: Whether they are loaded, checked and registered with JAX.
        reason: Reason if they aren't, else empty.
        path: Path of the loaded shared library, if any.
    """

    available: bool
    reason: str = ""
    path: Path | None = None


def available() -> bool:
    """Returns whether JAX computes on the CPU and the C kernels are available.

    Raises:
        RecsysError: As `status`.
    """
    import jax

    return jax.default_backend() == "cpu" and status().available


def status() -> KernelStatus:
    """Returns whether the C kernels are available; the first call loads them.

    Raises:
        UsageError: `RECSYS_NATIVE` is not 0, 1 or empty (R341).
        RecsysError: `RECSYS_NATIVE=1`, and they aren't available (R340).
    """
    switch = os.environ.get(_SWITCH, "")
    if switch not in ("", "0", "1"):
        raise UsageError(
            "R341", f"{_SWITCH} must be 0 (off), 1 (required) or empty.", "Set or unset it.", switch
        )
    if switch == "0":
        return KernelStatus(False, f"{_SWITCH}=0")
    with _lock:
        state = _load_once()
    if switch == "1" and not state.available:
        raise RecsysError(
            "R340",
            f"{_SWITCH}=1 requires the C kernels, which aren't available: {state.reason}.",
            f"Reinstall recsys on a machine with a C compiler, or unset {_SWITCH}.",
        )
    return state


def warning() -> str | None:
    """Returns a warning if JAX computes on the CPU without kernels and `RECSYS_NATIVE` isn't 0.

    Raises:
        RecsysError: As `status`.
    """
    import jax

    if jax.default_backend() != "cpu" or os.environ.get(_SWITCH) == "0" or status().available:
        return None
    return (
        "Training is several times slower than it could be, as the C kernels aren't available:"
        f" {status().reason}. `recsys doctor` says what to install."
    )


def library() -> ctypes.CDLL:
    """Returns the library, for callers other than XLA.

    Raises:
        RecsysError: It isn't available (R343).
    """
    state = status()
    if not state.available:
        raise RecsysError(
            "R343",
            f"The C kernels aren't available: {state.reason}.",
            "Check recsys.kernels.status() first.",
        )
    return ctypes.CDLL(str(state.path))


def built() -> dict[str, Path]:
    """Returns the libraries that this processor can run, by variant, fastest first."""
    features, folder = _processor_features(), Path(__file__).parent
    variants = (variant for variant, needed in VARIANTS.items() if needed <= features)
    paths = {name: folder / f"_{name}{EXTENSION_SUFFIXES[0]}" for name in variants}
    return {variant: path for variant, path in paths.items() if path.exists()}


@functools.cache
def _load_once() -> KernelStatus:
    reasons = []
    for variant, path in built().items():
        try:
            _load(path, variant)
        except (OSError, AttributeError, ImportError) as error:
            reasons.append(str(error))
        else:
            return KernelStatus(True, "", path)
    absent = f"the package was built without a C compiler, or not for this {platform.machine()}"
    return KernelStatus(False, "; ".join(reasons) or absent)


def _load(path: Path, variant: str) -> None:
    """Loads a library, runs its self-checks, and registers its kernels with JAX.

    Raises:
        OSError: It can't be loaded, or a self-check fails.
        AttributeError: A function is missing, or compiled for another kind of processor.
    """
    loaded = ctypes.CDLL(str(path))
    for name in SELF_CHECKS:
        if getattr(loaded, f"recsys_{name}_self_check_{variant}")() != 0:
            raise OSError(f"{path} fails the self-check of {name}")
    functions = {target: getattr(loaded, target) for target in map("recsys_{}".format, HANDLERS)}

    import jax.ffi

    for target, function in functions.items():
        jax.ffi.register_ffi_target(target, jax.ffi.pycapsule(function), platform="cpu")


def _processor_features() -> set[str]:
    """Returns the processor's features on Linux; empty elsewhere."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return set()
    flags = next((line for line in lines if line.startswith("flags")), "")
    return set(flags.partition(":")[2].split())
