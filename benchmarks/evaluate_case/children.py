"""Starts processes: peers in environments of their own, and ours on several devices."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.evaluate_case.case import Case

_ROOT = Path(__file__).resolve().parents[2]
_TIMEOUT_S = 3600


def tfrs_seconds(case: Case, batch: int) -> float:
    """Returns the time that TFRS takes for the case [s].

    Args:
        case: What to measure.
        batch: Candidates of a batch; 0: all of them at once (`BruteForce`).

    Raises:
        subprocess.CalledProcessError: The process failed; what it said is in `stderr`.
    """
    script = _ROOT / "benchmarks" / "peers" / "evaluate_tfrs.py"
    # `uv run` names itself in UV; the script's own header says what it needs.
    command = [os.environ.get("UV", "uv"), "run", "--quiet", "--script", str(script)]
    environment = {"PYTHONPATH": str(_ROOT)}
    if "PIP_FIND_LINKS" in os.environ:  # uv reads no pip settings.
        environment["UV_FIND_LINKS"] = os.environ["PIP_FIND_LINKS"]
    return float(_run([*command, case.to_json(), str(batch)], environment)["seconds"])


def our_digest(case: Case, devices: int, is_native: bool) -> str:
    """Returns a hash of all that we find, on so many simulated devices.

    Args:
        case: What to evaluate.
        devices: Simulated devices.
        is_native: Whether by the C kernel, else by JAX alone.

    Raises:
        subprocess.CalledProcessError: The process failed; what it said is in `stderr`.
    """
    flags = f"--xla_force_host_platform_device_count={devices}"
    environment = {
        "JAX_PLATFORMS": "cpu",
        "RECSYS_NATIVE": "1" if is_native else "0",
        "XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} {flags}".strip(),
    }
    command = [sys.executable, "-m", "benchmarks.evaluate_case.ours", case.to_json()]
    found = _run(command, environment)
    if found["devices"] != devices:
        raise RuntimeError(f"{found['devices']} devices in place of {devices}")
    return str(found["digest"])


def _run(command: list[str], environment: dict[str, str]) -> dict[str, Any]:
    done = subprocess.run(
        command,
        cwd=_ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
        timeout=_TIMEOUT_S,
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found
