"""`python -m benchmarks.whole_run`: seconds and memory of the main job, nothing cached."""

from __future__ import annotations

import tempfile

from benchmarks.measure import module, options_of, print_line, watch


def main() -> None:
    """Runs the shipped config in empty folders and prints its time and peak memory."""
    parser = options_of("whole_run", __doc__)
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    runs = []
    for _ in range(options.runs):
        with tempfile.TemporaryDirectory() as root:
            runs.append(watch(module("recsys", "run", "--json", "--set", f"root={root}")))
    peak = max(run.peak_rss_mib for run in runs)
    print_line("whole_run", "first run", [run.seconds for run in runs], "s", peak)


if __name__ == "__main__":
    main()
