"""The evaluation as a stage: folders in, `evaluation.json` out.

`python -m recsys.stages.evaluate` runs it; the component RetrievalEvaluator starts that. The
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
from recsys.distributed.local import run_in_processes
from recsys.distributed.place import add_process_options
from recsys.stages import check_command_line
from recsys.system.process import stage_main


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Runs the stage from the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m recsys.stages.evaluate",
        description="Measures a model on the held-out events, and decides on it.",
    )
    parser.add_argument("--config", type=Path, required=True, help="whole config, or its parts")
    parser.add_argument("--model", type=Path, required=True, help="model folder or bundle")
    parser.add_argument("--data", type=Path, required=True, help="data folder")
    parser.add_argument("--out", type=Path, required=True, help="folder of evaluation.json")
    parser.add_argument("--blessed", type=Path, help="model folder or bundle to compare with")
    parser.add_argument(
        "--blessed-second-stage", choices=["kept", "left_out"], help="how it is served, if a pair"
    )
    add_process_options(parser)
    check_command_line(["evaluate", *(sys.argv[1:] if arguments is None else arguments)])
    options = parser.parse_args(arguments)
    os.environ.setdefault("KERAS_BACKEND", "jax")  # For plugins, which may import Keras.
    stage = load_stage(options.config, EvaluateStage)
    names = ("config", "model", "data", "out", "blessed", "blessed_second_stage")
    summary = run_in_processes("recsys.stages.evaluate", options, names)
    if summary is not None:
        return summary
    from recsys.evaluation.evaluation_file import run

    folders = options.model, options.data, options.out, options.blessed
    return run(stage, *folders, options.blessed_second_stage)


if __name__ == "__main__":
    stage_main(main)
