"""`python -m benchmarks.quality`: what a config reaches, over several seeds.

`--data DIR` takes a folder with a `protocol.json`, trains and measures as the
protocol says; `benchmarks/public_splits.py` has the format. `--config FILE` has the keys `model`
and `train`, or is a whole config; by default it is configs/quality/NAME.yaml, with the protocol's
name, or else what recsys does where a config names nothing. `--dataset NAME --data DIR` takes
configs/quality/NAME.yaml. `--vectors FILE` keeps the vectors of the first seed, arrays `user`
and `item` in the folder's numbering, and those of the further ones in FILE-1, …, as .npz.
docs/benchmarks.md has the figures beside the published ones.

Without `--data` it is a whole `recsys run` a seed on the data that ship with the project; the
data steps are cached after the first.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from typer import Option

from benchmarks.measure import ROOT, Watched, call, log, module, print_line, run, watch, words_of
from benchmarks.public_splits import (
    PartName,
    Protocol,
    Split,
    measure,
    read_split,
    write_data_folder,
)
from recsys.cli.processes import RunView
from recsys.cli.terminal import Console
from recsys.config import TrainStage
from recsys.config.load import load_stage
from recsys.data.event_log import newest_first
from recsys.errors import RecsysError
from recsys.system.events import shown_events
from recsys.system.process import run_stage, stage_environment

if TYPE_CHECKING:
    from recsys.tasks.model_folder import TrainedModel

SHIPPED = "movielens_small"
CONFIGS = ROOT / "configs" / "quality"
_NO_SETS: list[str] = []


def main(
    dataset: Annotated[str | None, Option(help="Name of a committed config.")] = None,
    data: Annotated[Path | None, Option(help="Folder with protocol.json.")] = None,
    config: Annotated[Path | None, Option(help="Config; see above.")] = None,
    part: Annotated[PartName, Option(help="Of the protocol.")] = "test",
    seeds: Annotated[int, Option(min=1, help="Runs, with the seeds 0, 1, ….")] = 3,
    set: Annotated[list[str], Option(help="Override of the config, key=value.")] = _NO_SETS,
    vectors: Annotated[Path | None, Option(help="Keep the vectors in this .npz.")] = None,
) -> None:
    """Runs every seed and prints a line for each metric."""
    if data is None:
        if dataset not in (None, SHIPPED) or part != "test" or vectors is not None:
            sys.exit("A data set, a part of it and its vectors need its folder: --data DIR.")
        shipped = ROOT / "configs" / f"{SHIPPED}.yaml"
        _shipped(config or shipped, seeds, [word for s in set for word in ("--set", s)])
        return
    committed = {file.stem: file for file in CONFIGS.glob("*.yaml")}
    if dataset is not None and dataset not in committed:
        sys.exit(f"--dataset {dataset} must be one of {', '.join(sorted(committed))}.")
    split = read_split(data, part)
    name = dataset or Protocol.of(data).name
    file = config or committed.get(name, committed["default"])
    try:
        load_stage(file, TrainStage, set)
    except RecsysError as error:
        sys.exit(str(error))
    log(f"{data}, {part}: {split}; config: {file}")
    for note in split.notes:
        log(note)
    case = {"data": str(data), "part": part, "config": str(file), "overrides": set}
    files = [_of_seed(vectors, seed) if vectors else None for seed in range(seeds)]
    runs = [_run(case, seed, file) for seed, file in enumerate(files)]
    _print(runs, [run.result["metrics"] for run in runs], "share")
    _print(runs, [{"seconds of training": run.result["seconds"]} for run in runs], "s")


def _of_seed(vectors: Path, seed: int) -> str:
    vectors.parent.mkdir(parents=True, exist_ok=True)
    name = f"{vectors.name.removesuffix('.npz')}{f'-{seed}' if seed else ''}.npz"
    return str(vectors.with_name(name))


def _run(case: dict[str, Any], seed: int, vectors: str | None) -> Watched:
    environment = {"KERAS_BACKEND": "jax"}  # Of the processes that train and embed.
    try:
        return call(train, environment, True, **case, seed=seed, vectors=vectors)
    except subprocess.CalledProcessError:
        sys.exit(f"Seed {seed} failed; the reason is above.")


def _print(runs: list[Watched], values: list[dict[str, float]], unit: str, who: str = "") -> None:
    """Prints a line for each figure, with the values of the runs."""
    peak = max(run.peak_rss_mib for run in runs)
    for name in values[0]:
        print_line("quality", f"{who}{name}", [of_run[name] for of_run in values], unit, peak)


def _shipped(config: Path, seeds: int, overrides: list[str]) -> None:
    with tempfile.TemporaryDirectory() as root:
        command = module("recsys", "run", config, "--json", "--set", f"root={root}", *overrides)
        runs = [watch([*command, "--set", f"train.seed={seed}"]) for seed in range(seeds)]
    metrics = [run.result["metrics"] for run in runs]
    baselines = [of_run.pop("baselines") for of_run in metrics]
    _print(runs, metrics, "share")
    for who in baselines[0]:
        _print(runs, [of_run[who] for of_run in baselines], "share", f"{who} ")


# --- One seed of one data set, trained and measured.


def train(
    data: str,
    part: PartName,
    config: str,
    overrides: list[str],
    seed: int,
    vectors: str | None = None,
) -> dict[str, Any]:
    """Returns the metrics of one seed, and the seconds of its training; keeps the vectors."""
    split = read_split(Path(data), part)
    stage = load_stage(Path(config), TrainStage, [*overrides, f"train.seed={seed}"])
    with tempfile.TemporaryDirectory() as scratch:
        try:
            log(f"seed {seed}")
            with RunView(Console(stderr=True)) as view, shown_events(view.show):
                saved, seconds = _trained(split, stage, Path(scratch))
        except RecsysError as error:
            sys.exit(str(error))
        user, item, added = _vectors(split, saved, Path(scratch) / "model")
    if vectors is not None:
        np.savez(vectors, user=user, item=item)
        if added is not None:
            log("The figures have the model's transitions, which the vectors don't say.")
    return {"metrics": measure(split, user, item, added), "seconds": seconds}


def _trained(split: Split, stage: TrainStage, folder: Path) -> tuple[TrainedModel, float]:
    """Returns the model, trained by a process of its own, and the seconds of its steps."""
    from recsys.tasks.model_folder import load_model

    has_towers = getattr(stage.model, "widths", ()) is not None  # They read the features.
    of_items, of_users = (split.item_tokens, split.user_tokens) if has_towers else ({}, {})
    data = folder / "data"
    write_data_folder(split.train, data, of_items, of_users, rule=split.rule, times=split.times)
    config = folder / "stage.json"
    config.write_text(stage.model_dump_json())
    words = words_of(config=config, data=data, out=folder / "model")
    result = run_stage("recsys.stages.train", words, stage_environment("jax"))
    return load_model(folder / "model"), result["seconds"]


def _vectors(split: Split, saved: TrainedModel, model: Path) -> tuple[Any, Any, Any]:
    """Returns the vectors of users and items `[…, dim]`, and the summands of their scores."""
    from recsys.models.inference import embed_queries

    rows, offsets = (split.seen.items + 1).astype(np.int32), split.seen.offsets
    history = newest_first(rows, offsets[:-1], offsets[1:], saved.model.spec.config.history)
    user_row = np.arange(1, len(split.train) + 1, dtype=np.int32)
    user = embed_queries(saved.model, user_row, history, saved.inputs)
    transitions = saved.model.transitions
    added = None if transitions is None else transitions.of_histories(history)[:, 1:]
    return user, np.load(model / "candidates.npy")[1:], added


if __name__ == "__main__":
    run(main)
