"""`python -m benchmarks.ingest`: from a raw file to the interaction store.

The workload is that of `benchmarks.ingest_case`. Each run is a process of its own, whose
clock runs from the raw file to the finished store, imports left out; all cases take
turns, round after round. The lines:

- `ours csv rows=R`, `polars csv rows=R`, …: rows/s, with the most memory of all processes;
- `ours ingest csv rows=R`, `… vocabulary …`, `… store …`: seconds of our phases;
- `ours/polars csv rows=R`, …: our rows/s over theirs, round by round (over 1: we are faster);
- `ours csv rows=R2/R1`: rows/s at the most rows over those at the fewest (1: linear).

`--spans N` times a night that reads one more span of a window of N instead, against a run
from scratch over the same window, and against one that is given the files and knows of no
spans; their stores are held to each other, too.

Who makes the same store (`polars`, `duckdb`) is held to it, digest by digest. `tfx` is
CsvExampleGen and Transform, a round of which takes minutes. polars and DuckDB run under
`uv run --script`, which builds their environments at the first run.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.ingest_case.events import write_events
from benchmarks.measure import print_line, watch

PEERS = ("polars", "duckdb", "tfx")
OURS = "ours"
_ROOT = Path(__file__).resolve().parents[1]


def parse(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Returns the options of a command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.ingest",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--rows", type=int, nargs="+", default=[5_000_000], metavar="R")
    add("--format", nargs="+", choices=["csv", "parquet"], default=["csv", "parquet"])
    add("--peers", nargs="+", choices=[*PEERS, "all"], default=[], metavar="PEER", help=f"{PEERS}")
    add("--rounds", type=int, default=3)
    add(
        "--spans",
        type=int,
        metavar="N",
        help="a night that reads one more span of a window of N, instead",
    )
    add(
        "--beam",
        nargs="*",
        default=[],
        metavar="ARG",
        help="arguments of Beam, ours and TFX's; none: DirectRunner in one process",
    )
    options = parser.parse_args(words)
    if "all" in options.peers:
        options.peers = list(PEERS)
    return options


def main() -> None:
    """Runs all cases in turns and prints their lines."""
    options = parse()
    if options.spans is not None:
        _nights(options)
        return
    results: dict[tuple[str, str, int], list[dict[str, Any]]] = defaultdict(list)
    with tempfile.TemporaryDirectory(prefix="recsys-ingest-") as folder:
        for kind, rows in itertools.product(options.format, options.rows):
            write_events(_file(folder, kind, rows), rows, kind)
        for turn in range(options.rounds):
            for kind, rows in itertools.product(options.format, options.rows):
                _round(Path(folder), turn, kind, rows, options, results)
    _print_results(options, results)


def _nights(options: argparse.Namespace) -> None:
    """Times nights that read one more span, and prints their lines."""
    os.environ["PYTHONPATH"] = str(_ROOT)
    for kind, rows in itertools.product(options.format, options.rows):
        runs, peak = [], 0.0
        for _ in range(options.rounds):
            with tempfile.TemporaryDirectory(prefix="recsys-nights-") as out:
                words = [f"{out}/out", str(rows), str(options.spans), kind]
                run = watch([sys.executable, "-m", "benchmarks.ingest_case.nights", *words])
            runs.append(json.loads(run.stdout.splitlines()[-1]))
            peak = max(peak, run.peak_rss_mib)
        _print_nights(f"of {options.spans} {kind} rows={rows}", runs, peak)


def _print_nights(label: str, runs: list[dict[str, Any]], peak: float) -> None:
    for who in runs[0]:
        seconds = [run[who]["seconds"] for run in runs]
        print_line("ingest", f"{who}, spans {label}", seconds, "s", peak)
        speeds = [run[who]["read"] / run[who]["seconds"] for run in runs]
        print_line("ingest", f"{who}, spans {label}", speeds, "rows/s", peak)
        for phase in runs[0][who]["phases"]:
            seconds = [run[who]["phases"][phase] for run in runs]
            print_line("ingest", f"{who}: {phase}, spans {label}", seconds, "s", peak)
    for who in ("from scratch", "without spans"):
        ratios = [run[who]["seconds"] / run["one more"]["seconds"] for run in runs]
        print_line("ingest", f"{who}/one more, spans {label}", ratios, "ratio", peak)


def _file(folder: str | Path, kind: str, rows: int) -> Path:
    return Path(folder) / f"events-{rows}.{kind}"


def _round(
    folder: Path, turn: int, kind: str, rows: int, options: argparse.Namespace, results: Any
) -> None:
    """Runs everyone on one file, and compares what they made."""
    digests = {}
    for who in (OURS, *options.peers):
        if who == "tfx" and kind != "csv":
            continue
        with tempfile.TemporaryDirectory(dir=folder) as out:
            command = _command(who, options.beam)
            run = watch([*command[0], str(_file(folder, kind, rows)), f"{out}/out", *command[1]])
        result = json.loads(run.stdout.splitlines()[-1])
        results[who, kind, rows].append({**result, "peak": run.peak_rss_mib})
        print(f"{turn} {who} {kind} {rows}: {result['seconds']:.1f} s", file=sys.stderr)
        if result["digest"] is not None:
            digests[who] = result["digest"]
    if len(set(digests.values())) > 1:
        raise SystemExit(f"{kind} rows={rows}: the stores differ: {digests}")


def _command(who: str, beam_args: list[str]) -> tuple[list[str], list[str]]:
    os.environ["PYTHONPATH"] = str(_ROOT)
    if who in (OURS, "tfx"):
        return [sys.executable, "-m", f"benchmarks.ingest_case.{who}"], beam_args
    script = _ROOT / "benchmarks" / "peers" / f"ingest_{who}.py"
    # `uv run` names itself in UV; the script's own header says what it needs.
    return [os.environ.get("UV", "uv"), "run", "--quiet", "--script", str(script)], []


def _print_results(options: argparse.Namespace, results: Any) -> None:
    for (who, kind, rows), runs in results.items():
        peak = max(run["peak"] for run in runs)
        speeds = [rows / run["seconds"] for run in runs]
        print_line("ingest", f"{who} {kind} rows={rows}", speeds, "rows/s", peak)
        for phase in runs[0].get("phases", {}):
            seconds = [run["phases"][phase] for run in runs]
            print_line("ingest", f"{who} {phase} {kind} rows={rows}", seconds, "s", peak)
        if who != OURS:
            ours = results[OURS, kind, rows]
            ratios = [a["seconds"] / b["seconds"] for a, b in zip(runs, ours, strict=True)]
            print_line("ingest", f"{OURS}/{who} {kind} rows={rows}", ratios, "ratio", peak)
    least, most = min(options.rows), max(options.rows)
    for kind in options.format if most > least else ():
        pairs = zip(results[OURS, kind, most], results[OURS, kind, least], strict=True)
        ratios = [most / a["seconds"] / (least / b["seconds"]) for a, b in pairs]
        peak = max(run["peak"] for run in results[OURS, kind, most])
        print_line("ingest", f"{OURS} {kind} rows={most}/{least}", ratios, "ratio", peak)


if __name__ == "__main__":
    main()
