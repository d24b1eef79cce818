"""`recsys run`: starts the pipeline, follows it, ends it."""

from __future__ import annotations

import datetime as dt
import errno
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
from typing import Any, NoReturn

from recsys.cli.failure import print_error
from recsys.cli.run_result import show_result
from recsys.cli.run_view import RunView
from recsys.cli.terminal import Console
from recsys.config import Config
from recsys.config_file import default_config_path, load_config
from recsys.distribution import install_extra
from recsys.errors import BusyError, RecsysError, UsageError
from recsys.runs.lock import refuse_if_held
from recsys.runs.past_summaries import read_night
from recsys.runs.summary import night_summary
from recsys.system import events
from recsys.system.disk_space import free_bytes
from recsys.system.files import scratch_folder
from recsys.system.parent import as_parent, child_command
from recsys.system.process import storage_error
from recsys.system.signals import StoppedError, signals_raised
from recsys.visible import visible

RUNNER = "pipelines.local_runner"
_POLL_S = 0.1
_GRACE_S = 30.0  # A training saves where it is.
_ROOM_FOR_WORDS = 1 << 20
"""Bytes; where fewer are free a child may not have been able to say what went wrong."""
_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_RESULT_KEYS = ("blessed", "bundle", "report", "index", "metrics")


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
    refuse_if_held(Path(config.root))
    log = new_log(Path(config.root))
    words = [RUNNER, str(path), *(word for one in overrides for word in ("--set", one))]
    console = Console(stderr=True)
    view = RunView(console)
    try:
        summary = follow(words, log, console, view)
    except RecsysError as error:
        if as_json and not isinstance(error, BusyError):
            seconds = round(time.monotonic() - started, 1)
            print(json.dumps(_failed(config, error, seconds, view.run_id)))
        raise
    seconds = round(time.monotonic() - started, 1)
    show_result(_console(stderr=as_json), summary, seconds, log)
    if as_json:
        result = {key: summary.get(key) for key in _RESULT_KEYS}
        print(json.dumps({**result, "seconds": seconds, "night": summary.get("night")}))


def _failed(
    config: Config, error: RecsysError, seconds: float, run_id: str | None
) -> dict[str, Any]:
    """Returns what `--json` tells of a run that failed: no figures, and its summary.

    Args:
        config: The config of the run.
        error: Why it failed.
        seconds: How long it took [s].
        run_id: Id of the run; None where it failed before it had one. No clock is asked:
            one that was set back makes earlier runs look like later ones.
    """
    root = Path(config.root)
    known_error = {"name": config.name, "state": "failed", "error": str(error)}
    night = run_id and read_night(root, run_id)
    keys: dict[str, Any] = dict.fromkeys(_RESULT_KEYS)
    return {**keys, "seconds": seconds, "night": night or night_summary(None, known_error, root)}


def require_pipeline() -> None:
    """Raises the sentence that helps if TFX is not installed."""
    if importlib.util.find_spec("tfx") is None:
        raise UsageError(
            "R901",
            "`recsys run` needs the extra `pipeline`.",
            install_extra("pipeline"),
        )


def new_log(root: Path) -> Path:
    """Makes the log file of a run under `root` and returns its path."""
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
            f"The folder {str(root)!r} must be writable, for everything that a run writes.",
            "Mend its rights, or choose another folder with --set root=DIR.",
            error.strerror,
        ) from None
    return path


def follow(
    words: Sequence[str], log: Path, console: Console, view: RunView | None = None
) -> dict[str, Any]:
    """Runs `python -m words` and shows its events until it ends.

    SIGINT, SIGTERM and SIGHUP end the child with all its processes and then this
    program, with 128 + the signal's number.

    Args:
        words: Module and arguments of the child.
        log: File for its stdout and stderr.
        console: Where the progress goes.
        view: Shows the events there, and keeps what they brought; None: one of its own.

    Returns:
        The summary that the child gave with its `finished` event.

    Raises:
        RecsysError: The child failed.
    """
    view = view or RunView(console)
    try:
        with (
            scratch_folder() as folder,
            signals_raised(_STOP_SIGNALS),
            _child(words, log, folder / "events.jsonl") as (child, reader),
            view,
        ):
            _watch(child, reader, view)
    except StoppedError as stopped:
        _leave(stopped, log)
    except OSError as error:
        raise storage_error(error, log.parent) from None
    if child.returncode == 0 and view.summary is not None:
        return view.summary
    print(f"Log: {visible(str(log))}", file=sys.stderr)
    raise (
        view.error
        or _no_room(log)
        or RecsysError(
            "R903",
            "The process of the pipeline must end with a result.",
            f"Read the end of {log}; out of memory ends a process with -9.",
            f"exit code {child.returncode}",
        )
    )


def _no_room(log: Path) -> RecsysError | None:
    """Returns what is wrong where a child couldn't even say so: there is no room for a word."""
    for place in (log.parent, Path(tempfile.gettempdir())):
        free = free_bytes(place)
        if free is not None and free < _ROOM_FOR_WORDS:
            return storage_error(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(place)))
    return None


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
    """Starts the child in a session of its own; at the end no process of it is left.

    Nor is any where this process is killed: the child ends with it.
    """
    environment = {
        **os.environ,
        **as_parent(),
        events.ENVIRONMENT_VARIABLE: str(event_file),
        "PYTHONUNBUFFERED": "1",
        # A module in the current folder must not stand in for one of ours.
        "PYTHONSAFEPATH": "1",
        "PYTHONPATH": os.pathsep.join(_import_roots()),
    }
    with log.open("ab") as output:
        child = subprocess.Popen(
            child_command(words[0], words[1:]),
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


def _leave(stopped: StoppedError, log: Path) -> NoReturn:
    print_error(f"Stopped by {stopped.name}; every process of the run is ended.")
    print(f"Log: {visible(str(log))}", file=sys.stderr)
    sys.exit(stopped.exit_code)


def _console(*, stderr: bool) -> Console:
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() or "COLUMNS" in os.environ else 100
    return Console(stderr=stderr, width=width)
