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
from recsys.system.process import stage_main
from recsys.training import launcher
from recsys.training.cluster import Cluster, add_process_options, cluster_of
from recsys.training.hosts import run_on_hosts
from recsys.training.preflight import facts_of
from recsys.training.processes import SERVICE

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
    if not os.environ.get(SERVICE):
        cluster = cluster_of(options)
        if cluster is not None or options.processes > 1:
            return _in_processes(options, stage, cluster)
    from recsys.evaluation.evaluation_file import run

    return run(stage, options.model, options.data, options.out, options.blessed)


def _in_processes(
    options: argparse.Namespace, stage: EvaluateStage, cluster: Cluster | None
) -> dict[str, Any]:
    """Runs the stage in several processes of this machine, or in one of several that meet."""
    names = ("config", "model", "data", "out", "blessed")
    folders = {name: getattr(options, name) for name in names}
    words = [f"--{name}={path}" for name, path in folders.items() if path is not None]
    if cluster is None:
        return launcher.launch(_MODULE, words, options.processes)
    read = {
        "the data folder": options.data,
        "the model": options.model,
        "the last blessed model": options.blessed,
    }
    facts = facts_of(_MODULE, stage, read)
    return run_on_hosts(_MODULE, words, cluster, options.out, facts)


if __name__ == "__main__":
    stage_main(main)
