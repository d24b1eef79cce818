"""Runs the retrieval pipeline on this machine.

    python -m pipelines.local_runner [CONFIG] [--set path=value …]

Without CONFIG it takes the one that `RECSYS_CONFIG` names, or that of the shipped
data. TFX's own command line takes this file as well:

    tfx pipeline create --engine local --pipeline_path pipelines/local_runner.py
    tfx run create --engine local --pipeline_name movielens-small
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

if __package__ in (None, ""):
    # Run as a file: the folder of this file is no place to import from.
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from recsys import events
from recsys.config_file import default_config_path, load_config
from recsys.data.source_check import check_sources
from recsys.errors import RecsysError

CONFIG_VARIABLE = "RECSYS_CONFIG"


def main() -> int:
    """Runs the pipeline that the command line names; returns the exit code."""
    arguments = _parse(sys.argv[1:])
    path = arguments.config or os.environ.get(CONFIG_VARIABLE) or default_config_path()
    try:
        _run(Path(path), arguments.overrides)
    except RecsysError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


def _parse(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m pipelines.local_runner")
    parser.add_argument("config", nargs="?", help="config file (YAML)")
    parser.add_argument(
        "--set", dest="overrides", metavar="path=value", action="append", default=[]
    )
    return parser.parse_args(words)


def _run(path: Path, overrides: list[str]) -> None:
    runner = None
    try:
        config = load_config(path, overrides)
        check_sources(config.data)
        # Late: what is wrong is told before the seconds that TFX takes to import.
        from pipelines.retrieval import create_pipeline
        from pipelines.runner import Runner

        root = Path(config.root)
        runner = Runner(root, root / "serving" / config.name)
        summary = runner.run(create_pipeline(config))
    except RecsysError as error:
        events.emit("error", error=error.to_json(), step=runner and runner.step)
        raise
    if summary is not None:  # `tfx pipeline create` only looks at the pipeline.
        events.emit("finished", summary=summary)


if __name__ == "__main__":
    sys.exit(main())
