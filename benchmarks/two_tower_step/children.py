"""Starts a process for a case: ours in this environment, a peer's in its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from benchmarks.two_tower_step.case import Case, Measured
from recsys.process import stage_environment

PEERS = ("torchrec", "torch", "tfrs", "keras", "keras_rs")
OURS = "ours"
_ROOT = Path(__file__).resolve().parents[2]
_TIMEOUT_S = 3600

# What our launcher gives to training, which everyone gets here.
_TUNED = {k: v for k, v in stage_environment("jax").items() if k.startswith("MALLOC_")}
ALLOCATORS = {
    "tuned": _TUNED,
    "huge": {**_TUNED, "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"},
    "system": {},
}
"""Settings of glibc's malloc by name; `huge` asks for huge pages as well."""


def measure(who: str, case: Case, allocator: str) -> Measured:
    """Runs `case` to its end in a process of its own.

    Args:
        who: `ours`, or one of `PEERS`.
        case: What to measure.
        allocator: A key of `ALLOCATORS`.

    Raises:
        subprocess.CalledProcessError: The process failed; what it said is in `stderr`.
    """
    done = subprocess.run(
        [*_command(who), case.to_json()],
        env={**os.environ, **_environment(case), **ALLOCATORS[allocator]},
        capture_output=True,
        text=True,
        check=True,
        timeout=_TIMEOUT_S,
    )
    return Measured.from_stdout(done.stdout)


def _command(who: str) -> list[str]:
    if who == OURS:
        return [sys.executable, "-m", "benchmarks.two_tower_step.ours"]
    script = _ROOT / "benchmarks" / "peers" / f"two_tower_{who}.py"
    # `uv run` names itself in UV; the script's own header says what it needs.
    return [os.environ.get("UV", "uv"), "run", "--quiet", "--script", str(script)]


def _environment(case: Case) -> dict[str, str]:
    devices = f"--xla_force_host_platform_device_count={case.devices}"
    environment = {
        "KERAS_BACKEND": "jax",
        "PYTHONPATH": str(_ROOT),
        "XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} {devices}".strip(),
    }
    if "PIP_FIND_LINKS" in os.environ:  # uv reads no pip settings.
        environment.setdefault("UV_FIND_LINKS", os.environ["PIP_FIND_LINKS"])
    return environment
