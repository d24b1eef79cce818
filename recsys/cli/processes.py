"""Stages and the pipeline in processes of their own, and the display of their events.

A stage needs a Keras backend of its own, and the pipeline needs TFX.
"""

from __future__ import annotations

import datetime as dt
import errno
import importlib.util
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from rich.progress import SpinnerColumn
from rich.text import Text

from recsys.cli.terminal import Console, log_of_failure, print_error, progress_bar
from recsys.errors import RecsysError, UsageError, visible
from recsys.system import events
from recsys.system.files import full_disk_error, scratch_folder, storage_error
from recsys.system.installation import install_extra
from recsys.system.parent import STOP_SIGNALS, child_group, own_folders
from recsys.system.process import (
    StoppedError,
    run_stage,
    run_stage_with_config,
    signals_raised,
    stage_environment,
)

if TYPE_CHECKING:
    from recsys.config import Config, EvaluateStage

RUNNER, COMMANDS = "pipelines.local_runner", "pipelines.commands"
"""Modules of the pipeline, which need TFX."""


_MARKS = {"ran": ("✓", "green"), "cached": ("↺", "cyan"), "failed": ("✗", "red")}
_QUIET_S = 30.0
_EVENTS = "events.jsonl"


class RunView:
    """Displays a run: one line per finished step, and a progress bar for the current one.

    Without a terminal there is no bar; a long step prints its progress every 30 s.

    Args:
        console: Console to print to.

    Attributes:
        summary: Summary of the `finished` event; None before it.
        error: First error of the run; None if there is none.
        run_id: Id of the run; None before the run has started.
    """

    def __init__(self, console: Console) -> None:
        self.summary: dict[str, Any] | None = None
        self.error: RecsysError | None = None
        self.run_id: str | None = None
        self._console = console
        self._bar = progress_bar(console, SpinnerColumn())
        self._steps: list[str] = []
        self._step = ""
        self._n_finished = 0
        self._spoke = time.monotonic()

    def __enter__(self) -> Self:
        self._bar.start()
        self._start("Starting")  # importing TFX takes seconds
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def show(self, event: dict[str, Any]) -> None:
        """Displays one event; events of unknown kinds are ignored."""
        match event["kind"]:
            case "run_started":
                self._clear_bar()
                self._steps, self.run_id = event["steps"], event.get("run")
                self._say(f"{event['name']}: {len(self._steps)} steps into {event['root']}")
            case "step_started":
                self._step = event["step"]
                self._start(self._step)
            case "progress":
                self._advance(event)
            case "note":
                self._tell(event, event["text"])
            case "step_finished":
                self._finish(event)
            case "error":
                self.error = self.error or RecsysError.from_json(event["error"])
            case "finished":
                self.summary = event["summary"]

    def _start(self, step: str) -> None:
        self._clear_bar()
        self._bar.add_task(step, total=None, text="")

    def _advance(self, event: dict[str, Any]) -> None:
        done, total, text = event.get("done"), event.get("total"), event.get("text") or ""
        step = event.get("step") or self._step or "Running"
        for task in self._bar.task_ids:
            self._bar.update(task, description=step, completed=done, total=total, text=text)
        if self._bar.disable and time.monotonic() - self._spoke > _QUIET_S:
            share = f"{done / total:.0%}  " if done is not None and total else ""
            self._tell(event, f"{share}{text}")

    def _finish(self, event: dict[str, Any]) -> None:
        self._clear_bar()
        self._n_finished += 1
        mark, colour = _MARKS[event["state"]]
        outcome, reason = event["state"], event.get("reason")
        if reason and outcome != "failed":  # The run's error says why it failed.
            outcome = reason if reason.startswith(outcome) else f"{outcome}: {reason}"
        width = max(map(len, [*self._steps, event["step"]]))
        line = Text.assemble(
            (mark, colour),
            f" {self._n_finished:>2}/{max(len(self._steps), self._n_finished)}",
            f"  {event['step']:<{width}}",
            f"  {event['seconds']:>7.1f} s",
            "  ",
        )
        self._say(outcome, head=line)

    def _tell(self, event: dict[str, Any], text: str) -> None:
        step = event.get("step", self._step)
        self._say(f"{step}: {text}" if step else text, head="  ")

    def _clear_bar(self) -> None:
        for task in self._bar.task_ids:
            self._bar.remove_task(task)

    def _say(self, line: str, head: str | Text = "") -> None:
        self._console.write_line(line, head=head)
        self._spoke = time.monotonic()


def new_log(root: Path) -> Path:
    """Creates the log file of a run under `root` and returns its path."""
    now = dt.datetime.now(dt.UTC)
    path = root / "logs" / f"{now:%Y-%m-%dT%H-%M-%S.%fZ}.log"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(exist_ok=False)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise storage_error(error) from None
        raise UsageError(
            "R902",
            f"The output folder {str(root)!r} must be writable.",
            "Change its permissions, or use another folder with --set root=DIR.",
            error.strerror,
        ) from None
    return path


def follow(words: Sequence[str], log: Path, view: RunView) -> dict[str, Any]:
    """Runs `python -m words` in a subprocess and displays its events until it exits.

    SIGINT, SIGTERM and SIGHUP terminate the child with all its subprocesses and then this
    program, with exit code 128 + the signal number.

    Args:
        words: Module and arguments of the child.
        log: File for its stdout and stderr.
        view: Displays the events.

    Returns:
        The summary of the child's `finished` event.

    Raises:
        RecsysError: The child failed.
    """
    try:
        with (
            scratch_folder() as folder,
            signals_raised(STOP_SIGNALS),
            log.open("ab") as output,
            child_group(words[0], words[1:], output, _environment(folder)) as child,
            view,
        ):

            def is_over() -> bool:
                time.sleep(events.POLL_S)
                return child.poll() is not None

            events.show_events(folder / _EVENTS, view.show, is_over)
    except StoppedError as stopped:
        print_error(f"Stopped by {stopped.name}; all processes of the run have ended.")
        print(f"Log: {visible(str(log))}", file=sys.stderr)
        sys.exit(stopped.exit_code)
    except OSError as error:
        raise storage_error(error, log.parent) from None
    if child.returncode == 0 and view.summary is not None:
        return view.summary
    print(f"Log: {visible(str(log))}", file=sys.stderr)
    raise (
        view.error
        or full_disk_error(log.parent, tempfile.gettempdir())
        or RecsysError(
            "R903",
            "The pipeline process ended without a result.",
            f"See the end of {log}; exit code -9 usually means out of memory.",
            f"exit code {child.returncode}",
        )
    )


def _environment(folder: Path) -> dict[str, str]:
    """Returns the variables of the child, which writes its events into a folder."""
    roots = [str(Path(__file__).resolve().parents[2]), *own_folders()]
    return {
        events.ENVIRONMENT_VARIABLE: str(folder / _EVENTS),
        "PYTHONUNBUFFERED": "1",
        # Modules in the current folder must not shadow modules of recsys, also in Beam's workers.
        "PYTHONSAFEPATH": "1",
        "PYTHONPATH": os.pathsep.join(roots),
    }


# --- stages, and commands of the pipeline


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


def options(**values: Path | int | float | str | None) -> list[str]:
    """Returns options as command-line arguments, with absolute paths; None is omitted."""
    words = []
    for name, value in values.items():
        if value is not None:
            text = str(value.resolve() if isinstance(value, Path) else value)
            words += [f"--{name.replace('_', '-')}", text]
    return words


@contextmanager
def followed() -> Iterator[None]:
    """Displays the progress of a stage on stderr, unless a parent process does."""
    console = Console(stderr=True, quiet=bool(os.environ.get(events.ENVIRONMENT_VARIABLE)))
    with RunView(console) as view, events.shown_events(view.show):
        yield
