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

`--ids N` draws from N users and N items, to see what memory they take.

All stores must be the same, digest by digest. Peers run under `uv run --script`, which
builds their environments at the first run.
"""

from __future__ import annotations

import itertools
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from benchmarks.measure import Watched, call, log, peer, print_line, ratios, run, watch
from benchmarks.peers.ingest_digest import digest

Format = StrEnum("Format", ["csv", "parquet"])
Peer = StrEnum("Peer", ["polars", "duckdb", "all"])
OURS = "ours"
_ROWS = [5_000_000]
_FORMATS = [*Format]
_NO_PEERS: list[Peer] = []


def main(
    rows: list[int] = _ROWS,
    format: list[Format] = _FORMATS,
    peers: list[Peer] = _NO_PEERS,
    rounds: int = 3,
    ids: int = 0,
) -> None:
    """Runs all cases in turns and prints their lines."""
    everyone = [OURS, *([*Peer][:-1] if "all" in peers else peers)]
    runs: dict[tuple[str, str, int], list[Watched]] = defaultdict(list)
    with tempfile.TemporaryDirectory(prefix="recsys-ingest-") as name:
        folder = Path(name)
        files = {case: folder / "{1}.{0}".format(*case) for case in itertools.product(format, rows)}
        for (kind, n), file in files.items():
            write_events(file, n, kind, ids)
        for _, (kind, n) in itertools.product(range(rounds), files):
            for who, watched in _round(files[kind, n], everyone).items():
                runs[who, kind, n].append(watched)
                log(f"{who} {kind} {n}: {watched.result['seconds']:.1f} s")
    for (who, of_kind, n), of_case in runs.items():
        case, peak = f"{of_kind} rows={n}", max(watched.peak_rss_mib for watched in of_case)
        seconds = [watched.result["seconds"] for watched in of_case]
        print_line("ingest", f"{who} {case}", [n / s for s in seconds], "rows/s", peak)
        for phase in of_case[0].result.get("phases", {}):
            of_phase = [watched.result["phases"][phase] for watched in of_case]
            print_line("ingest", f"{who} {phase} {case}", of_phase, "s", peak)
        if who != OURS:
            ours = [watched.result["seconds"] for watched in runs[OURS, of_kind, n]]
            print_line("ingest", f"{OURS}/{who} {case}", ratios(seconds, ours), "ratio", peak)
    most, least = max(rows), min(rows)
    for kind in format if most > least else ():
        ends = [runs[OURS, kind, n] for n in (most, least)]
        rates = [[w.result["read"] / w.result["seconds"] for w in of_case] for of_case in ends]
        peak = max(watched.peak_rss_mib for watched in ends[0])
        print_line("ingest", f"{OURS} {kind} rows={most}/{least}", ratios(*rates), "ratio", peak)


def _round(file: Path, everyone: list[str]) -> dict[str, Watched]:
    """Runs everyone on one file, and compares what they made."""
    watched = {}
    for who in everyone:
        with tempfile.TemporaryDirectory(dir=file.parent) as name:
            arguments = {"file": str(file), "out": f"{name}/out"}
            if who == OURS:
                watched[who] = call(ours, None, True, **arguments, beam=[])
                # Here, since reading the whole store takes more memory than making it.
                watched[who].result["digest"] = digest(Path(name) / "out" / "store")
            else:
                watched[who] = watch(peer(f"ingest_{who}", **arguments))
    digests = {who: w.result["digest"] for who, w in watched.items()}
    if len(set(digests.values())) > 1:
        raise SystemExit(f"{file.name}: the stores differ: {digests}")
    return watched


def ours(file: str, out: str, beam: list[str]) -> dict[str, Any]:
    """Runs the three phases, as `recsys.ingest` does.

    Returns:
        Seconds of each phase and of all, and counts of rows.
    """
    from apache_beam import Pipeline
    from apache_beam.options.pipeline_options import PipelineOptions

    from recsys.config import InteractionColumns, InteractionsConfig, VocabulariesConfig
    from recsys.data.ingest.ingestion import InteractionSource, ingest_interactions
    from recsys.data.ingest.store_writer import build_store, make_vocabularies
    from recsys.data.ingest.tasks import with_local_runner
    from recsys.data.store import InteractionStore

    columns = InteractionColumns(user="user", item="item", timestamp="timestamp")
    config = InteractionsConfig(files=file, columns=columns)
    source = InteractionSource(interactions=config, eval_share=0.1)
    folder = Path(out)
    folder.mkdir(parents=True)
    examples, vocabulary, store = (folder / name for name in ("examples", "vocabulary", "store"))
    clock = [time.perf_counter()]
    pipeline = Pipeline(options=PipelineOptions(with_local_runner(beam))) if beam else None
    summary = ingest_interactions(
        source, examples, folder / "letters", pipeline, with_examples=False
    )
    clock.append(time.perf_counter())
    vocabulary.mkdir()
    make_vocabularies(examples, summary["cut"], {}, None, vocabulary, VocabulariesConfig())
    clock.append(time.perf_counter())
    build_store(examples, vocabulary, summary["cut"], store)
    clock.append(time.perf_counter())
    InteractionStore.open(store)
    clock.append(time.perf_counter())
    names = ("ingest", "vocabulary", "store", "open")
    return {
        "seconds": clock[-1] - clock[0],
        "phases": dict(zip(names, np.diff(clock).tolist(), strict=True)),
        **{name: summary[name] for name in ("read", "good", "rejected", "duplicates")},
    }


# --- An event log of any size, made chunk by chunk.


_FIRST_S = 1_700_000_000
_DAYS = 30
_CHUNK = 2_000_000
_SCHEMA = pa.schema([("user", pa.string()), ("item", pa.string()), ("timestamp", pa.int64())])


def write_events(file: Path, rows: int, kind: Format, ids: int = 0) -> None:
    """Writes an event log.

    There are as many users as a 50th of the rows and as many items as a 200th, or `ids` of
    both, drawn by a power law; one row of a thousand is the one before it once more.
    """
    options = pa_csv.WriteOptions(quoting_style="none")
    with (
        pq.ParquetWriter(file, _SCHEMA)
        if kind == "parquet"
        else pa_csv.CSVWriter(file, _SCHEMA, write_options=options)
    ) as writer:
        for chunk in _chunks(rows, ids):
            writer.write_table(chunk, 1 << 20)


def _chunks(rows: int, ids: int) -> Iterator[pa.Table]:
    random = np.random.default_rng(0)
    users, items = ids or max(2, rows // 50), ids or max(2, rows // 200)
    for start in range(0, rows, _CHUNK):
        n = min(_CHUNK, rows - start)
        user = _power_law(random, users, n)
        item = _power_law(random, items, n)
        time = _FIRST_S + random.integers(0, _DAYS * 86_400, n)
        again = np.flatnonzero(random.random(n - 1) < 0.001) + 1
        for column in (user, item, time):
            column[again] = column[again - 1]
        yield pa.table([texts("u", user), texts("item-", item), pa.array(time)], schema=_SCHEMA)


def _power_law(random: np.random.Generator, n_ids: int, n: int) -> np.ndarray:
    """Returns ids `[n]` whose density falls as their number to the power -0.7."""
    return (n_ids * random.random(n) ** (1 / 0.3)).astype(np.int64)


def texts(prefix: str, numbers: np.ndarray) -> pa.Array:
    """Returns numbers as texts after a prefix."""
    return pc.binary_join_element_wise(prefix, pa.array(numbers).cast(pa.string()), "")


if __name__ == "__main__":
    run(main)
