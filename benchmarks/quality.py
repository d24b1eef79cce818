"""`python -m benchmarks.quality`: the metrics of the committed config over several seeds.

Each seed is a whole `recsys run`; the data steps are cached after the first.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.measure import print_line, watch

_CONFIGS = {"movielens_small": Path(__file__).parent.parent / "configs" / "movielens_small.yaml"}


def main() -> None:
    """Runs every seed and prints a line for each metric, of the model and of popularity."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.quality", description=__doc__)
    parser.add_argument("--dataset", choices=sorted(_CONFIGS), default="movielens_small")
    parser.add_argument("--seeds", type=int, default=3, help="runs, with the seeds 0, 1, …")
    parser.add_argument("--set", action="append", default=[], help="override, as of `recsys run`")
    options = parser.parse_args()
    overrides = [word for override in options.set for word in ("--set", override)]
    with tempfile.TemporaryDirectory() as root:
        runs = []
        for seed in range(options.seeds):
            command = [sys.executable, "-m", "recsys", "run", str(_CONFIGS[options.dataset])]
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
