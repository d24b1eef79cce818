"""`python -m benchmarks.quality_case.run`: one seed of one data set, trained and measured."""

from __future__ import annotations

import argparse
import dataclasses
import json
import tempfile
from pathlib import Path

import numpy as np

from benchmarks.quality_case.data_folder import write_data_folder
from benchmarks.quality_case.data_sets import LOADERS, Split
from benchmarks.quality_case.protocols import PROTOCOLS
from recsys.config import TrainStage
from recsys.config_file import load_stage
from recsys.data.event_log import newest_first
from recsys.models import load_model
from recsys.models.inference import embed_queries
from recsys.models.saved import TrainedModel
from recsys.process import run_stage, stage_environment

CONFIGS = Path(__file__).resolve().parents[2] / "configs" / "quality"


def main() -> None:
    """Trains, measures, and prints the metrics as a line of JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.quality_case.run")
    parser.add_argument("--dataset", choices=sorted(LOADERS), required=True)
    parser.add_argument("--data", type=Path, required=True, help="folder of the data set")
    parser.add_argument("--part", choices=("test", "valid"), default="test")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--config", type=Path, help="instead of the committed one")
    parser.add_argument("--vectors", type=Path, help="file for `user` and `item` vectors, .npz")
    options = parser.parse_args()
    split = LOADERS[options.dataset](options.data, options.part)
    stage = load_stage(options.config or CONFIGS / f"{options.dataset}.yaml", TrainStage)
    stage = stage.model_copy(
        update={"train": stage.train.model_copy(update={"seed": options.seed})}
    )
    with tempfile.TemporaryDirectory() as scratch:
        saved, seconds = _trained(split, stage, Path(scratch))
        user, item = _vectors(split, saved, Path(scratch) / "model")
    if options.vectors:
        np.savez(options.vectors, user=user, item=item)
    metrics = PROTOCOLS[split.kind](split, user, item)
    print(json.dumps({"metrics": metrics, "seconds": seconds}))


def _trained(split: Split, stage: TrainStage, folder: Path) -> tuple[TrainedModel, float]:
    """Returns the model, trained by a process of its own, and the seconds of its steps."""
    write_data_folder(_with_what_is_read(split, stage), folder / "data")
    config = folder / "stage.json"
    config.write_text(stage.model_dump_json())
    words = ["--config", config, "--data", folder / "data", "--out", folder / "model"]
    result = run_stage("recsys.train", list(map(str, words)), stage_environment("jax"))
    return load_model(folder / "model"), result["seconds"]


def _with_what_is_read(split: Split, stage: TrainStage) -> Split:
    """Returns the split without features if the model has no layer that reads them."""
    if getattr(stage.model, "widths", ()) is not None:
        return split
    return dataclasses.replace(split, item_tokens={}, user_tokens={})


def _vectors(split: Split, saved: TrainedModel, model: Path) -> tuple[np.ndarray, np.ndarray]:
    """Returns the vectors of all users `[users, dim]` and items `[items, dim]`."""
    seen = split.train if split.seen is None else split.seen
    rows, offsets = (seen.items + 1).astype(np.int32), seen.offsets
    history = newest_first(rows, offsets[:-1], offsets[1:], saved.model.spec.config.history)
    user_row = np.arange(1, len(split.train) + 1, dtype=np.int32)
    user = embed_queries(saved.model, user_row, history, saved.inputs)
    return user, np.load(model / "candidates.npy")[1:]


if __name__ == "__main__":
    main()
