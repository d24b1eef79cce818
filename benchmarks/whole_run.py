"""`python -m benchmarks.whole_run`: seconds and memory of the main job, nothing cached."""

from __future__ import annotations

import argparse
import sys
import tempfile

from benchmarks.measure import print_line, watch


def main() -> None:
    """Runs the shipped config in empty folders and prints its time and peak memory."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.whole_run", description=__doc__)
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    runs = []
    for _ in range(options.runs):
        with tempfile.TemporaryDirectory() as root:
            command = [sys.executable, "-m", "recsys", "run", "--json", "--set", f"root={root}"]
            runs.append(watch(command))
    peak = max(run.peak_rss_mib for run in runs)
    print_line("whole_run", "first run", [run.seconds for run in runs], "s", peak)


if __name__ == "__main__":
    main()
