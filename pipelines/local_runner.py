"""Runs the retrieval pipeline on this machine.

    python -m pipelines.local_runner [CONFIG] [--set path=value …]

The default CONFIG is `RECSYS_CONFIG`, or the config of the current folder. TFX's own command line
accepts this file too:

    tfx pipeline create --engine local --pipeline_path pipelines/local_runner.py
    tfx run create --engine local --pipeline_name movielens-small
"""

from __future__ import annotations

import argparse
import os
import sys
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

if __package__ in (None, ""):
    # Run as a file: don't import from the folder of this file.
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from pipelines.metadata_store import check_metadata, with_password
from pipelines.run_record import after_run, report_killed, stopped_error
from recsys.config.load import default_config_path, load_config
from recsys.data.ingest.engines import check_engine
from recsys.data.ingest.spans import check_sources
from recsys.distributed.launchers import launching_by
from recsys.errors import BusyError, RecsysError
from recsys.storage.working_folder import written
from recsys.system import events
from recsys.system.files import scratch_folder, storage_error, temporary_files_in
from recsys.system.process import StoppedError

CONFIG_VARIABLE = "RECSYS_CONFIG"
_SIGNALLED = 128


def main() -> int:
    """Runs the pipeline of the command line; returns the exit code."""
    arguments = _parse(sys.argv[1:])
    path = arguments.config or os.environ.get(CONFIG_VARIABLE) or default_config_path()
    try:
        with scratch_folder() as folder, temporary_files_in(folder):
            _run(Path(path), arguments.overrides)
    except RecsysError as error:
        _say(str(error))
        return error.exit_code
    except OSError as error:
        _say(str(storage_error(error)))
        return 1
    except StoppedError as stopped:
        _say(f"The run was stopped by {stopped.name}.")
        return stopped.exit_code
    return 0


def _say(sentence: str) -> None:
    with suppress(OSError):  # The log may be on a full disk.
        print(sentence, file=sys.stderr)


def _parse(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m pipelines.local_runner")
    parser.add_argument("config", nargs="?", help="config file (YAML)")
    parser.add_argument(
        "--set", dest="overrides", metavar="path=value", action="append", default=[]
    )
    return parser.parse_args(words)


def _run(path: Path, overrides: list[str]) -> None:
    try:
        with ExitStack() as home:
            summary = _run_pipeline(path, overrides, home)
    except RecsysError as error:
        events.emit("error", error=error.to_json(), step=None)
        raise
    if summary is not None:
        events.emit("finished", summary=summary)


def _run_pipeline(path: Path, overrides: list[str], home: ExitStack) -> dict[str, Any] | None:
    """Runs the pipeline and returns its summary; `home` commits the root at its end."""
    config = runner = None
    try:
        config = load_config(path, overrides)
        config.launcher.check()
        check_sources(config.data)
        check_metadata(config)
        check_engine(config.beam, config.root_folder, config.data)
        # Imported late: errors are reported before the slow import of TFX.
        from pipelines.retrieval_pipeline import create_pipeline
        from pipelines.runner import Runner

        root = config.root_folder
        commit = home.enter_context(written(root))
        serving, database = root / "serving" / config.name, with_password(config)
        runner = Runner(root, serving, database, partial(report_killed, config), commit)
        with launching_by(config.launcher, root):
            summary = runner.run(create_pipeline(config))
    except (RecsysError, StoppedError) as error:
        step = runner and runner.step
        reason = stopped_error(error, step) if isinstance(error, StoppedError) else error
        events.emit("error", error=reason.to_json(), step=step)
        # If another run holds the root, don't touch it.
        if config is not None and not isinstance(error, BusyError):
            state = "failed" if reason is error else "stopped"
            after_run(config, runner and runner.run_id, reason, step, state)
        raise
    if summary is None:  # `tfx pipeline create` only reads the pipeline.
        return None
    return {**summary, "night": after_run(config, runner.run_id)}


if __name__ == "__main__":
    code = main()
    if code > _SIGNALLED:
        # Don't wait for threads of Beam.
        with suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)
    sys.exit(code)
