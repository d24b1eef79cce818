"""`recsys train`, `evaluate` and `export`: one stage each, without TFX.

A stage runs in a process of its own, with the Keras backend that it needs, as
the pipeline's components start it.
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Literal

from recsys.cli.follow import RunView
from recsys.cli.terminal import Console
from recsys.config import Config, canonical_json, with_mesh
from recsys.config_file import default_config_path, load_config
from recsys.errors import RecsysError
from recsys.system import events
from recsys.system.process import run_stage, run_stage_with_config, stage_environment
from recsys.visible import visible

_POLL_S = 0.1


def train(
    path: Path | None,
    overrides: Sequence[str],
    data: Path,
    out: Path,
    checkpoints: Path | None = None,
    processes: int = 1,
    base: Path | None = None,
    mesh: str | None = None,
) -> dict[str, Any]:
    """Trains on the data folder `data` and writes the model folder `out`; shows how it goes.

    Args:
        path: Config file; the one of the shipped data by default.
        overrides: `a.b=value` each.
        data: Data folder of an InteractionEncoder.
        out: Model folder to write.
        checkpoints: Folder of the checkpoints; `checkpoints` beside `out` by default.
        processes: Processes on this machine.
        base: Model folder that it goes on from.
        mesh: The devices as a grid, as `data=4,model=2`; that of the config by default.
    """
    config = with_mesh(config_of(path, overrides), mesh)
    words = _words({"--data": data, "--out": out, "--checkpoints": checkpoints, "--base": base})
    with _followed():
        return run_process("recsys.train", "jax", config, [*words, "--processes", str(processes)])


def evaluate(
    config: Config, data: Path, model: Path, out: Path, blessed: Path | None = None
) -> dict[str, Any]:
    """Measures `model` on the data folder `data`; shows how it goes.

    Args:
        config: What is measured, and what the model must reach.
        data: Data folder of an InteractionEncoder.
        model: Model folder or bundle.
        out: Evaluation folder to write.
        blessed: Model folder or bundle to compare with.
    """
    words = _words({"--data": data, "--model": model, "--out": out, "--blessed": blessed})
    with _followed():
        return run_process("recsys.evaluate", "jax", config, words)


def export(
    path: Path | None, overrides: Sequence[str], model: Path, data: Path, out: Path
) -> dict[str, Any]:
    """Exports the model folder `model`, with the histories of `data`, as the bundle `out`."""
    words = _words({"--model": model, "--data": data, "--out": out})
    config = config_of(path, overrides)
    return run_process("recsys.bundles.export", "tensorflow", config, words)


def config_of(path: Path | None, overrides: Sequence[str]) -> Config:
    """Returns the config at `path`, that of the shipped data by default, with overrides."""
    return load_config(path or default_config_path(), overrides)


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
        RecsysError: The process failed; what it said is in a file, whose name is shown.
    """
    with stage_log(module) as log:
        if config is None:
            return run_stage(module, words, stage_environment(backend), log)
        return run_stage_with_config(module, canonical_json(config), words, backend, log)


def _words(folders: Mapping[str, Path | None]) -> list[str]:
    """Returns options with their folders; those of None are left out."""
    named = {option: folder for option, folder in folders.items() if folder is not None}
    return [word for option, path in named.items() for word in (option, str(path.resolve()))]


@contextmanager
def _followed() -> Iterator[None]:
    """Shows the stage's progress on stderr while it is open.

    Nothing is shown where somebody else already reads the events.
    """
    if os.environ.get(events.ENVIRONMENT_VARIABLE):
        yield
        return
    is_over = threading.Event()
    with (
        tempfile.TemporaryDirectory(prefix="recsys-") as folder,
        RunView(Console(stderr=True)) as view,
        ThreadPoolExecutor(1) as pool,
    ):
        file = Path(folder) / "events.jsonl"
        os.environ[events.ENVIRONMENT_VARIABLE] = str(file)
        pool.submit(_follow, events.EventReader(file), view, is_over)
        try:
            yield
        finally:
            is_over.set()
            del os.environ[events.ENVIRONMENT_VARIABLE]


def _follow(reader: events.EventReader, view: RunView, is_over: threading.Event) -> None:
    while not is_over.wait(_POLL_S):
        _show_new(reader, view)
    _show_new(reader, view)


def _show_new(reader: events.EventReader, view: RunView) -> None:
    for event in reader:
        view.show(event)


@contextmanager
def stage_log(module: str) -> Iterator[IO[bytes]]:
    """Yields a log file for a stage; it stays, and is named, if the stage fails."""
    with tempfile.NamedTemporaryFile(prefix=f"{module}-", suffix=".log", delete=False) as file:
        try:
            yield file.file
        except RecsysError:
            print(f"Log: {visible(file.name)}", file=sys.stderr)
            raise
    Path(file.name).unlink()
