"""`python -m benchmarks.quality`: what a committed config reaches, over several seeds.

`movielens_small`, which ships with the project, is a whole `recsys run` a seed; the data
steps are cached after the first. The public splits with published figures are trained
on by `recsys.train` and measured as their protocol says; docs/benchmarks.md has them
beside the published figures.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.measure import print_line, watch
from benchmarks.quality_case.data_sets import LOADERS

SHIPPED = "movielens_small"
_CONFIG = Path(__file__).parent.parent / "configs" / f"{SHIPPED}.yaml"


def main() -> None:
    """Runs every seed and prints a line for each metric."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.quality", description=__doc__)
    parser.add_argument("--dataset", choices=sorted([SHIPPED, *LOADERS]), default=SHIPPED)
    parser.add_argument("--data", type=Path, help="folder of a public split, with protocol.json")
    parser.add_argument("--part", choices=("test", "valid"), default="test", help="of the split")
    parser.add_argument("--seeds", type=int, default=3, help="runs, with the seeds 0, 1, …")
    parser.add_argument("--set", action="append", default=[], help="override, as of `recsys run`")
    options = parser.parse_args()
    if options.dataset == SHIPPED:
        _shipped(options.seeds, [word for one in options.set for word in ("--set", one)])
    elif options.data is None or options.set:
        parser.error(f"{options.dataset} needs --data, and takes no --set")
    else:
        _public(options)


def _public(options: argparse.Namespace) -> None:
    os.environ["KERAS_BACKEND"] = "jax"  # Of the processes that train and embed.
    runs = []
    for seed in range(options.seeds):
        command = [sys.executable, "-m", "benchmarks.quality_case.run"]
        command += ["--dataset", options.dataset, "--data", str(options.data)]
        runs.append(watch([*command, "--part", options.part, "--seed", str(seed)]))
    peak = max(run.peak_rss_mib for run in runs)
    results = [json.loads(run.stdout.splitlines()[-1]) for run in runs]
    for name in results[0]["metrics"]:
        values = [result["metrics"][name] for result in results]
        print_line("quality", name, values, "share", peak)
    print_line("quality", "seconds of training", [r["seconds"] for r in results], "s", peak)


def _shipped(seeds: int, overrides: list[str]) -> None:
    with tempfile.TemporaryDirectory() as root:
        runs = []
        for seed in range(seeds):
            command = [sys.executable, "-m", "recsys", "run", str(_CONFIG)]
            command += ["--json", "--set", f"root={root}", "--set", f"train.seed={seed}"]
            runs.append(watch([*command, *overrides]))
    peak = max(run.peak_rss_mib for run in runs)
    results = [json.loads(run.stdout.splitlines()[-1]) for run in runs]
    _print_metrics([result["metrics"] for result in results], peak)


def _print_metrics(metrics: list[dict[str, Any]], peak: float) -> None:
    names = [name for name in metrics[0] if name != "baselines"]
    for name in names:
        print_line("quality", name, [of_run[name] for of_run in metrics], "share", peak)
    for baseline in metrics[0]["baselines"]:
        for name in names:
            values = [of_run["baselines"][baseline][name] for of_run in metrics]
            print_line("quality", f"{baseline} {name}", values, "share", peak)


if __name__ == "__main__":
    main()
