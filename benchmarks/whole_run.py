"""`python -m benchmarks.whole_run`: seconds and memory of the main job, nothing cached."""

from __future__ import annotations

import tempfile

from benchmarks.measure import module, print_line, run, watch


def main(runs: int = 3) -> None:
    """Runs the shipped config in empty folders and prints its time and peak memory."""
    ended = []
    for _ in range(runs):
        with tempfile.TemporaryDirectory() as root:
            ended.append(watch(module("recsys", "run", "--json", "--set", f"root={root}")))
    peak = max(watched.peak_rss_mib for watched in ended)
    print_line("whole_run", "first run", [watched.seconds for watched in ended], "s", peak)


if __name__ == "__main__":
    run(main)
