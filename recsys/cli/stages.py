"""`recsys train`, `evaluate` and `export`: one stage each, without TFX.

A stage runs in a process of its own, with the Keras backend that it needs, as
the pipeline's components start it. So do the commands that need the pipeline, whose modules
are entry points of the group `recsys.pipelines`:

    [project.entry-points."recsys.pipelines"]
    run = "pipelines.local_runner:main"
"""

from __future__ import annotations

import importlib.util
import os
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

from recsys.cli.follow import RunView
from recsys.cli.terminal import Console
from recsys.config import Config, canonical_json, with_mesh
from recsys.config.load import load_config
from recsys.distribution import install_extra
from recsys.errors import RecsysError, UsageError, visible
from recsys.system import events
from recsys.system.process import run_stage, run_stage_with_config, stage_environment

GROUP = "recsys.pipelines"
_CHECKOUT = Path(__file__).resolve().parents[2]


def train(
    path: Path | None,
    overrides: Sequence[str],
    data: Path,
    out: Path,
    checkpoints: Path | None,
    base: Path | None,
    mesh: str | None,
    placed: Mapping[str, object],
) -> dict[str, Any]:
    """Trains on the data folder `data`, writes the model folder `out`, and shows progress.

    The other arguments are the options of the command; the result is what it prints.
    `placed` has those that say where processes run, by name; None: not given.
    """
    config = with_mesh(load_config(path, overrides), mesh)
    words = [
        *_words(data=data, out=out, checkpoints=checkpoints, base=base),
        *_placement_words(placed),
    ]
    with _followed():
        return run_process("recsys.train", "jax", config, words)


def evaluate(
    config: Config,
    data: Path,
    model: Path,
    out: Path,
    blessed: Path | None = None,
    placed: Mapping[str, object] | None = None,
) -> dict[str, Any]:
    """Measures `model` on the data folder `data`; shows how it goes.

    Args:
        config: What is measured, and what the model must reach.
        data: Data folder of an InteractionEncoder.
        model: Model folder or bundle.
        out: Evaluation folder to write.
        blessed: Model folder or bundle to compare with.
        placed: As for `train`.
    """
    words = [
        *_words(data=data, model=model, out=out, blessed=blessed),
        *_placement_words(placed or {}),
    ]
    with _followed():
        return run_process("recsys.evaluation.stage", "jax", config, words)


def export(
    path: Path | None, overrides: Sequence[str], model: Path, data: Path, out: Path
) -> dict[str, Any]:
    """Exports the model folder `model`, with the histories of `data`, as the bundle `out`."""
    words = _words(model=model, data=data, out=out)
    return run_process("recsys.bundles.export", "tensorflow", load_config(path, overrides), words)


def run_process(
    module: str, backend: Literal["jax", "tensorflow"], config: Config | None, words: Sequence[str]
) -> dict[str, Any]:
    """Runs `python -m module [--config FILE] words` and returns its result.

    Args:
        module: A module whose `__main__` calls `recsys.system.process.stage_main`.
        backend: What Keras runs on there.
        config: Written as a file for it, overrides applied; None: it gets no such file.
        words: More of the command line.

    Raises:
        RecsysError: The process failed; its output is in a file, whose name is shown.
    """
    with tempfile.NamedTemporaryFile(prefix=f"{module}-", suffix=".log", delete=False) as log:
        try:
            if config is None:
                result = run_stage(module, words, stage_environment(backend), log.file)
            else:
                text = canonical_json(config)
                result = run_stage_with_config(module, text, words, backend, log.file)
        except RecsysError:
            print(f"Log: {visible(log.name)}", file=sys.stderr)
            raise
    Path(log.name).unlink()
    return result


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

    The entry points of a checkout that holds this file come before those of what is
    installed, which may be older.

    Args:
        command: `run`, or `commands`, whose module has the others.

    Raises:
        UsageError: Nothing that is installed runs it.
    """
    project = _CHECKOUT / "pyproject.toml"
    if project.is_file():
        entries = tomllib.loads(project.read_text("utf-8"))["project"]["entry-points"][GROUP]
    else:
        entries = {entry.name: entry.value for entry in metadata.entry_points(group=GROUP)}
    if command not in entries:
        raise UsageError(
            "R901",
            f"This command needs the entry point {command!r} of the group {GROUP!r}.",
            install_extra("pipeline"),
            sorted(entries),
        )
    return str(entries[command]).partition(":")[0]


def call_pipeline(command: str, words: Sequence[str], config: Config | None = None) -> Any:
    """Runs a command of the pipeline in a process of its own and returns its result.

    Args:
        command: `clean`, `freeze-schema` or `lineage`.
        words: The rest of the command line.
        config: Handed on as a file, `--config FILE`; None: the words name one, or none.

    Raises:
        RecsysError: TFX or the module is missing, or the process failed.
    """
    require_pipeline()
    return run_process(pipeline_module("commands"), "jax", config, [command, *words])


def _words(**folders: Path | None) -> list[str]:
    """Returns options with their folders; those of None are left out."""
    named = {f"--{name}": folder for name, folder in folders.items() if folder is not None}
    return [word for option, path in named.items() for word in (option, str(path.resolve()))]


def _placement_words(placed: Mapping[str, object]) -> list[str]:
    """Returns options with their values; those of None are left out."""
    given = {option: str(value) for option, value in placed.items() if value is not None}
    return [word for pair in given.items() for word in pair]


@contextmanager
def _followed() -> Iterator[None]:
    """Shows the stage's progress on stderr, unless a parent shows it."""
    console = Console(stderr=True, quiet=bool(os.environ.get(events.ENVIRONMENT_VARIABLE)))
    with RunView(console) as view, events.shown_events(view.show):
        yield
