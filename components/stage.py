"""How a component starts a stage: a process with its part of the config as a file."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from recsys.system.process import run_stage, stage_environment


def run_with_config(
    module: str, config: str, arguments: Sequence[str], backend: Literal["jax", "tensorflow"]
) -> dict[str, Any]:
    """Runs `python -m module --config FILE arguments` and returns its result.

    Args:
        module: The stage.
        config: The stage's part of the config, as JSON.
        arguments: More of the command line.
        backend: What Keras runs on there.
    """
    with tempfile.TemporaryDirectory(prefix="recsys-stage-") as folder:
        file = Path(folder) / "config.json"
        file.write_text(config)
        return run_stage(module, ["--config", str(file), *arguments], stage_environment(backend))
