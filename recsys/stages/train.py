"""`python -m recsys.stages.train`: from a data folder to a model folder, on every device.

With `ranker` in the config it writes the folder of a pair; with `--retriever` too it trains only
the ranker. The process that starts several others, and waits for them, imports neither JAX nor
Keras; a process that trains runs `recsys.training.stage` or `recsys.training.pair`.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recsys.config import PairStage, parse_mesh
from recsys.config.load import load_training_stage
from recsys.distributed.local import run_in_processes
from recsys.distributed.place import add_process_options
from recsys.stages import check_command_line
from recsys.system.lean_imports import lazy_contents
from recsys.system.process import stage_main
from recsys.training.run_folders import RunFolders

if TYPE_CHECKING:
    from recsys.training.stage import train as train
    from recsys.training.stage import write_model as write_model

_NAMES = {"recsys.training.stage": "train write_model"}
__all__, __getattr__, __dir__ = lazy_contents(__name__, _NAMES)


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Runs the stage from the command line."""
    parser = argparse.ArgumentParser(prog="python -m recsys.stages.train", description=__doc__)
    parser.add_argument("--config", type=Path, required=True, help="whole config, or its parts")
    parser.add_argument("--data", type=Path, required=True, help="data folder")
    parser.add_argument("--out", type=Path, required=True, help="model folder to write")
    parser.add_argument("--checkpoints", type=Path, help="folder of checkpoints, beside --out")
    parser.add_argument("--base", type=Path, help="model folder of a warm start")
    parser.add_argument("--retriever", type=Path, help="model folder of a pair's trained retriever")
    parser.add_argument("--mesh", help="devices as a grid: data=4,model=2")
    add_process_options(parser)
    check_command_line(["train", *(sys.argv[1:] if arguments is None else arguments)])
    options = parser.parse_args(arguments)
    options.checkpoints = options.checkpoints or RunFolders.root_beside(options.out)
    os.environ.setdefault("KERAS_BACKEND", "jax")  # For plugins, which may import Keras.
    stage = load_training_stage(options.config)
    if options.retriever is not None and not isinstance(stage, PairStage):
        parser.error("--retriever trains a ranker, and the config has no `ranker`")
    if options.mesh is not None:
        stage = stage.model_copy(update={"mesh": parse_mesh(options.mesh)})
    names = ("config", "data", "out", "checkpoints", "base", "retriever", "mesh")
    started = run_in_processes("recsys.stages.train", options, names, options.checkpoints)
    if started is not None:
        return started
    folders = (options.data, options.out, options.checkpoints, options.base)
    if isinstance(stage, PairStage):
        from recsys.training.pair import run as run_pair

        summary = run_pair(stage, *folders, options.retriever)
        return {"model": str(options.out), **_shown(summary), "ranker": _shown(summary["ranker"])}
    from recsys.training.stage import run

    return {"model": str(options.out), **_shown(run(stage, *folders))}


def _shown(summary: dict[str, Any]) -> dict[str, Any]:
    """Returns the content of a `training.json` without the curves."""
    return {name: value for name, value in summary.items() if name not in ("curve", "validation")}


if __name__ == "__main__":
    stage_main(main)
