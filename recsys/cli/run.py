"""`recsys run`: starts the pipeline, follows it, ends it."""

from __future__ import annotations

import datetime as dt
import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from rich.console import Console

from recsys import events
from recsys.cli.failure import print_error
from recsys.cli.run_result import show_result
from recsys.cli.run_view import RunView
from recsys.config_file import default_config_path, load_config
from recsys.errors import RecsysError, UsageError

RUNNER = "pipelines.local_runner"
_POLL_S = 0.1
_GRACE_S = 30.0  # A training saves where it is.
_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_RESULT_KEYS = ("blessed", "bundle", "report", "index", "metrics")


class _StoppedError(BaseException):
    """A signal asks the run to end; no `Exception`, so that nothing swallows it."""

    def __init__(self, signum: int) -> None:
        self.signum = signum


def run(path: Path | None, overrides: Sequence[str], *, as_json: bool) -> None:
    """Runs the pipeline of a config in a child process and shows how it goes.

    Args:
        path: Config file; the one of the shipped data by default.
        overrides: `a.b=value` each.
        as_json: Print one line of JSON on stdout, and the tables on stderr.

    Raises:
        RecsysError: The run failed, with its own error where it gave one.
    """
    started = time.monotonic()
    path = path or default_config_path()
    config = load_config(path, overrides)
    require_pipeline()
    log = new_log(Path(config.root))
    words = [RUNNER, str(path), *(word for one in overrides for word in ("--set", one))]
    summary = follow(words, log, Console(stderr=True, highlight=False))
    seconds = round(time.monotonic() - started, 1)
    show_result(_console(stderr=as_json), summary, seconds, log)
    if as_json:
        result = {key: summary.get(key) for key in _RESULT_KEYS}
        print(json.dumps({**result, "seconds": seconds}))


def require_pipeline() -> None:
    """Raises the sentence that helps if TFX is not installed."""
    if importlib.util.find_spec("tfx") is None:
        raise UsageError(
            "R901",
            "`recsys run` needs the extra `pipeline`.",
            "Install it with `uv sync --all-extras`.",
        )


def new_log(root: Path) -> Path:
    """Makes the log file of a run under `root` and returns its path."""
    now = dt.datetime.now(dt.UTC)
    path = root / "logs" / f"{now:%Y-%m-%dT%H-%M-%S.%fZ}.log"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(exist_ok=False)
    except OSError as error:
        raise UsageError(
            "R902",
            f"The folder {str(root)!r} must be writable, for everything that a run writes.",
            "Mend its rights, or choose another folder with --set root=DIR.",
            error.strerror,
        ) from None
    return path


def follow(words: Sequence[str], log: Path, console: Console) -> dict[str, Any]:
    """Runs `python -m words` and shows its events until it ends.

    SIGINT, SIGTERM and SIGHUP end the child with all its processes and then this
    program, with 128 + the signal's number.

    Args:
        words: Module and arguments of the child.
        log: File for its stdout and stderr.
        console: Where the progress goes.

    Returns:
        The summary that the child gave with its `finished` event.

    Raises:
        RecsysError: The child failed.
    """
    view = RunView(console)
    try:
        with (
            tempfile.TemporaryDirectory(prefix="recsys-") as folder,
            _signals_raised(),
            _child(words, log, Path(folder) / "events.jsonl") as (child, reader),
            view,
        ):
            _watch(child, reader, view)
    except _StoppedError as stopped:
        _leave(stopped.signum, log)
    if child.returncode == 0 and view.summary is not None:
        return view.summary
    print(f"Log: {log}", file=sys.stderr)
    raise view.error or RecsysError(
        "R903",
        "The process of the pipeline must end with a result.",
        f"Read the end of {log}; out of memory ends a process with -9.",
        f"exit code {child.returncode}",
    )


def _watch(child: subprocess.Popen[bytes], reader: events.EventReader, view: RunView) -> None:
    while True:
        is_over = child.poll() is not None
        for event in reader:
            view.show(event)
        if is_over:
            return
        time.sleep(_POLL_S)


@contextmanager
def _child(
    words: Sequence[str], log: Path, event_file: Path
) -> Iterator[tuple[subprocess.Popen[bytes], events.EventReader]]:
    """Starts the child in a session of its own; at the end no process of it is left."""
    environment = {
        **os.environ,
        events.ENVIRONMENT_VARIABLE: str(event_file),
        "PYTHONUNBUFFERED": "1",
        # A module in the current folder must not stand in for one of ours.
        "PYTHONSAFEPATH": "1",
        "PYTHONPATH": os.pathsep.join(_import_roots()),
    }
    with log.open("ab") as output:
        child = subprocess.Popen(
            [sys.executable, "-m", *words],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )
    try:
        yield child, events.EventReader(event_file)
    finally:
        _end_group(child)


def _import_roots() -> list[str]:
    ours = str(Path(__file__).resolve().parents[2])
    given = os.environ.get("PYTHONPATH", "")
    return [ours, *(part for part in given.split(os.pathsep) if part)]


def _end_group(child: subprocess.Popen[bytes]) -> None:
    """Ends every process of the child's group: asks first, then kills."""
    for stop_signal in _STOP_SIGNALS:
        signal.signal(stop_signal, signal.SIG_IGN)
    for signum in (signal.SIGTERM, signal.SIGKILL):
        _signal_group(child, signum)
        deadline = time.monotonic() + _GRACE_S
        while _signal_group(child, 0) and time.monotonic() < deadline:
            time.sleep(0.02)
    child.wait()


def _signal_group(child: subprocess.Popen[bytes], signum: int) -> bool:
    """Sends a signal to the child's group; returns whether there is anyone in it."""
    child.poll()  # a dead child that nobody waited for would still count
    try:
        os.killpg(child.pid, signum)
    except (ProcessLookupError, PermissionError):
        return False
    return True


@contextmanager
def _signals_raised() -> Iterator[None]:
    """Turns the signals that end a program into `_StoppedError`."""

    def stop(signum: int, _frame: FrameType | None) -> NoReturn:
        raise _StoppedError(signum)

    before = {signum: signal.getsignal(signum) for signum in _STOP_SIGNALS}
    for signum, handler in before.items():
        if handler is not signal.SIG_IGN:  # as under nohup
            signal.signal(signum, stop)
    try:
        yield
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)


def _leave(signum: int, log: Path) -> NoReturn:
    name = signal.Signals(signum).name
    print_error(f"Stopped by {name}; every process of the run is ended.")
    print(f"Log: {log}", file=sys.stderr)
    sys.exit(128 + signum)


def _console(*, stderr: bool) -> Console:
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() or "COLUMNS" in os.environ else 100
    return Console(stderr=stderr, highlight=False, width=width)
