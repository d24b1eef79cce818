"""`python -m benchmarks.quality`: what a committed config reaches, over several seeds.

`movielens_small`, which ships with the project, is a whole `recsys run` a seed; the data
steps are cached after the first. The public splits with published figures are trained
on by `recsys.train` and measured as their protocol says; docs/benchmarks.md has them
beside the published figures.

`python -m benchmarks.quality shift --dataset NAME --data DIR` asks whether a split's held-out
part was drawn evenly by item: had the events of each user been drawn at random, each item
would have lost as many as its users' shares say, give or take; what it lost more or less is
told by how often it occurs.
"""

from __future__ import annotations

import itertools
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from typer import Option

from benchmarks.measure import ROOT, call, module, print_line, run, watch, words_of
from benchmarks.public_splits import LOADERS, Csr, Split, write_data_folder
from recsys.config import TrainStage
from recsys.config.load import load_stage
from recsys.data.event_log import newest_first
from recsys.models import load_model
from recsys.models.inference import embed_queries
from recsys.models.saved import TrainedModel
from recsys.system.process import run_stage, stage_environment

SHIPPED: Literal["movielens_small"] = "movielens_small"
CONFIGS = ROOT / "configs" / "quality"
Part = Literal["test", "valid"]
Public = Literal["gowalla_m1", "ncf_ml1m", "s3rec_beauty"]
_NO_SETS: list[str] = []


def main(
    dataset: Literal["gowalla_m1", "movielens_small", "ncf_ml1m", "s3rec_beauty"] = SHIPPED,
    data: Annotated[
        Path | None, Option(help="Folder of a public split, with protocol.json.")
    ] = None,
    part: Annotated[Part, Option(help="Of the split.")] = "test",
    seeds: Annotated[int, Option(help="Runs, with the seeds 0, 1, ….")] = 3,
    set: Annotated[list[str], Option(help="Override, as of `recsys run`.")] = _NO_SETS,
) -> None:
    """Runs every seed and prints a line for each metric."""
    if dataset == SHIPPED:
        _shipped(seeds, [word for override in set for word in ("--set", override)])
    elif data is None or set:
        sys.exit(f"{dataset} needs --data, and takes no --set")
    else:
        _public(dataset, data, part, seeds)


def _public(dataset: str, data: Path, part: Part, seeds: int) -> None:
    case = {"dataset": dataset, "data": str(data), "part": part}
    environment = {"KERAS_BACKEND": "jax"}  # Of the processes that train and embed.
    runs = [call(train, environment, True, **case, seed=seed) for seed in range(seeds)]
    peak = max(run.peak_rss_mib for run in runs)
    for name in runs[0].result["metrics"]:
        values = [run.result["metrics"][name] for run in runs]
        print_line("quality", name, values, "share", peak)
    seconds = [run.result["seconds"] for run in runs]
    print_line("quality", "seconds of training", seconds, "s", peak)


def _shipped(seeds: int, overrides: list[str]) -> None:
    config = ROOT / "configs" / f"{SHIPPED}.yaml"
    with tempfile.TemporaryDirectory() as root:
        runs = []
        for seed in range(seeds):
            command = module("recsys", "run", config, "--json", "--set", f"root={root}")
            runs.append(watch([*command, "--set", f"train.seed={seed}", *overrides]))
    peak = max(run.peak_rss_mib for run in runs)
    metrics = [run.result["metrics"] for run in runs]
    names = [name for name in metrics[0] if name != "baselines"]
    for name in names:
        print_line("quality", name, [of_run[name] for of_run in metrics], "share", peak)
    for baseline in metrics[0]["baselines"]:
        for name in names:
            values = [of_run["baselines"][baseline][name] for of_run in metrics]
            print_line("quality", f"{baseline} {name}", values, "share", peak)


# --- One seed of one data set, trained and measured.


def train(dataset: str, data: str, part: Part, seed: int) -> dict[str, Any]:
    """Returns the metrics of one seed, and the seconds of its training."""
    split = LOADERS[dataset](Path(data), part)
    stage = load_stage(CONFIGS / f"{dataset}.yaml", TrainStage)
    stage = stage.model_copy(update={"train": stage.train.model_copy(update={"seed": seed})})
    with tempfile.TemporaryDirectory() as scratch:
        saved, seconds = _trained(split, stage, Path(scratch))
        user, item = _vectors(split, saved, Path(scratch) / "model")
    return {"metrics": PROTOCOLS[split.kind](split, user, item), "seconds": seconds}


def _trained(split: Split, stage: TrainStage, folder: Path) -> tuple[TrainedModel, float]:
    """Returns the model, trained by a process of its own, and the seconds of its steps."""
    has_towers = getattr(stage.model, "widths", ()) is not None  # They read the features.
    tokens = (split.item_tokens, split.user_tokens) if has_towers else ()
    write_data_folder(split.train, folder / "data", *tokens)
    config = folder / "stage.json"
    config.write_text(stage.model_dump_json())
    words = words_of(config=config, data=folder / "data", out=folder / "model")
    result = run_stage("recsys.train", words, stage_environment("jax"))
    return load_model(folder / "model"), result["seconds"]


def _vectors(split: Split, saved: TrainedModel, model: Path) -> tuple[np.ndarray, np.ndarray]:
    """Returns the vectors of all users `[users, dim]` and items `[items, dim]`."""
    seen = split.train if split.seen is None else split.seen
    rows, offsets = (seen.items + 1).astype(np.int32), seen.offsets
    history = newest_first(rows, offsets[:-1], offsets[1:], saved.model.spec.config.history)
    user_row = np.arange(1, len(split.train) + 1, dtype=np.int32)
    user = embed_queries(saved.model, user_row, history, saved.inputs)
    return user, np.load(model / "candidates.npy")[1:]


# --- The published protocols, as their papers define them.


Metrics = dict[str, float]
_BLOCK = 512


def among_all(split: Split, user: np.ndarray, item: np.ndarray) -> Metrics:
    """Returns Recall@k and NDCG@k over all items but those of training.

    As NGCF and LightGCN count: recall over all relevant items of a user, the ideal DCG
    over the first min(k, relevant) places, means over the users with a relevant item.

    Args:
        split: What was held out.
        user: User vectors `[users, dim]` float32.
        item: Item vectors `[items, dim]` float32.
    """
    users = np.flatnonzero(np.diff(split.relevant.offsets))
    most = max(split.k)
    gain = 1.0 / np.log2(np.arange(2, most + 2))
    sums = {f"{name}@{k}": 0.0 for k in split.k for name in ("Recall", "NDCG")}
    for start in range(0, len(users), _BLOCK):
        block = users[start : start + _BLOCK]
        for row, top in zip(block, _top(split, user, item, block, most), strict=True):
            relevant = split.relevant[row]
            hits = np.isin(top, relevant)
            for k in split.k:
                ideal = gain[: min(k, len(relevant))].sum()
                sums[f"Recall@{k}"] += hits[:k].sum() / len(relevant)
                sums[f"NDCG@{k}"] += (hits[:k] * gain[:k]).sum() / ideal
    return {name: total / len(users) for name, total in sums.items()}


def one_among_all(split: Split, user: np.ndarray, item: np.ndarray) -> Metrics:
    """Returns HR@k and NDCG@k of the one item that was held out, among all the user hasn't."""
    metrics = among_all(split, user, item)
    return {name.replace("Recall", "HR"): value for name, value in metrics.items()}


def among_given(split: Split, user: np.ndarray, item: np.ndarray) -> Metrics:
    """Returns HR@k and NDCG@k of an item among given negatives; a tie counts against it.

    A negative that is the item itself, as some published lists have, is left out.
    """
    if split.candidates is None or split.users is None:
        raise ValueError("The split must name the candidates of each case.")
    scores = np.einsum("ncd,nd->nc", item[split.candidates], user[split.users])
    is_other = split.candidates != split.candidates[:, -1:]
    rank = 1 + ((scores >= scores[:, -1:]) & is_other).sum(axis=1)
    gain = 1.0 / np.log2(rank + 1)
    return {
        f"{name}@{k}": float(np.where(rank <= k, value, 0.0).mean())
        for k in split.k
        for name, value in (("HR", np.ones(len(rank))), ("NDCG", gain))
    }


PROTOCOLS: dict[str, Callable[[Split, np.ndarray, np.ndarray], Metrics]] = {
    "ranked among all": among_all,
    "ranked among all, one item": one_among_all,
    "ranked among given negatives": among_given,
}


def _top(split: Split, user: np.ndarray, item: np.ndarray, users: np.ndarray, k: int) -> np.ndarray:
    """Returns the best items of `users` `[b, k]`, without those that they have seen."""
    scores = user[users] @ item.T
    seen = split.train if split.seen is None else split.seen
    for row, number in enumerate(users):
        scores[row, seen[number]] = -np.inf
    best = np.argpartition(-scores, k - 1, axis=1)[:, :k]
    order = np.argsort(-np.take_along_axis(scores, best, axis=1), axis=1, kind="stable")
    return np.take_along_axis(best, order, axis=1)


# --- is a held-out part drawn evenly by item?


_BORDERS = (0, 15, 60, 200, 10**9)


def shift(
    dataset: Annotated[Public, Option()],
    data: Annotated[Path, Option(help="Folder of the data set.")],
) -> None:
    """Prints a line for each part of the split, and each range of popularity."""
    for part in ("valid", "test"):
        split = LOADERS[dataset](data, part)
        for line in held_out_shares(split.train, split.relevant):
            print(json.dumps({"part": part, **line}))


def held_out_shares(train: Csr, held: Csr) -> list[dict[str, float]]:
    """Returns, for items that occur about as often, which share of their events is held out.

    Args:
        train: What one trains on.
        held: What was held out of the same users.

    Returns:
        For each range: `from` and `to`, events of an item; `items`; `held_out`, the share
        that is; `expected`, the share had each user's been drawn at random; and `z_variance`,
        the variance over the items of their distance from it in standard deviations, 1 for
        a random draw.
    """
    share = np.diff(held.offsets) / np.maximum(np.diff(held.offsets) + np.diff(train.offsets), 1)
    items = np.concatenate([train.items, held.items])
    p = np.concatenate([np.repeat(share, np.diff(part.offsets)) for part in (train, held)])
    n_train, n_held = (np.bincount(c.items, minlength=c.n_items) for c in (train, held))
    expected = np.bincount(items, p, train.n_items)
    variance = np.bincount(items, p * (1 - p), train.n_items)
    n = n_train + n_held
    lines = []
    for low, high in itertools.pairwise(_BORDERS):
        which = (n > 0) & (n >= low) & (n < high)
        if not which.any():
            continue
        z = (n_held - expected)[which] / np.sqrt(np.maximum(variance[which], 1e-12))
        lines.append(
            {
                "from": low,
                "to": high,
                "items": int(which.sum()),
                "held_out": round(float(n_held[which].sum() / n[which].sum()), 4),
                "expected": round(float(expected[which].sum() / n[which].sum()), 4),
                "z_variance": round(float(z.var()), 2),
            }
        )
    return lines


if __name__ == "__main__":
    run(main, shift=shift)
