"""Our ingestion by itself: `python -m benchmarks.ingest_case.ours FILE OUT [BEAM ARGS]`.

Prints one line of JSON: seconds of each phase and of all, and the store's digests.
"""

from __future__ import annotations

import itertools
import json
import sys
import time
from pathlib import Path

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions

from benchmarks.ingest_case.digest import digest
from recsys.config import InteractionColumns, InteractionsConfig, VocabulariesConfig
from recsys.data.ingest.ingestion import InteractionSource, ingest_interactions
from recsys.data.ingest.store_writer import build_store
from recsys.data.ingest.vocabularies import make_vocabularies


def main() -> None:
    """Runs the three phases, as the components do."""
    file, out, beam_args = sys.argv[1], Path(sys.argv[2]), sys.argv[3:]
    columns = InteractionColumns(user="user", item="item", timestamp="timestamp")
    source = InteractionSource(
        interactions=InteractionsConfig(files=file, columns=columns), eval_share=0.1
    )
    examples = out / "examples"
    clock = [time.perf_counter()]
    summary = ingest_interactions(source, str(examples), str(out / "letters"), _pipeline(beam_args))
    clock.append(time.perf_counter())
    (out / "vocabulary").mkdir()
    make_vocabularies(
        interactions=examples,
        cut=summary["cut"],
        entities={},
        previous=None,
        out=out / "vocabulary",
        config=VocabulariesConfig(),
    )
    clock.append(time.perf_counter())
    build_store(examples, out / "vocabulary", summary["cut"], out / "store")
    clock.append(time.perf_counter())
    phases = dict(zip(("ingest", "vocabulary", "store"), _differences(clock), strict=True))
    result = {"seconds": clock[-1] - clock[0], "phases": phases, "digest": digest(out / "store")}
    counts = {name: summary[name] for name in ("read", "good", "rejected", "duplicates")}
    print(json.dumps({**result, **counts}))


def _pipeline(beam_args: list[str]) -> beam.Pipeline:
    return beam.Pipeline(options=PipelineOptions(beam_args))


def _differences(clock: list[float]) -> list[float]:
    return [end - start for start, end in itertools.pairwise(clock)]


if __name__ == "__main__":
    main()
