"""`recsys train`, `evaluate` and `export`: single stages, without TFX.

A stage runs in a subprocess with the Keras backend that it needs, as in the pipeline.
So do the commands that need the pipeline.
"""

from __future__ import annotations

import importlib.util
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from recsys.cli.failure import log_of_failure
from recsys.cli.follow import RunView
from recsys.cli.options import (
    ConfigOption,
    Coordinator,
    Data,
    Mesh,
    NumProcesses,
    Out,
    Processes,
    ProcessId,
    Sets,
    Wait,
)
from recsys.cli.terminal import Console
from recsys.errors import UsageError
from recsys.system import events
from recsys.system.installation import install_extra
from recsys.system.process import run_stage, run_stage_with_config, stage_environment

if TYPE_CHECKING:
    from recsys.config import Config, EvaluateStage

RUNNER, COMMANDS = "pipelines.local_runner", "pipelines.commands"
"""Modules of the pipeline, which need TFX and run in processes of their own."""


def train(
    data: Data,
    out: Out,
    config: ConfigOption = None,
    sets: Sets = None,
    checkpoints: Path | None = None,
    processes: Processes = 1,
    base: Path | None = None,
    mesh: Mesh = None,
    coordinator: Coordinator = None,
    num_processes: NumProcesses = None,
    process_id: ProcessId = None,
    wait: Wait = None,
) -> None:
    """Train a model without the pipeline; print the result as JSON.

    A stopped or killed training resumes from its last checkpoint.

    Args:
        checkpoints: Folder of the checkpoints. Default: `checkpoints` next to --out.
        base: Model folder for a warm start.
    """
    from recsys.config.load import load_config
    from recsys.config.run_config import with_mesh

    words = _words(
        data=data, out=out, checkpoints=checkpoints, base=base, processes=processes,
        coordinator=coordinator, num_processes=num_processes, process_id=process_id, wait=wait,
    )  # fmt: skip
    loaded = with_mesh(load_config(config, sets or []), mesh)
    with _followed():
        print(json.dumps(run_process("recsys.stages.train", "jax", loaded, words)))


def evaluate(
    config: Config | EvaluateStage, **options: Path | int | float | str | None
) -> dict[str, Any]:
    """Evaluates a model and displays the progress.

    Args:
        config: Config of the evaluation.
        **options: Options of the stage: `data`, `model`, `out` and so on; None is omitted.
    """
    with _followed():
        return run_process("recsys.stages.evaluate", "jax", config, _words(**options))


def export(
    model: Path,
    data: Data,
    out: Out,
    config: ConfigOption = None,
    sets: Sets = None,
) -> None:
    """Export a model as a serving bundle; print the result as JSON.

    Args:
        model: Model folder written by training.
    """
    from recsys.config.load import load_config

    words, loaded = _words(model=model, data=data, out=out), load_config(config, sets or [])
    print(json.dumps(run_process("recsys.stages.export", "tensorflow", loaded, words)))


def run_process(
    module: str,
    backend: Literal["jax", "tensorflow"],
    config: Config | EvaluateStage | None,
    words: Sequence[str],
) -> dict[str, Any]:
    """Runs `python -m module [--config FILE] words` and returns its result.

    Args:
        module: A module whose `__main__` calls `recsys.system.process.stage_main`.
        backend: Keras backend of the process.
        config: Config to pass as a file, with overrides applied; None: no file.
        words: Further arguments.

    Raises:
        RecsysError: The process failed; the name of its log file is printed.
    """
    with log_of_failure(module) as log:
        if config is None:
            return run_stage(module, words, stage_environment(backend), log)
        from recsys.config import canonical_json

        return run_stage_with_config(module, canonical_json(config), words, backend, log)


def require_pipeline() -> None:
    """Raises a UsageError if TFX is not installed."""
    if importlib.util.find_spec("tfx") is None:
        rule = "`recsys run` requires the extra `pipeline`."
        raise UsageError("R901", rule, install_extra("pipeline"))


def call_pipeline(command: str, words: Sequence[str], config: Config | None = None) -> Any:
    """Runs a command of the pipeline in a subprocess and returns its result.

    Args:
        command: `clean`, `forget`, `freeze-schema` or `lineage`.
        words: Further arguments.
        config: Config to pass as a file, `--config FILE`; None: no file.

    Raises:
        RecsysError: TFX or the module is missing, or the process failed.
    """
    require_pipeline()
    return run_process(COMMANDS, "jax", config, [command, *words])


def _words(**options: Path | int | float | str | None) -> list[str]:
    """Returns options as command-line arguments, with absolute paths; None is omitted."""
    words = []
    for name, value in options.items():
        if value is not None:
            text = str(value.resolve() if isinstance(value, Path) else value)
            words += [f"--{name.replace('_', '-')}", text]
    return words


@contextmanager
def _followed() -> Iterator[None]:
    """Displays the progress of a stage on stderr, unless a parent process does."""
    console = Console(stderr=True, quiet=bool(os.environ.get(events.ENVIRONMENT_VARIABLE)))
    with RunView(console) as view, events.shown_events(view.show):
        yield
