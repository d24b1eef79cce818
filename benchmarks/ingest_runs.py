"""Our ingestion by itself, as a process of `benchmarks.ingest` or of a test.

`python -m benchmarks.ingest_runs ours FILE OUT [BEAM ARGS]` times the phases of a file.

`python -m benchmarks.ingest_runs nights OUT ROWS SPANS KIND` times one more span of a
window: a night has read the spans 1 … N. Then span N + 1 comes, the window moves by one,
and the next night is timed; so are, over the same window, a run from an empty root, and
one that is given the same files and knows of no spans. Their stores must be equal.

Each prints one line of JSON: seconds of each phase and of all, and the store's digest.
"""

from __future__ import annotations

import datetime as dt
import itertools
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions

from benchmarks.ingest import Format, write_events
from benchmarks.measure import run
from benchmarks.peers.ingest_digest import digest
from recsys.config import InteractionColumns, InteractionsConfig, VocabulariesConfig
from recsys.data.ingest.ingestion import InteractionSource, ingest_interactions
from recsys.data.ingest.store_writer import build_store, make_vocabularies
from recsys.data.store import InteractionStore


def ours() -> None:
    """Runs the three phases, each a Beam pipeline, as the components do."""
    file, out, beam_args = sys.argv[1], Path(sys.argv[2]), sys.argv[3:]

    print(json.dumps(_plain(_source(file, None), out, beam_args)))


_FIRST = dt.date(2024, 3, 1)
_LATE_SHARE = 100
Ingest = Callable[[InteractionSource, str, str], dict[str, Any]]


def nights() -> None:
    """Runs the nights and prints their seconds."""
    out, rows, n_spans = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    kind: Format = "parquet" if sys.argv[4] == "parquet" else "csv"
    raw = out / "raw"
    raw.mkdir(parents=True)
    for day in range(n_spans):
        _write_span(raw, day, rows // n_spans, rows, kind)
    source = _source(f"{raw}/{{YYYY}}-{{MM}}-{{DD}}.*", n_spans)
    _night(source, out / "root", "first")
    _write_span(raw, n_spans, rows // n_spans, rows, kind)
    results = {
        "one more": _night(source, out / "root", "second"),
        "from scratch": _night(source, out / "other", "second"),
    }
    files = tuple(str(file) for file in sorted(raw.glob("*.*")))
    results["without spans"] = _plain(_source(files[-n_spans:], None), out / "plain")
    if len({result["digest"] for result in results.values()}) > 1:
        raise SystemExit("the stores differ")
    print(json.dumps(results))


def _write_span(raw: Path, day: int, rows: int, of_rows: int, kind: Format) -> None:
    """Writes a day; a hundredth of its events are of the day before, as with real logs."""
    date = _FIRST + dt.timedelta(days=day)
    midnight = (date - dt.date(1970, 1, 1)).days * 86_400
    file = raw / f"{date.isoformat()}.{kind}"
    late_s = 86_400 // _LATE_SHARE
    # 99 % of a day's length lies after midnight, so do as many of its events.
    write_events(file, rows, kind, day, midnight - late_s, 1, of_rows)


def _source(files: str | Sequence[str], spans: int | None) -> InteractionSource:
    columns = InteractionColumns(user="user", item="item", timestamp="timestamp")
    given = files if isinstance(files, str) else tuple(files)
    config = InteractionsConfig(files=given, columns=columns, spans=spans)
    return InteractionSource(interactions=config, eval_share=0.1)


def _night(source: InteractionSource, root: Path, name: str) -> dict[str, Any]:
    def read(source: InteractionSource, examples: str, letters: str) -> dict[str, Any]:
        return ingest_interactions(
            source, examples, letters, _pipeline(), root / "segments", "code"
        )

    return _timed(source, root / name, read)


def _plain(
    source: InteractionSource, out: Path, beam_args: Sequence[str] = ("--runner=DirectRunner",)
) -> dict[str, Any]:
    def read(source: InteractionSource, examples: str, letters: str) -> dict[str, Any]:
        return ingest_interactions(source, examples, letters, _pipeline(beam_args))

    return _timed(source, out, read)


def _timed(source: InteractionSource, out: Path, read: Ingest) -> dict[str, Any]:
    """Runs all phases, each as its component does; returns their seconds."""
    out.mkdir(parents=True)
    clock = [time.perf_counter()]
    examples, vocabulary, store = (out / name for name in ("examples", "vocabulary", "store"))
    summary = read(source, str(examples), str(out / "letters"))
    clock.append(time.perf_counter())
    vocabulary.mkdir()
    make_vocabularies(examples, summary["cut"], {}, None, vocabulary, VocabulariesConfig())
    clock.append(time.perf_counter())
    build_store(examples, vocabulary, summary["cut"], store)
    clock.append(time.perf_counter())
    InteractionStore.open(store)
    clock.append(time.perf_counter())
    names = ("ingest", "vocabulary", "store", "open")
    phases = dict(zip(names, (b - a for a, b in itertools.pairwise(clock)), strict=True))
    return {
        "seconds": clock[-1] - clock[0],
        "phases": phases,
        "digest": digest(store),
        "segments": summary.get("segments"),
        **{name: summary[name] for name in ("read", "good", "rejected", "duplicates")},
    }


def _pipeline(beam_args: Sequence[str] = ("--runner=DirectRunner",)) -> beam.Pipeline:
    return beam.Pipeline(options=PipelineOptions(list(beam_args)))


if __name__ == "__main__":
    run(ours, ours=ours, nights=nights)
