"""The evaluation as a stage: folders in, `evaluation.json` out.

`python -m recsys.evaluation.stage` runs it; the component RetrievalEvaluator starts that. The
process that starts several others, and waits for them, imports neither JAX nor Keras; a process
that evaluates runs `recsys.evaluation.evaluation_file`.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from recsys.config import EvaluateStage
from recsys.config.load import load_stage
from recsys.config.removed import check_command_line
from recsys.distributed.local import launch, run_placed
from recsys.distributed.place import Place, add_process_options, place_of
from recsys.system.process import stage_main

_MODULE = "recsys.evaluation.stage"


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m recsys.evaluation.stage",
        description="Measures a model on the held-out events, and decides on it.",
    )
    parser.add_argument("--config", type=Path, required=True, help="whole config, or its parts")
    parser.add_argument("--model", type=Path, required=True, help="model folder or bundle")
    parser.add_argument("--data", type=Path, required=True, help="data folder")
    parser.add_argument("--out", type=Path, required=True, help="folder of evaluation.json")
    parser.add_argument("--blessed", type=Path, help="model folder or bundle to compare with")
    add_process_options(parser)
    check_command_line(["evaluate", *(sys.argv[1:] if arguments is None else arguments)])
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Runs the stage from the command line."""
    options = _parse(arguments)
    os.environ.setdefault("KERAS_BACKEND", "jax")  # For plugins, which may import Keras.
    stage = load_stage(options.config, EvaluateStage)
    if Place.of_environment() is None:
        place = place_of(options)
        if place is not None or options.processes > 1:
            return _in_processes(options, place)
    from recsys.evaluation.evaluation_file import run

    return run(stage, options.model, options.data, options.out, options.blessed)


def _in_processes(options: argparse.Namespace, place: Place | None) -> dict[str, Any]:
    """Runs the stage in several processes of this machine, or in one of several that meet."""
    names = ("config", "model", "data", "out", "blessed")
    folders = {name: getattr(options, name) for name in names}
    words = [f"--{name}={path}" for name, path in folders.items() if path is not None]
    if place is None:
        return launch(_MODULE, words, options.processes)
    return run_placed(_MODULE, words, place)


if __name__ == "__main__":
    stage_main(main)
