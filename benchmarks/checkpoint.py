"""`python -m benchmarks.checkpoint`: what saving checkpoints costs a run of many steps.

The same training runs in turn with the shipped interval between checkpoints and with none
but the last. The time is that from one step to another one, by the run's own events, so
that neither start nor end is in it.
"""

from __future__ import annotations

import functools
import itertools
import json
import tempfile
from pathlib import Path
from typing import Annotated

from typer import Option

from benchmarks.measure import in_turns, print_line, ratios, run
from benchmarks.public_splits import Csr, write_data_folder
from benchmarks.trainings import Training
from recsys.config import TrainConfig
from recsys.system.process import run_stage, stage_environment

_NEVER = 10**9
_WARM = 0.1
"""Share of the steps that are left out, while the machine gets warm."""


def main(
    rows: Annotated[int, Option(help="Users, and items.")] = 1_000_000,
    dim: int = 64,
    batch_size: int = 4096,
    epochs: int = 4,
    rounds: int = 2,
) -> None:
    """Runs pairs of trainings, and prints how long each took and their ratios."""
    every = TrainConfig().checkpoint.every_steps
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        write_data_folder(Csr.drawn(rows, rows, 5), root / "data")
        number = itertools.count()

        def measure(interval: int) -> float:
            saves = {"every_steps": interval, "keep": 1}
            train = {"batch_size": batch_size, "epochs": epochs, "checkpoint": saves}
            model = {"dim": dim, "history": 5, "widths": [dim]}
            (root / "stage.json").write_text(json.dumps({"model": model, "train": train}))
            return _seconds(Training(root, f"{interval}_{next(number)}"))

        ways = {interval: functools.partial(measure, interval) for interval in (_NEVER, every)}
        seconds = in_turns(ways, rounds)
    print_line("checkpoint", "without", seconds[_NEVER], "s")
    print_line("checkpoint", f"every {every} steps", seconds[every], "s")
    print_line("checkpoint", "with / without", ratios(seconds[every], seconds[_NEVER]), "ratio")


def _seconds(training: Training) -> float:
    """Returns how long the steps of a training took, the first ones left out."""
    run_stage(
        "recsys.stages.train", training.words(), {**training.begin(1), **stage_environment("jax")}
    )
    ends = [(event["done"], event["time"]) for event in training.events()]
    last, ended = ends[-1]
    began = next(time for step, time in ends if step >= _WARM * last)
    return float(ended - began)


if __name__ == "__main__":
    run(main)
