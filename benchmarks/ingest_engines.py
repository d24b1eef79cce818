"""`python -m benchmarks.ingest_engines`: the same data folder on every engine.

Each engine of `--engines` ingests each case of `--cases`: files, spans, JSON Lines and Parquet
with positives alone, and files with all labels; always with items and users. The engines are
started here, by `deploy/*/local.sh` (Java, Maven), `prism` on PATH, or Dask's commands. A line of
JSON for each has the digest of the data folder, rows/s, the seconds, the peak memory of each
process with its children, and the peak RSS of the largest process of each of these [MiB]; the last
line says `equal: true`. Exits with 1 otherwise.

The digest leaves out TFT's `saved_model.pb` and `fingerprint.pb`: they differ between any two runs.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import hashlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import yaml

from benchmarks.ingest import texts
from benchmarks.measure import ROOT, call, children_of, log, memory_mib, peak_rss_mib, repeated, run

Name = StrEnum("Name", ["local", "processes", "prism", "dask", "flink", "spark"])
Case = StrEnum("Case", ["files", "spans", "jsonl", "parquet", "labels"])
_ALL_ENGINES, _ALL_CASES = [*Name], [*Case]
_UNEQUAL = ("saved_model.pb", "fingerprint.pb")
_START_S, _FIRST_DAY, _DAYS, _ROWS_OF_A_FILE = 300.0, dt.date(2024, 1, 1), 8, 1_000_000
_EXTENSIONS = {"jsonl": "jsonl", "parquet": "parquet"}


def main(
    engines: list[Name] = _ALL_ENGINES,
    cases: list[Case] = _ALL_CASES,
    rows: int = 100_000,
    folder: Path | None = None,
) -> None:
    """Runs all cases on all engines and prints their lines; `folder` keeps Maven's jars."""
    digests: dict[str, set[str]] = {case: set() for case in cases}
    with tempfile.TemporaryDirectory(prefix="recsys-engines-", dir=folder) as name:
        work = Path(name)
        configs = {case: write_case(work / case, case, rows) for case in cases}
        for engine in engines:
            log(f"start {engine}")
            with started(engine, (folder or work) / f"{engine}-cluster") as (beam, pids):
                for case, config in configs.items():
                    line = measured(config, work / f"{engine}-{case}", beam, pids)
                    digests[case].add(line["digest"])
                    line |= {"rows_per_s": round(rows / line["seconds"]), "rows": rows}
                    print(json.dumps({"engine": engine, "case": case, **line}), flush=True)
    is_equal = all(len(of_case) == 1 for of_case in digests.values())
    print(json.dumps({"equal": is_equal}), flush=True)
    raise SystemExit(not is_equal)


def measured(
    config: dict[str, Any], out: Path, beam: dict[str, Any], pids: Mapping[str, int]
) -> dict[str, Any]:
    """Ingests in a process of its own; returns digest, seconds and memory."""
    peaks, largest = dict.fromkeys(pids, 0.0), dict.fromkeys(pids, 0.0)

    def look() -> None:
        for name, pid in pids.items():
            family = pid, *children_of(pid)
            held = sum(memory_mib(f"{one}/smaps_rollup", "Pss") for one in family)
            peaks[name] = max(peaks[name], round(held, 1))
            one = max(memory_mib(f"{one}/status", "VmHWM") for one in family)
            largest[name] = max(largest[name], round(one, 1))

    arguments = {"config": {**config, "beam": beam}, "out": str(out)}
    with repeated(look, 2.0):
        watched = call(ingested, None, True, **arguments)
    memory = {"driver": round(watched.peak_rss_mib, 1), **peaks}
    largest["driver"] = watched.result.pop("peak_rss_mib")
    line = {"memory_mib": memory, "largest_mib": largest}
    return {"digest": folder_digest(out), **watched.result, **line}


def ingested(config: dict[str, Any], out: str) -> dict[str, Any]:
    """Ingests by a config."""
    from recsys import ingest
    from recsys.config import Config

    started_at = time.perf_counter()
    ingest(Config.model_validate_json(json.dumps(config)), out, progress=False)
    seconds = time.perf_counter() - started_at
    return {"seconds": round(seconds, 2), "peak_rss_mib": round(peak_rss_mib(), 1)}


def folder_digest(folder: Path) -> str:
    """Returns the sha256 in hex of the names and contents of all files that are reproducible."""
    digest = hashlib.sha256()
    for file in sorted(path for path in folder.rglob("*") if path.is_file()):
        if file.name not in _UNEQUAL:
            with file.open("rb") as opened:
                content = hashlib.file_digest(opened, "sha256").hexdigest()
            digest.update(f"{file.relative_to(folder)}\0{content}\0".encode())
    return digest.hexdigest()


# --- data


def write_case(folder: Path, case: Case, rows: int) -> dict[str, Any]:
    """Writes raw files of a case, with bad and double rows; returns its config."""
    folder.mkdir()
    random = np.random.default_rng(7)
    n_users, n_items = max(rows // 100, 20), max(rows // 200, 10)
    extension = _EXTENSIONS.get(case, "csv")
    for number in range(_DAYS):
        day = _FIRST_DAY + dt.timedelta(number)
        start = int(dt.datetime.combine(day, dt.time(), dt.UTC).timestamp())
        n_parts = -(-rows // _DAYS // _ROWS_OF_A_FILE)
        for part in range(n_parts):
            times = [start + 86_400 * at // n_parts for at in (part, part + 1)]
            drawn = events(random, rows // _DAYS // n_parts, n_users, n_items, *times)
            write(
                pa.concat_tables([drawn, drawn.slice(0, 20)]),
                folder / f"events-{day}-{part:03d}.{extension}",
            )
    ids = np.arange(n_items)
    genres = [f"g{n % 5}|g{n % 7}" for n in ids]
    write(pa.table({"item": texts("i", ids), "genres": genres}), folder / "items.csv")
    ages = [f"a{n % 9}" for n in range(n_users)]
    users = texts("u", np.arange(n_users))
    write(pa.table({"user": users, "age": ages}), folder / "users.csv")
    columns = {"user": "user", "item": "item", "timestamp": "time"}
    rules: dict[str, Any] = {"positive_at_least": 4.0}
    if case == "labels":
        rules = {"labels": {"like": {"column": "rating", "at_least": 4}}, "history_events": "all"}
    else:
        columns["rating"] = "rating"
    pattern = "events-{YYYY}-{MM}-{DD}-*" if case == "spans" else "events-*"
    files = str(folder / f"{pattern}.{extension}")
    sides = {}
    for side, one, feature in (("items", "item", "genres"), ("users", "user", "age")):
        features = [{"name": feature, "column": feature, "kind": "categories", "separator": "|"}]
        of_side = {"files": str(folder / f"{side}.csv"), "columns": {one: one}}
        sides[side] = {**of_side, "features": features}
    interactions = {"files": files, "columns": columns, **rules}
    data = {"interactions": interactions, **sides, "eval_share": 0.1}
    return {"name": "engines", "root": str(folder / "root"), "data": data}


def events(
    random: np.random.Generator, n: int, n_users: int, n_items: int, first: int, end: int
) -> pa.Table:
    """Returns events from a time to before another in order, some without a user."""
    users = texts("u", random.integers(0, n_users, n))
    return pa.table(
        {
            "user": pc.if_else(pa.array(np.arange(n) % 500 == 0), "", users),
            "item": texts("i", (random.random(n) ** 3 * n_items).astype(int)),
            "time": np.sort(random.integers(first, end, n)),
            "rating": random.integers(-1, 6, n).astype(float),
        }
    )


def write(table: pa.Table, file: Path) -> None:
    """Writes a table in the format of the file's extension."""
    if file.suffix == ".parquet":
        pq.write_table(table, file)
    elif file.suffix == ".jsonl":
        file.write_text("".join(json.dumps(row) + "\n" for row in table.to_pylist()))
    else:
        pa_csv.write_csv(table, file)


# --- engines


@contextlib.contextmanager
def started(engine: Name, folder: Path) -> Iterator[tuple[dict[str, Any], dict[str, int]]]:
    """Starts an engine on this machine; yields its config and the ids of its processes by name."""
    if engine in ("flink", "spark"):
        script, path = ROOT / "deploy" / engine / "local.sh", str(Path(sys.executable).parent)
        own = {**os.environ, "PATH": os.pathsep.join([path, os.environ["PATH"]])}
        subprocess.run([script, "start", folder], check=True, env=own, stdout=subprocess.DEVNULL)
        try:
            yield of_cluster(folder)
        finally:
            subprocess.run([script, "stop", folder], check=True, env=own)
        return
    port = _free_port()
    commands: dict[str, list[str]] = {}
    beam: dict[str, Any] = {"runner": str(engine)}
    if engine == "processes":
        options = ["--direct_num_workers=2", "--direct_running_mode=multi_processing"]
        beam = {"args": options}
    elif engine == "prism":
        commands = {"prism": ["prism", f"--job_port={port}", "--serve_http=false"]}
        beam["master"] = f"localhost:{port}"
    elif engine == "dask":
        scheduler, python = f"tcp://localhost:{port}", [sys.executable, "-m"]
        options = ["--host=localhost", f"--port={port}", "--no-dashboard"]
        commands = {"scheduler": [*python, "distributed.cli.dask_scheduler", *options]}
        for number in (1, 2):
            worker = ["distributed.cli.dask_worker", scheduler, "--nthreads=1", "--no-dashboard"]
            commands[f"worker-{number}"] = [*python, *worker, f"--local-directory={folder}"]
        beam["master"] = scheduler
    processes = {
        name: subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for name, words in commands.items()
    }
    try:
        if processes:
            _wait_for(port)
        yield beam, {name: process.pid for name, process in processes.items()}
    finally:
        for process in processes.values():
            process.terminate()
            process.wait()


def of_cluster(folder: Path) -> tuple[dict[str, Any], dict[str, int]]:
    """Returns the config and the processes of a cluster that `deploy/*/local.sh` has started."""
    lines = (folder / "pids").read_text().splitlines()
    pids = {name: int(pid) for pid, name in map(str.split, lines)}
    return yaml.safe_load((folder / "beam.yaml").read_text()), pids


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("localhost", 0))
        return int(found.getsockname()[1])


def _wait_for(port: int) -> None:
    ends = time.monotonic() + _START_S
    while True:
        with contextlib.suppress(OSError), socket.create_connection(("localhost", port), 1.0):
            return
        if time.monotonic() > ends:
            raise SystemExit(f"no engine answers on port {port}")
        time.sleep(0.2)


if __name__ == "__main__":
    run(main)
