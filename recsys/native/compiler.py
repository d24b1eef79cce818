"""The C compilers of this machine: which there are, and running one."""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

# Values must be those of IEEE arithmetic: NaN and infinity have to come through, so
# no -ffast-math. The last two only say that nobody reads errno or the trap flags.
FLAGS = (
    "-std=gnu11", "-O3", "-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math",
    "-fPIC", "-shared", "-pthread", "-fvisibility=hidden", "-fno-sanitize=all",
)  # fmt: skip
NATIVE = "-march=native"

_TIMEOUT_S = 120.0


class CompileError(Exception):
    """A compiler is missing, or failed; the text says how."""


@dataclasses.dataclass(frozen=True)
class Compiler:
    """A C compiler that answered.

    Attributes:
        command: Program and first arguments.
        version: First line of what it says of itself.
    """

    command: tuple[str, ...]
    version: str

    def __str__(self) -> str:
        """Returns command and version for people."""
        return f"{shlex.join(self.command)} ({self.version})"

    def build(self, sources: Sequence[Path], include: str, library: Path) -> None:
        """Compiles `sources` into the shared library `library`.

        Code for exactly this processor if the compiler can make it, else for any.

        Raises:
            CompileError: It failed, or took longer than two minutes.
        """
        arguments = [*FLAGS, "-I", include, "-o", str(library), *map(str, sources), "-lm"]
        try:
            _run([*self.command, NATIVE, *arguments])
        except CompileError:
            _run([*self.command, *arguments])


def compilers() -> Iterator[Compiler]:
    """Yields the compilers that answer, the preferred one first."""
    for command in _candidates():
        version = _version(command)
        if version:
            yield Compiler(command, version)


def _candidates() -> Iterator[tuple[str, ...]]:
    if own := shlex.split(os.environ.get("CC", "")):
        yield tuple(own)
    yield from (("cc",), ("gcc",), ("clang",))
    if importlib.util.find_spec("ziglang"):
        yield (sys.executable, "-m", "ziglang", "cc")


@functools.lru_cache
def _version(command: tuple[str, ...]) -> str:
    try:
        return _run([*command, "--version"]).partition("\n")[0].strip()
    except CompileError:
        return ""


def _run(command: Sequence[str]) -> str:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", check=False,
            timeout=_TIMEOUT_S, stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        raise CompileError(f"{command[0]}: {error}") from error
    if done.returncode:
        raise CompileError(f"{command[0]} exited with {done.returncode}: {_complaint(done.stderr)}")
    return done.stdout


def _complaint(stderr: str) -> str:
    """Returns the first line that says what is wrong."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    errors = [line for line in lines if "error" in line.lower()]
    return (errors or lines or ["it says nothing"])[0]
