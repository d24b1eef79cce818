"""Builds the C kernels at first use, loads them, and registers them with JAX.

Nothing here is needed for right results: where the kernels can't be had, `status` says
why, and callers use JAX alone. The environment variable `RECSYS_NATIVE` set to 0
switches them off; set to 1 it makes their absence an error.
"""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import importlib.metadata
import os
import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from recsys.errors import RecsysError, UsageError
from recsys.native import cache
from recsys.native.compiler import FLAGS, NATIVE, CompileError, Compiler, compilers

FOLDER = Path(__file__).parent

_SWITCH = "RECSYS_NATIVE"
_PREFIX = "recsys_"
_CHECK_TIMEOUT_S = 60.0
_HANDLER = re.compile(r"^RECSYS_HANDLER\((\w+)\)", re.MULTILINE)
_SELF_CHECK = re.compile(r"^RECSYS_SELF_CHECK\((\w+)\)", re.MULTILINE)
# In a process of its own: what crashes there doesn't take ours along.
_CHECK_PROGRAM = """
import ctypes, sys
library = ctypes.CDLL(sys.argv[1])
sys.exit(sum(1 for name in sys.argv[2:] if getattr(library, name)() != 0))
"""
_lock = threading.Lock()


@dataclasses.dataclass(frozen=True)
class NativeStatus:
    """Whether the C kernels can be used in this process.

    Attributes:
        available: They are loaded, checked and registered with JAX.
        reason: Why not; empty if they are.
        compiler: The compiler and its version, if one was found.
        library: The shared library, if it was loaded.
    """

    available: bool
    reason: str = ""
    compiler: str | None = None
    library: Path | None = None


class _UnusableError(Exception):
    """A library is of no use; the text says why."""


def available() -> bool:
    """Returns whether what is traced now may call the C kernels.

    That is: the library can be used (see `status`) and JAX computes on the CPU.

    Raises:
        RecsysError: As `status`.
    """
    import jax

    return jax.default_backend() == "cpu" and status().available


def status() -> NativeStatus:
    """Returns whether there are C kernels; the first call builds or loads them.

    Raises:
        UsageError: `RECSYS_NATIVE` is neither empty nor 0 nor 1 (R341).
        RecsysError: `RECSYS_NATIVE=1`, and there are none (R340).
    """
    switch = os.environ.get(_SWITCH, "")
    if switch not in ("", "0", "1"):
        raise UsageError(
            "R341", f"{_SWITCH} must be 0 (off), 1 (required) or empty.", "Set or unset it.", switch
        )
    if switch == "0":
        return NativeStatus(False, f"{_SWITCH}=0")
    with _lock:
        found = _load_once()
    if switch == "1" and not found.available:
        raise RecsysError(
            "R340",
            f"{_SWITCH}=1 asks for the C kernels, and they can't be had: {found.reason}.",
            f"Install a C compiler (gcc, clang, or the wheel ziglang), or unset {_SWITCH}.",
        )
    return found


@functools.lru_cache(maxsize=1)
def _load_once() -> NativeStatus:
    reasons = []
    compiler = None
    try:
        for compiler in compilers():
            try:
                library = _library(compiler)
                _register(_load(library))
            except (_UnusableError, CompileError) as error:
                reasons.append(str(error))
            else:
                return NativeStatus(True, "", str(compiler), library)
    except (OSError, RuntimeError) as error:  # The cache can't be found, read or written.
        reasons.append(str(error))
    reason = "; ".join(reasons) or "no C compiler was found"
    return NativeStatus(False, reason, str(compiler) if compiler else None)


def _library(compiler: Compiler) -> Path:
    """Returns the library that `compiler` makes, from the cache or made now."""
    path = cache.cache_folder() / f"{_key(compiler)}.so"
    if not cache.is_whole(path):
        cache.store(path, functools.partial(_build, compiler))
    if not cache.is_private(path):
        raise _UnusableError(f"{path} or its folder can be written by others")
    return path


def _key(compiler: Compiler) -> str:
    circumstances = (
        *FLAGS, NATIVE, str(compiler), cache.processor(), importlib.metadata.version("jaxlib"),
    )  # fmt: skip
    return cache.cache_key(circumstances, sorted(FOLDER.glob("*.[ch]")))


def _build(compiler: Compiler, library: Path) -> None:
    import jax.ffi

    compiler.build(_sources(), jax.ffi.include_dir(), library)
    command = [sys.executable, "-I", "-c", _CHECK_PROGRAM, str(library), *_self_checks()]
    try:
        subprocess.run(
            command, check=True, capture_output=True, timeout=_CHECK_TIMEOUT_S,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        raise _UnusableError(f"what {compiler} made fails its self-check: {error}") from error


def _load(path: Path) -> ctypes.CDLL:
    library = ctypes.CDLL(str(path))
    for name in _self_checks():
        if _symbol(library, name)() != 0:
            raise _UnusableError(f"{path} fails {name}")
    return library


def _symbol(library: ctypes.CDLL, name: str) -> Any:
    try:
        return getattr(library, name)
    except AttributeError as error:
        raise _UnusableError(str(error)) from error


def _register(library: ctypes.CDLL) -> None:
    import jax.ffi

    for name in _handlers():
        target = _PREFIX + name
        capsule = jax.ffi.pycapsule(_symbol(library, target))
        jax.ffi.register_ffi_target(target, capsule, platform="cpu")


def _sources() -> list[Path]:
    return sorted(FOLDER.glob("*.c"))


def _handlers() -> list[str]:
    return [name for path in _sources() for name in _HANDLER.findall(path.read_text())]


def _self_checks() -> list[str]:
    stems = [stem for path in _sources() for stem in _SELF_CHECK.findall(path.read_text())]
    return [f"{_PREFIX}{stem}_self_check" for stem in stems]
