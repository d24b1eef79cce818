"""`python -m benchmarks.rank_step`: the training step of a DLRM.

The workload, the same for all, in the shape of Criteo's: 26 tables of `rows` × 64, a batch of one
id a table, Zipf(1.05) over all rows, and 13 numbers; layers 512-256-64 below and 512-512-256-1
above the products of all pairs; binary cross-entropy. Tables are trained by row-wise Adagrad,
layers by Adagrad. It prints the same lines as `benchmarks.embedding_step`. All have our settings of
malloc.

`python -m benchmarks.rank_step curve` compares the losses with our tables and with
`keras.layers.Embedding`, both with Adagrad and equal initial weights, on the same ids.
"""

from __future__ import annotations

import sys
import tempfile
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import numpy as np
from typer import Option

from benchmarks import measure
from benchmarks.embedding_step import OURS, WARMUP, Figures, Key, Setup
from benchmarks.peers.dlrm_case import TABLES

Peer = StrEnum("Peer", ["torchrec", "torch"])
_ROWS = [200_000]
_NO_PEERS: list[Peer] = []


def main(
    rows: Annotated[list[int], Option(help="Of each table.")] = _ROWS,
    batch: int = 4096,
    peers: list[Peer] = _NO_PEERS,
    steps: Annotated[int, Option(help="Measured, of a round.")] = 20,
    rounds: int = 3,
    seconds: Annotated[float, Option(help="A round's steps end after this time too.")] = 30.0,
    gpu: Annotated[bool, Option("--gpu", help="On the first GPU, not the CPU.")] = False,
    here: Annotated[bool, Option("--here", help="Peers in this environment.")] = False,
) -> None:
    """Measures all cases in turns and prints the lines; a peer that fails is left out."""
    keys = [Key(who, n) for n in rows for who in (OURS, *peers)]
    case = {"dim": 64, "warmup": WARMUP, "steps": steps, "seconds": seconds}
    setup = Setup(gpu, here, workload="dlrm", bench="rank_step")
    figures = Figures(setup, measure.gpu_name() if gpu else "")
    figures.measure_all(keys * rounds, case, batch, TABLES)
    figures.print_all()
    sys.exit(int(bool(figures.failed)))


def curve(rows: int = 10_000, batch: int = 1024, steps: int = 100) -> None:
    """Prints the largest difference of the losses, and the last loss of each."""
    from benchmarks.peers import dlrm_ours

    with tempfile.TemporaryDirectory() as folder:
        ids = Path(folder) / "ids.npy"
        np.save(ids, measure.zipf_batches(steps, batch, rows, seed=0, sides=TABLES))
        case = {"ids": str(ids), "rows": rows, "dim": 64, "warmup": 1, "steps": steps - 1}
        losses = [
            measure.call(dlrm_ours.losses, measure.simulated(1), plain=plain, seconds=1e9, **case)
            for plain in (False, True)
        ]
    ours, plain = (np.array(of.result) for of in losses)
    measure.print_line("rank_step", "loss, ours", [ours[-1]], "nats")
    measure.print_line("rank_step", "loss, ours-plain", abs(ours - plain), "nats")


if __name__ == "__main__":
    measure.run(main, curve=curve)
