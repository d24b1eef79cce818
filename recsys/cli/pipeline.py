"""The commands that need the pipeline: which module runs each of them, and where it is found.

What runs a pipeline names its modules as entry points of the group `recsys.pipelines`:

    [project.entry-points."recsys.pipelines"]
    run = "pipelines.local_runner:main"
"""

from __future__ import annotations

import importlib.util
import tomllib
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from recsys.cli.stages import run_process
from recsys.config import Config
from recsys.distribution import install_extra
from recsys.errors import UsageError

GROUP = "recsys.pipelines"
_CHECKOUT = Path(__file__).resolve().parents[2]


def require_pipeline() -> None:
    """Raises UsageError, which says how to install it, if TFX is not installed."""
    if importlib.util.find_spec("tfx") is None:
        raise UsageError(
            "R901",
            "`recsys run` needs the extra `pipeline`.",
            install_extra("pipeline"),
        )


def pipeline_module(command: str) -> str:
    """Returns the module that runs a command of the pipeline.

    Args:
        command: `run`, `clean`, `freeze-schema` or `lineage`.

    Raises:
        UsageError: Nothing that is installed runs it.
    """
    entries = _checkout_entries() or {
        entry.name: entry.value for entry in metadata.entry_points(group=GROUP)
    }
    if command not in entries:
        raise UsageError(
            "R901",
            f"`recsys {command}` needs the entry point {command!r} of the group {GROUP!r}.",
            install_extra("pipeline"),
            sorted(entries),
        )
    return entries[command].partition(":")[0]


def call_pipeline(command: str, words: Sequence[str], config: Config | None = None) -> Any:
    """Runs a command of the pipeline in a process of its own and returns its result.

    Args:
        command: As for `pipeline_module`.
        words: Command line of the module.
        config: Handed on as a file, `--config FILE`; None: the words name one, or none.

    Raises:
        RecsysError: TFX or the module is missing, or the process failed.
    """
    require_pipeline()
    return run_process(pipeline_module(command), "jax", config, words)


def _checkout_entries() -> dict[str, str]:
    """Returns the entry points of the checkout that holds this file, if it lies in one.

    What is installed may be older than the checkout, or nothing may be installed at all.
    """
    file = _CHECKOUT / "pyproject.toml"
    if not file.is_file():
        return {}
    entry_points = tomllib.loads(file.read_text(encoding="utf-8"))["project"]["entry-points"]
    return dict(entry_points[GROUP])
