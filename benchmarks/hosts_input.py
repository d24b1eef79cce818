"""Bytes that each of several processes reads of a store, relative to a single process.

    python -m benchmarks.hosts_input --processes 1 2 4

It builds the parts of all processes, one after the other, without starting any. Each line is
`bytes that the process with the most reads × processes / bytes that one reads`: 1 is a perfect
division, and `processes` none at all. Cases:

    two towers     with histories, known positives, uniform and hard negatives, and a feature
                   of each side
    sequences      packed, against uniform negatives
    full softmax   packed sequences, against the whole catalogue
"""

from __future__ import annotations

import dataclasses
import tempfile
from enum import StrEnum
from pathlib import Path
from typing import Annotated

from typer import Option

from benchmarks.input_pipeline import make_source, make_store
from benchmarks.measure import print_line, run
from recsys.config import TrainConfig, TwoTowerConfig
from recsys.data.shuffle import BatchPart
from recsys.data.store import InteractionStore
from recsys.models.config import SasRecConfig
from recsys.tasks.batch_parts import ReadCount
from recsys.tasks.retrieval.training.batches import BatchSource
from recsys.tasks.retrieval.training.sequences import SequenceSource

Case = StrEnum("Case", {"TOWERS": "two towers", "SEQUENCES": "sequences", "FULL": "full softmax"})
_CASES = [*Case]
_PROCESSES = [1, 2, 4]
_BATCHES = 8


def main(
    rows: Annotated[int, Option(help="Events of the store.")] = 1_000_000,
    history: Annotated[int, Option(help="Items of a history.")] = 50,
    batch: Annotated[int, Option(help="Examples of a batch.")] = 4096,
    processes: Annotated[list[int], Option(help="Numbers of processes.")] = _PROCESSES,
    case: Annotated[list[Case], Option(help="Measure these alone.")] = _CASES,
) -> None:
    """Prints a line for each case and number of processes."""
    with tempfile.TemporaryDirectory(prefix="recsys-input-") as folder:
        make_store(Path(folder), rows)
        store = InteractionStore.open(Path(folder))
        for name in case:
            source = _source(store, name, rows, history, batch)
            alone = max(_bytes(source, 1))
            for n in processes:
                label = f"{rows} rows, {name} {history}, {n} processes"
                ratios = [max(_bytes(source, n)) * n / alone]
                print_line("hosts_input", label, ratios, "input bytes x P / one process")


def _source(
    store: InteractionStore, case: Case, rows: int, history: int, batch: int
) -> BatchSource:
    source = make_source(store, "model", rows, history, batch)
    if case is Case.TOWERS:
        more = {"hard_negatives": {"count": 256}, "known_positives": 20}
        train = TrainConfig(**{**source.train.model_dump(), **more})
        return dataclasses.replace(source, train=train)
    loss = "full_softmax" if case is Case.FULL else "sampled_softmax"
    return SequenceSource(
        source.events,
        source.catalogue,
        TwoTowerConfig(pooling=SasRecConfig(), history=history),
        TrainConfig(**{**source.train.model_dump(), "loss": loss}),
        multiple=max(_PROCESSES),
    )


def _bytes(source: BatchSource, processes: int) -> list[int]:
    """Returns what each of the processes reads in an epoch, of which some batches are built."""
    n_bytes = []
    for index in range(processes):
        part = BatchPart((index,), processes)
        own = dataclasses.replace(source, part=part, reads=ReadCount())
        own.batches(0, min(_BATCHES, own.steps_per_epoch))
        n_bytes.append(own.bytes_per_epoch)
    return n_bytes


if __name__ == "__main__":
    run(main)
