"""`python -m benchmarks.ingest`: from a raw file to the interaction store.

A raw file of `user,item,timestamp` becomes an interaction store: bad rows and duplicates
out, one cut in time, ids to rows by the number of training events, events sorted by user
and time. We do it through Beam, peers each in their own way. Each run is a process of its
own, whose clock runs from the raw file to the finished store, imports left out; all cases
take turns, round after round. The lines:

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
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from benchmarks.measure import log, module, options_of, peer, print_line, ratios, run, watch

PEERS = ("polars", "duckdb", "tfx")
OURS = "ours"


def parse(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Returns the options of a command line."""
    parser = options_of("ingest", __doc__)
    add = parser.add_argument
    add("--rows", type=int, nargs="+", default=[5_000_000], metavar="R")
    add("--format", nargs="+", choices=["csv", "parquet"], default=["csv", "parquet"])
    add("--peers", nargs="+", choices=[*PEERS, "all"], default=[], metavar="PEER", help=f"{PEERS}")
    add("--rounds", type=int, default=3)
    add("--spans", type=int, metavar="N", help="a night that reads one more span of N, instead")
    beam = "arguments of Beam, ours and TFX's; none: DirectRunner in one process"
    add("--beam", nargs="*", default=[], metavar="ARG", help=beam)
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
    for kind, rows in itertools.product(options.format, options.rows):
        runs, peak = [], 0.0
        for _ in range(options.rounds):
            with tempfile.TemporaryDirectory(prefix="recsys-nights-") as out:
                words = [f"{out}/out", str(rows), str(options.spans), kind]
                watched = watch(module("benchmarks.ingest_runs", "nights", *words))
            runs.append(watched.result)
            peak = max(peak, watched.peak_rss_mib)
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
        over = [run[who]["seconds"] / run["one more"]["seconds"] for run in runs]
        print_line("ingest", f"{who}/one more, spans {label}", over, "ratio", peak)


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
            beam = options.beam if who in (OURS, "tfx") else []
            words = [str(_file(folder, kind, rows)), f"{out}/out", *beam]
            watched = watch([*_command(who), *words])
        result = watched.result
        results[who, kind, rows].append({**result, "peak": watched.peak_rss_mib})
        log(f"{turn} {who} {kind} {rows}: {result['seconds']:.1f} s")
        if result["digest"] is not None:
            digests[who] = result["digest"]
    if len(set(digests.values())) > 1:
        raise SystemExit(f"{kind} rows={rows}: the stores differ: {digests}")


def _command(who: str) -> list[str]:
    if who == OURS:
        return module("benchmarks.ingest_runs", "ours")
    return module("benchmarks.peers.ingest_tfx") if who == "tfx" else peer(f"ingest_{who}")


def _print_results(options: argparse.Namespace, results: Any) -> None:
    for (who, kind, rows), runs in results.items():
        peak = max(run["peak"] for run in runs)
        speeds = [rows / run["seconds"] for run in runs]
        print_line("ingest", f"{who} {kind} rows={rows}", speeds, "rows/s", peak)
        for phase in runs[0].get("phases", {}):
            seconds = [run["phases"][phase] for run in runs]
            print_line("ingest", f"{who} {phase} {kind} rows={rows}", seconds, "s", peak)
        if who != OURS:
            both = ([run["seconds"] for run in of] for of in (runs, results[OURS, kind, rows]))
            print_line("ingest", f"{OURS}/{who} {kind} rows={rows}", ratios(*both), "ratio", peak)
    least, most = min(options.rows), max(options.rows)
    for kind in options.format if most > least else ():
        rates = ([n / run["seconds"] for run in results[OURS, kind, n]] for n in (most, least))
        peak = max(run["peak"] for run in results[OURS, kind, most])
        print_line("ingest", f"{OURS} {kind} rows={most}/{least}", ratios(*rates), "ratio", peak)


# --- An event log of any size, made chunk by chunk.


Format = Literal["csv", "parquet"]
FIRST_S = 1_700_000_000
DAYS = 30
_CHUNK = 2_000_000


def write_events(
    file: Path,
    rows: int,
    kind: Format,
    seed: int = 0,
    first_s: int = FIRST_S,
    days: int = DAYS,
    ids_of: int | None = None,
) -> None:
    """Writes an event log.

    There are as many users as a 50th of the rows and as many items as a 200th, both
    drawn by a power law; one row of a thousand is the one before it once more.

    Args:
        file: File to write.
        rows: Events of the file.
        kind: Its format.
        seed: Seed of the events.
        first_s: First time of an event [seconds since 1970, UTC].
        days: Days that they lie in.
        ids_of: There are as many users and items as for so many rows; None: `rows`.
    """
    chunks = _chunks(rows, seed, first_s, days, ids_of or rows)
    if kind == "parquet":
        with pq.ParquetWriter(file, _SCHEMA) as writer:
            for chunk in chunks:
                writer.write_table(chunk, row_group_size=1 << 20)
        return
    with pa_csv.CSVWriter(
        file, _SCHEMA, write_options=pa_csv.WriteOptions(quoting_style="none")
    ) as writer:
        for chunk in chunks:
            writer.write_table(chunk)


_SCHEMA = pa.schema([("user", pa.string()), ("item", pa.string()), ("timestamp", pa.int64())])


def _chunks(rows: int, seed: int, first_s: int, days: int, ids_of: int) -> Iterator[pa.Table]:
    random = np.random.default_rng(seed)
    users, items = max(2, ids_of // 50), max(2, ids_of // 200)
    for start in range(0, rows, _CHUNK):
        n = min(_CHUNK, rows - start)
        user = _power_law(random, users, n)
        item = _power_law(random, items, n)
        time = first_s + random.integers(0, days * 86_400, n)
        again = np.flatnonzero(random.random(n - 1) < 0.001) + 1
        for column in (user, item, time):
            column[again] = column[again - 1]
        yield pa.table([_ids("u", user), _ids("item-", item), pa.array(time)], schema=_SCHEMA)


def _power_law(random: np.random.Generator, n_ids: int, n: int) -> np.ndarray:
    """Returns ids `[n]` whose density falls as their number to the power -0.7."""
    return (n_ids * random.random(n) ** (1 / 0.3)).astype(np.int64)


def _ids(prefix: str, numbers: np.ndarray) -> pa.Array:
    return pc.binary_join_element_wise(prefix, pa.array(numbers).cast(pa.string()), "")


if __name__ == "__main__":
    run(main)
