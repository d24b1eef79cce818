"""Starts a test's script with Keras on TensorFlow: the tests' own process has it on JAX."""

import os
import subprocess
import sys
from pathlib import Path

_ROOT = Path(__file__).resolve().parent.parent.parent


def run_on_tensorflow(script: Path, *arguments: object) -> None:
    """Runs `script` in a process of its own, which must end well."""
    finished = subprocess.run(
        [sys.executable, script, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": str(_ROOT), "KERAS_BACKEND": "tensorflow"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr[-4000:]
