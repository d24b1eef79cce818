"""`python -m benchmarks.checkpoint`: what saving checkpoints costs a run of many steps.

The same training runs in turn with the shipped interval between checkpoints and with none
but the last; measured is the time from one step to another one, told by the run itself,
so that neither start nor end is in it.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

import numpy as np

from benchmarks.measure import options_of, print_line, ratios, words_of
from benchmarks.public_splits import Csr, Split, write_data_folder
from recsys.config import TrainConfig
from recsys.system.events import ENVIRONMENT_VARIABLE, EventReader
from recsys.system.process import run_stage, stage_environment

_EVERY = TrainConfig().checkpoint.every_steps
_NEVER = 10**9
_WARM = 0.1
"""Share of the steps that are left out, while the machine gets warm."""


def main() -> None:
    """Runs pairs of trainings, and prints how long each took and their ratios."""
    parser = options_of("checkpoint", __doc__)
    parser.add_argument("--rows", type=int, default=1_000_000, help="of users, and of items")
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--batch-size", type=int, default=4096)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--every", type=int, default=_EVERY, help="steps between checkpoints")
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        write_data_folder(_split(options.rows), folder / "data")
        with_saves, without = [], []
        for number in range(options.rounds):
            without.append(_seconds(folder, f"without_{number}", options, _NEVER))
            with_saves.append(_seconds(folder, f"with_{number}", options, options.every))
    print_line("checkpoint", "without", without, "s")
    print_line("checkpoint", f"every {options.every} steps", with_saves, "s")
    print_line("checkpoint", "with / without", ratios(with_saves, without), "ratio")


def _split(rows: int, per_user: int = 5) -> Split:
    """Returns events of `rows` users, items drawn evenly."""
    items = np.random.default_rng(0).integers(0, rows, rows * per_user).astype(np.int32)
    train = Csr(items, np.arange(rows + 1) * per_user, rows)
    empty = Csr(items[:0], np.zeros(rows + 1, np.int64), rows)
    return Split(train, "ranked among all", (10,), empty)


def _seconds(folder: Path, name: str, options: argparse.Namespace, every: int) -> float:
    """Returns how long the steps of a training took, the first ones left out."""
    own = folder / name
    own.mkdir()
    stage = {
        "model": {"dim": options.dim, "history": 5, "widths": [options.dim]},
        "train": {
            "batch_size": options.batch_size,
            "epochs": options.epochs,
            "checkpoint": {"every_steps": every, "keep": 1},
        },
    }
    (own / "stage.json").write_text(json.dumps(stage))
    words = words_of(config=own / "stage.json", data=folder / "data", out=own / "model")
    environment = {**stage_environment("jax"), ENVIRONMENT_VARIABLE: str(own / "events")}
    run_stage("recsys.train", words, environment)
    told = [(e["done"], e["time"]) for e in EventReader(own / "events") if e.get("done")]
    total = told[-1][0]
    first = next(at for at in told if at[0] >= _WARM * total)
    return float(told[-1][1] - first[1])


if __name__ == "__main__":
    main()
